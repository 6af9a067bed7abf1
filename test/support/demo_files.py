"""Parameter files that make a run of the whole chain quick, and the command under test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from driveRT_ros.nodes.transport import CHOICES

TINY_NETWORK = """
voxelization:
  point_cloud_range: [-24.0, -24.0, -4.0, 24.0, 24.0, 2.0]
  voxel_size: [0.5, 0.5, 0.5]
model:
  channels: [4, 4, 4, 8, 8, 8]
post_process_params:
  center_range: [-30.0, -30.0, -10.0, 30.0, 30.0, 10.0]
  max_boxes_per_head: 5
num_threads: 1
"""
"""A network that takes a few hundredths of a second a frame."""

TINY_SCENE = """
lidar:
  num_azimuths: 180
cameras:
  every_nth_sweep: 3
  scale: 0.2
"""
"""A drive whose sweeps hold 5,760 points, with small images at every third."""


def tiny_network(folder: Path) -> Path:
    path = folder / "network.yaml"
    path.write_text(TINY_NETWORK)
    return path


TINY_CAMERAS = """
model:
  image: {size_hw: [64, 160]}
  depth: {step_m: 4.0}
  network:
    neck_channels: 16
    context_channels: 8
    bev_channels: [8, 8, 8]
    bev_out_channels: 8
    head_channels: 8
num_threads: 1
"""
"""A camera model that looks at six images within a tenth of a second."""


def tiny_cameras(folder: Path) -> Path:
    path = folder / "cameras.yaml"
    path.write_text(TINY_CAMERAS)
    return path


def tiny_scene(folder: Path) -> Path:
    path = folder / "scene.yaml"
    path.write_text(TINY_SCENE)
    return path


def drivert(*arguments: object, timeout_s: float = 500.0) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, without ROS domain and transports of the caller."""
    env = {k: v for k, v in os.environ.items() if k not in ("ROS_DOMAIN_ID", *CHOICES)}
    env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    argv = [sys.executable, "-m", "driveRT_ros", *map(str, arguments)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s)
