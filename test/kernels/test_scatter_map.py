"""Scatter maps built by kernels equal those of the reference, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.scatter_map import MOST_POINTS, THREADS, build_scatter_map
from driveRT_ros.core.pool_types import MAP_ARRAYS, CameraGeometry, PoolGrid
from driveRT_ros.core.reference import bev_pool as reference
from test.support.pool_cases import (
    REAL_FRUSTUM,
    REAL_GRID,
    RIGS,
    SMALL_GRID,
    looking,
    real_rig,
    small_frustum,
    small_rig,
)

FINE_GRID = PoolGrid(-9.0, 9.0, 0.06, -9.0, 9.0, 0.06, -3.0, 3.0, 1.0)
ONE_CELL = PoolGrid(-100.0, 100.0, 200.0, -100.0, 100.0, 200.0, -100.0, 100.0, 200.0)


def build(backend, geometry, frustum, grid, rounding="trunc"):
    def run(name, blocks, threads, *args):
        backend.launch("scatter_map", name, blocks, threads, *args)

    return build_scatter_map(geometry, frustum, grid, rounding, backend.device, run)


def check(made, geometry, frustum, grid, rounding="trunc"):
    expected = reference.build_scatter_map(geometry, frustum, grid, rounding)
    trimmed = made.trimmed()
    assert made.counts.tolist() == expected.counts.tolist()
    for name in MAP_ARRAYS:
        array = getattr(trimmed, name)
        assert array.dtype == torch.int32
        np.testing.assert_array_equal(array.cpu(), getattr(expected, name), err_msg=name)
    assert made.calibration_hash == expected.calibration_hash
    assert made.frustum_shape == expected.frustum_shape


@pytest.mark.parametrize("rounding", ["trunc", "floor"])
@pytest.mark.parametrize("grid", [SMALL_GRID, FINE_GRID, ONE_CELL])
def test_maps_of_small_rigs_equal_the_reference(backend, grid, rounding):
    # 216 cells sort in one pass of 8 bits, 540,000 in three, a single cell in one.
    backend.resident = 3
    frustum = small_frustum((8, 13), (1.0, 14.0, 0.7))
    made = build(backend, small_rig(3), frustum, grid, rounding)
    check(made, small_rig(3), frustum, grid, rounding)


@pytest.mark.parametrize("cameras", [0, 1])
def test_rigs_without_cameras_or_points_give_empty_maps(backend, cameras):
    geometry = small_rig(cameras)
    if cameras:
        far = looking(0, position=(1e6, 0.0, 0.0))[None]
        geometry = CameraGeometry(geometry.K, far)
    made = build(backend, geometry, small_frustum(), SMALL_GRID)
    assert made.counts.tolist() == [0, 0]
    check(made, geometry, small_frustum(), SMALL_GRID)


def test_more_points_than_threads_can_step_over_in_32_bits_are_refused():
    """Past that, the next point of a thread would have a negative number, and be written."""
    frustum, asked = small_frustum((1024, 1024), (1.0, 1026.0, 1.0)), []
    with pytest.raises(ConfigError, match=f"{1025 << 20} points; on a GPU at most {1 << 30}"):
        build_scatter_map(small_rig(1), frustum, SMALL_GRID, "trunc", torch.device("cpu"), asked)
    largest = small_frustum((1024, 1024), (1.0, 1025.0, 1.0)).depth_bins << 20
    threads = -(-largest // THREADS) * THREADS  # a thread adds as many to its number
    assert largest == MOST_POINTS and largest - 1 + threads < 2**31


@pytest.mark.parametrize("points", [255, 256, 257, 2047, 2048, 2049])
def test_the_last_point_of_a_block_counts(backend, points):
    frustum = small_frustum((1, points), (1.0, 2.0, 1.0))
    geometry = small_rig(1)
    check(build(backend, geometry, frustum, ONE_CELL), geometry, frustum, ONE_CELL)


def test_points_on_the_edges_of_cells_fall_where_the_reference_puts_them(backend):
    # An ideal camera on the grid lines: every centre column lies exactly on an edge.
    geometry = CameraGeometry(
        K=np.array([[[48.0, 0.0, 47.5], [0.0, 48.0, 31.5], [0.0, 0.0, 1.0]]] * 4),
        T_ego_cam=np.stack([looking(90.0 * i, position=(0.0, 0.0, 0.0)) for i in range(4)]),
    )
    frustum = small_frustum((9, 13), (1.0, 10.0, 0.5))
    for rounding in ("trunc", "floor"):
        made = build(backend, geometry, frustum, SMALL_GRID, rounding)
        check(made, geometry, frustum, SMALL_GRID, rounding)


def test_maps_do_not_depend_on_the_schedule(backend):
    backend.resident, first = 3, None
    for _ in backend.repeats():
        made = build(backend, small_rig(3), small_frustum((8, 30)), SMALL_GRID).trimmed()
        bytes_ = [array.cpu().numpy().tobytes() for array in made.arrays()]
        first = first or bytes_
        assert bytes_ == first


@pytest.mark.parametrize("rig", RIGS)
def test_the_maps_of_real_rigs_equal_the_ones_made_elsewhere(backend, data_dir, rig):
    geometry, ranks = real_rig(data_dir, rig)
    made = build(backend, geometry, REAL_FRUSTUM, REAL_GRID, "floor").trimmed()
    for name in MAP_ARRAYS:
        np.testing.assert_array_equal(getattr(made, name).cpu(), ranks[name], err_msg=name)
