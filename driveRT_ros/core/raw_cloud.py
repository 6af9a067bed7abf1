"""A cloud as its message has it, and points of which only the device knows how many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.frame import DecodeReport, PointBatch

ROLES = ("x", "y", "z", "intensity", "time", "ring")
"""What a field of a point may be, in the order in which kernels know them."""


def intensity_fill(config: InputConfig) -> float:
    """Return what stands for an intensity that is not finite, before it is scaled: a float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(config.default_intensity / (config.intensity_scale or 1.0)))


@dataclass(frozen=True)
class RawStatus:
    """What unpacking a cloud on a device found, with the numbers that its report follows from.

    Args:
        num_points: Points that stay.
        usable: Points whose coordinates are below the limit, before thinning.
        finite: Points whose coordinates are finite.
        worst: The largest absolute one of these.
        odd_intensity: Whether an intensity of the points that stay is not finite.
        odd_time: Whether a time is not.
        odd_ring: Whether a ring is no number of 32 bits.
        intensity_limits: Least and greatest finite intensity in the message; None without any.
        time_limits: Likewise of the times.
    """

    num_points: int
    usable: int
    finite: int
    worst: float
    odd_intensity: bool
    odd_time: bool
    odd_ring: bool
    intensity_limits: tuple[float, float] | None
    time_limits: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class RawCloud:
    """One LiDAR message whose layout is known to be sound, not decoded yet.

    Args:
        data: (bytes,) uint8 of all points, of the message; it is only read.
        num_points: Points in it.
        width: Points a row.
        point_step: Bytes from a point to the next.
        row_step: Bytes from a row to the next.
        big_endian: Byte order of every field.
        fields: Offset in a point and PointField constant, by role out of :data:`ROLES`.
        config: Scale, clip, default and capacity.
        stamp_ns: Header stamp.
        frame_id: Header frame.
        decode: Decodes it on the host.
        explain: Returns the report that decoding on the host would give, or raises its error.
    """

    data: np.ndarray
    num_points: int
    width: int
    point_step: int
    row_step: int
    big_endian: bool
    fields: Mapping[str, tuple[int, int]]
    config: InputConfig
    stamp_ns: int
    frame_id: str
    decode: Callable[[], PointBatch]
    explain: Callable[[RawStatus], DecodeReport]

    @property
    def most_points(self) -> int:
        """Points that may stay."""
        return min(self.num_points, self.config.point_capacity)


@dataclass(frozen=True)
class CloudSummary:
    """What is left to say about a cloud whose points are on a device.

    Args:
        stamp_ns: Header stamp.
        frame_id: Header frame.
        num_points: Points that were decoded.
        report: Dropped counts by reason, and assumptions.
    """

    stamp_ns: int
    frame_id: str
    num_points: int
    report: DecodeReport

    def __len__(self) -> int:
        return self.num_points


class CountedRows:
    """Points on a device, first of a buffer with room for all there may be.

    Args:
        rows: (room, 5) float32.
        count: (1,) int32 on the device: how many of them there are.
        read: Returns that number; waits until it is known, and for nothing later.
    """

    def __init__(self, rows: torch.Tensor, count: torch.Tensor, read: Callable[[], int]) -> None:
        self.rows, self.count, self._read = rows, count, read

    @property
    def room(self) -> int:
        """How many there may be."""
        return len(self.rows)

    def at(self, rows: torch.Tensor) -> CountedRows:
        """Return the same points in another buffer."""
        return CountedRows(rows, self.count, self._read)

    def exact(self) -> torch.Tensor:
        """Return (N, 5) the points alone; waits as ``read`` does."""
        return self.rows[: self._read()]


Cloud: TypeAlias = torch.Tensor | CountedRows
"""The points of a frame."""


def exact(cloud: Cloud) -> torch.Tensor:
    """Return the points alone; waits where their number is not known yet."""
    return cloud.exact() if isinstance(cloud, CountedRows) else cloud
