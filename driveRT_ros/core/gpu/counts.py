"""What the engine counted in a frame, read in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.gpu.transfers import HostCopy

if TYPE_CHECKING:
    from driveRT_ros.core.gpu.frame_maps import FrameMaps


@dataclass(frozen=True)
class FrameCounts:
    """Counts of one frame, on the host.

    Args:
        rows: Rows needed by each level.
        non_finite_points: Points left out because a value is not finite.
        out_of_range_points: Points left out because they are off the grid.
        used_points: Points that voxels are the mean of.
        overflow: What was needed and what fits, by name, where it did not fit; the rows of such a
            frame are incomplete.
    """

    rows: tuple[int, ...]
    non_finite_points: int
    out_of_range_points: int
    used_points: int
    overflow: Mapping[str, tuple[int, int]]


class CountsReader:
    """Brings the counts of a frame to the host, without holding up what is enqueued after them.

    Args:
        maps: Where they are counted.

    Attributes:
        size: 32-bit words that hold them.
    """

    def __init__(self, maps: FrameMaps) -> None:
        levels, domains = maps.levels, maps.domains
        room = {f"rows of level {i}": v.shape.row_capacity for i, v in enumerate(levels, 1)}
        room |= {f"leaves of level {i}": v.shape.leaf_capacity for i, v in enumerate(levels, 1)}
        room |= {f"tiles of {name}": d.shape.tile_capacity for name, d in domains.items()}
        self._names, self._room = tuple(room), np.array(list(room.values()))
        self._levels = len(levels)
        # In the order of the names; then what cannot overflow.
        self._parts = [level.counts[1:2] for level in levels]
        self._parts += [level.counts[:1] for level in levels]
        self._parts += [domain.counts[:1] for domain in domains.values()]
        self._parts += [maps.dropped[:2], maps.used_points]
        self.size = sum(map(len, self._parts))
        self._packed = torch.zeros(self.size, dtype=torch.int32, device=maps.device)
        self._copy = HostCopy(self._packed)

    def pack(self, out: torch.Tensor) -> None:
        """Gather the counts of the frame in place, on the current stream.

        Args:
            out: (size,) int32 on the device.
        """
        torch.cat(self._parts, out=out)

    def enqueue(self) -> None:
        """Copy the counts of the frame in place, on the current stream."""
        self.pack(self._packed)
        self._copy.enqueue()

    def read(self) -> FrameCounts:
        """Return the counts that were enqueued last; waits for them and for nothing later."""
        self._copy.wait()
        return self.named(self._copy.words)

    def named(self, words: npt.NDArray[np.int32]) -> FrameCounts:
        """Return what :meth:`pack` gathered.

        Args:
            words: (size,) on the host.
        """
        bounded = words[: len(self._names)]
        over = np.flatnonzero(bounded > self._room)
        overflow = {self._names[i]: (int(bounded[i]), int(self._room[i])) for i in over}
        rows = tuple(words[: self._levels].tolist())
        non_finite, out_of_range, used = words[len(self._names) :].tolist()
        return FrameCounts(rows, non_finite, out_of_range, used, overflow)
