"""Rolling percentiles and deadline misses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driveRT_ros.core.latency import LatencyTracker, percentile


def test_percentiles_of_one_to_hundred_are_the_numbers_themselves() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1, 101)).tolist()
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]


def test_percentile_is_always_a_measured_value() -> None:
    assert percentile([1.0, 10.0], 50) == 1.0
    assert percentile([1.0, 10.0], 51) == 10.0
    assert percentile([7.0], 1) == 7.0
    assert math.isnan(percentile([], 50))


def test_only_the_window_counts() -> None:
    tracker = LatencyTracker(window=10, deadline_ms=50.0)
    for i in range(100):
        tracker.add({"total": 100.0 if i < 90 else float(i - 90)}, now_s=float(i))
    summary = tracker.summary()
    assert (summary.count, summary.max_ms, summary.p50_ms) == (10, 9.0, 4.0)
    assert tracker.deadline_misses == 0


def test_a_frame_exactly_on_the_deadline_is_in_time() -> None:
    tracker = LatencyTracker(window=10, deadline_ms=50.0)
    tracker.add({"total": 50.0}, now_s=1.0)
    tracker.add({"total": math.nextafter(50.0, 51.0)}, now_s=2.0)
    assert tracker.deadline_misses == 1


def test_consecutive_delay_counts_from_the_start_of_the_first_late_frame() -> None:
    tracker = LatencyTracker(window=10, deadline_ms=100.0)
    tracker.add({"total": 10.0}, now_s=0.0)
    assert tracker.consecutive_delay_ms(5.0) == 0.0
    tracker.add({"total": 500.0}, now_s=10.0)
    tracker.add({"total": 500.0}, now_s=10.5)
    assert tracker.consecutive_delay_ms(10.5) == pytest.approx(1000.0)
    tracker.add({"total": 99.0}, now_s=11.0)
    assert tracker.consecutive_delay_ms(99.0) == 0.0


def test_stages_are_kept_apart_and_clear_forgets_them() -> None:
    tracker = LatencyTracker(window=4, deadline_ms=1.0)
    tracker.add({"decode": 2.0, "total": 9.0}, now_s=0.0)
    assert tracker.summary("decode").p99_ms == 2.0
    assert tracker.stages == ("decode", "total")
    tracker.clear()
    assert tracker.summary("decode").count == 0
    assert math.isnan(tracker.summary().p95_ms)
    assert (tracker.deadline_misses, tracker.consecutive_delay_ms(9.0)) == (0, 0.0)
