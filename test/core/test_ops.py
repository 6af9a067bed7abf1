"""The bundle of operators, the bird's-eye-view merge, and both on real frames."""

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.coordmap import strided_map, submanifold_map
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_conv import SparseTensor, sparse_conv3d, subm_conv3d
from driveRT_ros.core.voxelize import voxelize
from test.support import frames, oracle
from test.support.grids import random_coords, random_tensor

OPS = Ops.for_device("cpu")
SCALES = (1, 2, 4)


def level(num, shape, *, seed, dtype=torch.float64, batches=2) -> SparseTensor:
    coords = random_coords(num, shape, seed=seed, batches=batches)
    return SparseTensor(random_tensor(num, 8, seed=seed, dtype=dtype), coords, shape, batches)


def three_levels(nums=(90, 40, 15), yx=(12, 16), dtype=torch.float64):
    shapes = [(depth, -(-yx[0] // s), -(-yx[1] // s)) for depth, s in zip((6, 3, 2), SCALES)]
    return [level(n, shape, seed=n, dtype=dtype) for n, shape in zip(nums, shapes)]


def shuffled(x: SparseTensor, seed: int) -> SparseTensor:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    return SparseTensor(x.features[order], x.coords_bzyx[order], x.spatial_shape_zyx, x.batch_size)


# --- the bundle -------------------------------------------------------------------------------


def test_the_operators_of_a_device_are_one_immutable_value():
    assert Ops.for_device("cpu") == Ops.for_device(torch.device("cpu"))
    assert OPS.name == "reference"
    with pytest.raises(AttributeError):
        OPS.name = "other"


def test_an_unknown_device_is_refused_by_name():
    with pytest.raises(RuntimeError, match="toaster"):
        Ops.for_device("toaster")


def test_the_public_functions_and_the_bundle_give_the_same_bytes():
    points = torch.rand(500, 5, generator=torch.Generator().manual_seed(0)) * 4
    config = VoxelizationConfig()
    public, bundled = voxelize(points, config), OPS.voxelize(points, config)
    assert torch.equal(public.features, bundled.features)
    shape = config.sparse_shape_zyx
    a = submanifold_map(public.coords_bzyx, shape)
    b = OPS.submanifold_map(public.coords_bzyx, shape, (3, 3, 3), (1, 1, 1))
    assert torch.equal(a.in_rows, b.in_rows)
    assert a.counts == b.counts


def test_every_operator_accepts_no_rows():
    """Fault class: zero rows led to a launch of zero blocks, an invalid configuration."""
    coords, shape = torch.zeros(0, 4, dtype=torch.int32), (41, 1440, 1440)
    voxels = voxelize(torch.zeros(0, 5), VoxelizationConfig())
    assert (voxels.features.shape, voxels.coords_bzyx.shape) == ((0, 5), (0, 4))
    assert set(voxels.dropped.values()) == {0}
    x = SparseTensor(torch.zeros(0, 5), coords, shape)
    weight = torch.zeros(27, 5, 16)
    assert subm_conv3d(x, weight).features.shape == (0, 16)
    down = sparse_conv3d(x, weight, stride=2, padding=1)
    assert (down.features.shape, down.spatial_shape_zyx) == ((0, 16), (21, 720, 720))
    merged = OPS.bev_merge([down, SparseTensor(down.features, coords, (11, 360, 360))], (1, 2))
    assert (merged.features.shape, merged.coords_bzyx.shape) == ((0, 16), (0, 4))
    assert merged.spatial_shape_zyx == (1, 720, 720)
    kept = OPS.rotated_nms(torch.zeros(0, 9), torch.zeros(0), 0.2, 83)
    assert len(kept) == 0


# --- bird's-eye-view merge --------------------------------------------------------------------


@pytest.mark.parametrize("yx", [(12, 16), (13, 15)])
@pytest.mark.parametrize("nums", [(90, 40, 15), (0, 0, 3), (33, 0, 0), (1, 1, 1), (0, 0, 0)])
def test_merge_equals_the_oracle(nums, yx):
    levels = three_levels(nums, yx)
    merged = OPS.bev_merge(levels, SCALES)
    cells, sums = oracle.bev_merge([(x.coords_bzyx, x.features) for x in levels], SCALES)
    assert [(b, y, x) for b, _, y, x in merged.coords_bzyx.tolist()] == cells
    assert set(merged.coords_bzyx[:, 1].tolist()) <= {0}
    np.testing.assert_allclose(merged.features, sums.reshape(-1, 8), rtol=1e-12, atol=1e-12)
    assert (merged.spatial_shape_zyx, merged.batch_size) == ((1, *yx), 2)


def test_merge_adds_the_first_level_by_ascending_z_and_then_the_next_levels():
    """Rounding makes every other order of these additions visible."""
    big, shape = 2.0**24, (6, 8, 8)
    first = SparseTensor(
        torch.tensor([[-big], [big], [3.0]]),
        torch.tensor([[0, 5, 4, 4], [0, 0, 4, 4], [0, 2, 4, 4]], dtype=torch.int32),
        shape,
    )
    second = SparseTensor(
        torch.tensor([[2 * big]]), torch.tensor([[0, 0, 2, 2]], dtype=torch.int32), (3, 4, 4)
    )
    third = SparseTensor(
        torch.tensor([[1.0]]), torch.tensor([[0, 1, 1, 1]], dtype=torch.int32), (2, 2, 2)
    )
    expected = torch.tensor(big) + 3.0 - big + 2 * big + 1.0
    for levels in ([first, second, third], [shuffled(first, 1), second, third]):
        merged = OPS.bev_merge(levels, SCALES)
        assert merged.coords_bzyx.tolist() == [[0, 0, 4, 4]]
        assert merged.features.item() == expected


def test_merge_is_the_same_bytes_for_any_row_order_and_number_of_threads():
    levels = three_levels(dtype=torch.float32)
    before = torch.get_num_threads()
    seen = set()
    try:
        for run in range(6):
            torch.set_num_threads(1 + run % 2)
            merged = OPS.bev_merge([shuffled(x, run) for x in levels], SCALES)
            seen.add(merged.features.numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1


def test_merge_refuses_a_level_that_reaches_beyond_the_first():
    levels = three_levels()
    with pytest.raises(ConfigError, match="does not fit"):
        OPS.bev_merge(levels, (1, 2, 8))


# --- real frames ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_a_real_frame_has_the_rows_and_neighbours_that_a_simulation_counted(name, data_dir):
    if name == "C":
        coords = voxelize(frames.load_points(data_dir), VoxelizationConfig()).coords_bzyx
    else:
        _, coords = frames.load_voxels(data_dir, name)
    shape, levels, taps = frames.SHAPE_ZYX, [], []
    for depth in range(6):
        if depth:
            down = strided_map(coords, shape, 3, 2, 1)
            coords, shape = down.out_coords_bzyx, down.out_shape_zyx
        subm = submanifold_map(coords, shape)
        assert subm.counts == subm.counts[::-1]
        taps.append(sum(subm.counts) / len(coords))
        levels.append(SparseTensor(torch.ones(len(coords), 1), coords, shape))
    assert tuple(len(x) for x in levels) == frames.ROWS[name]
    assert taps == pytest.approx(frames.TAPS[name], abs=0.06)
    assert shape == (2, 45, 45)

    bev = OPS.bev_merge(levels[3:], SCALES)
    wide = strided_map(bev.coords_bzyx, bev.spatial_shape_zyx, (1, 3, 3), 1, (0, 1, 1))
    assert (len(bev), wide.num_out) == frames.BEV_ROWS[name]
    assert bev.features.sum() == sum(frames.ROWS[name][3:])  # every row lands on one cell
