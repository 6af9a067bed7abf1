"""Clouds are decoded into rows, block by block: no block, fold or remainder may be forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.core.config import InputConfig
from driveRT_ros.io.pointcloud import decode
from test.support.clouds import make_cloud, random_points, xyzi_cloud

POINTS = random_points(1000)


def column(name: str, code: str, offset: int):
    return {name: (POINTS[name], code, offset)}


@pytest.mark.parametrize("kept", [1000, 300])
def test_the_arrays_are_columns_of_rows_that_the_caller_may_provide(kept):
    """Joining columns anew after decoding would cost as much as decoding."""
    made = []

    def make_rows(count):
        made.append(np.full((count, 5), np.nan, np.float32))
        return made[-1]

    config = InputConfig(point_capacity=kept)
    batch = decode(xyzi_cloud(POINTS), config=config, make_rows=make_rows)
    (rows,) = made
    assert np.shares_memory(batch.rows, rows) and batch.rows.shape == (kept, 5)
    plain = decode(xyzi_cloud(POINTS), config=config)
    columns = (plain.xyz, plain.intensity[:, None], plain.time_lag_s[:, None])
    np.testing.assert_array_equal(batch.rows, np.concatenate(columns, axis=1))
    for array in (batch.xyz, batch.intensity, batch.time_lag_s):
        assert np.shares_memory(array, batch.rows)


@pytest.mark.parametrize("count", [1, 127, 128, 129, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("at", [0, -1])
def test_the_first_and_the_last_point_of_a_cloud_of_any_size_are_looked_at(count, at):
    """Clouds are read in blocks, and blocks reduced in folds: neither may forget a remainder."""
    points = random_points(count)
    for axis in "xyz":
        bad = {**points, axis: points[axis].copy()}
        bad[axis][at] = np.nan
        assert decode(xyzi_cloud(bad)).report.dropped == {"non_finite": 1}
    for value in (-1.0, 256.0):
        points["intensity"][at] = value
        batch = decode(xyzi_cloud(points))
        assert batch.report.notes == ("intensity_out_of_range",)
        assert batch.intensity[at] == np.clip(value, 0, 255)


def test_a_coordinate_that_only_float32_rounds_up_to_the_limit_is_kept():
    x = POINTS["x"].astype(np.float64)
    x[5] = np.nextafter(8192.0, 0)
    columns = {"x": (x, "f8", 0)} | column("y", "f4", 8) | column("z", "f4", 12)
    batch = decode(make_cloud(columns, 16))
    assert len(batch) == 1000 and batch.xyz[5, 0] == 8192.0 and not batch.report.dropped
