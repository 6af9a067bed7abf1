"""Clouds of a wanted size, as a spinning LiDAR with so many beams and columns would record them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.encode import encode_pointcloud
from driveRT_ros.io.topics import POINT_CLOUD
from driveRT_ros.io.typestore import message_type, serialize
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate

POINT_BYTES = 20
"""x, y, z, intensity and ring, up to a multiple of four."""
SMALLEST_MB, LARGEST_MB = 0.01, 40.0
_BEAMS, _COLUMNS = 32, 1084


@dataclass(frozen=True)
class SensorClouds:
    """Consecutive sweeps of one drive.

    Args:
        raw: CDR bytes of a PointCloud2 each.
        points: Points of each.
        data_bytes: Length of the data of each.
        frame_id: Their frame.
    """

    raw: tuple[bytes, ...]
    points: int
    data_bytes: int
    frame_id: str


def sensor_clouds(megabytes: float, count: int, seed: int = 0) -> SensorClouds:
    """Simulate clouds whose data have about a wanted size.

    0.694 MB is the sensor of nuScenes, 32 beams by 1084 columns; others have more or fewer of both.

    Args:
        megabytes: Million bytes.
        count: Clouds.
        seed: Of the drive.

    Raises:
        ConfigError: If there is no such sensor.
    """
    if not SMALLEST_MB <= megabytes <= LARGEST_MB:
        raise ConfigError(
            f"Clouds have from {SMALLEST_MB:g} to {LARGEST_MB:g} MB, {megabytes:g} is asked for."
        )
    points = megabytes * 1e6 / POINT_BYTES
    beams = min(256, max(1, round(_BEAMS * math.sqrt(points / (_BEAMS * _COLUMNS)))))
    sensor = {"lidar.num_beams": beams, "lidar.num_azimuths": round(points / beams)}
    config = SimConfig.from_dict({"seed": seed, "num_sweeps": count, **sensor})
    messages = [encode_pointcloud(frame.points, message_type) for frame in simulate(config)]
    return SensorClouds(
        raw=tuple(serialize(message, POINT_CLOUD) for message in messages),
        points=messages[0].width,
        data_bytes=len(messages[0].data),
        frame_id=config.lidar.frame_id,
    )
