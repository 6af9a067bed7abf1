"""What to do about a frame that needs more room than the engine has, and how full that gets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu.domains import NUM_BACKBONE_LEVELS

Overflow = Mapping[str, tuple[int, int]]
"""What was needed and what there was room for, by name."""

SPARE = 1.25
"""Room made over what a frame needed: the next one is rarely the same."""
MOST_VOXELS, MOST_POINTS = 4_000_000, 16_000_000
"""Room that an engine may grow to, where its memory allows."""

POINTS = "points"
_MARKS = (POINTS, *(f"rows of level {i}" for i in range(1, NUM_BACKBONE_LEVELS + 1)))


def larger(config: LidarConfig, overflow: Overflow) -> LidarConfig | None:
    """Return the configuration of an engine that has room for a frame, or None beyond the limits.

    Args:
        config: Of the engine that was too small.
        overflow: What the frame needed. Levels and tiles get their room from ``max_voxels``, in
            fixed shares.
    """
    ratio = max((n / room for name, (n, room) in overflow.items() if name != POINTS), default=0.0)
    points = _grown(config.input.point_capacity, overflow.get(POINTS, (0, 1))[0], MOST_POINTS)
    before = config.voxelization.max_voxels
    voxels = _grown(before, math.ceil(before * ratio), MOST_VOXELS)
    if points is None or voxels is None:
        return None
    return dataclasses.replace(
        config,
        input=dataclasses.replace(config.input, point_capacity=points),
        voxelization=dataclasses.replace(config.voxelization, max_voxels=voxels),
    )


def _grown(room: int, needed: int, most: int) -> int | None:
    if needed <= room:
        return room
    return min(math.ceil(needed * SPARE), most) if needed <= most else None


def refusal(overflow: Overflow) -> InvalidFrame:
    """Return the error about a frame that is not to be helped."""
    named = ", ".join(f"{needed} {name} of {room}" for name, (needed, room) in overflow.items())
    return InvalidFrame(
        f"The cloud needs more room than the GPU engine has ({named}); raise "
        "'voxelization.max_voxels', or 'input.point_capacity' for points, or set "
        "'overflow_policy' to 'retry'.",
        code="engine_overflow",
    )


class HighWater:
    """The most that any frame needed of what can run out: points, and rows of each level."""

    def __init__(self) -> None:
        self._most = [0] * (1 + NUM_BACKBONE_LEVELS)

    def see(self, points: int, rows: Sequence[int] = (0,) * NUM_BACKBONE_LEVELS) -> None:
        """Take a frame into account.

        Args:
            points: Of the cloud.
            rows: Needed by each level, where that is known.
        """
        self._most = list(map(max, self._most, (points, *rows)))

    def marks(self, points: int, rows: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Return the marks beside the room that there is, by name.

        Args:
            points: Room for points.
            rows: Room for rows of each level.
        """
        return dict(zip(_MARKS, zip(self._most, (points, *rows))))
