"""What the engine counted in a frame, read in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from driveRT_ros.core.gpu.frame_maps import FrameMaps


@dataclass(frozen=True)
class FrameCounts:
    """Counts of one frame, on the host.

    Args:
        rows: Rows needed by each level.
        non_finite_points: Points left out because a value is not finite.
        out_of_range_points: Points left out because they are off the grid.
        overflow: What was needed and what fits, by name, where it did not fit; the rows of such a
            frame are incomplete.
    """

    rows: tuple[int, ...]
    non_finite_points: int
    out_of_range_points: int
    overflow: Mapping[str, tuple[int, int]]


class CountsReader:
    """Brings the counts of a frame to the host, without holding up what is enqueued after them.

    Args:
        maps: Where they are counted.
    """

    def __init__(self, maps: FrameMaps) -> None:
        self._maps = maps
        parts = [level.counts[:2] for level in maps.levels]
        parts += [domain.counts[:1] for domain in maps.domains.values()]
        self._parts = [*parts, maps.dropped[:2]]
        cuda = maps.device.type == "cuda"
        size = sum(len(part) for part in self._parts)
        self._host = torch.empty(size, dtype=torch.int32, pin_memory=cuda)
        self._arrived = torch.cuda.Event() if cuda else None

    def enqueue(self) -> None:
        """Copy the counts of the frame in place, on the current stream."""
        self._host.copy_(torch.cat(self._parts), non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._maps.device))

    def read(self) -> FrameCounts:
        """Return the counts that were enqueued last; waits for them and for nothing later."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return _named(self._maps, self._host.tolist())


def _named(maps: FrameMaps, values: list[int]) -> FrameCounts:
    levels, domains = maps.levels, maps.domains
    leaves, rows = values[: 2 * len(levels) : 2], values[1 : 2 * len(levels) : 2]
    tiles = values[2 * len(levels) : -2]

    needed: dict[str, tuple[int, int]] = {}
    for number, level in enumerate(levels, start=1):
        needed[f"rows of level {number}"] = rows[number - 1], level.shape.row_capacity
        needed[f"leaves of level {number}"] = leaves[number - 1], level.shape.leaf_capacity
    for (name, domain), count in zip(domains.items(), tiles):
        needed[f"tiles of {name}"] = count, domain.shape.tile_capacity
    overflow = {name: pair for name, pair in needed.items() if pair[0] > pair[1]}
    return FrameCounts(tuple(rows), values[-2], values[-1], overflow)
