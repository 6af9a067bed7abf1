"""Ego-motion compensated accumulation of past LiDAR sweeps.

A past point is moved by ``T_now_then = inverse(T_world_now) @ T_world_then``, in float64 until the
points are near the sensor again, so that world coordinates of thousands of kilometres cost nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import PointBatch

FloatArray = npt.NDArray[np.float64]
_ROTATION_TOLERANCE = 1e-3


@dataclass(frozen=True)
class _Sweep:
    stamp_ns: int
    T_world_lidar: FloatArray
    points: npt.NDArray[np.float32]  # (N, 5) in its own LiDAR frame, without the ego vehicle


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
    """

    def __init__(self, config: DensificationConfig) -> None:
        self._config = config
        self._past: deque[_Sweep] = deque()  # newest first
        self._frame_id = ""

    def __len__(self) -> int:
        """Sweeps held for the next push, the newest included."""
        return len(self._past)

    def clear(self) -> None:
        """Forget every sweep."""
        self._past.clear()

    def push(self, batch: PointBatch, T_world_lidar: npt.ArrayLike | None) -> torch.Tensor:
        """Add a sweep and return it together with those before it.

        Args:
            batch: The current sweep.
            T_world_lidar: (4, 4) LiDAR to world at ``batch.stamp_ns``; None where unknown.

        Returns:
            (N, 5) float32 x, y, z, intensity, time lag in the current LiDAR frame: the current
            sweep first and unchanged, then past sweeps, newest first. The time lag is in seconds,
            >= 0, from the point to ``batch.stamp_ns``.

        Raises:
            InvalidFrame: If the pose is not a rigid transform; the buffer is left as it was.
        """
        current = _rows(batch)
        if self._config.num_past_frames == 0:
            return torch.from_numpy(current)
        if T_world_lidar is None:
            self.clear()
            return torch.from_numpy(current)
        pose = _checked_pose(T_world_lidar)
        self._forget(batch)
        parts = [current, *(self._moved(sweep, batch.stamp_ns, pose) for sweep in self._past)]
        self._past.appendleft(_Sweep(batch.stamp_ns, pose, self._without_ego(current)))
        while len(self._past) > self._config.num_past_frames:
            self._past.pop()
        return torch.from_numpy(np.concatenate(parts))

    def _forget(self, batch: PointBatch) -> None:
        """Drop the sweeps that must not be joined with ``batch``."""
        if self._past and (
            batch.stamp_ns < self._past[0].stamp_ns or batch.frame_id != self._frame_id
        ):
            self.clear()
        self._frame_id = batch.frame_id
        if self._past and self._past[0].stamp_ns == batch.stamp_ns:
            self._past.popleft()
        limit_ns = round(self._config.max_time_lag_s * 1e9)
        while self._past and batch.stamp_ns - self._past[-1].stamp_ns > limit_ns:
            self._past.pop()

    def _moved(self, sweep: _Sweep, stamp_ns: int, pose: FloatArray) -> npt.NDArray[np.float32]:
        """Return a past sweep in the current LiDAR frame, with its age added to the time lag."""
        transform = relative_transform(pose, sweep.T_world_lidar)
        out = sweep.points.copy()
        out[:, :3] = sweep.points[:, :3].astype(np.float64) @ transform[:3, :3].T + transform[:3, 3]
        out[:, 4] += (stamp_ns - sweep.stamp_ns) * 1e-9
        return out

    def _without_ego(self, points: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        near = (np.abs(points[:, :2]) < self._config.ego_radius_m).all(axis=1)
        return points[~near]


def _rows(batch: PointBatch) -> npt.NDArray[np.float32]:
    columns = (batch.xyz, batch.intensity[:, None], batch.time_lag_s[:, None])
    return np.concatenate(columns, axis=1, dtype=np.float32)


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
