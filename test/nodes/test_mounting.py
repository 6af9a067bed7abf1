"""A LiDAR whose +x is ahead: results in its own frame, and a hint where TF and parameter differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import NUSCENES_FORWARD_YAW_DEG, LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.turn import Turn, facing
from driveRT_ros.io.encode import encode_columns
from driveRT_ros.nodes.handler import FINGERPRINT, LidarHandler, PosedCloud
from driveRT_ros.nodes.mounting import mounting_fault
from driveRT_ros.nodes.raw import message_class
from test.support.launch import Backend
from test.support.lidar_messages import SECOND, SMALL
from test.support.shim_sweeps import shim_sweeps

CPU = torch.device("cpu")
X_AHEAD = 0.0
TO_SENSOR = Turn.between(NUSCENES_FORWARD_YAW_DEG, X_AHEAD)
CONFIG = LidarConfig.from_dict({**SMALL, "densification_params.num_past_frames": 2})


def turned(yaw_deg: float) -> np.ndarray:
    out, yaw = np.eye(4), math.radians(yaw_deg)
    out[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
    return out


def item(k: int, turn: Turn) -> PosedCloud:
    """Return a cloud and its pose, as a sensor sees it whose axes are turned."""
    rng = np.random.default_rng(k)
    x, y, z = rng.uniform((-12, -12, -2), (12, 12, 0), (400, 3)).astype(np.float32).T
    x, y = turn.xy(x, y)
    columns = {"x": x, "y": y, "z": z, "intensity": rng.uniform(0, 99, 400).astype(np.float32)}
    msg = encode_columns(columns, SECOND + k * 50_000_000, "lidar", message_class)
    pose = np.eye(4)
    pose[:2, :2] = np.stack(turn.back.xy(*np.eye(2)))
    pose[:3, 3] = 500.0 + 0.5 * k, 0.25 * k, 0.0
    return PosedCloud(msg, pose)


@pytest.fixture(scope="module")
def pipeline() -> LidarPipeline:
    return LidarPipeline(CONFIG, device="cpu")


def handler(pipeline: LidarPipeline, config: LidarConfig, *, gpu: bool = False) -> LidarHandler:
    """Return a handler on the host, or with a GPU that decodes and joins, which is the shim."""
    out = LidarHandler(config, pipeline.reconfigured(config), CPU)
    if gpu:
        out._input._unpacks = True
        out._input._sweeps = shim_sweeps(config.densification_params, Backend("cpu-shim"))
    return out


@pytest.mark.parametrize("gpu", [False, True])
def test_boxes_and_messages_are_in_the_frame_of_the_cloud(pipeline, gpu) -> None:
    """Sweeps of a sensor with +x ahead are joined in its own frame, and turned together."""
    straight = handler(pipeline, CONFIG)
    mounted = handler(pipeline, facing(CONFIG, X_AHEAD), gpu=gpu)
    wanted = {"detections", FINGERPRINT}
    for k in range(3):
        want, found = (
            h.handle(item(k, turn), wanted)
            for h, turn in ((straight, Turn(0.0)), (mounted, TO_SENSOR))
        )
        assert (
            found.found.report.fingerprint["features"]
            == (want.found.report.fingerprint["features"])
        )
        assert torch.equal(found.found.boxes, TO_SENSOR.boxes(want.found.boxes))
        assert torch.equal(found.found.scores, want.found.scores) and len(found.found) > 0
        assert found.messages["detections"] != want.messages["detections"]
        assert found.reached == want.reached and found.stamp_ns == want.stamp_ns


def test_the_mounting_may_change_between_two_clouds_and_the_past_stays(pipeline) -> None:
    """Sweeps are kept in the frame of the sensor: what the network knows is of one cloud alone."""
    other, same = handler(pipeline, CONFIG), handler(pipeline, facing(CONFIG, X_AHEAD))
    for each in (other, same):
        each.handle(item(0, TO_SENSOR), ())
    other.reconfigure(facing(CONFIG, X_AHEAD))
    want, found = (h.handle(item(1, TO_SENSOR), (FINGERPRINT,)).found for h in (same, other))
    assert found.report.fingerprint == want.report.fingerprint
    assert found.report.num_points > 600


@pytest.mark.parametrize(
    ("forward_yaw_deg", "lidar_in_ego_deg"),
    [(90.0, -90.0), (0.0, 0.0), (-270.0, -90.0), (0.0, 25.0), (180.0, 180.0), (-180.0, 180.0)],
)
def test_nothing_is_said_where_transforms_and_parameter_agree(forward_yaw_deg, lidar_in_ego_deg):
    config = facing(CONFIG, forward_yaw_deg)
    assert mounting_fault(config, turned(lidar_in_ego_deg)) == {}
    assert mounting_fault(config, None) == {}


@pytest.mark.parametrize(
    ("forward_yaw_deg", "lidar_in_ego_deg", "advice"),
    [(90.0, 0.0, "to 0."), (0.0, -90.0, "to 90."), (90.0, 90.0, "to -90."), (0.0, -40.0, "to 40.")],
)
def test_a_parameter_that_contradicts_the_transforms_is_told_with_the_value_to_set(
    forward_yaw_deg, lidar_in_ego_deg, advice
):
    """Out of the box a sensor with +x ahead finds little, and nothing else would say why."""
    config = facing(CONFIG, forward_yaw_deg)
    sentence = mounting_fault(config, turned(lidar_in_ego_deg))["mounting"]
    assert sentence.endswith(f"Set input.forward_yaw_deg {advice}") and "'base_link'" in sentence
    assert f"ahead is at {forward_yaw_deg:g};" in sentence


def test_the_result_of_a_cloud_carries_the_hint(pipeline) -> None:
    cloud = item(0, TO_SENSOR)
    mounted: dict[str, Any] = {"msg": cloud.msg, "T_world_lidar": cloud.T_world_lidar}
    detector = handler(pipeline, CONFIG)
    faults = detector.handle(PosedCloud(**mounted, T_ego_lidar=np.eye(4)), ()).faults
    assert list(faults) == ["mounting"] and "input.forward_yaw_deg to 0" in faults["mounting"]
    detector.reconfigure(facing(CONFIG, X_AHEAD))
    assert detector.handle(PosedCloud(**mounted, T_ego_lidar=np.eye(4)), ()).faults == {}
