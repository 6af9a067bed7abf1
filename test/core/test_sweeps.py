"""Accumulation of sweeps: exact motion compensation and rules that survive odd clocks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.rows import pinned_rows, rows_for
from driveRT_ros.core.sweeps import SweepBuffer, relative_transform, sweeps_for

STEP_NS = 50_000_000  # 20 Hz


def batch(xyz, stamp_ns=0, *, lag=0.0, intensity=7.0, frame_id="LIDAR_TOP") -> PointBatch:
    xyz = np.asarray(xyz, np.float32).reshape(-1, 3)
    return PointBatch(
        xyz=xyz,
        intensity=np.full(len(xyz), intensity, np.float32),
        time_lag_s=np.full(len(xyz), lag, np.float32),
        ring=None,
        stamp_ns=stamp_ns,
        frame_id=frame_id,
    )


def pose(x=0.0, y=0.0, z=0.0, yaw=0.0) -> np.ndarray:
    T = np.eye(4)
    T[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
    T[:3, 3] = x, y, z
    return T


def buffer(**changes) -> SweepBuffer:
    return SweepBuffer(DensificationConfig(**changes))


def test_a_still_point_stays_still_while_the_ego_drives_and_turns():
    sweeps, still = buffer(), np.array([30.0, 12.0, 1.0, 1.0])
    for k in range(5):
        T = pose(x=2.0 * k, y=0.3 * k, yaw=0.05 * k)
        seen = (np.linalg.inv(T) @ still)[:3]
        points = sweeps.push(batch([seen], k * STEP_NS), T)
        assert points.shape == (k + 1, 5)
        assert points.dtype == torch.float32
        np.testing.assert_allclose(points[:, :3], np.tile(seen, (k + 1, 1)), atol=2e-5)


def test_the_current_sweep_comes_first_and_past_ones_newest_first_with_growing_lag():
    sweeps = buffer()
    for k in range(4):
        points = sweeps.push(batch([[10.0 + k, 0, 0]], k * STEP_NS, intensity=k), pose())
    assert points[:, 3].tolist() == [3, 2, 1, 0]
    np.testing.assert_allclose(points[:, 4], [0.0, 0.05, 0.10, 0.15], atol=1e-7)


def test_the_lag_within_a_sweep_is_added_to_its_age():
    sweeps = buffer()
    sweeps.push(batch([[10, 0, 0]], 0, lag=0.02), pose())
    points = sweeps.push(batch([[10, 0, 0]], STEP_NS, lag=0.03), pose())
    np.testing.assert_allclose(points[:, 4], [0.03, 0.07], atol=1e-7)
    assert (points[:, 4] >= 0).all()


def test_world_coordinates_of_thousands_of_kilometres_cost_no_precision():
    sweeps = buffer()
    far = (206_494.75, 4.5e6, 120.0)
    still = np.array([far[0] + 20.0, far[1] - 3.0, far[2], 1.0])
    for k in range(3):
        T = pose(far[0] + 1.37 * k, far[1] + 0.11 * k, far[2], yaw=1.0 + 0.02 * k)
        seen = T[:3, :3].T @ (still[:3] - T[:3, 3])
        points = sweeps.push(batch([seen], k * STEP_NS), T)
    np.testing.assert_allclose(points[:, :3], np.tile(seen, (3, 1)), atol=4e-6)


def test_relative_transforms_compose_and_invert():
    """Two inverted matrices multiplied in the wrong order would look like drift."""
    T_ego_lidar = pose(1.0, 0.0, 2.0, yaw=math.pi / 2)
    T_world_ego = pose(100.0, 50.0, 0.0, yaw=math.pi / 4)
    T_world_lidar = T_world_ego @ T_ego_lidar
    root = math.sqrt(0.5)
    want = [100 + root + root * -1.0, 50 + root + root, 2.0]
    np.testing.assert_allclose((T_world_lidar @ [1, 0, 0, 1])[:3], want, atol=1e-12)
    there = relative_transform(T_world_lidar, np.eye(4))
    back = relative_transform(np.eye(4), T_world_lidar)
    np.testing.assert_allclose(there @ back, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(there, np.linalg.inv(T_world_lidar), atol=1e-9)


def test_the_vehicle_itself_is_left_out_of_past_sweeps_only():
    cloud = [[0.5, 0.5, 0], [0.99, -0.99, 0], [1.0, 0.2, 0], [0.2, -1.5, 0], [5, 5, 0]]
    sweeps = buffer()
    sweeps.push(batch(cloud, 0), pose())
    points = sweeps.push(batch(cloud, STEP_NS), pose())
    np.testing.assert_array_equal(points[:5, :3], np.float32(cloud))
    np.testing.assert_array_equal(points[5:, :3], np.float32(cloud[2:]))


def test_the_vehicle_is_recognised_in_the_frame_of_its_own_sweep():
    sweeps = buffer()
    sweeps.push(batch([[0.5, 0.0, 0], [10.0, 0, 0]], 0), pose(x=0.0))
    points = sweeps.push(batch([[20.0, 0, 0]], STEP_NS), pose(x=9.8))
    # The second point of the past sweep is now at 0.2 m, but it was never the vehicle.
    np.testing.assert_allclose(points[:, 0], [20.0, 0.2], atol=1e-5)


def test_only_the_configured_number_of_past_sweeps_is_used():
    sweeps = buffer(num_past_frames=2)
    for k in range(6):
        points = sweeps.push(batch([[10, 0, 0]], k * STEP_NS, intensity=k), pose())
    assert points[:, 3].tolist() == [5, 4, 3]
    assert len(sweeps) == 2


def test_sweeps_older_than_the_limit_are_forgotten():
    sweeps = buffer(max_time_lag_s=0.1)
    for k in range(5):
        points = sweeps.push(batch([[10, 0, 0]], k * STEP_NS, intensity=k), pose())
    assert points[:, 3].tolist() == [4, 3, 2]
    points = sweeps.push(batch([[10, 0, 0]], 10**12), pose())
    assert len(points) == 1


def test_without_past_frames_no_pose_is_needed():
    sweeps = buffer(num_past_frames=0)
    for k in range(3):
        assert len(sweeps.push(batch([[1, 2, 3]], k), None)) == 1
    assert len(sweeps) == 0


def test_a_clock_that_goes_back_starts_over():
    """A bag that loops replays old stamps; its second pass must equal the first."""
    sweeps = buffer()

    def one_pass():
        return [
            sweeps.push(batch([[10 + k, 0, 0]], 10**9 + k * STEP_NS), pose(x=k)) for k in range(4)
        ]

    first, second = one_pass(), one_pass()
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_a_sweep_without_a_pose_starts_over_and_is_not_kept():
    sweeps = buffer()
    sweeps.push(batch([[10, 0, 0]], 0), pose())
    assert len(sweeps.push(batch([[11, 0, 0]], STEP_NS), None)) == 1
    assert len(sweeps) == 0
    assert len(sweeps.push(batch([[12, 0, 0]], 2 * STEP_NS), pose())) == 1


def test_a_repeated_stamp_replaces_the_sweep_and_divides_by_nothing():
    """The identical message twice, then other data under the same stamp."""
    sweeps = buffer()
    sweeps.push(batch([[9, 0, 0]], 0), pose())
    first = sweeps.push(batch([[10, 0, 0]], STEP_NS), pose())
    again = sweeps.push(batch([[10, 0, 0]], STEP_NS), pose())
    assert torch.equal(first, again)
    sweeps.push(batch([[11, 0, 0]], STEP_NS), pose())
    points = sweeps.push(batch([[12, 0, 0]], 2 * STEP_NS), pose())
    assert points[:, 0].tolist() == [12, 11, 9]
    assert torch.isfinite(points).all()


def test_another_frame_id_starts_over():
    sweeps = buffer()
    sweeps.push(batch([[10, 0, 0]], 0), pose())
    assert len(sweeps.push(batch([[10, 0, 0]], STEP_NS, frame_id="LIDAR_REAR"), pose())) == 1


def test_empty_sweeps_are_ordinary():
    sweeps = buffer()
    assert sweeps.push(batch([], 0), pose()).shape == (0, 5)
    assert sweeps.push(batch([[10, 0, 0]], STEP_NS), pose()).shape == (1, 5)
    assert sweeps.push(batch([], 2 * STEP_NS), pose()).shape == (1, 5)


def test_the_buffer_keeps_no_view_of_the_message():
    """The array of a message may be reused by its owner."""
    sweeps, cloud = buffer(), batch([[10, 0, 0]], 0)
    points = sweeps.push(cloud, pose())
    cloud.xyz[:] = 99.0
    assert points[0, 0] == 10.0
    assert sweeps.push(batch([[5, 0, 0]], STEP_NS), pose())[1, 0] == 10.0


def with_rows(xyz, stamp_ns) -> PointBatch:
    plain = batch(xyz, stamp_ns)
    rows = np.column_stack([plain.xyz, plain.intensity, plain.time_lag_s])
    columns = {"xyz": rows[:, :3], "intensity": rows[:, 3], "time_lag_s": rows[:, 4]}
    return dataclasses.replace(plain, rows=rows, **columns)


@pytest.mark.parametrize("num_past_frames", [0, 2])
def test_rows_give_what_arrays_give_and_alone_they_are_not_copied(num_past_frames):
    sweeps = [buffer(num_past_frames=num_past_frames) for _ in range(2)]
    for k in range(4):
        cloud = np.random.default_rng(k).uniform(-9, 9, (50, 3))
        given = with_rows(cloud, k * STEP_NS)
        joined = sweeps[0].push(given, pose(x=k, yaw=k))
        assert torch.equal(joined, sweeps[1].push(batch(cloud, k * STEP_NS), pose(x=k, yaw=k)))
        alone = k == 0 or num_past_frames == 0
        assert np.shares_memory(joined.numpy(), given.rows) == alone
        given.rows[:] = 99.0  # the buffer keeps no view of them


def test_rows_that_the_arrays_no_longer_show_are_not_used():
    given = with_rows([[10, 0, 0], [11, 0, 0]], 0)
    for change in ({"xyz": given.xyz + 1}, {"intensity": given.intensity * 2}):
        changed = dataclasses.replace(given, **change)
        points = buffer().push(changed, pose()).numpy()
        np.testing.assert_array_equal(points[:, :3], changed.xyz)
        np.testing.assert_array_equal(points[:, 3], changed.intensity)
    fewer = dataclasses.replace(
        given, xyz=given.xyz[:1], intensity=given.intensity[:1], time_lag_s=given.time_lag_s[:1]
    )
    assert len(buffer().push(fewer, pose())) == 1


def test_a_sweep_of_many_blocks_moves_as_one():
    """Past points are moved block by block: the last, short one must not be forgotten."""
    xyz = np.random.default_rng(1).uniform(-60, 60, (20_000, 3)).astype(np.float32)
    xyz[:, 0] += np.where(xyz[:, 0] < 0, -2, 2)  # none is the vehicle
    sweeps, there, here = buffer(), pose(x=3.0, yaw=0.3), pose(x=4.5, y=0.2, yaw=0.4)
    sweeps.push(batch(xyz, 0), there)
    points = sweeps.push(batch([], STEP_NS), here).numpy()
    T = relative_transform(here, there)
    want = xyz.astype(np.float64) @ T[:3, :3].T + T[:3, 3]
    np.testing.assert_allclose(points[:, :3], want, rtol=0, atol=4e-6)


@pytest.mark.parametrize(("device", "kind"), [("cpu", SweepBuffer), ("cuda", DeviceSweepBuffer)])
def test_sweeps_are_joined_where_they_are_wanted(device, kind):
    assert type(sweeps_for(DensificationConfig(), torch.device(device))) is kind


def test_points_that_are_not_numbers_are_not_taken_for_the_vehicle():
    sweeps = buffer()
    sweeps.push(batch([[np.nan, 0, 0], [0.1, 0.1, 0], [0.1, np.nan, 0]], 0), pose())
    assert len(sweeps.push(batch([], STEP_NS), pose())) == 2


@pytest.mark.gpu
def test_rows_for_a_gpu_are_pinned_and_go_back_to_the_cache_of_torch():
    first = rows_for(torch.device("cuda"))(1000)
    assert torch.from_numpy(first).is_pinned() and first.shape == (1000, 5)
    del first
    assert len({pinned_rows(1000).ctypes.data for _ in range(100)}) < 10


def test_rows_are_of_ordinary_memory_where_cuda_refuses(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch, "empty", refuse)
    assert pinned_rows(7).shape == (7, 5)


def test_clear_forgets_everything():
    sweeps = buffer()
    sweeps.push(batch([[10, 0, 0]], 0), pose())
    sweeps.clear()
    assert len(sweeps) == 0
    assert len(sweeps.push(batch([[10, 0, 0]], STEP_NS), pose())) == 1


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 4)),
        np.full((4, 4), np.nan),
        np.eye(3),
        np.diag([1.0, 1.0, -1.0, 1.0]),
        np.diag([2.0, 2.0, 2.0, 1.0]),
    ],
    ids=["zeros", "nan", "3x3", "mirror", "scaled"],
)
def test_a_pose_that_is_not_rigid_is_refused_and_the_next_frame_works(bad):
    sweeps = buffer()
    sweeps.push(batch([[10, 0, 0]], 0), pose())
    with pytest.raises(InvalidFrame) as caught:
        sweeps.push(batch([[10, 0, 0]], STEP_NS), bad)
    assert caught.value.code == "invalid_pose"
    assert len(sweeps.push(batch([[10, 0, 0]], 2 * STEP_NS), pose())) == 2
