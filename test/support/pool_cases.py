"""Camera rigs, maps and tensors for the tests of pooling."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import torch

from driveRT_ros.core.pool_types import CameraGeometry, FrustumShape, PoolGrid, ScatterMap
from driveRT_ros.core.reference.bev_pool import build_scatter_map, map_of_cells

RIGS = ("n008-2018-08-01_scene-0103", "n015-2018-07-24_scene-0061")
REAL_FRUSTUM = FrustumShape((256, 704), (16, 44), 1.0, 60.0, 1.0)
REAL_GRID = PoolGrid(-51.2, 51.2, 0.8, -51.2, 51.2, 0.8, -5.0, 3.0, 8.0)


def looking(yaw_deg, *, pitch_deg=0.0, position=(0.0, 0.0, 1.5)):
    """Return T_ego_cam (4, 4) of a camera that looks along a heading (counter-clockwise)."""
    yaw, pitch = math.radians(yaw_deg), math.radians(pitch_deg)
    ahead = np.array(
        [math.cos(yaw) * math.cos(pitch), math.sin(yaw) * math.cos(pitch), math.sin(pitch)]
    )
    right = np.array([math.sin(yaw), -math.cos(yaw), 0.0])
    T = np.eye(4)
    T[:3, :3] = np.stack([right, np.cross(ahead, right), ahead], axis=1)
    T[:3, 3] = position
    return T


def small_rig(cameras=3, *, pitch_deg=1.0, image_size_hw=(64, 96)):
    """Return cameras around a car with focal lengths of their own."""
    height, width = image_size_hw
    K = [
        [[60.0 + 3 * i, 0.0, width / 2 + i], [0.0, 61.0, height / 2 - i], [0.0, 0.0, 1.0]]
        for i in range(cameras)
    ]
    poses = [
        looking(360 / max(cameras, 1) * i, pitch_deg=pitch_deg * i, position=(0.3 * i, -0.1, 1.5))
        for i in range(cameras)
    ]
    shape = (cameras, 3, 3), (cameras, 4, 4)
    return CameraGeometry(
        np.array(K, np.float64).reshape(shape[0]), np.array(poses, np.float64).reshape(shape[1])
    )


def small_frustum(feature_size_hw=(8, 12), depth=(1.0, 13.0, 1.0)):
    return FrustumShape((64, 96), feature_size_hw, *depth)


SMALL_GRID = PoolGrid(-9.0, 9.0, 1.5, -9.0, 9.0, 1.0, -3.0, 3.0, 3.0)


@functools.cache
def rig_map(rows=8, rounding="trunc"):
    """Return the map of three small cameras."""
    return build_scatter_map(small_rig(3), small_frustum((rows, 12)), SMALL_GRID, rounding)


def real_rig(data_dir, name):
    """Return the geometry of a recorded rig and its scatter map made elsewhere."""
    ranks = np.load(data_dir / "bevpool" / f"bevpool_ranks_{name}.npz")
    rigs = json.loads((data_dir / "nuscenes" / "nuscenes_camera_rigs.json").read_text())
    cameras = [rigs[name]["cameras"][str(camera)] for camera in ranks["cam_order"]]
    geometry = CameraGeometry(
        K=np.array([camera["K"] for camera in cameras]),
        T_ego_cam=np.array([camera["cam2ego"] for camera in cameras]),
        post_rot=np.stack([np.diag([0.44, 0.44, 1.0])] * 6),
        post_trans=np.array([[0.0, -140.0, 0.0]] * 6),
    )
    return geometry, ranks


def random_map(shape_ndhw, grid_zyx, seed=0, *, share=0.7, cells=None):
    """Return a map whose points fall anywhere: far from any camera, so nothing may be assumed.

    Args:
        shape_ndhw: Of the frustum.
        grid_zyx: Cells.
        seed: Of the generator.
        share: Share of points that fall into the grid.
        cells: Cells that are hit; all by default.
    """
    rng = np.random.default_rng(seed)
    total = math.prod(grid_zyx) if cells is None else cells
    hit = rng.integers(0, total, shape_ndhw)
    hit = np.where(rng.random(shape_ndhw) < share, hit, -1)
    return map_of_cells(torch.from_numpy(hit.astype(np.int32)), grid_zyx)


def one_cell_map(shape_ndhw, grid_zyx=(1, 2, 2), cell=3):
    """Return a map whose points all fall into one cell."""
    return map_of_cells(torch.full(shape_ndhw, cell, dtype=torch.int32), grid_zyx)


def empty_map(shape_ndhw, grid_zyx=(1, 2, 2)):
    return map_of_cells(torch.full(shape_ndhw, -1, dtype=torch.int32), grid_zyx)


def tensors(
    scatter_map: ScatterMap, channels, features, depth, batch=1, seed=0, *, offset=0, slack=0
):
    """Return depth and context for a map.

    Args:
        scatter_map: The map.
        channels: C.
        features: Type of the context.
        depth: Type of the depth.
        batch: B.
        seed: Of the generator.
        offset: Channels of a wider tensor before the context: it is no longer aligned.
        slack: Channels after it.
    """
    generator = torch.Generator().manual_seed(seed)
    n, d, h, w = scatter_map.frustum_shape
    weights = torch.rand(batch, n, d, h, w, generator=generator).to(depth)
    wide = torch.randn(batch, n, h, w, offset + channels + slack, generator=generator) * 2
    return weights, wide.to(features)[..., offset : offset + channels]
