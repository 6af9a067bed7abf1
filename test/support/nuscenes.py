"""A nuScenes folder in small: two keyframes a second, sweeps in between, one camera."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

START_US = 1_532_402_927_647_951
SWEEP_US = 50_000
SWEEPS_PER_KEYFRAME = 10
JPEG = b"\xff\xd8not really an image\xff\xd9"


def quat_wxyz(yaw: float) -> list[float]:
    """Return a rotation about +z."""
    return [math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)]


class MiniNuScenes:
    """Tables in the making; ``write`` puts them and the sensor files into a folder.

    Args:
        keyframes: Number of keyframes, half a second apart.
        ego_yaw: Heading of the vehicle in the global frame.
        lidar_yaw: Mounting of the LiDAR on the vehicle.
    """

    def __init__(self, keyframes: int = 3, ego_yaw: float = 0.0, lidar_yaw: float = 0.0) -> None:
        self.keyframes = keyframes
        self.tables: dict[str, list[dict[str, Any]]] = {
            "scene": [{"token": "scene", "name": "scene-0001", "description": "a test"}],
            "sensor": [
                {"token": "lidar", "channel": "LIDAR_TOP", "modality": "lidar"},
                {"token": "camera", "channel": "CAM_FRONT", "modality": "camera"},
            ],
            "calibrated_sensor": [
                {
                    "token": "lidar_mount",
                    "sensor_token": "lidar",
                    "translation": [1.0, 0.0, 2.0],
                    "rotation": quat_wxyz(lidar_yaw),
                    "camera_intrinsic": [],
                },
                {
                    "token": "camera_mount",
                    "sensor_token": "camera",
                    "translation": [1.7, 0.0, 1.5],
                    "rotation": [0.5, -0.5, 0.5, -0.5],
                    "camera_intrinsic": [[1266.0, 0, 816.0], [0, 1266.0, 491.0], [0, 0, 1]],
                },
            ],
            "category": [],
            "instance": [],
            "ego_pose": [],
            "sample": [],
            "sample_data": [],
            "sample_annotation": [],
        }
        self._ego_yaw = ego_yaw
        for number in range(keyframes):
            self._add_keyframe(number)
        for number in range((keyframes - 1) * SWEEPS_PER_KEYFRAME + 1):
            self._add_data(number, "lidar", number % SWEEPS_PER_KEYFRAME == 0)
            if number % SWEEPS_PER_KEYFRAME == 0:
                self._add_data(number, "camera", True)

    def _add_keyframe(self, number: int) -> None:
        time_us = START_US + number * SWEEP_US * SWEEPS_PER_KEYFRAME
        self.tables["sample"].append(
            {"token": f"sample{number}", "timestamp": time_us, "scene_token": "scene"}
        )

    def _add_data(self, sweep: int, sensor: str, is_key_frame: bool) -> None:
        # the camera fires a little before the LiDAR comes round
        time_us = START_US + sweep * SWEEP_US - (1000 if sensor == "camera" else 0)
        token = f"{sensor}{sweep}"
        self.tables["ego_pose"].append(
            {
                "token": token,
                "timestamp": time_us,
                "translation": [100.0 + 0.25 * sweep, 50.0, 0.0],
                "rotation": quat_wxyz(self._ego_yaw),
            }
        )
        folder = "samples" if is_key_frame else "sweeps"
        suffix = "pcd.bin" if sensor == "lidar" else "jpg"
        self.tables["sample_data"].append(
            {
                "token": token,
                "sample_token": f"sample{min(-(-sweep // 10), self.keyframes - 1)}",
                "ego_pose_token": token,
                "calibrated_sensor_token": f"{sensor}_mount",
                "timestamp": time_us,
                "is_key_frame": is_key_frame,
                "filename": f"{folder}/{sensor}/{token}.{suffix}",
                "height": 900,
                "width": 1600,
            }
        )

    def add_object(
        self, category: str, positions: dict[int, tuple[float, float, float]], yaw: float = 0.0
    ) -> None:
        """Annotate one object, 4 m long, 2 m wide and 1.5 m high.

        Args:
            category: nuScenes category.
            positions: Global centre by number of the keyframe.
            yaw: Global heading.
        """
        if category not in [c["token"] for c in self.tables["category"]]:
            self.tables["category"].append({"token": category, "name": category})
        instance = f"instance{len(self.tables['instance'])}"
        self.tables["instance"].append({"token": instance, "category_token": category})
        tokens = [f"{instance}_{number}" for number in sorted(positions)]
        around = zip(["", *tokens], tokens, [*tokens[1:], ""])
        for number, (before, token, after) in zip(sorted(positions), around):
            self.tables["sample_annotation"].append(
                {
                    "token": token,
                    "sample_token": f"sample{number}",
                    "instance_token": instance,
                    "translation": list(positions[number]),
                    "size": [2.0, 4.0, 1.5],
                    "rotation": quat_wxyz(yaw),
                    "prev": before,
                    "next": after,
                    "num_lidar_pts": 10 + number,
                }
            )

    def write(self, root: Path, version: str = "v1.0-mini") -> Path:
        """Write tables, point clouds (30 points each) and images."""
        (root / version).mkdir(parents=True)
        for name, records in self.tables.items():
            (root / version / f"{name}.json").write_text(json.dumps(records))
        for number, data in enumerate(self.tables["sample_data"]):
            path = root / data["filename"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".jpg":
                path.write_bytes(JPEG)
                continue
            rng = np.random.default_rng(number)
            points = rng.uniform(-50, 50, (30, 5)).astype(np.float32)
            points[:, 3:] = rng.integers(0, 32, (30, 2))
            points.tofile(path)
        return root
