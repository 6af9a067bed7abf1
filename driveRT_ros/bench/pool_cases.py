"""Cameras, frusta and grids that pooling is timed with.

The six named by size follow published figures of BEVPoolV3 (points, channels); how they come about
is not published, so the recipe is ours: six cameras as on a nuScenes car, each a little tilted, and
points beyond the published number left out, last camera first. The other two are whole models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from driveRT_ros.core.pool_types import CameraGeometry, FrustumShape, PoolGrid, ScatterMap
from driveRT_ros.core.reference.bev_pool import build_scatter_map, map_of_cells

# Yaw, pitch, roll of the optical axis in degrees; focal length, pixels of 1600 x 900; position.
MOUNTS = (
    (55.0, 0.4, 0.2, 1270.0, (1.52, 0.49, 1.51)),
    (0.0, -0.3, 0.4, 1266.0, (1.70, 0.02, 1.51)),
    (-56.0, -0.6, -0.3, 1260.0, (1.55, -0.49, 1.50)),
    (108.5, 0.3, -0.5, 1256.0, (1.04, 0.48, 1.59)),
    (180.0, 0.8, 0.1, 809.0, (0.03, 0.01, 1.58)),
    (-110.5, -0.4, 0.6, 1259.0, (1.06, -0.48, 1.56)),
)
IMAGE_WH = (1600, 900)


@dataclass(frozen=True)
class PoolCase:
    """One configuration.

    Args:
        name: For tables.
        channels: Features of a pixel.
        feature_size_hw: Feature map.
        depth: Nearest depth, depths below this, step; metres.
        grid_xy: Range of x and y is plus and minus this, then the cell size; metres.
        range_z: Range of z, one cell; metres.
        resize: From the camera image to the network input of 256 x 704.
        points: Published number of points; 0 keeps all.
    """

    name: str
    channels: int
    feature_size_hw: tuple[int, int]
    depth: tuple[float, float, float]
    grid_xy: tuple[float, float]
    range_z: tuple[float, float]
    resize: float = 0.44
    points: int = 0

    def scatter_map(self) -> ScatterMap:
        """Return the map, on the CPU."""
        frustum = FrustumShape((256, 704), self.feature_size_hw, *self.depth)
        reach, step = self.grid_xy
        low, high = self.range_z
        grid = PoolGrid(-reach, reach, step, -reach, reach, step, low, high, high - low)
        made = build_scatter_map(rig(self.resize), frustum, grid)
        if not self.points:
            return made
        cells = torch.full((math.prod(made.frustum_shape),), -1, dtype=torch.int32)
        cells[made.ranks_depth.long()] = made.ranks_bev
        kept = torch.nonzero(cells >= 0).squeeze(1)
        cells[kept[self.points :]] = -1
        return map_of_cells(cells.view(made.frustum_shape), made.grid_shape_zyx)


_NEAR = {"feature_size_hw": (16, 44), "grid_xy": (50.0, 0.5), "range_z": (-10.0, 10.0)}
_CANONICAL = {**_NEAR, "depth": (1.0, 60.0, 1.0), "points": 209_167}
CASES = (
    PoolCase("small", 80, (16, 44), (1.0, 31.0, 1.0), (51.2, 0.8), (-10.0, 10.0), points=105_000),
    PoolCase("canonical", 80, **_CANONICAL),
    PoolCase("large", 80, (24, 66), (1.0, 60.0, 0.7), (50.0, 0.5), (-10.0, 10.0), points=572_000),
    PoolCase("xlarge", 80, (32, 88), (1.0, 60.0, 0.5), (50.0, 0.5), (-5.0, 3.0), points=1_280_000),
    PoolCase("wide_c128", 128, **_CANONICAL),
    PoolCase("wide_c256", 256, **_CANONICAL),
    PoolCase("bevdet_r50", 80, (16, 44), (1.0, 60.0, 1.0), (51.2, 0.8), (-5.0, 3.0)),
    PoolCase("bevfusion", 80, (32, 88), (1.0, 60.0, 0.5), (54.0, 0.3), (-10.0, 10.0), resize=0.48),
)


def rig(resize: float) -> CameraGeometry:
    """Return the six cameras behind a resize and a crop to the lower 256 rows and middle 704."""
    width, height = IMAGE_WH
    K, T = np.zeros((len(MOUNTS), 3, 3)), np.tile(np.eye(4), (len(MOUNTS), 1, 1))
    for i, (yaw, pitch, roll, focal, position) in enumerate(MOUNTS):
        K[i] = [[focal, 0.0, width / 2 + 5 * i], [0.0, focal, height / 2 + 8 * i], [0.0, 0.0, 1.0]]
        T[i, :3, :3] = _turn(2, yaw) @ _turn(1, -pitch) @ _turn(0, roll) @ _AXES
        T[i, :3, 3] = position
    left, top = (width * resize - 704) / 2, height * resize - 256
    return CameraGeometry(
        K=K,
        T_ego_cam=T,
        post_rot=np.tile(np.diag([resize, resize, 1.0]), (len(MOUNTS), 1, 1)),
        post_trans=np.tile([-left, -top, 0.0], (len(MOUNTS), 1)),
    )


_AXES = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])  # ego of camera axes


def _turn(axis: int, degrees: float) -> np.ndarray:
    """Return the rotation around x, y or z."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    a, b = [i for i in range(3) if i != axis]
    turn = np.eye(3)
    turn[[a, a, b, b], [a, b, a, b]] = (c, -s, s, c) if axis != 1 else (c, s, -s, c)
    return turn
