"""The trained weights of the package are what their cards say, and still find what they found."""

from __future__ import annotations

import pytest

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.models.checkpoint import load_weights
from driveRT_ros.models.lss_weights import load_camera_weights
from driveRT_ros.models.shipped import CAMERA, LIDAR, Shipped, with_shipped_weights
from driveRT_ros.models.strict import file_sha256
from driveRT_ros.train.regression import SCENES, small_evaluation
from driveRT_ros.train.ship import card_head, small_numbers

SPREAD = 0.03
"""What another processor or version of torch may change of an AP: a few of some hundred boxes."""


def require(shipped: Shipped) -> None:
    if not shipped.path().is_file():
        pytest.skip(f"the package holds no trained weights '{shipped.path().name}' yet")


@pytest.mark.parametrize(
    ("shipped", "config", "load"),
    [(LIDAR, LidarConfig(), load_weights), (CAMERA, CameraConfig(), load_camera_weights)],
    ids=["lidar", "camera"],
)
def test_shipped_weights_are_those_of_their_card_and_run_by_default(shipped, config, load) -> None:
    require(shipped)
    head = card_head(shipped.card())
    assert head["name"] == shipped.name and head["file_sha256"] == file_sha256(shipped.path())
    assert shipped.path().stat().st_size <= shipped.max_bytes
    chosen = with_shipped_weights(config)
    assert chosen.checkpoint_path == str(shipped.path())
    weights = load(chosen.checkpoint_path, chosen)
    assert weights.trained and weights.sha256 == head["weights_sha256"]
    if shipped is LIDAR:
        assert head["forward_yaw_deg"] == chosen.model.forward_yaw_deg


def test_shipped_weights_still_detect_in_ten_small_held_out_scenes() -> None:
    require(LIDAR)
    then = card_head(LIDAR.card())["small_scenes"]
    now = small_numbers(small_evaluation(LIDAR.path()))
    assert now["scenes"] == then["scenes"] == SCENES
    assert now["mean_ap"] == pytest.approx(then["mean_ap"], abs=SPREAD)
    for name in ("car", "pedestrian"):
        assert now["ap"][name] == pytest.approx(then["ap"][name], abs=SPREAD), name
