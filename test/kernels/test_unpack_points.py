"""A message unpacked on a GPU gives the bytes, the counts and the sentences of the host."""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref

import numpy as np
import pytest
import torch

from driveRT_ros.core import device_faults
from driveRT_ros.core.config import DensificationConfig, InputConfig, LidarConfig
from driveRT_ros.core.errors import DeviceError, InvalidFrame
from driveRT_ros.core.gpu import unpack_points
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.raw_pointcloud import read_raw
from test.support.cloud_layouts import CONFIGS, COUNT, LAYOUTS, POINTS, STAMP_NS, typed
from test.support.clouds import random_points, xyzi_cloud
from test.support.launch import Backend
from test.support.odd_clouds import odd_cloud
from test.support.shim_sweeps import shim_sweeps


def device_sweeps(backend, **limits) -> DeviceSweepBuffer:
    rules = DensificationConfig(**limits)
    if backend.name == "cuda":
        return DeviceSweepBuffer(rules, backend.device)
    return shim_sweeps(rules, backend)


def same_bytes(found: torch.Tensor, want: np.ndarray) -> None:
    assert found.shape == want.shape
    differ = found.cpu().numpy().view(np.uint32) != np.ascontiguousarray(want).view(np.uint32)
    assert not differ.any(), np.argwhere(differ)[:5]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_layout_is_unpacked_to_the_bytes_and_the_report_of_the_host(backend, config):
    device = device_sweeps(backend, num_past_frames=0)
    for name, message in LAYOUTS.items():
        want = decode(message, config=CONFIGS[config])
        cloud = device.push_raw(read_raw(message, CONFIGS[config]), None)
        try:
            same_bytes(cloud.exact(), want.rows)
            summary = cloud.summary()
            assert summary.report == want.report
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert (len(summary), summary.stamp_ns) == (len(want), want.stamp_ns)
        assert summary.frame_id == want.frame_id


def test_messages_of_any_layout_and_values_are_unpacked_or_refused_as_by_the_host(backend):
    rng = np.random.default_rng(5)
    device, refused, decoded = device_sweeps(backend, num_past_frames=0), 0, 0
    for number in range(120):
        message, config = odd_cloud(rng)
        cloud = device.push_raw(read_raw(message, config), None)
        try:
            want = decode(message, config=config)
        except InvalidFrame as error:
            with pytest.raises(InvalidFrame) as found:
                cloud.summary()
            assert str(found.value) == str(error), number
            refused += 1
            continue
        assert cloud.summary().report == want.report, number
        same_bytes(cloud.exact(), want.rows)
        decoded += 1
    assert refused > 10 and decoded > 50


def test_an_empty_message_is_an_ordinary_one(backend):
    device, config = device_sweeps(backend), InputConfig()
    for count in (0, 5, 0):
        message = xyzi_cloud({k: v[:count] for k, v in POINTS.items()})
        if count == 0:  # what a message without points says of their layout means nothing
            message.width, message.height, message.row_step = 2**32 - 1, 0, 2**32 - 1
        cloud = device.push_raw(read_raw(message, config), np.eye(4))
        assert cloud.summary().report == decode(message).report
        device.clear()
        assert len(cloud.exact()) == count


def test_what_comes_out_does_not_depend_on_the_order_of_threads(backend):
    message = LAYOUTS["holes_float64"]
    want = decode(message, config=CONFIGS["thinned"])
    for _ in backend.repeats():
        device = device_sweeps(backend)
        same_bytes(device.push_raw(read_raw(message, CONFIGS["thinned"]), None).exact(), want.rows)


def test_a_cloud_in_a_map_frame_is_refused_with_the_sentence_of_the_host_and_not_kept(backend):
    device = device_sweeps(backend)
    good, far = LAYOUTS["plain"], typed(["f8"] * 4, "xyzi", values={"y": POINTS["y"] + 4.5e6})
    device.push_raw(read_raw(good), np.eye(4))
    before = device.history()
    with pytest.raises(InvalidFrame) as want:
        decode(far)
    pushed = device.push_raw(read_raw(far), np.eye(4))
    with pytest.raises(InvalidFrame) as found:
        pushed.summary()
    assert (str(found.value), found.value.code) == (str(want.value), want.value.code)
    device.go_back(before)
    assert len(device) == 1
    later = copy.deepcopy(good)
    later.header.stamp.nanosec += 1000
    assert len(device.push_raw(read_raw(later), np.eye(4)).exact()) > COUNT


