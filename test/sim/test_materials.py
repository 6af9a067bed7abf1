"""What surfaces return follows the laws that real sweeps show: calibration, least intensity."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.materials import INDEX, respond
from driveRT_ros.sim.simulate import simulate

RANGE_OF_ONE_M = 16.0


def answers(name, range_m, cosine=1.0, gain=1.0, dropout=1.0, brightness=1.0, count=4000):
    """Return which of many equal firings are found, and their intensities."""
    full = np.full(count, 1.0)
    return respond(
        np.full(count, INDEX[name]),
        gain * full,
        cosine * full,
        range_m * full,
        dropout,
        brightness,
        np.random.default_rng(0),
    )


def test_nothing_is_found_below_the_least_intensity_of_its_range():
    (frame,) = simulate(SimConfig(seed=5, num_sweeps=1))
    away = np.linalg.norm(frame.points.xyz, axis=1)
    least = (away / RANGE_OF_ONE_M) ** 2
    far = away > 20.0
    assert far.sum() > 1000
    # Intensities are whole numbers and ranges carry noise.
    assert (frame.points.intensity[far] >= least[far] - 0.7).all()


def test_the_same_law_bounds_the_points_of_real_sweeps(data_dir):
    sweeps = list((data_dir / "nuscenes").rglob("*LIDAR_TOP*.pcd.bin"))
    assert sweeps, "without a sweep this would say nothing"
    for path in sweeps:
        points = np.fromfile(path, np.float32).reshape(-1, 5)
        away = np.linalg.norm(points[:, :3], axis=1)
        for low, high in ((20, 30), (30, 40), (40, 60), (60, 100)):
            some = (away >= low) & (away < high)
            ratio = points[some, 3] / (away[some] / RANGE_OF_ONE_M) ** 2
            assert some.sum() > 200
            assert 0.5 < np.quantile(ratio, 0.02) < 2.0  # sensors of two vehicles


def test_dark_and_glancing_surfaces_are_lost_first_and_bright_ones_last():
    def share(*args, **kwargs):
        return answers(*args, **kwargs)[0].mean()

    assert share("paint", 10.0) > 0.9
    assert share("paint", 45.0, gain=4.0) > 0.9 > 0.2 > share("paint", 45.0, gain=0.2)
    assert share("paint", 30.0, cosine=1.0) > 2 * share("paint", 30.0, cosine=0.15)
    assert share("retro", 95.0) > 0.5 > 0.05 > share("asphalt", 95.0)


def test_without_dropout_nothing_is_lost():
    for name in ("paint", "glass", "asphalt"):
        assert answers(name, 100.0, cosine=0.0, dropout=0.0)[0].all()


def test_intensity_peaks_at_8_m_and_is_less_than_half_beyond_20_m():
    at = {r: np.median(answers("leaves", r)[1]) for r in (4.0, 8.0, 25.0, 60.0)}
    assert at[8.0] == pytest.approx(1.25 * at[4.0], rel=0.1)
    assert at[25.0] == pytest.approx(0.43 * at[4.0], abs=1.0) == at[60.0]


def test_only_retroreflectors_give_more_than_100():
    assert answers("concrete", 8.0, gain=9.0)[1].max() == 100.0
    assert answers("retro", 8.0)[1].max() == 255.0
