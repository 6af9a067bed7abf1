"""A camera model small enough to learn in seconds, and rendered frames of two drives."""

from __future__ import annotations

from functools import cache

from driveRT_ros.train.camera_config import CameraTrainConfig
from driveRT_ros.train.camera_frames import CameraDrives, CameraSample

TREE = {
    "kind": "camera",
    "imagenet": False,
    "model": {
        "image": {"size_hw": [64, 192]},
        "depth": {"max_m": 31.0, "step_m": 1.5},
        "grid": {"x_range_m": [-24.0, 24.0], "y_range_m": [-24.0, 24.0], "resolution_m": 1.0},
        "network": {
            "neck_channels": 16,
            "context_channels": 16,
            "bev_channels": [16, 16, 16],
            "bev_out_channels": 16,
            "head_channels": 16,
        },
    },
    "data": {"batch_size": 2, "workers": 1, "frames_per_drive": 1},
    "optimizer": {"steps": 3, "batch_norm_momentum": 0.2},
    "output": {"log_every": 1},
}


def small_camera_config(**groups: object) -> CameraTrainConfig:
    """Return a configuration of few channels on 48 x 48 cells."""
    tree = dict(TREE)
    for name, values in groups.items():
        tree[name] = {**tree.get(name, {}), **values} if isinstance(values, dict) else values
    return CameraTrainConfig.from_dict(tree)


@cache
def rendered() -> tuple[CameraSample, CameraSample]:
    """Return the first frames of two drives."""
    drives = CameraDrives(small_camera_config())
    return drives.samples(0)[0], drives.samples(1)[0]
