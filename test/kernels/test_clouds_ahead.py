"""Clouds on their way while the engine is at work on one that does not fit, or is no good."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu.front_end import make_engine
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes.cloud_input import CloudInput
from test.support import engine
from test.support.clouds import xyzi_cloud
from test.support.shim_sweeps import shim_sweeps

SETTINGS = engine.SMALL | {
    "voxelization.max_voxels": 150,
    "densification_params.num_past_frames": 1,
    "post_process_params.score_thresholds": [0.001],
}
CPU = torch.device("cpu")
COUNTS = (8, 300, -9, 5)
"""Points of the clouds: with the second, frames do not fit; the third is in a map frame."""


def clouds() -> list[Any]:
    """Return messages and poses."""
    found = []
    for k, count in enumerate(COUNTS):
        points = engine.street(abs(count), k, edge_m=(4.8, 3.6)).numpy()
        points[:, 0] += 1e5 if count < 0 else 0.0
        columns = dict(zip(("x", "y", "z", "intensity"), points[:, :4].T))
        pose = np.eye(4)
        pose[0, 3] = 0.1 * k
        message = xyzi_cloud(columns, stamp_ns=10**18 + k * 50_000_000)
        found.append(SimpleNamespace(msg=message, T_world_lidar=pose))
    return found


def shim_pipeline(config: LidarConfig) -> LidarPipeline:
    pipeline, plain = (LidarPipeline(config, None, "cpu") for _ in range(2))
    made = config, pipeline.weights, pipeline._tensors, pipeline.device, plain._front_end
    pipeline._front_end = make_engine(*made)[0]
    pipeline._back_end = pipeline._make_back_end(config)
    return pipeline


def shim_input(config: LidarConfig) -> CloudInput:
    made = CloudInput(config, CPU)
    made._unpacks = True
    made._sweeps = shim_sweeps(config.densification_params, engine.BACKEND)
    return made


def outcomes(pipeline: LidarPipeline, given: CloudInput, config: LidarConfig) -> list[Any]:
    """Return what is known of every frame, or the code of its refusal."""
    waiting, found = clouds(), []
    given.following = lambda: waiting[0] if waiting else None
    process = functools.partial(pipeline.process, with_fingerprint=True)
    while waiting:
        try:
            joined = given.join(waiting.pop(0), config.input)
            report = given.run(joined, process, config.input).report
            cloud, points = given.settle(joined)
        except InvalidFrame as error:
            found.append(error.code)
            continue
        assert len(points) == report.num_points
        found.append(
            (cloud.report, report.overflow, report.fingerprint, report.notes, report.dropped)
        )
    return found


def check(plain: list[Any], ahead: list[Any], policy: str) -> None:
    assert ahead == plain
    odd = [k for k, frame in enumerate(ahead) if isinstance(frame, str) or frame[1]]
    assert odd == ([1, 2] if policy == "retry" else [1, 2, 3])
    assert ahead[2] == "coordinates_too_large"
    assert (ahead[1] == "engine_overflow") == (policy == "strict")


@pytest.mark.parametrize("policy", ["retry", "strict"])
def test_a_frame_that_does_not_fit_changes_nothing_in_the_cloud_behind_it(policy, monkeypatch):
    engine.put_on_the_shim(monkeypatch)
    monkeypatch.setattr(engine.BACKEND, "seed", 0)
    monkeypatch.setattr(engine.BACKEND, "resident", 1)
    config = LidarConfig.from_dict(SETTINGS | {"overflow_policy": policy})
    plain = outcomes(shim_pipeline(config), CloudInput(config, CPU), config)
    check(plain, outcomes(shim_pipeline(config), shim_input(config), config), policy)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["retry", "degrade", "strict"])
def test_nor_does_it_on_a_gpu(policy):
    config, cuda = LidarConfig.from_dict(SETTINGS | {"overflow_policy": policy}), "cuda:0"
    plain, ahead = (
        outcomes(LidarPipeline(config, None, cuda), CloudInput(config, torch.device(where)), config)
        for where in ("cpu", cuda)
    )
    check(plain, ahead, policy)
