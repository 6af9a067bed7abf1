"""Per-point times: many encodings, one meaning: seconds back from the stamp, never negative."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.io.pointcloud import decode
from test.support.clouds import make_cloud, random_points

STAMP_NS = 1_700_000_000_500_000_000
POINTS = random_points(500)
BEFORE_END_S = np.linspace(0.1, 0.0, 500)  # the last point is measured at the end of the scan


def with_time(values, code, name="t", count=500):
    columns = {a: (POINTS[a][:count], "f4", 4 * k) for k, a in enumerate("xyz")}
    columns[name] = (np.asarray(values)[:count], code, 12)
    return decode(make_cloud(columns, 20, stamp_ns=STAMP_NS))


@pytest.mark.parametrize(
    ("values", "code", "tolerance_s"),
    [
        (np.round((0.1 - BEFORE_END_S) * 1e9), "u4", 1e-8),  # ns after the start of the scan
        (0.1 - BEFORE_END_S, "f4", 1e-7),  # s after the start
        (-BEFORE_END_S, "f4", 1e-7),  # s, stamped at the end
        (-BEFORE_END_S, "f8", 1e-8),
        (np.round(-BEFORE_END_S * 1e9), "i4", 1e-8),
        (STAMP_NS * 1e-9 - BEFORE_END_S, "f8", 1e-6),  # clock in s
        (STAMP_NS * 1e-6 - BEFORE_END_S * 1e3, "f8", 1e-6),  # clock in ms
        (STAMP_NS * 1e-3 - BEFORE_END_S * 1e6, "f8", 1e-6),  # clock in us
        (float(STAMP_NS) - BEFORE_END_S * 1e9, "f8", 1e-6),  # clock in ns
        (1.5e9 - BEFORE_END_S, "f8", 1e-6),  # another clock
    ],
)
def test_every_encoding_gives_the_same_lag(values, code, tolerance_s):
    batch = with_time(values, code)
    np.testing.assert_allclose(batch.time_lag_s, BEFORE_END_S, atol=tolerance_s)
    assert batch.time_lag_s.dtype == np.float32 and (batch.time_lag_s >= 0).all()


@pytest.mark.parametrize("name", ["t", "time", "timestamp", "time_stamp", "offset_time"])
def test_time_is_found_under_its_usual_names(name):
    assert with_time(0.1 - BEFORE_END_S, "f4", name).time_lag_s[0] == np.float32(0.1)


def test_a_stamp_after_the_newest_point_counts_from_the_stamp():
    batch = with_time(-BEFORE_END_S - 0.02, "f4")
    np.testing.assert_allclose(batch.time_lag_s, BEFORE_END_S + 0.02, atol=1e-7)
    assert "time_from_newest_point" not in batch.report.notes


def test_a_stamp_in_mid_scan_counts_from_the_newest_point_and_says_so():
    batch = with_time(0.05 - BEFORE_END_S, "f4")
    np.testing.assert_allclose(batch.time_lag_s, BEFORE_END_S, atol=1e-7)
    assert "time_from_newest_point" in batch.report.notes


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (np.zeros(500), "u4"),
        (np.full(500, 7), "u4"),
        (np.full(500, 1.7e9), "f8"),
        (np.full(500, -0.05), "f4"),
        (np.full(500, np.nan), "f4"),
    ],
)
def test_one_time_for_all_points_means_no_motion_within_the_scan(values, code):
    """Scaling by the span of the times would divide zero by zero."""
    assert not with_time(values, code).time_lag_s.any()


def test_a_single_point_has_no_lag():
    assert with_time([123_456], "u4", count=1).time_lag_s.tolist() == [0.0]


def test_a_time_that_is_not_a_number_counts_as_the_newest():
    values = 0.1 - BEFORE_END_S
    values[3] = np.nan
    batch = with_time(values, "f8")
    assert batch.time_lag_s[3] == 0 and np.isfinite(batch.time_lag_s).all()
    assert "time_non_finite" in batch.report.notes


def test_times_that_span_more_than_a_scan_are_ignored_and_reported():
    batch = with_time(np.linspace(0, 100, 500), "f4")
    assert not batch.time_lag_s.any() and "time_span_too_long" in batch.report.notes
