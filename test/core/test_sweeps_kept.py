"""A sweep that nobody wants joined is kept as if it had been."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.sweeps import SweepBuffer


def batch(number: int, frame_id: str = "LIDAR_TOP") -> PointBatch:
    rng = np.random.default_rng(number)
    return PointBatch(
        xyz=rng.normal(0.0, 3.0, (40, 3)).astype(np.float32),
        intensity=np.full(40, number, np.float32),
        time_lag_s=np.zeros(40, np.float32),
        ring=None,
        stamp_ns=number * 50_000_000,
        frame_id=frame_id,
    )


def pose(number: int) -> np.ndarray:
    T = np.eye(4)
    T[0, 3] = number
    return T


@pytest.mark.parametrize("past", (0, 3))
def test_the_next_sweep_is_joined_with_those_kept_as_with_those_pushed(past):
    kept, pushed = (SweepBuffer(DensificationConfig(num_past_frames=past)) for _ in range(2))
    for number in range(5):
        kept.keep(batch(number), pose(number))
        pushed.push(batch(number), pose(number))
        assert len(kept) == len(pushed) == min(number + 1, past)
    assert kept.push(batch(5), pose(5)).equal(pushed.push(batch(5), pose(5)))


def test_a_sweep_without_a_pose_or_of_another_sensor_starts_over():
    buffer = SweepBuffer(DensificationConfig())
    buffer.keep(batch(0), pose(0))
    buffer.keep(batch(1, "LIDAR_REAR"), pose(1))
    assert len(buffer) == 1
    buffer.keep(batch(2, "LIDAR_REAR"), None)
    assert len(buffer) == 0
    with pytest.raises(InvalidFrame):
        buffer.keep(batch(3), np.zeros((4, 4)))
