"""Clouds that a GPU decodes give the messages, counts and refusals of those of the host."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.io.raw_pointcloud import read_raw
from driveRT_ros.nodes.handler import FINGERPRINT, OUTPUTS, LidarHandler, PosedCloud
from test.support.clouds import make_cloud
from test.support.launch import Backend
from test.support.lidar_messages import SECOND, SMALL

CONFIG = LidarConfig.from_dict(
    {**SMALL, "densification_params.num_past_frames": 2, "input.point_capacity": 350}
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pipeline() -> LidarPipeline:
    return LidarPipeline(CONFIG, device="cpu")


def handlers(pipeline: LidarPipeline) -> tuple[LidarHandler, LidarHandler]:
    """Return one whose clouds are decoded on the host, and one with a GPU, which is the shim."""
    plain, other = (LidarHandler(CONFIG, pipeline, CPU) for _ in range(2))
    shim = Backend("cpu-shim")

    def bind(name: str, grid: Any, block: int, *args: Any, dependent: bool = False) -> Any:
        return functools.partial(shim.launch, "unpack_points", name, grid, block, *args)

    other._input._unpacks = True
    other._input._sweeps = DeviceSweepBuffer(CONFIG.densification_params, CPU, bind=bind)
    return plain, other


def message(k: int, *, far: bool = False, count: int = 400) -> Any:
    """Return a cloud of odd layout; some points are none, and more stay than there is room for."""
    rng = np.random.default_rng(k)
    x, y, z = rng.uniform((-12, -12, -2), (12, 12, 0), (count, 3)).T
    x[::17] = np.nan
    y[5::90] = 9e4
    columns = {
        "x": (x, "f8", 1),
        "y": (y + (1e5 if far else 0.0), "f8", 9),
        "z": (z, "f4", 17),
        "intensity": (rng.integers(0, 4000, count), "u2", 21),
        "t": (rng.integers(0, 10**8, count), "u4", 23),
    }
    stamp_ns = SECOND + k * 50_000_000
    return make_cloud(columns, 27, big_endian=True, height=4, row_padding=3, stamp_ns=stamp_ns)


def pose(k: int) -> np.ndarray:
    out = np.eye(4)
    out[:3, 3] = 500.0 + 0.5 * k, 0.25 * k, 0.0
    return out


def compare(plain: LidarHandler, other: LidarHandler, item: PosedCloud) -> None:
    want, found = (h.handle(item, {*OUTPUTS, FINGERPRINT} - {"objects"}) for h in (plain, other))
    assert found.found.report.fingerprint == want.found.report.fingerprint
    assert found.messages["detections"] == want.messages["detections"]
    assert (found.stamp_ns, found.notes) == (want.stamp_ns, want.notes)
    assert (found.left_out, found.reached) == (want.left_out, want.reached)
    assert found.left_out["over_capacity"] > 0 < found.left_out["too_far_for_float32"]


def refused(handler: LidarHandler, item: PosedCloud, *, remember: bool = False) -> tuple[str, str]:
    with pytest.raises(InvalidFrame) as error:
        handler.remember(item) if remember else handler.handle(item, ())
    return str(error.value), error.value.code


def test_results_counts_and_notes_are_those_of_the_host(pipeline: LidarPipeline) -> None:
    plain, other = handlers(pipeline)
    for k in range(3):
        compare(plain, other, PosedCloud(message(k), pose(k)))
    for handler in (plain, other):
        handler.remember(PosedCloud(message(3), pose(3)))
        handler.forget()
        handler.remember(PosedCloud(message(4), pose(4)))
    compare(plain, other, PosedCloud(message(5), pose(5)))


def test_a_cloud_that_is_refused_leaves_no_trace_in_the_next_one(pipeline: LidarPipeline) -> None:
    """Its bytes had joined the sweeps before anyone knew; a map frame shows in values alone."""
    plain, other = handlers(pipeline)
    compare(plain, other, PosedCloud(message(0), pose(0)))
    bad = message(1)
    bad.row_step += 1
    for item in (PosedCloud(message(1, far=True), pose(1)), PosedCloud(bad, pose(1))):
        for remember in (False, True):
            want = refused(plain, item, remember=remember)
            assert refused(other, item, remember=remember) == want
    assert refused(other, PosedCloud(message(1), np.zeros((4, 4))))[1] == "invalid_pose"
    assert len(other._input._sweeps) == 1
    compare(plain, other, PosedCloud(message(2), pose(2)))


def test_where_the_gpu_cannot_decode_the_host_refuses_likewise(
    pipeline: LidarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, other = handlers(pipeline)
    other._input._sweeps._left_alone = True
    compare(plain, other, PosedCloud(message(0), pose(0)))
    item = PosedCloud(message(1, far=True), pose(1))
    assert refused(other, item) == refused(plain, item)
    compare(plain, other, PosedCloud(message(2), pose(2)))


def test_a_message_is_not_decoded_on_the_host_where_the_gpu_does(pipeline: LidarPipeline) -> None:
    _, other = handlers(pipeline)
    given = other._input.read(message(0), CONFIG.input)
    assert type(given) is type(read_raw(message(0)))
    for k in range(3):
        joined = other._input.push(read_raw(message(k), CONFIG.input), pose(k))
    assert all(callable(sweep.points) for sweep in other._input._sweeps._past)
    assert len(joined.exact()) > 2 * 350
