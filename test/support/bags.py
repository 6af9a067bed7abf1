"""Small bags for tests of replay and recording, written from nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from driveRT_ros.core.frame import PointBatch
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.encode import encode_pointcloud, encode_transforms
from driveRT_ros.io.typestore import message_type

CLOUD = "sensor_msgs/msg/PointCloud2"
TF = "tf2_msgs/msg/TFMessage"
START_NS = 1_700_000_000_000_000_000
PERIOD_NS = 50_000_000


def cloud_batch(index: int, num_points: int = 2_000, frame_id: str = "LIDAR_TOP") -> PointBatch:
    """Return seeded points on a slope around the sensor, stamped ``index`` periods after start."""
    rng = np.random.default_rng(index)
    xyz = rng.uniform(-40.0, 40.0, (num_points, 3)).astype(np.float32)
    xyz[:, 2] = xyz[:, 0] * np.float32(0.02) - 1.5 + rng.uniform(0, 1, num_points)
    return PointBatch(
        xyz=xyz,
        intensity=rng.uniform(0, 255, num_points).astype(np.float32),
        time_lag_s=np.zeros(num_points, np.float32),
        ring=None,
        stamp_ns=START_NS + index * PERIOD_NS,
        frame_id=frame_id,
    )


def ego_pose(index: int) -> np.ndarray:
    """Return T_map_base of a drive straight ahead at 10 m/s."""
    pose = np.eye(4)
    pose[0, 3] = 0.5 * index
    return pose


def write_drive(
    path: Path,
    clouds: int = 5,
    *,
    topic: str = "/points",
    num_points: int = 2_000,
    storage: str = "mcap",
) -> Path:
    """Write a bag with clouds, /tf at each stamp, and one /tf_static in the middle."""
    with BagWriter(path, storage) as writer:
        for i in range(clouds):
            stamp_ns = START_NS + i * PERIOD_NS
            if i == clouds // 2:
                mount = np.eye(4)
                mount[2, 3] = 1.8
                static = encode_transforms(
                    [(stamp_ns, "base_link", "LIDAR_TOP", mount)], message_type
                )
                writer.write("/tf_static", TF, static, stamp_ns)
            moved = encode_transforms([(stamp_ns, "map", "base_link", ego_pose(i))], message_type)
            writer.write("/tf", TF, moved, stamp_ns)
            cloud = encode_pointcloud(cloud_batch(i, num_points), message_type)
            writer.write(topic, CLOUD, cloud, stamp_ns + 1_000_000)
    return path


def messages(path: Path, topic: str) -> list[tuple[int, bytes]]:
    """Return (log time, bytes) of every message of a topic."""
    with BagReader(path, [topic]) as reader:
        return [(m.log_time_ns, m.raw) for m in reader]
