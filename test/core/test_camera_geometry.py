"""Geometry of the camera pipeline: what stands somewhere shows there in the bird's-eye view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from driveRT_ros.core.camera_config import CameraConfig, bevdet_r50
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.models.lss import BevMaps
from test.support.camera_rig import NAMES, pole_frames, project


class PoleFinder(nn.Module):
    """Stands in for the network: brightness is the feature, the depth is told."""

    def __init__(self, depth_bin_by_camera: Sequence[int], bins: int) -> None:
        super().__init__()
        self._chosen, self._bins = depth_bin_by_camera, bins

    def lift_logits(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bright = nn.functional.avg_pool2d(images[0].mean(1, keepdim=True), 16)
        logits = torch.zeros(1, len(bright), self._bins, *bright.shape[2:])
        for camera, chosen in enumerate(self._chosen):
            if 0 <= chosen < self._bins:
                logits[0, camera, chosen] = 100  # nothing is left for the others
            else:
                bright[camera] = 0  # too near or too far for any depth
        return logits, bright.permute(0, 2, 3, 1).unsqueeze(0).contiguous()

    def read(self, pooled: torch.Tensor, layout: torch.memory_format) -> BevMaps:
        return BevMaps(pooled[..., 0], [])


@pytest.mark.parametrize("config", [CameraConfig(), bevdet_r50()], ids=["default", "bevdet"])
@pytest.mark.parametrize("size_wh", [(1600, 900), (960, 540)])
def test_a_bright_pole_lights_the_cell_it_stands_in(config, size_wh):
    # Black images with one white pole, 20 m away in each of 20 directions in turn: the brightest
    # cell must be the one of the pole, whichever cameras see it.
    pipeline = _pole_pipeline(config)
    errors = []
    for bearing in np.radians(np.arange(3.0, 360.0, 18.0)):
        ahead = np.array([math.cos(bearing), math.sin(bearing)])
        frames = pole_frames(20.0 * ahead, size_wh=size_wh)
        finder, network = _finder_of(20.0 * ahead, frames, config), pipeline.network
        network.lift_logits, network.read = finder.lift_logits, finder.read
        bev = pipeline.process(frames).bev
        light = np.nan_to_num(bev.layers["pole"], nan=0.5) - 0.5  # sigmoid(0) where it is dark
        assert light.sum() > 0.1
        rows, cols = np.indices(light.shape)
        centre = np.array([(cols * light).sum(), (rows * light).sum()]) / light.sum() + 0.5
        error = centre * bev.resolution_m + bev.origin_xy - 20.0 * ahead
        errors.append([error @ ahead, error @ (-ahead[1], ahead[0])])
    # A feature pixel covers 0.6 to 0.9 m here, a cell as much, a depth bin 1 m.
    assert np.linalg.norm(errors, axis=1).max() < 1.25
    # Rounding errors cancel over the directions; a shift of the convention would not.
    assert np.abs(np.mean(errors, axis=0)).max() < 0.25


def _finder_of(xy: np.ndarray, frames: list[CameraFrame], config: CameraConfig) -> PoleFinder:
    """Return the network that knows how far the pole is from each camera."""
    depth = config.model.depth
    distances = [project(camera, np.array([[*xy, 1.0]]))[1][0] for camera in frames]
    return PoleFinder([round((d - depth.min_m) / depth.step_m) for d in distances], depth.bins)


def _pole_pipeline(config: CameraConfig) -> CameraPipeline:
    """Return a pipeline of the same geometry with the layer ``pole``; its network is to come."""
    network = {
        "neck_channels": 8,
        "context_channels": 1,
        "bev_channels": (8, 8, 8),
        "bev_out_channels": 8,
        "head_channels": 8,
        "segmentation": ("pole",),
    }
    model = replace(
        config.model,
        image=replace(config.model.image, mean=(0.0,) * 3, std=(255.0,) * 3),
        network=replace(CameraConfig().model.network, **network),
    )
    return CameraPipeline(CameraConfig(cameras=NAMES, model=model), device="cpu")
