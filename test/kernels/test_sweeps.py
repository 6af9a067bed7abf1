"""Sweeps joined on a GPU are those that the host joins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from driveRT_ros.core import device_faults
from driveRT_ros.core.config import DensificationConfig, LidarConfig
from driveRT_ros.core.errors import DeviceError, InvalidFrame
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.rows import rows_for
from driveRT_ros.core.sweeps import SweepBuffer, sweeps_for

STEP_NS = 50_000_000


def cloud(count: int, k: int, frame_id: str = "lidar") -> PointBatch:
    """Return a sweep around the vehicle, with returns of the vehicle itself."""
    rng = np.random.default_rng(k)
    rows = rng.uniform(-60, 60, (count, 5)).astype(np.float32)
    rows[: count // 5, :2] /= 60
    rows[:, 4] = rng.uniform(0, 0.05, count)
    return PointBatch(
        rows[:, :3], rows[:, 3], rows[:, 4], None, k * STEP_NS, frame_id, rows=rows
    )  # fmt: skip


def pose(k: int) -> np.ndarray:
    """Return a pose far from the origin of the world, after k steps of a turn uphill."""
    yaw, pitch = 0.03 * k, 0.005 * k
    c, s, d, t = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    out = np.eye(4)
    out[:3, :3] = [[c * d, -s, c * t], [s * d, c, s * t], [-t, 0, d]]
    out[:3, 3] = 206_494.75 + 0.7 * k, 4.5e6 - 0.1 * k, 0.01 * k
    return out


def both(backend, **limits):
    """Return a buffer of the host and one of the backend."""
    config = DensificationConfig(**limits)

    def run(name, grid, block, *args):
        backend.launch("sweeps", name, grid, block, *args)

    return SweepBuffer(config), DeviceSweepBuffer(config, backend.device, run)


def check(host, device, batch, T_world_lidar) -> torch.Tensor:
    want, found = host.push(batch, T_world_lidar), device.push(batch, T_world_lidar)
    assert found.device.type == device._device.type and len(host) == len(device)
    found = found.cpu()
    assert found.shape == want.shape and found.dtype == torch.float32
    now = len(batch)
    assert torch.equal(found[:now], want[:now])
    assert torch.equal(found[:, 3:], want[:, 3:])
    # The product of a BLAS may round otherwise in float64: once in a million that shows.
    xyz, expected = found[now:, :3].numpy(), want[now:, :3].numpy()
    differ = xyz != expected
    assert differ.sum() <= 2
    np.testing.assert_allclose(xyz, expected, rtol=3e-7, atol=1e-12)
    return found


def test_moved_sweeps_are_those_of_the_host(backend):
    host, device = both(backend)
    for k, count in enumerate((1000, 0, 1, 255, 256, 257, 3000, 999)):
        points = check(host, device, cloud(count, k), pose(k))
    assert len(points) > 4000


def test_more_sweeps_than_one_launch_moves_are_all_moved(backend):
    host, device = both(backend, num_past_frames=20, max_time_lag_s=2.0)
    for k in range(22):
        points = check(host, device, cloud(50, k), pose(k))
    assert len(points) > 50 + 19 * 40


def test_what_starts_over_or_replaces_does_so_there_too(backend):
    host, device = both(backend, num_past_frames=3, max_time_lag_s=0.2)
    steps = [
        (cloud(60, 1), pose(1)),
        (cloud(60, 2), pose(2)),
        (dataclasses.replace(cloud(70, 9), stamp_ns=2 * STEP_NS), pose(3)),  # replaces
        (cloud(60, 3), None),  # starts over and is not kept
        (cloud(60, 4), pose(4)),
        (cloud(60, 5), pose(5)),
        (cloud(60, 6, "other"), pose(6)),  # another sensor
        (cloud(60, 7, "other"), pose(7)),
        (cloud(60, 40, "other"), pose(8)),  # too late
        (cloud(60, 2, "other"), pose(2)),  # the clock went back
    ]
    lengths = [len(check(host, device, *step)) for step in steps]
    assert lengths == [60, 108, 118, 60, 60, 108, 60, 108, 60, 60]
    with pytest.raises(InvalidFrame):
        device.push(cloud(60, 41), np.zeros((4, 4)))


def test_without_past_sweeps_the_current_one_is_brought_there(backend):
    host, device = both(backend, num_past_frames=0)
    for k in range(3):
        plain = dataclasses.replace(cloud(100, k), rows=None)
        assert len(check(host, device, plain, None)) == 100


def test_a_result_stays_as_it_is_when_the_next_sweep_comes(backend):
    host, device = both(backend)
    device.push(cloud(300, 0), pose(0))
    first = device.push(cloud(300, 1), pose(1))
    before = first.clone()
    for k in range(2, 6):
        given = cloud(300, k)
        device.push(given, pose(k))
        given.rows[:] = 99.0  # the buffer keeps no view of it
    assert torch.equal(first, before)
    assert not (device.push(cloud(1, 6), pose(6))[:, 3] == 99.0).any()


@pytest.mark.gpu
def test_boxes_from_sweeps_on_the_gpu_are_those_from_the_host():
    config = LidarConfig.from_dict({"voxelization.max_voxels": 40_000})
    pipeline, device = LidarPipeline(config, device="cuda"), torch.device("cuda", 0)
    rules = config.densification_params
    host, there = SweepBuffer(rules, rows_for(device)), sweeps_for(rules, device)
    for k in range(4):
        given = cloud(3000, k)
        want = pipeline.process(host.push(given, pose(k)))
        points = there.push(given, pose(k))
        assert points.is_cuda
        found = pipeline.process(points)
        assert found.report.num_points == want.report.num_points == len(points)
        assert found.report.num_voxels == want.report.num_voxels > 100
        torch.testing.assert_close(found.boxes, want.boxes, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_joining_sweeps_neither_waits_for_the_gpu_nor_gives_their_memory_away_too_early():
    device = torch.device("cuda", 0)
    make_rows = rows_for(device)
    host, there = SweepBuffer(DensificationConfig()), sweeps_for(DensificationConfig(), device)
    for k in range(12):
        check(host, there, cloud(3000, k), pose(k))
    rows = make_rows(3000)
    rows[:] = cloud(3000, 12).rows
    columns = {"xyz": rows[:, :3], "intensity": rows[:, 3], "time_lag_s": rows[:, 4]}
    given = dataclasses.replace(cloud(3000, 12), rows=rows, **columns)
    want, done = host.push(given, pose(12)).clone(), torch.cuda.Event()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    found = there.push(given, pose(12))
    done.record()
    assert not done.query()
    del given, rows, columns
    for _ in range(5):
        make_rows(3000)[:] = 99.0  # what the GPU has not read yet must not be reused
    np.testing.assert_allclose(found.cpu(), want, rtol=3e-7, atol=1e-12)


def failing_from_3_to_5(device, error):
    """Let every launch of pushes 3 to 5 fail; yield the number of each push."""
    run, failing = device._run, False

    def unsure(*args):
        if failing:
            raise error
        run(*args)

    device._run = unsure
    for k in range(9):
        failing = 3 <= k < 6
        yield k


@pytest.mark.parametrize(("code", "lost"), [(2, False), (719, True)])
def test_where_the_gpu_fails_the_host_goes_on_with_the_same_sweeps(
    backend, monkeypatch, code, lost
):
    """Neither the frame nor the history is lost, and a device that is gone is left alone."""
    monkeypatch.setattr(device_faults, "_wrecks", [])
    host, device = both(backend)
    for k in failing_from_3_to_5(device, DeviceError(f"CUDA error {code} in a test.", code)):
        want = host.push(cloud(200, k), pose(k))
        found = device.push(cloud(200, k), pose(k)).cpu()
        np.testing.assert_allclose(found, want, rtol=3e-7, atol=1e-12)
        assert len(device_faults._wrecks) == int(lost and k >= 3)
        assert (device._past[0].there is None) == (3 <= k < 6 or (lost and k >= 3))


def test_an_error_that_is_no_fault_of_the_gpu_comes_out_once_and_the_host_goes_on(backend):
    host, device = both(backend)
    for k in failing_from_3_to_5(device, ZeroDivisionError()):
        if k == 3:
            with pytest.raises(ZeroDivisionError):
                device.push(cloud(20, k), pose(k))
            continue
        want, found = host.push(cloud(20, k), pose(k)), device.push(cloud(20, k), pose(k)).cpu()
        np.testing.assert_allclose(found, want, rtol=3e-7, atol=1e-12)
