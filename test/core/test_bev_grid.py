"""Bird's-eye-view layers and occupancy: where a point lands, and what a cell says."""

import numpy as np
import pytest
import torch

from driveRT_ros.core.bev_grid import build_bev_grid, grid_shape, occupancy
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError

# 200 columns (x) by 120 rows (y) of 0.5 m: a transposed grid cannot pass.
NON_SQUARE = LidarConfig.from_dict(
    {
        "voxelization.point_cloud_range": [-50, -30, -5, 50, 30, 3],
        "bev.resolution_m": 0.5,
    }
)


def cloud(*rows):
    return np.array(rows, np.float32).reshape(-1, 5)


def random_cloud(num, seed=0):
    rng = np.random.default_rng(seed)
    low, high = [-60, -40, -6, 0, 0], [60, 40, 4, 255, 0.5]
    return rng.uniform(low, high, (num, 5)).astype(np.float32)


def slow_layers(points, config):
    """Sort every point into a dictionary of cells, one at a time."""
    x0, y0, z0, x1, y1, z1 = config.voxelization.point_cloud_range
    step = config.bev.resolution_m
    cells = {}
    for x, y, z, intensity, _ in points.tolist():
        if x0 <= x < x1 and y0 <= y < y1 and z0 <= z < z1:
            key = (int((y - y0) // step), int((x - x0) // step))
            cells.setdefault(key, []).append((z, intensity))
    return cells


def test_an_obstacle_lands_in_the_row_of_its_y_and_the_column_of_its_x():
    """A grid filled column-major shows up transposed; a non-square grid exposes it."""
    points = cloud([20, -5, -1.8, 9, 0], [20, -5, 0.5, 9, 0])
    grid = build_bev_grid(points, NON_SQUARE)
    data = occupancy(grid, NON_SQUARE).ravel()
    height, width = grid.shape
    assert (height, width) == (120, 200)
    (index,) = np.flatnonzero(data == 100)
    row, col = divmod(int(index), width)
    x = grid.origin_xy[0] + (col + 0.5) * grid.resolution_m
    y = grid.origin_xy[1] + (row + 0.5) * grid.resolution_m
    assert abs(x - 20) <= 0.25 and abs(y + 5) <= 0.25
    assert (np.delete(data, index) == -1).all()


def test_layers_equal_a_point_by_point_sort_into_cells():
    points = random_cloud(4000)
    grid = build_bev_grid(points, NON_SQUARE)
    cells = slow_layers(points, NON_SQUARE)
    seen = np.zeros(grid.shape, bool)
    for (row, col), members in cells.items():
        z, intensity = np.array(members).T
        seen[row, col] = True
        assert grid.layers["max_height"][row, col] == np.float32(z.max())
        assert grid.layers["min_height"][row, col] == np.float32(z.min())
        assert grid.layers["density"][row, col] == len(members) / 0.25
        assert grid.layers["mean_intensity"][row, col] == pytest.approx(intensity.mean(), rel=1e-6)
    assert len(cells) > 1500
    for name in ("max_height", "min_height", "mean_intensity"):
        assert np.array_equal(np.isnan(grid.layers[name]), ~seen)
    assert (grid.layers["density"][~seen] == 0).all()


def test_an_empty_cloud_gives_unknown_everywhere_and_zero_density():
    grid = build_bev_grid(np.zeros((0, 5), np.float32), NON_SQUARE)
    assert grid.shape == (120, 200)
    assert np.isnan(grid.layers["max_height"]).all()
    assert (grid.layers["density"] == 0).all()
    assert (occupancy(grid, NON_SQUARE) == -1).all()


def test_layers_are_float32_and_occupancy_is_int8_in_c_order():
    grid = build_bev_grid(random_cloud(100), NON_SQUARE, heat={"car": np.zeros((120, 200))})
    for layer in grid.layers.values():
        assert layer.dtype == np.float32 and layer.flags.c_contiguous
    occupied = occupancy(grid, NON_SQUARE)
    assert occupied.dtype == np.int8 and occupied.flags.c_contiguous


def test_the_minimum_of_the_range_is_inside_and_the_maximum_is_outside():
    inside = cloud([-50, -30, -5, 1, 0])
    assert build_bev_grid(inside, NON_SQUARE).layers["density"][0, 0] == 4
    for outside in ([50, 0, 0, 1, 0], [0, 30, 0, 1, 0], [0, 0, 3, 1, 0]):
        assert build_bev_grid(cloud(outside), NON_SQUARE).layers["density"].sum() == 0


def test_a_point_just_below_the_far_edge_stays_in_the_last_cell():
    """Division by the cell size may round such a point up to the cell beyond the grid."""
    config = LidarConfig()
    edge = np.nextafter(np.float32(54), np.float32(0))
    density = build_bev_grid(cloud([edge, edge, 0, 1, 0]), config).layers["density"]
    assert density.shape == (180, 180) and density[-1, -1] > 0


def test_points_that_are_not_finite_are_left_out():
    bad = cloud([np.nan, 0, 0, 1, 0], [0, np.inf, 0, 1, 0], [0, 0, np.nan, 1, 0])
    good = cloud([1, 1, 0, 7, 0])
    both = build_bev_grid(np.concatenate([bad, good]), NON_SQUARE)
    alone = build_bev_grid(good, NON_SQUARE)
    for name, layer in alone.layers.items():
        assert layer.tobytes() == both.layers[name].tobytes()


def test_the_same_cloud_gives_the_same_bytes_as_array_and_as_tensor():
    points = random_cloud(20_000)
    first, second = (build_bev_grid(p, NON_SQUARE) for p in (points, torch.from_numpy(points)))
    for name, layer in first.layers.items():
        assert layer.tobytes() == second.layers[name].tobytes()


@pytest.mark.parametrize(
    ("heights", "expected"),
    [((-1.8, -1.75), 0), ((-1.8, -1.51), 0), ((-1.8, -1.49), 100), ((0.4,), 0)],
)
def test_a_cell_is_occupied_where_its_height_span_exceeds_the_ground_clearance(heights, expected):
    points = cloud(*[[10, 10, z, 1, 0] for z in heights])
    data = occupancy(build_bev_grid(points, NON_SQUARE), NON_SQUARE)
    assert data.max() == expected and (data != -1).sum() == 1


def test_a_roof_is_occupied_when_a_neighbouring_cell_sees_the_ground():
    roof, ground = [10.1, 10.1, -0.3, 1, 0], [10.6, 10.1, -1.8, 1, 0]
    data = occupancy(build_bev_grid(cloud(roof, ground), NON_SQUARE), NON_SQUARE)
    assert data[80, 120] == 100 and data[80, 121] == 0


def test_occupancy_does_not_wrap_around_the_edge_of_the_grid():
    left, right = [-49.9, 0, 2, 1, 0], [49.9, 0, -1.8, 1, 0]
    data = occupancy(build_bev_grid(cloud(left, right), NON_SQUARE), NON_SQUARE)
    assert (data == 0).sum() == 2 and (data == 100).sum() == 0


def test_a_range_that_is_no_multiple_of_the_cell_is_covered_to_its_end():
    config = LidarConfig.from_dict({"bev.resolution_m": 0.7})
    assert grid_shape(config) == (155, 155)  # 108 / 0.7 = 154.3
    density = build_bev_grid(cloud([53.9, -53.9, 0, 1, 0]), config).layers["density"]
    assert density[0, 154] > 0
    # 108 / 0.6 is 180.00000000000003 in binary: still 180 cells.
    assert grid_shape(LidarConfig()) == (180, 180)


def test_heat_on_the_grid_is_passed_on_unchanged():
    heat = np.random.default_rng(1).random((120, 200))
    layers = build_bev_grid(cloud(), NON_SQUARE, heat={"bus": heat}).layers
    assert np.array_equal(layers["heat_bus"], heat.astype(np.float32))


def test_heat_of_the_detection_head_is_sampled_at_the_centre_of_every_cell():
    config = LidarConfig.from_dict({"bev.resolution_m": 0.3})
    heat = np.random.default_rng(2).random((180, 180)).astype(np.float32)
    layer = build_bev_grid(cloud(), config, heat={"car": heat}).layers["heat_car"]
    assert np.array_equal(layer, heat.repeat(2, axis=0).repeat(2, axis=1))


def test_heat_of_any_other_shape_is_refused_with_both_shapes_that_fit():
    with pytest.raises(ConfigError, match=r"'car' must have shape \(120, 200\) .* got \(7, 9\)"):
        build_bev_grid(cloud(), NON_SQUARE, heat={"car": np.zeros((7, 9))})


def test_points_without_intensity_are_refused():
    with pytest.raises(ConfigError, match=r"\(N, >= 4\).*\(2, 3\)"):
        build_bev_grid(np.zeros((2, 3), np.float32), NON_SQUARE)
