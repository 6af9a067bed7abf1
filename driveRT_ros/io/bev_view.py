"""Where a metre lands in a picture seen from above, with the vehicle's forward direction up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.errors import ConfigError

MAX_SIDE_PX = 8192


@dataclasses.dataclass(frozen=True)
class BevView:
    """The window of ground that a picture shows.

    ``forward_yaw`` is the direction of the vehicle's nose in the frame of the points, in radians
    counter-clockwise from +x. Frames that follow REP 103 (``base_link``, most LiDAR drivers,
    KITTI) have x forward: 0. The ``LIDAR_TOP`` of nuScenes has y forward: pi / 2.
    :func:`forward_yaw` gives it for any mounting.

    Args:
        width_px: Columns of the picture.
        height_px: Rows of the picture.
        pixels_per_m: Scale.
        left_m: Ground left of the sensor that the picture shows; negative where it begins right.
        front_m: Ground ahead of the sensor that the picture shows.
        forward_yaw: See above.
    """

    width_px: int
    height_px: int
    pixels_per_m: float
    left_m: float
    front_m: float
    forward_yaw: float = 0.0

    def __post_init__(self) -> None:
        sides = (self.width_px, self.height_px)
        if not all(1 <= side <= MAX_SIDE_PX for side in sides):
            raise ConfigError(
                f"A picture must measure 1 to {MAX_SIDE_PX} pixels a side, got {sides[0]} x "
                f"{sides[1]}; change the scale or the range."
            )
        shape = (self.pixels_per_m, self.left_m, self.front_m, self.forward_yaw)
        if not all(map(math.isfinite, shape)) or self.pixels_per_m <= 0:
            raise ConfigError(f"A view needs finite metres and a positive scale, got {self}.")

    @classmethod
    def around(cls, reach_m: float, *, size_px: int, forward_yaw: float = 0.0) -> BevView:
        """Return a square view that reaches ``reach_m`` to each side of the sensor."""
        return cls(size_px, size_px, size_px / (2 * reach_m), reach_m, reach_m, forward_yaw)

    @classmethod
    def of_range(
        cls,
        point_cloud_range: Sequence[float],
        *,
        pixels_per_m: float | None = None,
        size_px: int | None = None,
        forward_yaw: float = 0.0,
    ) -> BevView:
        """Return the smallest view that shows a whole range.

        Args:
            point_cloud_range: x, y, z minimum, then maximum, in metres.
            pixels_per_m: Scale; or
            size_px: Length of the longer side, which fixes the scale.
            forward_yaw: As in :class:`BevView`.

        Raises:
            ConfigError: If not exactly one of scale and size is given, or the picture would be
                too large.
        """
        if (pixels_per_m is None) == (size_px is None):
            raise ConfigError("Give a view either pixels_per_m or size_px, not both or neither.")
        x0, y0, _, x1, y1, _ = point_cloud_range
        corners = np.array([(x, y) for x in (x0, x1) for y in (y0, y1)])
        ahead, left = _turned(corners, forward_yaw)
        extent = (left.max() - left.min(), ahead.max() - ahead.min())
        scale = pixels_per_m if pixels_per_m is not None else (size_px or 0) / max(extent)
        width_px, height_px = (max(1, round(side * scale)) for side in extent)
        return cls(width_px, height_px, scale, float(left.max()), float(ahead.max()), forward_yaw)

    def to_pixels(self, xy: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Return where points of the sensor frame land.

        Args:
            xy: (..., 2) metres in the frame of the points.

        Returns:
            (..., 2) column, row; the centre of the first pixel is (0, 0), as OpenCV counts.
        """
        ahead, left = _turned(xy, self.forward_yaw)
        col = (self.left_m - left) * self.pixels_per_m - 0.5
        row = (self.front_m - ahead) * self.pixels_per_m - 0.5
        return np.stack([col, row], axis=-1)

    @property
    def reach_m(self) -> float:
        """Distance from the sensor to the farthest side shown."""
        right = self.width_px / self.pixels_per_m - self.left_m
        back = self.height_px / self.pixels_per_m - self.front_m
        return max(self.left_m, right, self.front_m, back)


def forward_yaw(T_ego_lidar: npt.NDArray[np.floating]) -> float:
    """Return the direction of the vehicle's nose (ego +x) in the LiDAR frame.

    Args:
        T_ego_lidar: (4, 4) LiDAR to ego frame.

    Returns:
        Radians counter-clockwise from the LiDAR's +x; -pi..pi.
    """
    nose = np.asarray(T_ego_lidar, np.float64)[0, :3]  # ego x in LiDAR axes: a row of R
    return math.atan2(nose[1], nose[0])


def _turned(
    xy: npt.NDArray[np.floating], yaw: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return metres ahead and metres to the left of the sensor."""
    cos, sin = math.cos(yaw), math.sin(yaw)
    x, y = np.asarray(xy[..., 0], np.float64), np.asarray(xy[..., 1], np.float64)
    return x * cos + y * sin, y * cos - x * sin