@pytest.mark.parametrize(
    "change",
    [
        {"row_step": 3},
        {"point_step": 10},
        {"width": COUNT + 1},
        {"fields": []},
        {"data": b"too short"},
    ],
)
def test_a_bad_layout_is_refused_with_the_sentence_of_the_host_before_anything_moves(change):
    message = copy.deepcopy(LAYOUTS["plain"])
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(InvalidFrame) as want:
        decode(message)
    with pytest.raises(InvalidFrame) as found:
        read_raw(message)
    assert (str(found.value), found.value.code) == (str(want.value), want.value.code)


def sweep(k: int, count: int = COUNT):
    """Return a message of which a part is the vehicle itself, and some points are none."""
    values = {n: v[:count] for n, v in random_points(COUNT, seed=k).items()}
    values["x"][: count // 5] /= 50
    values["y"][: count // 4] /= 50
    values["z"][::7] = np.nan
    return typed(
        ["f4", "f4", "f4", "u1", "u2", "u4"], values=values, stamp_ns=STAMP_NS + k * 50_000_000
    )


def pose(k: int) -> np.ndarray:
    c, s = np.cos(0.03 * k), np.sin(0.03 * k)
    out = np.eye(4)
    out[:2, :2] = [[c, -s], [s, c]]
    out[:3, 3] = 206_494.75 + 0.7 * k, 4.5e6 - 0.1 * k, 0.01 * k
    return out


def join(host, device, k: int, where, count: int = COUNT, settles: bool = True) -> None:
    message = sweep(k, count)
    want = host.push(decode(message), where).numpy()
    found = device.push_raw(read_raw(message), where)
    assert len(host) == len(device)
    if not settles:  # then the host goes on without knowing how many points there are
        return
    rows = found.exact().cpu().numpy()
    now = len(decode(message))
    same_bytes(torch.from_numpy(rows[:now]), want[:now])
    same_bytes(torch.from_numpy(rows[:, 3:].copy()), want[:, 3:])
    # A BLAS may round otherwise in float64: once in a million that shows in float32.
    assert (rows != want).sum() <= 2
    np.testing.assert_allclose(rows, want, rtol=3e-7, atol=1e-12)


@pytest.mark.parametrize("settles", [True, False])
def test_past_sweeps_join_behind_it_as_on_the_host(backend, settles):
    limits = {"num_past_frames": 3, "max_time_lag_s": 0.4}
    host, device = SweepBuffer(DensificationConfig(**limits)), device_sweeps(backend, **limits)
    for k, count in enumerate((700, 1, 255, 256, 257, 0, 700, 513)):
        join(host, device, k, pose(k), count, settles or k == 7)
    join(host, device, 8, None)
    join(host, device, 9, pose(9))
    join(host, device, 9, pose(10))  # replaces
    join(host, device, 4, pose(4))  # the clock went back


def test_sweeps_of_both_kinds_join_each_other(backend):
    host, device = SweepBuffer(DensificationConfig()), device_sweeps(backend)
    for k in range(6):
        if k % 2:
            join(host, device, k, pose(k))
            continue
        batch = decode(sweep(k))
        want, found = host.push(batch, pose(k)), device.push(batch, pose(k))
        np.testing.assert_allclose(found.cpu(), want, rtol=3e-7, atol=1e-12)


def test_where_the_gpu_fails_the_host_goes_on_with_the_same_sweeps(backend, monkeypatch):
    monkeypatch.setattr(device_faults, "_wrecks", [])
    host, device = SweepBuffer(DensificationConfig()), device_sweeps(backend)
    error = DeviceError("CUDA error 2 in a test.", 2)
    for k in range(7):
        if 3 <= k < 5:
            with monkeypatch.context() as failing:
                failing.setattr(unpack_points.PointUnpacker, "run", raising(error))
                failing.setattr(device, "_run", raising(error))
                message = sweep(k)
                want = host.push(decode(message), pose(k))
                found = device.push_raw(read_raw(message), pose(k))
            np.testing.assert_allclose(found, want, rtol=3e-7, atol=1e-12)
            continue
        join(host, device, k, pose(k))


def raising(error):
    def fail(*args, **options):
        raise error

    return fail


def test_an_unpacker_that_was_outgrown_leaves_its_memory_at_once(backend):
    device = device_sweeps(backend, num_past_frames=0)
    gc.disable()
    try:
        cloud = device.push_raw(read_raw(sweep(0, 30)), None)
        outgrown = [weakref.ref(x) for x in (cloud, device._unpackers._slots[0])]
        for k in range(2):
            cloud = device.push_raw(read_raw(sweep(k)), None)
            same_bytes(cloud.exact(), decode(sweep(k)).rows)
        assert [x() for x in outgrown] == [None, None]
    finally:
        gc.enable()


class Upload:
    """Notes what is asked of the stream that fetches messages."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda: self.asked.append(name) or contextlib.nullcontext()


def test_bytes_stay_until_what_reads_them_is_through_also_where_enqueueing_fails(monkeypatch):
    """Kernels that were enqueued before the failure would read half of the next message."""
    raw, upload = read_raw(LAYOUTS["plain"]), Upload()
    unpacker = device_sweeps(Backend("cpu-shim"))._unpackers.take(raw, COUNT)
    monkeypatch.setattr(unpacker, "_upload", upload)
    monkeypatch.setattr(unpacker._graphs, "run", raising(DeviceError("CUDA error 2.", 2)))
    with pytest.raises(DeviceError):
        unpacker.run(raw, [], None, 0.0)
    assert upload.asked == ["wait", "stream", "sent", "used"]


@pytest.mark.gpu
def test_unpacking_does_not_wait_for_the_gpu_and_its_graph_gives_the_bytes_of_its_kernels():
    limits = {"num_past_frames": 3}
    device = torch.device("cuda", 0)
    host = SweepBuffer(DensificationConfig(**limits))
    replayed, plain = (DeviceSweepBuffer(DensificationConfig(**limits), device) for _ in range(2))
    for k in range(8):
        join(host, replayed, k, pose(k))
        unpacker = plain._unpackers.take(read_raw(sweep(k)), 4 * COUNT)
        unpacker._graphs._wanted = False  # kernel by kernel
        plain._unpackers._next ^= 1
        plain.push_raw(read_raw(sweep(k)), pose(k))
    captured = [u._graphs.captured for ring in (replayed, plain) for u in ring._unpackers._slots]
    assert captured == [True, True, False, False]
    message, done = sweep(8), torch.cuda.Event()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    found = replayed.push_raw(read_raw(message), pose(8))
    done.record()
    assert not done.query()
    want = plain.push_raw(read_raw(message), pose(8))
    same_bytes(found.exact(), want.exact().cpu().numpy())
    assert found.summary().report == decode(message).report


@pytest.mark.gpu
def test_boxes_of_messages_that_the_gpu_unpacks_are_those_of_the_host():
    config = LidarConfig.from_dict(
        {"voxelization.max_voxels": 40_000, "densification_params.num_past_frames": 0}
    )
    pipeline = LidarPipeline(config, device="cuda")
    device = DeviceSweepBuffer(config.densification_params, torch.device("cuda", 0))
    for k, count in enumerate((COUNT, 0, COUNT, 3, COUNT)):
        message = sweep(k, count)
        want = pipeline.process(decode(message).rows if count else np.zeros((0, 5), np.float32))
        cloud = device.push_raw(read_raw(message), None)
        found = pipeline.process(cloud, with_fingerprint=True)
        assert torch.equal(found.boxes, want.boxes) and torch.equal(found.scores, want.scores)
        assert found.report.num_points == want.report.num_points == len(cloud.summary())
        assert found.report.dropped == want.report.dropped


@pytest.mark.gpu
def test_a_message_is_fetched_while_the_gpu_is_at_work_on_something_else():
    device = DeviceSweepBuffer(DensificationConfig(num_past_frames=2), torch.device("cuda", 0))
    for k in range(4):
        device.push_raw(read_raw(sweep(k)), pose(k)).exact()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    asleep = torch.cuda.Event()
    asleep.record()
    unpacker = device._unpackers._slots[device._unpackers._next]
    found = device.push_raw(read_raw(sweep(4)), pose(4))
    unpacker._upload.wait()
    assert not asleep.query()
    now = decode(sweep(4)).rows
    same_bytes(found.exact()[: len(now)], now)


@pytest.mark.gpu
def test_frames_with_the_next_message_on_its_way_are_those_without():
    """Two frames are in flight; they come out in order, with the same bytes."""
    config = LidarConfig.from_dict({"voxelization.max_voxels": 40_000})
    pipeline, rules = LidarPipeline(config, device="cuda"), config.densification_params
    alone, ahead = (DeviceSweepBuffer(rules, torch.device("cuda", 0)) for _ in range(2))
    messages = [read_raw(sweep(k)) for k in range(12)]
    flying = [ahead.push_raw(messages[0], pose(0))]
    for k, message in enumerate(messages):
        want = pipeline.process(alone.push_raw(message, pose(k)), with_fingerprint=True)

        def send_next(k: int = k) -> None:
            if k + 1 < len(messages):
                flying.append(ahead.push_raw(messages[k + 1], pose(k + 1)))

        cloud = flying.pop(0)
        found = pipeline.process(cloud, with_fingerprint=True, meanwhile=send_next)
        assert found.report.fingerprint == want.report.fingerprint
        assert found.report.num_points == want.report.num_points == len(cloud.exact())
        assert len(flying) == int(k + 1 < len(messages))
