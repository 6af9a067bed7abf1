"""From the frame of the sensor to the frame that a network knows: a turn about +z, and back.

A network learns where the street lies in its clouds. A sensor that is mounted otherwise gives it
clouds that it has never seen, so points are turned before they become voxels. What was found is
turned back: whoever uses it never sees the frame of the network.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from driveRT_ros.core.boxes import CENTER, VELOCITY, YAW, wrap_yaw
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.raw_cloud import Cloud, CountedRows

_QUARTERS = {0: (1.0, 0.0), 90: (0.0, 1.0), 180: (-1.0, 0.0), 270: (0.0, -1.0)}
"""Cosine and sine of quarter turns: cos(pi / 2) is not 0 in floating point."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """A turn about +z; quarter turns only swap coordinates and signs, and are exact.

    Args:
        yaw_deg: Degrees counter-clockwise, in [0, 360).
    """

    yaw_deg: float

    @staticmethod
    def between(old_deg: float, new_deg: float) -> Turn:
        """Return what takes one direction to another, both in degrees."""
        # In two steps, for a tiny negative angle is 360 after the first.
        return Turn((new_deg - old_deg) % 360.0 % 360.0)

    @staticmethod
    def to_network(config: LidarConfig) -> Turn:
        """Return what takes the frame of the clouds to that of the network.

        Args:
            config: ``input.forward_yaw_deg`` and ``model.forward_yaw_deg``: where ahead is.
        """
        return Turn.between(config.input.forward_yaw_deg, config.model.forward_yaw_deg)

    @property
    def is_none(self) -> bool:
        """Whether both frames are the same."""
        return self.yaw_deg == 0.0

    @property
    def back(self) -> Turn:
        """The turn the other way."""
        return Turn.between(self.yaw_deg, 0.0)

    def xy(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Turn coordinates.

        Args:
            x: Tensor or array of any shape, float64 unless the turn is a quarter.
            y: Likewise.
        """
        if self.yaw_deg not in _QUARTERS:
            yaw = math.radians(self.yaw_deg)
            cos, sin = math.cos(yaw), math.sin(yaw)
            return x * cos - y * sin, x * sin + y * cos
        # 0 - y, for -y of a point on an axis were -0, which has other bytes than 0.
        cos, sin = _QUARTERS[int(self.yaw_deg)]
        if sin == 0.0:
            return (x, y) if cos > 0 else (0.0 - x, 0.0 - y)
        return (0.0 - y, x) if sin > 0 else (y, 0.0 - x)

    def points(self, cloud: Cloud) -> Cloud:
        """Return the points of a frame turned, as :meth:`rows` does; nothing waits for a device."""
        if isinstance(cloud, CountedRows):
            return cloud if self.is_none else cloud.at(self.rows(cloud.rows))
        return self.rows(cloud)

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return turned points; what was given stays as it is.

        Args:
            rows: (N, >= 3) x, y, z and more, which stays.
        """
        if self.is_none:
            return rows
        x, y = rows[:, 0], rows[:, 1]
        if self.yaw_deg not in _QUARTERS:
            x, y = x.double(), y.double()
        turned = (part.to(rows.dtype)[:, None] for part in self.xy(x, y))
        return torch.cat((*turned, rows[:, 2:]), dim=1)

    def boxes(self, boxes: torch.Tensor) -> torch.Tensor:
        """Return turned boxes: centre, heading and velocity; a velocity of NaN stays NaN.

        Args:
            boxes: (M, 9) as :mod:`driveRT_ros.core.boxes` has them.
        """
        if self.is_none:
            return boxes
        wide = boxes.double()
        yaw = wrap_yaw(wide[:, YAW] + math.radians(self.yaw_deg))
        parts = (
            *self.xy(*wide[:, CENTER].T[:2]),
            *wide[:, 2:YAW].T,
            yaw,
            *self.xy(*wide[:, VELOCITY].T),
        )
        return torch.stack(parts, dim=1).to(boxes.dtype)


NO_TURN = Turn(0.0)


def sensor_range(config: LidarConfig) -> tuple[float, float, float, float, float, float]:
    """Return ``voxelization.point_cloud_range`` in the frame of the clouds.

    Where the network's frame is turned by other than quarter turns, it is the smallest range along
    the axes of the clouds that holds the turned one.
    """
    x0, y0, z0, x1, y1, z1 = config.voxelization.point_cloud_range
    turn = Turn.to_network(config).back
    corners = [turn.xy(x, y) for x in (x0, x1) for y in (y0, y1)]
    xs, ys = zip(*corners)
    return min(xs), min(ys), z0, max(xs), max(ys), z1


def facing(config: LidarConfig, forward_yaw_deg: float) -> LidarConfig:
    """Return the same configuration for clouds in which ahead is there."""
    given = dataclasses.replace(config.input, forward_yaw_deg=forward_yaw_deg)
    return dataclasses.replace(config, input=given)
