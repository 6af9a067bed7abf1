"""Clouds on their way while the engine is at work on one that does not fit, or is no good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu.front_end import make_engine
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes.handler import FINGERPRINT, LidarHandler, PosedCloud
from driveRT_ros.nodes.result import FrameResult
from test.support import engine
from test.support.clouds import xyzi_cloud
from test.support.lidar_messages import SECOND
from test.support.shim_sweeps import shim_sweeps

SETTINGS = engine.SMALL | {
    "voxelization.max_voxels": 150,
    "densification_params.num_past_frames": 1,
    "post_process_params.score_thresholds": [0.001],
}
COUNTS = (8, 300, -9, 5)
"""Points of the clouds: with the second, frames do not fit; the third is in a map frame."""


def items() -> list[PosedCloud]:
    found = []
    for k, count in enumerate(COUNTS):
        points = engine.street(abs(count), k, edge_m=(4.8, 3.6)).numpy()
        points[:, 0] += 1e5 if count < 0 else 0.0
        columns = dict(zip(("x", "y", "z", "intensity"), points[:, :4].T))
        pose = np.eye(4)
        pose[0, 3] = 0.1 * k
        found.append(PosedCloud(xyzi_cloud(columns, stamp_ns=SECOND + k * 50_000_000), pose))
    return found


def shim_handlers(config: LidarConfig) -> Iterator[LidarHandler]:
    """Return handlers whose engine runs on the shim: the host decodes, then the shim, too."""
    yield LidarHandler(config, shim_pipeline(config))
    handler = LidarHandler(config, shim_pipeline(config))
    handler._input._unpacks = True
    handler._input._sweeps = shim_sweeps(config.densification_params, engine.BACKEND)
    yield handler


def shim_pipeline(config: LidarConfig) -> LidarPipeline:
    pipeline, plain = (LidarPipeline(config, None, "cpu") for _ in range(2))
    made = config, pipeline.weights, pipeline._tensors, pipeline.device, plain._front_end
    pipeline._front_end = make_engine(*made)[0]
    pipeline._back_end = pipeline._make_back_end(config)
    return pipeline


def gpu_handlers(config: LidarConfig) -> Iterator[LidarHandler]:
    cuda = torch.device("cuda", 0)
    for where in (torch.device("cpu"), cuda):
        yield LidarHandler(config, LidarPipeline(config, None, cuda), where)


def outcomes(handler: LidarHandler, *, ahead: bool) -> list[FrameResult | str]:
    """Return the result of every cloud, or the code of its refusal."""
    waiting, found = items(), []
    if ahead:
        handler.look_ahead(lambda: waiting[0] if waiting else None)
    while waiting:
        item = waiting.pop(0)
        try:
            found.append(handler.handle(item, {"detections", "bev_image", FINGERPRINT}))
        except InvalidFrame as error:
            found.append(error.code)
        assert (handler._input._ahead is not None) <= (ahead and bool(waiting))
    return found


def what(result: FrameResult | str) -> Any:
    if isinstance(result, str):
        return result
    picture = bytes(result.messages["bev_image"].data)
    fingerprint = dict(result.found.report.fingerprint)
    overflow = dict(result.found.report.overflow)
    detections = bytes(result.messages["detections"])
    return picture, fingerprint, overflow, detections, result.notes, dict(result.left_out)


def check(handlers: Iterator[LidarHandler], policy: str) -> None:
    plain, ahead = (outcomes(handler, ahead=k == 1) for k, handler in enumerate(handlers))
    for k, (want, found) in enumerate(zip(plain, ahead)):
        assert what(found) == what(want), k
    odd = [k for k, r in enumerate(ahead) if isinstance(r, str) or r.found.report.overflow]
    assert odd == ([1, 2] if policy == "retry" else [1, 2, 3])
    assert ahead[2] == "coordinates_too_large"
    assert (ahead[1] == "engine_overflow") == (policy == "strict")


@pytest.mark.parametrize("policy", ["retry", "strict"])
def test_a_frame_that_does_not_fit_changes_nothing_in_the_cloud_behind_it(policy, monkeypatch):
    engine.put_on_the_shim(monkeypatch)
    monkeypatch.setattr(engine.BACKEND, "seed", 0)
    monkeypatch.setattr(engine.BACKEND, "resident", 1)
    config = LidarConfig.from_dict(SETTINGS | {"overflow_policy": policy})
    check(shim_handlers(config), policy)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["retry", "degrade", "strict"])
def test_nor_does_it_on_a_gpu(policy):
    config = LidarConfig.from_dict(SETTINGS | {"overflow_policy": policy})
    check(gpu_handlers(config), policy)
