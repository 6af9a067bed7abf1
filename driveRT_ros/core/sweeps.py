"""Ego-motion compensated accumulation of past LiDAR sweeps.

A past point is moved by ``T_now_then = inverse(T_world_now) @ T_world_then``, in float64 until the
points are near the sensor again, so that world coordinates of thousands of kilometres cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.raw_cloud import Cloud, RawCloud
from driveRT_ros.core.rows import RowMaker, Rows, plain_rows

FloatArray = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
_ROTATION_TOLERANCE = 1e-3
_BLOCK_POINTS = 8192  # 400 KB of float64 before and after: within the second-level cache


@dataclass
class Sweep:
    """A past sweep.

    Args:
        stamp_ns: When.
        T_world_lidar: (4, 4) where.
        points: (5, N) float32 in its own LiDAR frame, without the vehicle itself, or what makes
            them where they are wanted on the host.
        there: The same on a device, where they were wanted there.
        kept: What a device kept of a message that it unpacked.
    """

    stamp_ns: int
    T_world_lidar: FloatArray
    points: Floats | Callable[[], Floats]
    there: torch.Tensor | None = None
    kept: Any = None

    @property
    def columns(self) -> Floats:
        """(5, N) the points, on the host."""
        if callable(self.points):
            self.points = self.points()
        return self.points

    @property
    def count(self) -> int:
        """Points."""
        return self.columns.shape[1]


History = tuple[tuple[Sweep, ...], str]
"""Past sweeps, newest first, and their frame."""


def relative_transform(T_world_to: FloatArray, T_world_from: FloatArray) -> FloatArray:
    """Return the (4, 4) float64 ``T_to_from`` of two poses in one world.

    The translations are subtracted before they are rotated: the large parts cancel exactly.
    """
    back = T_world_to[:3, :3].T
    out = np.eye(4)
    out[:3, :3] = back @ T_world_from[:3, :3]
    out[:3, 3] = back @ (T_world_from[:3, 3] - T_world_to[:3, 3])
    return out


class SweepBuffer:
    """Join a sweep with the sweeps before it.

    What is kept follows from these rules:

    - a stamp earlier than the last one, or another ``frame_id``, starts over (a bag that loops, a
      clock that jumped, another sensor);
    - a sweep without a pose starts over and is not kept: it could not be moved later;
    - a stamp equal to the last one replaces that sweep (a repeated message, or a corrected one);
    - sweeps older than ``max_time_lag_s`` and beyond ``num_past_frames`` are forgotten;
    - points of past sweeps with |x| and |y| below ``ego_radius_m`` are the vehicle itself and left
      out. The current sweep is never filtered.

    Args:
        config: The limits above.
        make_rows: Makes the memory of what is returned.
    """

    def __init__(self, config: DensificationConfig, make_rows: RowMaker = plain_rows) -> None:
        self._config, self._make_rows = config, make_rows
        self._past: deque[Sweep] = deque()  # newest first
        self._frame_id = ""

    def __len__(self) -> int:
        """Sweeps held for the next push, the newest included."""
        return len(self._past)

    def clear(self) -> None:
        """Forget every sweep."""
        self._past.clear()

    def history(self) -> History:
        """Return what is held, to go back to."""
        return tuple(self._past), self._frame_id

    def go_back(self, history: History) -> None:
        """Undo what was pushed since: clouds that cannot be used after all."""
        past, self._frame_id = history
        self._past = deque(past)

    def unpacks(self, num_points: int) -> bool:
        """Tell whether :meth:`push_raw` leaves a message of so many points to a device."""
        return False

    def push(self, batch: PointBatch, T_world_lidar: npt.ArrayLike | None) -> torch.Tensor:
        """Add a sweep and return it together with those before it.

        Args:
            batch: The current sweep.
            T_world_lidar: (4, 4) LiDAR to world at ``batch.stamp_ns``; None where unknown.

        Returns:
            (N, 5) float32 x, y, z, intensity, time lag in the current LiDAR frame: the current
            sweep first and unchanged, then past sweeps, newest first. The time lag is in seconds,
            >= 0, from the point to ``batch.stamp_ns``. Without past sweeps they may be the very
            ``batch.rows``; the buffer itself keeps neither.

        Raises:
            InvalidFrame: If the pose is not a rigid transform; the buffer is left as it was.
        """
        return self._join(batch, self._enter(batch, T_world_lidar))

    def push_raw(self, raw: RawCloud, T_world_lidar: npt.ArrayLike | None) -> Cloud:
        """Add a message that is not decoded yet, as :meth:`push` adds a sweep.

        What only its values tell may be found later; then :meth:`go_back` undoes this.

        Raises:
            InvalidFrame: As ``push``, or as decoding the message.
        """
        return self._join_raw(raw, self._enter(raw, T_world_lidar))

    def _enter(
        self, cloud: PointBatch | RawCloud, T_world_lidar: npt.ArrayLike | None
    ) -> FloatArray | None:
        """Forget what must not be joined with a cloud, and return its pose."""
        pose = None
        if self._config.num_past_frames:
            pose = None if T_world_lidar is None else _checked_pose(T_world_lidar)
            self._forget(cloud, pose)
        return pose

    def _join_raw(self, raw: RawCloud, pose: FloatArray | None) -> Cloud:
        return self._join(raw.decode(), pose)

    def keep(self, batch: PointBatch, T_world_lidar: npt.ArrayLike | None) -> None:
        """Add a sweep as :meth:`push` does, where nobody needs it joined with those before it.

        Args:
            batch: The current sweep.
            T_world_lidar: (4, 4) LiDAR to world at ``batch.stamp_ns``; None where unknown.

        Raises:
            InvalidFrame: If the pose is not a rigid transform; the buffer is left as it was.
        """
        pose = self._enter(batch, T_world_lidar)
        if pose is not None:
            rows = plain_rows(len(batch))
            fill_rows(rows, batch)
            self._remember(Sweep(batch.stamp_ns, pose, self._columns(rows)))

    def _join(self, batch: PointBatch, pose: FloatArray | None) -> torch.Tensor:
        """Return a sweep with those before it, and remember it; not without a pose."""
        count, past = len(batch), sum(sweep.count for sweep in self._past)
        rows = batch.rows if past == 0 and has_rows(batch) else None
        if rows is None:
            rows = self._make_rows(count + past)
            fill_rows(rows[:count], batch)
        if pose is not None:
            begin = count
            for sweep in self._past:
                end = begin + sweep.count
                _move(sweep, batch.stamp_ns, pose, rows[begin:end])
                begin = end
            self._remember(Sweep(batch.stamp_ns, pose, self._columns(rows[:count])))
        return torch.from_numpy(rows)

    def _forget(self, cloud: PointBatch | RawCloud, pose: FloatArray | None) -> None:
        """Drop the sweeps that must not be joined with ``cloud``."""
        if pose is None:
            self.clear()
            return
        if self._past and (
            cloud.stamp_ns < self._past[0].stamp_ns or cloud.frame_id != self._frame_id
        ):
            self.clear()
        self._frame_id = cloud.frame_id
        if self._past and self._past[0].stamp_ns == cloud.stamp_ns:
            self._past.popleft()
        limit_ns = round(self._config.max_time_lag_s * 1e9)
        while self._past and cloud.stamp_ns - self._past[-1].stamp_ns > limit_ns:
            self._past.pop()

    def _columns(self, rows: Rows) -> Floats:
        """Return a copy of a sweep without the vehicle itself, as columns."""
        columns = np.ascontiguousarray(rows.T)
        near = np.abs(columns[0]) < self._config.ego_radius_m
        near &= np.abs(columns[1]) < self._config.ego_radius_m
        return columns.compress(~near, axis=1) if near.any() else columns

    def _remember(self, sweep: Sweep) -> None:
        self._past.appendleft(sweep)
        while len(self._past) > self._config.num_past_frames:
            self._past.pop()


def sweeps_for(config: DensificationConfig, device: torch.device) -> SweepBuffer:
    """Return what joins sweeps on their way to a device; see :class:`SweepBuffer`."""
    if device.type != "cuda":
        return SweepBuffer(config)
    from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer  # nothing a CPU needs

    return DeviceSweepBuffer(config, device)


def has_rows(batch: PointBatch) -> bool:
    """Tell whether ``batch.rows`` is what the other arrays show, and nobody replaced one."""
    rows = batch.rows
    if rows is None or rows.dtype != np.float32 or not rows.flags.c_contiguous:
        return False
    shown = (
        (batch.xyz, rows[:, :3]),
        (batch.intensity, rows[:, 3]),
        (batch.time_lag_s, rows[:, 4]),
    )
    return all(
        (a.ctypes.data, a.shape, a.strides, a.dtype) == (b.ctypes.data, b.shape, b.strides, b.dtype)
        for a, b in shown
    )


def fill_rows(rows: Rows, batch: PointBatch) -> None:
    """Write a sweep side by side."""
    if has_rows(batch):
        rows[:] = batch.rows
        return
    for axis in range(3):  # by column, which is much faster than by row
        rows[:, axis] = batch.xyz[:, axis]
    rows[:, 3], rows[:, 4] = batch.intensity, batch.time_lag_s


def _move(sweep: Sweep, stamp_ns: int, pose: FloatArray, out: Rows) -> None:
    """Write a past sweep in the current LiDAR frame, with its age added to the time lag."""
    transform = relative_transform(pose, sweep.T_world_lidar)
    rotation, translation = transform[:3, :3].copy(), transform[:3, 3:]
    count = len(out)
    then, now = np.empty((2, 3, min(count, _BLOCK_POINTS)))
    for begin in range(0, count, _BLOCK_POINTS):
        end = min(begin + _BLOCK_POINTS, count)
        xyz, moved = then[:, : end - begin], now[:, : end - begin]
        xyz[:] = sweep.columns[:3, begin:end]
        np.matmul(rotation, xyz, out=moved)
        moved += translation
        for axis in range(3):
            out[begin:end, axis] = moved[axis]
        out[begin:end, 3] = sweep.columns[3, begin:end]
        out[begin:end, 4] = sweep.columns[4, begin:end] + (stamp_ns - sweep.stamp_ns) * 1e-9


def _checked_pose(T_world_lidar: npt.ArrayLike) -> FloatArray:
    pose = np.array(T_world_lidar, dtype=np.float64)
    if pose.shape == (4, 4) and np.isfinite(pose).all():
        rotation = pose[:3, :3]
        error = np.abs(rotation @ rotation.T - np.eye(3)).max()
        if error < _ROTATION_TOLERANCE and np.linalg.det(rotation) > 0:
            return pose
    raise InvalidFrame(
        "The pose of the sweep is not a rigid transform; check the TF of the LiDAR.",
        "T_world_lidar",
        pose.tolist(),
        "a finite (4, 4) matrix with an orthonormal rotation",
        code="invalid_pose",
    )
