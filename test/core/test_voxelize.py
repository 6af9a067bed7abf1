"""Voxelization against a scalar oracle, at cell edges, at capacity and with faulty points."""

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.voxelize import Voxels, voxelize
from test.support import frames, oracle

DTYPES = (torch.float32, torch.float64)
SMALL = VoxelizationConfig(
    point_cloud_range=(-2.0, -1.0, -1.0, 2.0, 3.0, 1.0),
    voxel_size=(0.5, 0.5, 0.4),
    max_points_per_voxel=4,
    max_voxels=150,
)
POINT_KEYS = (
    "non_finite_points",
    "out_of_range_points",
    "over_capacity_points",
    "over_capacity_voxel_points",
)


def cloud(num: int, seed: int, dtype=torch.float32, reach: float = 3.2) -> torch.Tensor:
    """Return (num, 5) points, some of them outside the small range."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-reach, reach, (num, 3))
    rest = np.stack((rng.uniform(0, 255, num), rng.uniform(0, 0.5, num)), axis=1)
    return torch.from_numpy(np.concatenate((xyz, rest), axis=1)).to(dtype)


def at(xyz, num: int, dtype=torch.float32) -> torch.Tensor:
    """Return ``num`` points at one place with intensity 0, 1, 2 ..."""
    points = torch.zeros(num, 5, dtype=dtype)
    points[:, :3] = torch.tensor(xyz, dtype=dtype)
    points[:, 3] = torch.arange(num)
    return points


def one_per_cell(num: int, config: VoxelizationConfig) -> torch.Tensor:
    """Return ``num`` points, each in the middle of a cell of its own, in a shuffled order."""
    nx, ny, nz = config.grid_xyz
    flat = np.random.default_rng(0).choice(nx * ny * nz, num, replace=False)
    cells = np.stack(np.unravel_index(flat, (nx, ny, nz)), axis=1)
    xyz = (cells + 0.5) * config.voxel_size + config.point_cloud_range[:3]
    points = torch.zeros(num, 5)
    points[:, :3] = torch.from_numpy(xyz)
    return points


def assert_equals_oracle(points: torch.Tensor, config: VoxelizationConfig) -> Voxels:
    got = voxelize(points, config)
    low, high = config.point_cloud_range[:3], config.point_cloud_range[3:]
    cells, means, counts = oracle.voxelize(
        points.numpy(),
        low,
        high,
        config.voxel_size,
        config.grid_xyz,
        config.max_points_per_voxel,
        config.max_voxels,
    )
    assert [tuple(c) for c in got.coords_bzyx.tolist()] == [(0, *cell) for cell in cells]
    assert got.num_points.tolist() == counts
    assert got.features.dtype == points.dtype
    tolerance = 1e-5 if points.dtype == torch.float32 else 1e-13  # ten additions and a division
    np.testing.assert_allclose(got.features.numpy(), means, rtol=tolerance, atol=tolerance)
    assert_adds_up(got, len(points))
    return got


def assert_adds_up(voxels: Voxels, num_points: int) -> None:
    left_out = sum(voxels.dropped[key] for key in POINT_KEYS)
    assert left_out + int(voxels.num_points.sum()) == num_points
    assert voxels.coords_bzyx.dtype == voxels.num_points.dtype == torch.int32


# --- against the oracle -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_random_clouds_equal_the_oracle(seed, dtype):
    voxels = assert_equals_oracle(cloud(4000, seed, dtype), SMALL)
    assert voxels.dropped["over_capacity_points"] > 0
    assert voxels.dropped["over_capacity_voxels"] > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num", [0, 1, 31, 32, 33])
def test_small_clouds_equal_the_oracle(num, dtype):
    """Fault class: no points, and counts around a warp, led to empty or short launches."""
    voxels = assert_equals_oracle(cloud(num, num, dtype), SMALL)
    assert voxels.features.shape == (len(voxels), 5)
    assert voxels.coords_bzyx.shape == (len(voxels), 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_points_on_and_beside_every_cell_edge_fall_where_the_formula_says(dtype):
    config = VoxelizationConfig()
    for axis, cells in ((0, 1440), (2, 40)):
        low, size = config.point_cloud_range[axis], config.voxel_size[axis]
        edges = (low + np.arange(cells + 1) * size).astype(dtype)
        beside = [edges, np.nextafter(edges, dtype(-1e9)), np.nextafter(edges, dtype(1e9))]
        points = np.zeros((3 * (cells + 1), 5), dtype)
        points[:, axis] = np.concatenate(beside)
        assert_equals_oracle(torch.from_numpy(points), config)


def test_a_negative_zero_lies_in_the_cell_of_zero():
    config = VoxelizationConfig(point_cloud_range=(0.0, 0.0, 0.0, 1.0, 1.0, 1.0))
    voxels = voxelize(at((-0.0, -0.0, -0.0), 1), config)
    assert voxels.coords_bzyx.tolist() == [[0, 0, 0, 0]]


def test_only_the_first_five_columns_are_read():
    points = cloud(200, 5)
    extra = torch.full((200, 2), float("nan"))
    wide = voxelize(torch.cat((points, extra), dim=1), SMALL)
    assert torch.equal(wide.features, voxelize(points, SMALL).features)


# --- range ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "half", "size"),
    [(76.799995, 76.8, 0.32), (float(np.nextafter(np.float32(54), 0)), 54.0, 0.075)],
)
def test_a_point_that_rounds_to_one_cell_past_the_last_is_dropped_and_counted(x, half, size):
    """Fault class: a point just inside the upper bound got index == grid and wrote past the end."""
    config = VoxelizationConfig(
        point_cloud_range=(-half, -half, -5.0, half, half, 3.0), voxel_size=(size, size, 0.2)
    )
    low, cell = np.float32(-half), np.float32(size)
    assert np.floor((np.float32(x) - low) / cell) == config.grid_xyz[0]  # it does round up
    points = torch.cat((at((x, 0.0, 0.0), 1), at((0.0, x, 0.0), 1), at((0.0, 0.0, 0.0), 1)))
    voxels = voxelize(points, config)
    assert len(voxels) == 1
    assert voxels.dropped["out_of_range_points"] == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_minimum_is_inside_and_the_maximum_outside(dtype):
    low, high = SMALL.point_cloud_range[:3], SMALL.point_cloud_range[3:]
    voxels = voxelize(torch.cat((at(low, 1, dtype), at(high, 1, dtype))), SMALL)
    assert voxels.coords_bzyx.tolist() == [[0, 0, 0, 0]]
    assert voxels.dropped["out_of_range_points"] == 1


def test_a_front_only_range_accepts_a_cloud_that_is_all_behind():
    """Fault class: a frame that keeps no voxel ended in an invalid launch."""
    config = VoxelizationConfig(point_cloud_range=(0.0, -54.0, -5.0, 108.0, 54.0, 3.0))
    points = cloud(500, 1)
    points[:, 0] = -1.0 - points[:, 0].abs()
    voxels = voxelize(points, config)
    assert len(voxels) == 0
    assert voxels.features.shape == (0, 5)
    assert voxels.dropped["out_of_range_points"] == 500


def test_coordinates_no_integer_can_hold_are_out_of_range():
    """Fault class: casting a huge float to an integer is undefined and may land inside."""
    huge = torch.tensor([3e38, -3e38, 2.0**31, -(2.0**31), 2.0**63, 1e20])
    points = torch.zeros(18, 5)
    for axis in range(3):
        points[6 * axis : 6 * axis + 6, axis] = huge
    voxels = voxelize(points, SMALL)
    assert len(voxels) == 0
    assert voxels.dropped["out_of_range_points"] == 18


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_points_leave_no_voxel_and_change_no_other(bad):
    """Fault class: NaN replaced by zero made a cluster at the sensor."""
    points = cloud(20_000, 2)
    points[:, 0] = 2.0 + 20 * points[:, 0].abs()  # nothing within 2 m of the origin
    rng = np.random.default_rng(3)
    rows = torch.from_numpy(rng.choice(20_000, 5000, replace=False))
    columns = torch.from_numpy(rng.integers(0, 5, 5000))
    points[rows, columns] = bad
    clean = points[points.isfinite().all(dim=1)]
    config = VoxelizationConfig()
    got, expected = voxelize(points, config), voxelize(clean, config)
    assert got.dropped["non_finite_points"] == 5000
    assert torch.equal(got.coords_bzyx, expected.coords_bzyx)
    assert torch.equal(got.features, expected.features)
    assert float(got.features[:, 0].min()) >= 2.0


def test_a_grid_beyond_32_bits_keeps_far_cells_apart():
    """Fault class: 40000 x 40000 x 200 cells overflow a 32-bit index silently."""
    config = VoxelizationConfig(
        point_cloud_range=(-1000.0, -1000.0, -5.0, 1000.0, 1000.0, 5.0),
        voxel_size=(0.05, 0.05, 0.05),
    )
    assert config.grid_xyz == (40000, 40000, 200)
    points = cloud(400, 4, torch.float64, reach=999.0)
    points[:, 2] /= 250
    assert len(assert_equals_oracle(points, config)) == 400


# --- capacity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 9, 10, 11, 32, 33, 64, 100])
def test_a_full_voxel_averages_its_first_ten_points(num):
    """Fault class: the point counter ran past the maximum, and the mean divided by it."""
    voxels = voxelize(at((0.1, 0.1, 0.1), num), VoxelizationConfig())
    used = min(num, 10)
    assert voxels.num_points.tolist() == [used]
    assert voxels.features[0, 3] == (used - 1) / 2
    assert voxels.dropped["over_capacity_points"] == num - used


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_are_summed_one_after_the_other_in_input_order(dtype):
    values = torch.tensor([1e8, 3.7, -1e8, 5.5], dtype=dtype)
    points = at((0.1, 0.1, 0.1), 4, dtype)
    points[:, 3] = values
    running = values[0]
    for value in values[1:]:
        running = running + value
    assert voxelize(points, SMALL).features[0, 3] == running / 4


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_voxels_up_to_the_capacity_are_kept_in_order_of_appearance(extra):
    points = one_per_cell(100 + extra, VoxelizationConfig())
    config = VoxelizationConfig(max_voxels=100)
    voxels = assert_equals_oracle(points, config)
    assert len(voxels) == min(100, 100 + extra)
    assert voxels.dropped["over_capacity_voxels"] == max(0, extra)


def test_more_voxels_than_the_capacity_keep_exactly_the_first_and_count_the_rest():
    """Fault class: voxels beyond the maximum were written out of bounds."""
    config = VoxelizationConfig(max_voxels=1000)
    points = one_per_cell(50_000, config)
    voxels = voxelize(points, config)
    first = voxelize(points[:1000], config)
    assert torch.equal(voxels.coords_bzyx, first.coords_bzyx)
    assert torch.equal(voxels.features, first.features)
    assert voxels.dropped["over_capacity_voxels"] == 49_000
    assert voxels.dropped["over_capacity_voxel_points"] == 49_000


def test_a_kept_voxel_still_collects_points_after_the_capacity_is_reached():
    config = VoxelizationConfig(max_voxels=1)
    points = torch.cat((at((0, 0, 0), 1), at((5, 5, 0), 3), at((0, 0, 0), 2)))
    voxels = assert_equals_oracle(points, config)
    assert voxels.num_points.tolist() == [3]
    assert voxels.dropped["over_capacity_voxels"] == 1
    assert voxels.dropped["over_capacity_voxel_points"] == 3


# --- order and repeatability ------------------------------------------------------------------


def test_shuffling_points_keeps_the_cells_and_moves_means_by_rounding_alone():
    points = one_per_cell(300, VoxelizationConfig()).repeat(3, 1)
    points[:, 3] = torch.arange(900)
    shuffled = points[torch.from_numpy(np.random.default_rng(6).permutation(900))]
    a, b = (voxelize(p, VoxelizationConfig()) for p in (points, shuffled))
    rows = {tuple(c): row for row, c in enumerate(b.coords_bzyx.tolist())}
    same = torch.tensor([rows[tuple(c)] for c in a.coords_bzyx.tolist()])
    assert len(rows) == len(a) == 300
    assert torch.equal(a.num_points, b.num_points[same])
    torch.testing.assert_close(a.features, b.features[same], rtol=1e-6, atol=1e-5)


def test_a_saturated_voxel_is_the_same_bytes_two_hundred_times():
    """Fault class: a fast voxelizer kept another subset of a full voxel each run."""
    points = torch.cat((at((0.1, 0.1, 0.1), 50), cloud(3000, 7)))
    config = VoxelizationConfig()
    before = torch.get_num_threads()
    seen = set()
    try:
        for run in range(200):
            torch.set_num_threads(1 + run % 2)
            voxels = voxelize(points, config)
            seen.add(voxels.features.numpy().tobytes() + voxels.coords_bzyx.numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1


# --- the border -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 4), (0, 4), (2, 3, 5)])
def test_points_of_another_shape_are_refused(shape):
    with pytest.raises(InvalidFrame, match="rows of x, y, z, intensity, time lag"):
        voxelize(torch.zeros(shape), SMALL)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_points_of_another_dtype_are_refused(dtype):
    with pytest.raises(InvalidFrame, match="convert to float32"):
        voxelize(torch.zeros(3, 5, dtype=dtype), SMALL)


def test_ten_real_sweeps_give_the_known_number_of_voxels(data_dir):
    points = frames.load_points(data_dir)
    voxels = voxelize(points, VoxelizationConfig())
    assert len(points) == 271_156
    assert len(voxels) == frames.ROWS["C"][0]
    assert len(points) - voxels.dropped["out_of_range_points"] == 236_511
    assert_adds_up(voxels, len(points))
