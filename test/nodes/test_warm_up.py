"""Warming up runs what a node may publish, and tells what it showed to be missing."""

from __future__ import annotations

import gc

import pytest

from driveRT_ros.core import pipeline as hot_path
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.warm_up import warm_up
from test.support.fake_engine import engine_pipeline
from test.support.lidar_messages import SMALL_STILL
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
