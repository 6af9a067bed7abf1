"""Clouds that a GPU decodes give the messages, counts and refusals of those of the host."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu import sweeps as gpu_sweeps
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import RawCloud
from driveRT_ros.io.raw_pointcloud import read_raw
from driveRT_ros.nodes import cloud_input
from driveRT_ros.nodes.handler import FINGERPRINT, OUTPUTS, LidarHandler, PosedCloud
from test.support.clouds import make_cloud
from test.support.launch import Backend
from test.support.lidar_messages import SECOND, SMALL
from test.support.shim_sweeps import shim_sweeps

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
    other._input._unpacks = True
    other._input._sweeps = shim_sweeps(CONFIG.densification_params, Backend("cpu-shim"))
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


def compare(
    plain: LidarHandler, other: LidarHandler, item: PosedCloud, *, by_host: bool = False
) -> None:
    want, found = (h.handle(item, {*OUTPUTS, FINGERPRINT} - {"objects"}) for h in (plain, other))
    assert found.found.report.fingerprint == want.found.report.fingerprint
    assert found.messages["detections"] == want.messages["detections"]
    assert found.stamp_ns == want.stamp_ns
    assert sorted(found.notes) == sorted((*want.notes, *["decoded_by_host"] * by_host))
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
    compare(plain, other, PosedCloud(message(0), pose(0)), by_host=True)
    item = PosedCloud(message(1, far=True), pose(1))
    assert refused(other, item) == refused(plain, item)
    compare(plain, other, PosedCloud(message(2), pose(2)), by_host=True)


def test_a_message_is_not_decoded_on_the_host_where_the_gpu_does(pipeline: LidarPipeline) -> None:
    _, other = handlers(pipeline)
    for k in range(3):
        joined = other._input.join(PosedCloud(message(k), pose(k)), CONFIG.input)
    assert isinstance(joined.cloud, RawCloud)
    assert all(callable(sweep.points) for sweep in other._input._sweeps._past)
    assert len(joined.points.exact()) > 2 * 350


class Busy:
    """A pipeline that calls ``meanwhile`` as the engine does, and may fail afterwards."""

    def __init__(self, pipeline: LidarPipeline) -> None:
        self._pipeline, self.error = pipeline, None

    def process(self, points: Any, *, meanwhile: Any, **options: Any) -> Any:
        meanwhile()
        if self.error:
            raise self.error
        return self._pipeline.process(points, **options)


def looking_ahead(
    pipeline: LidarPipeline, items: list[PosedCloud]
) -> tuple[LidarHandler, LidarHandler, Busy]:
    """Return the handlers; the second one knows the clouds to come."""
    plain, other = handlers(pipeline)
    busy = other._pipeline = Busy(pipeline)
    other.look_ahead(lambda: items[0] if items else None)
    return plain, other, busy


def test_clouds_that_are_sent_ahead_give_the_same_results_in_their_turn(
    pipeline: LidarPipeline,
) -> None:
    items = [PosedCloud(message(k), pose(k)) for k in range(6)]
    plain, other, _ = looking_ahead(pipeline, items)
    while items:
        item = items.pop(0)
        compare(plain, other, item)
        assert (other._input._ahead is not None) == bool(items)
        if len(items) == 3:  # one is passed over, then time jumps
            item = items.pop(0)
            plain.remember(item)
            other.remember(item)
        if len(items) == 1:
            plain.forget()
            other.forget()


def test_a_fault_of_one_frame_does_not_reach_the_one_that_was_sent_ahead(
    pipeline: LidarPipeline,
) -> None:
    """Its sweep had joined the next one already, or its memory is not to be trusted any more."""
    items = [PosedCloud(message(k, far=k == 2), pose(k)) for k in range(6)]
    plain, other, busy = looking_ahead(pipeline, items)
    compare(plain, other, items.pop(0))
    compare(plain, other, items.pop(0))
    item = items.pop(0)
    assert refused(other, item) == refused(plain, item)
    compare(plain, other, items.pop(0))
    busy.error = RuntimeError("CUDA error in a test")
    item = items.pop(0)
    plain.remember(item)
    with pytest.raises(RuntimeError, match="in a test"):
        other.handle(item, ())
    busy.error = None
    compare(plain, other, items.pop(0))


def test_what_ails_a_cloud_that_was_sent_ahead_is_told_in_its_own_turn(
    pipeline: LidarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = message(1)
    bad.row_step += 1
    items = [
        PosedCloud(m, pose(k)) for k, m in enumerate((message(0), bad, message(2), message(3)))
    ]
    plain, other, _ = looking_ahead(pipeline, items)
    compare(plain, other, items.pop(0))
    item = items.pop(0)
    assert refused(other, item) == refused(plain, item)
    with monkeypatch.context() as broken:
        broken.setattr(cloud_input, "read_raw", lambda *_: 1 / 0)
        other._input._send_ahead(CONFIG.input)
    with pytest.raises(ZeroDivisionError):
        other.handle(items[0], ())
    compare(plain, other, items.pop(0))
    compare(plain, other, items.pop(0))


def test_a_cloud_whose_frame_failed_before_its_values_were_known_spoils_no_later_one(
    pipeline: LidarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost GPU does not tell them any more, and the host has to join what came before."""
    plain, other = handlers(pipeline)
    compare(plain, other, PosedCloud(message(0), pose(0)))
    sweeps = other._input._sweeps
    assert isinstance(sweeps, DeviceSweepBuffer)
    sweeps.push_raw(read_raw(message(1, far=True), CONFIG.input), pose(1))
    sweeps._left_alone = True
    compare(plain, other, PosedCloud(message(2), pose(2)), by_host=True)


