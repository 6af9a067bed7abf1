"""Clouds, transforms and parameters for tests of the LiDAR node, small enough for a slow CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from driveRT_ros.core.frame import PointBatch
from driveRT_ros.io.encode import encode_pointcloud, encode_transforms
from driveRT_ros.nodes.raw import message_class

SECOND = 1_000_000_000

SMALL: dict[str, object] = {
    "model.channels": [4, 4, 4, 8, 8, 8],
    "voxelization.point_cloud_range": [-16.0, -16.0, -3.0, 16.0, 16.0, 1.0],
    "voxelization.voxel_size": [0.5, 0.5, 0.4],
    "bev.resolution_m": 1.0,
    "num_threads": 1,
}
"""Parameters of a network that detects in a few hundred points within a tenth of a second."""

SMALL_STILL: dict[str, object] = {**SMALL, "densification_params.num_past_frames": 0}
"""The same without past sweeps, so without transforms."""


def make_batch(
    stamp_ns: int, *, count: int = 300, frame_id: str = "lidar", seed: int = 0
) -> PointBatch:
    """Return a seeded cloud in the range of :data:`SMALL`."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform((-12, -12, -2), (12, 12, 0), (count, 3)).astype(np.float32)
    intensity = rng.uniform(0, 100, count).astype(np.float32)
    return PointBatch(xyz, intensity, np.zeros(count, np.float32), None, stamp_ns, frame_id)


def make_cloud(stamp_ns: int, *, count: int = 300, frame_id: str = "lidar", seed: int = 0) -> Any:
    """Return the same as a sensor_msgs/msg/PointCloud2 of rclpy."""
    batch = make_batch(stamp_ns, count=count, frame_id=frame_id, seed=seed)
    return encode_pointcloud(batch, message_class)


def make_garbage(stamp_ns: int) -> Any:
    """Return a cloud whose data are shorter than its header says."""
    cloud = make_cloud(stamp_ns)
    cloud.data = cloud.data[: len(cloud.data) // 2]
    return cloud


def make_transform(
    stamp_ns: int, x: float, *, parent: str = "map", child: str = "base_link"
) -> Any:
    """Return a tf2_msgs/msg/TFMessage with one translation along x."""
    T = np.eye(4)
    T[0, 3] = x
    return encode_transforms([(stamp_ns, parent, child, T)], message_class)
