"""Clouds reach the buffers of the engine whole, whatever their layout; results come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.gpu import transfers
from driveRT_ros.core.gpu.transfers import HEADER_WORDS, FrameInput, HostCopy
from driveRT_ros.core.pipeline import _checked
from driveRT_ros.core.rows import pinned_rows
from driveRT_ros.core.sweeps import sweeps_for

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CAPACITY = 1000


@pytest.fixture(params=DEVICES)
def frame(request, monkeypatch) -> FrameInput:
    monkeypatch.setattr(transfers, "_CHUNK_POINTS", 64)  # several chunks of a small cloud
    words = torch.full((HEADER_WORDS + 5 * CAPACITY,), -7, dtype=torch.int32, device=request.param)
    return FrameInput(words)


def cloud(count: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(count, 5, dtype=dtype, generator=torch.Generator().manual_seed(count))


def through_the_host(frame: FrameInput, points: torch.Tensor) -> torch.Tensor:
    """Load a cloud by way of a slot, also where device and host are the same."""
    if frame.points.device.type == "cpu":
        frame._slots[0].write(points, frame._words)
        return frame.points[: len(points)]
    return frame.load(points)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 500, CAPACITY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_point_arrives_with_the_count_and_nothing_beyond(frame, count, dtype):
    points = cloud(count, dtype)
    before = frame.points.clone()
    for load in (through_the_host, lambda f, p: f.load(p.to(f.points.device))):
        found = load(frame, points)
        assert torch.equal(found.cpu(), points.float())
        assert frame.num_points.item() == count
        assert torch.equal(frame.points[count:].view(torch.int32), before[count:].view(torch.int32))


def test_the_caller_may_change_its_points_at_once(frame):
    clouds = [cloud(900 + i) for i in range(5)]
    for points in clouds:
        want = points.clone()
        found = through_the_host(frame, points)
        points.zero_()
        assert torch.equal(found.cpu(), want)


def test_points_of_any_strides_arrive(frame):
    wide = cloud(300).repeat(1, 2)[:, ::2]
    assert torch.equal(through_the_host(frame, wide).cpu(), wide)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 1, 500, CAPACITY])
def test_pinned_rows_are_fetched_from_where_they_are_though_the_caller_lets_go(count):
    words = torch.full((HEADER_WORDS + 5 * CAPACITY,), -7, dtype=torch.int32, device="cuda")
    frame = FrameInput(words)
    for turn in range(5):
        rows = torch.from_numpy(pinned_rows(count))
        rows.copy_(cloud(count) + turn)
        want = rows.clone()
        torch.cuda._sleep(2_000_000)  # what is fetched waits for about a millisecond
        found = frame.load(rows)
        del rows
        torch.from_numpy(pinned_rows(count)).fill_(99.0)  # must not be the same memory
        assert torch.equal(found.cpu(), want) and frame.num_points.item() == count
        assert (frame.points[count:].view(torch.int32) == -7).all()


@pytest.mark.gpu
def test_rows_of_a_sweep_are_given_to_nobody_while_the_device_fetches_them():
    """The buffer keeps none of them: torch must know that they are in use."""
    want, rows = cloud(5000), pinned_rows(5000)
    rows[:] = want.numpy()
    columns = rows[:, :3], rows[:, 3], rows[:, 4]
    batch = PointBatch(*columns, None, 0, "lidar", rows=rows)
    buffer = sweeps_for(LidarConfig().densification_params, torch.device("cuda", 0))
    torch.cuda._sleep(100_000_000)
    joined = buffer.push(batch, np.eye(4))
    del batch, rows, columns
    for _ in range(4):
        pinned_rows(5000).fill(99.0)
    assert torch.equal(joined.cpu(), want)


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_on_the_host_is_that_of_the_last_wait(device):
    words = torch.arange(10, dtype=torch.int32, device=device)
    copy = HostCopy(words)
    for step in range(3):
        words += step
        copy.enqueue()
        copy.wait()
        assert copy.words.tolist() == words.tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a,
        lambda a: a.astype(">f4"),
        lambda a: a[::-1],
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    ],
    ids=["plain", "big-endian", "reversed", "by column", "every other", "read-only"],
)
@pytest.mark.filterwarnings("error")
def test_arrays_of_any_kind_become_tensors_of_the_same_values(change):
    points = change(cloud(20).numpy())
    assert np.array_equal(_checked(points).numpy(), points)


def test_plain_arrays_are_not_copied():
    points = cloud(20).numpy()
    assert np.shares_memory(_checked(points).numpy(), points)
