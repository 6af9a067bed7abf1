"""One annotated frame as it is trained on, packed into 8 bytes a point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.frame import SceneFrame
from driveRT_ros.core.sweeps import SweepBuffer

STEP_M = 0.0025
"""Step of packed coordinates: an eighth of the noise of a range, and 81 m fit 16 bits."""
STEP_S = 0.0025
"""Step of packed time lags; 8 bits reach 0.64 s."""
REACH_M = 32767 * STEP_M
_ROUNDING_M = 1e-3  # far more than 32-bit coordinates are rounded by

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Packed:
    """Points in 8 bytes each.

    Args:
        xyz: (N, 3) int16, steps of :data:`STEP_M`.
        rest: (N, 2) uint8 intensity and time lag in steps of :data:`STEP_S`.
    """

    xyz: npt.NDArray[np.int16]
    rest: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.xyz)


@dataclass(frozen=True, eq=False)
class Sample:
    """One frame.

    Args:
        points: Of all sweeps, in the LiDAR frame.
        boxes: (M, 9) float32; NaN velocity where it is unknown.
        labels: (M,) int64 class over all heads.
        num_points: (M,) int64 points of all sweeps in each box.
    """

    points: Packed
    boxes: Floats
    labels: npt.NDArray[np.int64]
    num_points: npt.NDArray[np.int64]


def pack(points: Floats) -> Packed:
    """Return points (N, 5) x, y, z, intensity, time lag in packed form, without those too far."""
    columns = np.ascontiguousarray(points.T)  # much faster than by row
    near = (np.abs(columns[:3]) <= REACH_M).all(axis=0)
    if not near.all():
        columns = columns.compress(near, axis=1)
    xyz = np.empty((columns.shape[1], 3), np.int16)
    for axis in range(3):
        xyz[:, axis] = np.rint(columns[axis] / STEP_M)
    rest = np.empty((len(xyz), 2), np.uint8)
    rest[:, 0] = np.rint(columns[3]).clip(0, 255)
    rest[:, 1] = np.rint(columns[4] / STEP_S).clip(0, 255)
    return Packed(xyz, rest)


def unpack(packed: Packed) -> Floats:
    """Return (N, 5) float32 x, y, z, intensity, time lag."""
    out = np.empty((len(packed), 5), np.float32)
    for axis in range(3):
        out[:, axis] = packed.xyz[:, axis] * np.float32(STEP_M)
    out[:, 3] = packed.rest[:, 0]
    out[:, 4] = packed.rest[:, 1] * np.float32(STEP_S)
    return out


def points_in_boxes(
    points: Floats, boxes: Floats, order: npt.NDArray[np.int64] | None = None
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of the points in each box, every point moved on to the stamp of the frame.

    A past point of a moving object lies where the object was; ``position + velocity * time lag``
    brings it back into the box.

    Args:
        points: (N, 5).
        boxes: (M, 9); an unknown velocity counts as 0.
        order: (N,) rows of the points as a stable sort by x has them, where it is known.
    """
    if order is None:
        order = _order(points[:, 0])
    xs, ys = points[:, 0][order].astype(np.float64), points[:, 1][order]
    oldest = float(points[:, 4].max()) if len(points) else 0.0
    for x, y, z, length, width, height, yaw, vx, vy in boxes.astype(np.float64):
        vx, vy = (0.0 if np.isnan(v) else v for v in (vx, vy))
        half = np.hypot(length, width) / 2
        reach, aside = half + abs(vx) * oldest, half + abs(vy) * oldest + _ROUNDING_M
        first, last = np.searchsorted(xs, (x - reach, x + reach))
        strip = ys[first:last]
        rows = order[first:last][(strip >= y - aside) & (strip <= y + aside)]
        some = points[rows].astype(np.float64)
        dx, dy = some[:, 0] + vx * some[:, 4] - x, some[:, 1] + vy * some[:, 4] - y
        u = dx * np.cos(yaw) + dy * np.sin(yaw)
        v = dy * np.cos(yaw) - dx * np.sin(yaw)
        inside = (np.abs(u) <= length / 2) & (np.abs(v) <= width / 2)
        inside &= np.abs(some[:, 2] - z) <= height / 2
        yield rows[inside]


def _order(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return what a stable ``argsort`` gives, of finite values and several times faster.

    NumPy sorts 16 bits in one pass and everything else by comparing: the lower half of the bits
    goes first, then the upper half.
    """
    bits = (values + np.float32(0.0)).view(np.int32)  # the sum leaves one zero of the two
    bits = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # negative numbers grow downwards
    lower = np.argsort((bits & 0xFFFF).astype(np.uint16), kind="stable")
    return lower[np.argsort((bits >> 16).astype(np.int16)[lower], kind="stable")]


def samples_of(
    frames: Iterable[SceneFrame],
    densification: DensificationConfig,
    class_names: tuple[str, ...],
) -> Iterator[Sample]:
    """Join the sweeps of a drive and yield its annotated frames.

    Args:
        frames: Sweeps of one drive in order of time.
        densification: How many past sweeps are joined.
        class_names: Of the model; objects of other classes are left out.
    """
    buffer = SweepBuffer(densification)
    for frame in frames:
        pose = None if frame.T_world_ego is None else frame.T_world_ego @ frame.T_ego_lidar
        truth = frame.ground_truth
        if truth is None:
            buffer.keep(frame.points, pose)
            continue
        points = buffer.push(frame.points, pose).numpy()
        names = [truth.class_names[label] for label in truth.labels.tolist()]
        known = [k for k, name in enumerate(names) if name in class_names]
        boxes = truth.boxes.numpy().astype(np.float32)[known]
        packed = pack(points)
        order = np.argsort(packed.xyz[:, 0], kind="stable")  # 16 bits: a single pass
        counts = [len(rows) for rows in points_in_boxes(unpack(packed), boxes, order)]
        yield Sample(
            packed,
            boxes,
            np.array([class_names.index(names[k]) for k in known], np.int64),
            np.array(counts, np.int64),
        )
