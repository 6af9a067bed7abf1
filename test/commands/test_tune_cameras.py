"""``drivert tune --camera``: a search with the kernels on the CPU shim and times that are known."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace

import pytest
import torch

from driveRT_ros.cli import main
from driveRT_ros.commands import tune_cameras
from driveRT_ros.commands.tuned_gpu import Gpu
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu import pool_tuning
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.sim.rig import RIG
from test.commands.test_cli import refused
from test.support.camera_engine import SHIM, PoolingOnTheShim

SMALL = (
    "model.image.size_hw=[64, 192]",
    "model.depth.max_m=25",
    "model.depth.step_m=2",
    "model.grid.x_range_m=[-16, 16]",
    "model.grid.y_range_m=[-16, 16]",
    "model.grid.resolution_m=1.0",
    "model.network.context_channels=8",
)
KEY = "float32_c8_fits_l2"
DEFAULT, OTHER = PoolTactic("balanced"), PoolTactic("balanced", block_slots=8)
GPU = Gpu(torch.device("cpu"), SHIM.name, "1.2", (9, 0))


@pytest.fixture
def tuned(monkeypatch, tmp_path, capsys):
    """Return a function that runs the command with times by slots; it returns Plan and text."""
    shim = PoolingOnTheShim(monkeypatch)
    properties = SimpleNamespace(L2_cache_size=SHIM.l2_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: SHIM.name)
    monkeypatch.setattr(tune_cameras, "find_gpu", lambda wanted: GPU)

    def run(us_by_slots, *arguments) -> tuple[Plan, str]:
        def timer(launch):
            us = us_by_slots.get(launch.defines.get("SLOTS"), 0.0)  # none: the norms of the softmax
            return shim._bind(launch, GPU.device), lambda: us

        among = [DEFAULT, OTHER, PoolTactic("tiles")]
        search = functools.partial(pool_tuning.tune_pool, among=among, timer=timer)
        monkeypatch.setattr(pool_tuning, "tune_pool", search)
        output = tmp_path / "plan.json"
        single = [part for value in SMALL for part in ("--set", value)]
        assert main(["tune", "--camera", "--output", str(output), *single, *arguments]) == 0
        return Plan.load(output), capsys.readouterr().out

    return run


def test_the_fastest_way_to_pool_is_written_under_its_key_and_the_pipeline_runs_it(tuned, tmp_path):
    plan, text = tuned({16: 10.0, 8: 7.0})
    assert plan.pools == {KEY: OTHER} and plan.gpu == SHIM.name and plan.precision == "fp32"
    assert f"fits the L2 cache of 1.0 MB; key '{KEY}'" in text
    assert "Default 10.00 µs, chosen 7.00 µs." in text and "2 tactics timed, 1 refused" in text
    found = plan.measured["pools"][KEY]
    assert (found["default_us"], found["chosen_us"]) == (10.0, 7.0)
    assert "features that are not float32" in found["candidates"][2]["refused"]
    values = dict(value.split("=") for value in SMALL)
    config = CameraConfig.from_dict(
        {name: json.loads(text) for name, text in values.items()}
        | {"plan_path": str(tmp_path / "plan.json")}
    )
    pipeline = CameraPipeline(config, device="cpu")
    assert pipeline.plan_note == "" and pipeline._stages.pool.tactic == OTHER


def test_what_saves_too_little_does_not_replace_the_default(tuned):
    plan, _ = tuned({16: 10.0, 8: 9.9})
    assert plan.pools == {KEY: DEFAULT}
    plan, _ = tuned({16: 10.0, 8: 9.9}, "--min-gain", "0.5")
    assert plan.pools == {KEY: OTHER}


def test_the_other_network_and_other_keys_of_the_file_stay(tuned, tmp_path):
    channels = LidarConfig().model.channels
    others = {"float16_c80_exceeds_l2": PoolTactic("tiles")}
    lidar = default_plan(channels, (9, 0), "fp16")
    Plan("fp16", lidar.tactics, gpu=SHIM.name, measured={"frame_us": 1.0}, pools=others).save(
        tmp_path / "plan.json"
    )
    plan, _ = tuned({16: 10.0, 8: 7.0})
    assert plan.pools == others | {KEY: OTHER}
    assert (plan.tactics, plan.precision) == (lidar.tactics, "fp16")
    assert plan.measured["frame_us"] == 1.0


@pytest.mark.parametrize(
    ("content", "named"), [("{}", "no Plan"), (Plan("fp32", {}, gpu="B").to_json(), "on 'B'")]
)
def test_a_file_that_is_no_plan_of_this_gpu_is_replaced_and_named(tuned, tmp_path, content, named):
    (tmp_path / "plan.json").write_text(content)
    plan, text = tuned({16: 10.0, 8: 7.0})
    assert "is replaced" in text and named in text
    assert plan.gpu == SHIM.name


def test_cameras_stand_where_their_names_say_and_others_somewhere_on_the_car():
    config = CameraConfig.from_dict({"cameras": ["CAM_BACK", "left", "right"]})
    found = tune_cameras.calibrations(config)
    poses = [c.T_ego_camera.tolist() for c in found]
    assert poses[0] == RIG["CAM_BACK"].T_ego_camera.tolist()
    assert poses[1] != poses[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--bag", "drive"), "are for the LiDAR network"),
        (("--time-limit", "5"), "are for the LiDAR network"),
        (("--precision", "fp32x3"), "fp32x3"),
        (("--min-gain", "100"), "min_gain"),
        (("--set", "sede=1"), "Did you mean"),
        (("--output", "no/folder/plan.json"), "cannot be written"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "tune", "--camera", *arguments)