def test_a_refused_cloud_that_was_sent_ahead_leaves_its_memory_at_once(
    pipeline: LidarPipeline,
) -> None:
    """An error that refers to itself keeps megabytes until somebody looks for garbage."""
    bad = message(1)
    bad.row_step += 1
    items = [PosedCloud(message(0), pose(0)), PosedCloud(bad, pose(1))]
    gone = weakref.ref(items[1])
    _, other, _ = looking_ahead(pipeline, items)
    gc.disable()
    try:
        other.handle(items.pop(0), ())
        with contextlib.suppress(InvalidFrame):
            other.handle(items.pop(0), ())
        assert gone() is None
    finally:
        gc.enable()


def test_the_total_of_a_cloud_counts_what_was_done_for_it_before_its_turn(
    pipeline: LidarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else frames would seem faster the more of them overlap, and meet deadlines that they miss."""

    def slowly(*given: Any) -> RawCloud:
        time.sleep(0.03)
        return read_raw(*given)

    monkeypatch.setattr(cloud_input, "read_raw", slowly)
    items = [PosedCloud(message(k), pose(k)) for k in range(3)]
    _, other, _ = looking_ahead(pipeline, items)
    beside_ms = []
    while items:
        stage_ms = dict(other.handle(items.pop(0), ()).stage_ms)
        total_ms = stage_ms.pop("total")
        assert stage_ms["decode"] >= 30.0
        beside_ms.append(total_ms - sum(stage_ms.values()))
    assert min(beside_ms) >= -1e-6  # nothing is left out,
    # nor counted twice; any one of the two frames sent ahead may have to wait between two stages.
    assert min(beside_ms[1:]) < 15.0


def test_a_message_of_more_points_than_a_gpu_unpacks_is_decoded_on_the_host_in_its_own_turn(
    pipeline: LidarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded ahead of it, it would hold up the result of the frame before by all that time."""
    monkeypatch.setattr(gpu_sweeps, "MOST_POINTS", 450)
    items = [PosedCloud(message(k, count=n), pose(k)) for k, n in enumerate((400, 500, 400, 400))]
    plain, other, _ = looking_ahead(pipeline, items)
    for k in range(4):
        compare(plain, other, items.pop(0), by_host=k == 1)
        assert (other._input._ahead is not None) == (k in (1, 2))
