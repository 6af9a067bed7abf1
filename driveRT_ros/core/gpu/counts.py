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


def read_counts(maps: FrameMaps) -> FrameCounts:
    """Return the counts of the last frame; waits for the GPU."""
    levels, domains = maps.levels, maps.domains
    parts = [level.counts[:2] for level in levels]
    parts += [domain.counts[:1] for domain in domains.values()]
    values = torch.cat([*parts, maps.dropped[:2]]).tolist()
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
