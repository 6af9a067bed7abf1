"""Who runs the trained weights that come with the package, and who does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models import shipped
from driveRT_ros.models.checkpoint import save_weights
from driveRT_ros.models.shipped import CAMERA, LIDAR, with_shipped_weights
from driveRT_ros.models.untrained import untrained_weights

SMALL = ModelConfig(channels=(4, 4, 4, 8, 8, 8))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """Folder that stands for that of the package, with LiDAR weights in it."""
    weights = dataclasses.replace(untrained_weights(SMALL, 1), trained=True)
    save_weights(LIDAR.path(tmp_path), weights, dtype=torch.float16)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    return tmp_path


def test_who_names_no_weights_runs_those_of_the_package_with_their_model(folder: Path) -> None:
    asked = LidarConfig.from_dict({"post_process_params.score_thresholds": [0.3]})
    chosen = with_shipped_weights(asked)
    assert chosen.checkpoint_path == str(LIDAR.path()) and chosen.model == SMALL
    rest = dataclasses.replace(chosen, checkpoint_path="", model=asked.model)
    assert rest == asked, "nothing else changes"
    assert with_shipped_weights(chosen) == chosen
    named = LidarConfig(model=SMALL)
    assert with_shipped_weights(named).checkpoint_path == str(LIDAR.path())


@pytest.mark.parametrize(
    "values",
    [
        {"checkpoint_path": "mine.safetensors"},
        {"use_shipped_weights": False},
        {"model.channels": [4, 4, 4, 4, 4, 4]},
        {"model.heads": ["car"]},
        {"voxelization.voxel_size": [0.1, 0.1, 0.2]},
        {"voxelization.point_cloud_range": [-54.0, -54.0, -4.0, 54.0, 54.0, 3.0]},
        {"voxelization.point_cloud_range": [-54.0, -54.0, -5.0, 54.0, 54.0, 5.0]},
    ],
)
def test_what_was_chosen_stays(folder: Path, values: dict[str, object]) -> None:
    asked = LidarConfig.from_dict(values)
    assert with_shipped_weights(asked) == asked


def test_a_smaller_range_on_the_ground_takes_the_weights_of_the_package(folder: Path) -> None:
    asked = {"voxelization.point_cloud_range": [0.0, -30.0, -5.0, 80.0, 30.0, 3.0]}
    assert with_shipped_weights(LidarConfig.from_dict(asked)).checkpoint_path == str(LIDAR.path())


def test_where_the_package_has_no_weights_nothing_is_chosen(folder: Path) -> None:
    assert not CAMERA.path().exists()
    assert with_shipped_weights(CameraConfig()) == CameraConfig()


def test_a_damaged_file_of_the_package_is_a_sentence(folder: Path) -> None:
    LIDAR.path().write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        with_shipped_weights(LidarConfig())
