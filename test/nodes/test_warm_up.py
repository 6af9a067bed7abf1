"""Warming up runs what a node may publish, and tells what it showed to be missing."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core import pipeline as hot_path
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes.handler import FINGERPRINT, LidarHandler, PosedCloud
from driveRT_ros.nodes.lidar import warm_up_input
from driveRT_ros.nodes.warm_up import warm_up
from test.support.clouds import random_points, xyzi_cloud
from test.support.fake_engine import engine_pipeline
from test.support.launch import Backend
from test.support.lidar_messages import SMALL, SMALL_STILL
from test.support.worker_bench import Log

CONFIG = LidarConfig.from_dict(SMALL_STILL)


def test_grids_and_fingerprints_are_warm_before_somebody_subscribes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    for name in ("build_bev_grid", "frame_fingerprint"):
        step = getattr(hot_path, name)
        monkeypatch.setattr(
            hot_path, name, lambda *a, name=name, step=step: (made.append(name), step(*a))[1]
        )
    pipeline, engine = engine_pipeline(CONFIG)
    warm_up(pipeline, Log())
    assert made == ["build_bev_grid", "frame_fingerprint"] and engine.runs == 2


def test_the_log_says_once_why_frames_are_not_replayed_from_graphs() -> None:
    pipeline, _ = engine_pipeline(CONFIG)
    log = Log()
    warm_up(pipeline, log)
    assert [level for level, _ in log] == ["info"]
    pipeline._front_end.graphs.note = "The device refused to capture (no)."
    warm_up(pipeline, log)
    assert log[2:] == [("warning", "The device refused to capture (no).")]


def test_a_search_for_garbage_that_start_up_left_due_does_not_meet_a_frame() -> None:
    """A full collection while frames come stops the node for as long as several of them."""
    pipeline, _ = engine_pipeline(CONFIG)
    done: list[int] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            done.append(info["generation"])

    gc.callbacks.append(collected)
    try:
        warm_up(pipeline, Log())
    finally:
        gc.callbacks.remove(collected)
    assert done[-1] == 2


@pytest.mark.parametrize("past", [0, 2])
def test_buffers_that_decode_clouds_are_in_place_before_the_first_and_hold_nothing(
    past: int,
) -> None:
    """The first clouds paid for the kernels, the graphs and the memory that decode them."""
    changes = {"densification_params.num_past_frames": past, "input.point_capacity": 600}
    config, cpu, shim = (
        LidarConfig.from_dict(SMALL | changes),
        torch.device("cpu"),
        Backend("cpu-shim"),
    )
    pipeline = LidarPipeline(config, device="cpu")
    plain, warm = (LidarHandler(config, pipeline) for _ in range(2))

    def bind(name: str, grid: Any, block: int, *args: Any, dependent: bool = False) -> Any:
        return functools.partial(shim.launch, "unpack_points", name, grid, block, *args)

    sweeps = DeviceSweepBuffer(config.densification_params, cpu, bind=bind)
    warm._input._unpacks, warm._input._sweeps = True, sweeps
    warm_up_input(warm, config)
    ready = list(sweeps._unpackers._slots)
    assert None not in ready and len(sweeps) == 0
    for k in range(1, 4):
        msg = xyzi_cloud(random_points(200), stamp_ns=k * 50_000_000)
        item = PosedCloud(msg, np.eye(4) if past else None)
        want, found = (h.handle(item, {"detections", FINGERPRINT}) for h in (plain, warm))
        assert found.found.report.fingerprint == want.found.report.fingerprint
        assert found.left_out == want.left_out and found.reached == want.reached
        assert found.messages["detections"] == want.messages["detections"]
    assert sweeps._unpackers._slots == ready
