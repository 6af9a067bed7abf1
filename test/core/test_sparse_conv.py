"""Sparse convolutions against dense torch, the dictionary oracle and themselves."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from driveRT_ros.core.coordmap import inverse_map, strided_map, submanifold_map
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.sparse_conv import (
    SparseTensor,
    gather_gemm_scatter,
    inverse_conv3d,
    sparse_conv3d,
    subm_conv3d,
)
from test.support import oracle
from test.support.grids import (
    CELLS_5X5,
    SHAPE_5X5,
    at_cells,
    dense_weight,
    flat_coords,
    random_coords,
    random_tensor,
    to_dense,
)

SHAPE = (5, 8, 7)
ONE = (1, 1, 1)
# Sums of at most 27 taps of at most 16 channels, each operand of size about 1.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
DTYPES = tuple(TOLERANCE)


def sparse(num=90, channels=6, *, seed=0, dtype=torch.float64, batches=2, shape=SHAPE):
    coords = random_coords(num, shape, seed=seed, batches=batches)
    features = random_tensor(num, channels, seed=seed + 1, dtype=dtype)
    return SparseTensor(features, coords, shape, batches)


def weights(kernel, c_in, c_out, *, seed=9, dtype=torch.float64):
    taps = int(np.prod(kernel))
    return (
        random_tensor(taps, c_in, c_out, seed=seed, dtype=dtype),
        random_tensor(c_out, seed=seed + 1, dtype=dtype),
    )


def dense_of(x: SparseTensor) -> torch.Tensor:
    return to_dense(x.features, x.coords_bzyx, x.spatial_shape_zyx, x.batch_size)


def assert_close(got, expected):
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=tolerance, atol=tolerance)


# --- against dense torch ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "dilation"), [((3, 3, 3), 1), ((1, 3, 5), 1), ((3, 3, 3), 2)])
def test_submanifold_equals_dense_convolution_masked_to_the_input(kernel, dilation, dtype):
    x = sparse(dtype=dtype)
    weight, bias = weights(kernel, 6, 4, dtype=dtype)
    y = subm_conv3d(x, weight, bias, kernel_size=kernel, dilation=dilation)
    padding = [k // 2 * dilation for k in kernel]
    dense = F.conv3d(
        dense_of(x), dense_weight(weight, kernel), bias, padding=padding, dilation=dilation
    )
    assert_close(y.features, at_cells(dense, x.coords_bzyx))
    assert torch.equal(y.coords_bzyx, x.coords_bzyx)
    assert (y.spatial_shape_zyx, y.batch_size) == (SHAPE, 2)


STRIDED_CASES = [
    ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
    ((2, 2, 2), (2, 2, 2), (0, 0, 0)),
    ((3, 3, 3), (1, 1, 1), (1, 1, 1)),
    ((1, 3, 3), (1, 1, 1), (0, 1, 1)),
    ((3, 1, 1), (2, 1, 1), (0, 0, 0)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "stride", "padding"), STRIDED_CASES)
def test_strided_equals_dense_convolution_at_the_active_outputs(kernel, stride, padding, dtype):
    x = sparse(num=60, dtype=dtype)
    weight, bias = weights(kernel, 6, 4, dtype=dtype)
    y = sparse_conv3d(x, weight, bias, kernel_size=kernel, stride=stride, padding=padding)
    options = {"stride": stride, "padding": padding}
    dense = F.conv3d(dense_of(x), dense_weight(weight, kernel), bias, **options)
    assert_close(y.features, at_cells(dense, y.coords_bzyx))
    assert y.spatial_shape_zyx == tuple(dense.shape[2:])
    # Active is exactly where a kernel of ones sees an active input.
    mask = to_dense(torch.ones(len(x), 1), x.coords_bzyx, SHAPE, 2)
    seen = F.conv3d(mask, torch.ones(1, 1, *kernel), **options)[:, 0] > 0
    assert torch.equal(seen.nonzero().int(), y.coords_bzyx)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "stride", "padding"), STRIDED_CASES)
def test_inverse_equals_dense_transposed_convolution_at_the_former_input(
    kernel, stride, padding, dtype
):
    x = sparse(num=60, dtype=dtype)
    forward = strided_map(x.coords_bzyx, SHAPE, kernel, stride, padding)
    coarse = SparseTensor(
        random_tensor(forward.num_out, 6, seed=4, dtype=dtype),
        forward.out_coords_bzyx,
        forward.out_shape_zyx,
        2,
    )
    weight, bias = weights(kernel, 6, 4, dtype=dtype)
    y = inverse_conv3d(coarse, weight, bias, coord_map=inverse_map(forward))
    whole = [
        s - ((o - 1) * step - 2 * p + k)
        for s, o, step, p, k in zip(SHAPE, forward.out_shape_zyx, stride, padding, kernel)
    ]
    dense = F.conv_transpose3d(
        dense_of(coarse),
        weight.reshape(*kernel, 6, 4).permute(3, 4, 0, 1, 2),
        bias,
        stride=stride,
        padding=padding,
        output_padding=whole,
    )
    assert_close(y.features, at_cells(dense, x.coords_bzyx))
    assert torch.equal(y.coords_bzyx, x.coords_bzyx)
    assert y.spatial_shape_zyx == SHAPE


def test_a_flat_grid_equals_dense_2d_convolution():
    x = sparse(num=40, shape=(1, 9, 8), batches=1)
    weight, bias = weights((1, 3, 3), 6, 4)
    filters = weight.reshape(3, 3, 6, 4).permute(3, 2, 0, 1)
    dense = F.conv2d(dense_of(x)[:, :, 0], filters, bias, padding=1)[:, :, None]
    out = sparse_conv3d(x, weight, bias, kernel_size=(1, 3, 3), padding=(0, 1, 1))
    assert_close(out.features, at_cells(dense, out.coords_bzyx))
    same = subm_conv3d(x, weight, bias, kernel_size=(1, 3, 3))
    assert_close(same.features, at_cells(dense, x.coords_bzyx))


# --- against the oracle -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num", [0, 1, 31, 32, 33])
def test_every_convolution_equals_the_oracle_at_small_row_counts(num, dtype):
    """Fault class: zero rows were an invalid launch, and one row an exception."""
    x = sparse(num, channels=16, seed=num, dtype=dtype, batches=1)
    weight, bias = weights((3, 3, 3), 16, 8, dtype=dtype)
    cells = oracle.cells(x.coords_bzyx)

    subm = subm_conv3d(x, weight, bias)
    entries = oracle.map_entries(cells, cells, (3, 3, 3), ONE, ONE)
    expected = oracle.convolve(x.features, weight, entries, num, bias)
    assert_close(subm.features, torch.from_numpy(expected))

    down = sparse_conv3d(x, weight, bias, stride=2, padding=1)
    outputs = oracle.active_outputs(cells, SHAPE, (3, 3, 3), (2, 2, 2), ONE)
    entries = oracle.map_entries(cells, outputs, (3, 3, 3), (2, 2, 2), ONE)
    expected = oracle.convolve(x.features, weight, entries, len(outputs), bias)
    assert_close(down.features, torch.from_numpy(expected))
    assert down.features.shape == (len(outputs), 8)

    coarse = random_tensor(len(outputs), 16, seed=5, dtype=dtype)
    forward = strided_map(x.coords_bzyx, SHAPE, 3, 2, 1)
    up = gather_gemm_scatter(coarse, weight, inverse_map(forward), bias=bias)
    swapped = {(k, o, i) for k, i, o in entries}
    expected = oracle.convolve(coarse, weight, swapped, num, bias)
    assert_close(up, torch.from_numpy(expected))


def test_kernel_two_with_stride_two_equals_the_oracle_for_a_cube_and_for_one_voxel():
    """Fault class: an even kernel, and a single active voxel, raised exceptions."""
    cube = [(0, 4 + z, 74 + y, 76 + x) for z in (0, 1) for y in (0, 1) for x in (0, 1)]
    weight, bias = weights((2, 2, 2), 3, 5)
    for cells in (cube, cube[5:6]):
        features = random_tensor(len(cells), 3, seed=1)
        x = SparseTensor(features, torch.tensor(cells, dtype=torch.int32), (40, 100, 100))
        y = sparse_conv3d(x, weight, bias, kernel_size=2, stride=2)
        entries = oracle.map_entries(cells, [(0, 2, 37, 38)], (2, 2, 2), (2, 2, 2), (0, 0, 0))
        assert y.coords_bzyx.tolist() == [[0, 2, 37, 38]]
        expected = oracle.convolve(features, weight, entries, 1, bias)
        assert_close(y.features, torch.from_numpy(expected))


def test_far_cells_of_a_grid_beyond_32_bits_convolve_as_the_oracle_says():
    """Fault class: 32-bit linear indices joined cells that are far apart."""
    near = random_coords(50, (5, 5, 5), seed=2)
    coords = torch.cat((near, near + torch.tensor([0, 190, 39_990, 39_990], dtype=torch.int32)))
    x = SparseTensor(random_tensor(100, 4, seed=3), coords, (200, 40_000, 40_000))
    weight, bias = weights((3, 3, 3), 4, 4)
    cells = oracle.cells(coords)
    entries = oracle.map_entries(cells, cells, (3, 3, 3), ONE, ONE)
    expected = oracle.convolve(x.features, weight, entries, 100, bias)
    assert_close(subm_conv3d(x, weight, bias).features, torch.from_numpy(expected))


def test_voxels_that_vanish_leave_empty_levels_of_the_right_shape():
    """Fault class: a level without rows crashed whatever came after it."""
    coords = torch.tensor([[0, 7, 7, 7]], dtype=torch.int32)
    x = SparseTensor(torch.ones(1, 2), coords, (8, 8, 8))
    weight, bias = weights((1, 1, 1), 2, 3, dtype=torch.float32)
    y = sparse_conv3d(x, weight, bias, kernel_size=1, stride=2)
    assert (y.features.shape, y.coords_bzyx.shape) == ((0, 3), (0, 4))
    again = subm_conv3d(y, *weights((3, 3, 3), 3, 4, dtype=torch.float32))
    down = sparse_conv3d(again, *weights((3, 3, 3), 4, 5, dtype=torch.float32), stride=2, padding=1)
    assert (down.features.shape, down.spatial_shape_zyx) == ((0, 5), (2, 2, 2))


def test_one_voxel_passes_all_six_levels():
    coords = torch.tensor([[0, 20, 700, 700]], dtype=torch.int32)
    x = SparseTensor(torch.ones(1, 2, dtype=torch.float64), coords, (41, 1440, 1440))
    weight, bias = weights((3, 3, 3), 2, 2)
    for _ in range(5):
        x = subm_conv3d(sparse_conv3d(x, weight, bias, stride=2, padding=1), weight, bias)
        assert 1 <= len(x) <= 8
    assert x.spatial_shape_zyx == (2, 45, 45)


# --- what belongs to a layer ------------------------------------------------------------------


def test_the_highlighted_group_of_the_worked_grid_adds_two_products():
    """Offset (-1, -1): f1 += f0 W and f4 += f3 W, and nothing else."""
    coords = flat_coords(CELLS_5X5)
    features = random_tensor(5, 3, seed=1)
    weight = torch.zeros(9, 3, 2, dtype=torch.float64)
    weight[0] = random_tensor(3, 2, seed=2)
    out = subm_conv3d(SparseTensor(features, coords, SHAPE_5X5), weight, kernel_size=(1, 3, 3))
    expected = torch.zeros(5, 2, dtype=torch.float64)
    expected[1], expected[4] = features[0] @ weight[0], features[3] @ weight[0]
    assert_close(out.features, expected)


def test_residual_and_relu_come_after_the_convolution():
    x = sparse()
    weight, bias = weights((3, 3, 3), 6, 6)
    coord_map = submanifold_map(x.coords_bzyx, SHAPE)
    plain = gather_gemm_scatter(x.features, weight, coord_map)
    residual = random_tensor(90, 6, seed=3)
    kept = x.features.clone(), residual.clone()
    full = gather_gemm_scatter(
        x.features, weight, coord_map, bias=bias, residual=residual, relu=True
    )
    assert_close(full, (plain + bias + residual).clamp(min=0))
    assert torch.equal(x.features, kept[0])  # no input is written to
    assert torch.equal(residual, kept[1])


def test_a_map_built_once_serves_every_layer_on_its_coordinates():
    x = sparse()
    weight, bias = weights((3, 3, 3), 6, 4)
    subm = submanifold_map(x.coords_bzyx, SHAPE)
    down = strided_map(x.coords_bzyx, SHAPE, 3, 2, 1)
    assert torch.equal(
        subm_conv3d(x, weight, bias, coord_map=subm).features, subm_conv3d(x, weight, bias).features
    )
    assert torch.equal(
        sparse_conv3d(x, weight, bias, coord_map=down).features,
        sparse_conv3d(x, weight, bias, stride=2, padding=1).features,
    )


def test_shuffling_the_rows_shuffles_the_result():
    x = sparse()
    order = torch.from_numpy(np.random.default_rng(3).permutation(90))
    shuffled = SparseTensor(x.features[order], x.coords_bzyx[order], SHAPE, 2)
    weight, bias = weights((3, 3, 3), 6, 4)
    assert_close(
        subm_conv3d(shuffled, weight, bias).features, subm_conv3d(x, weight, bias).features[order]
    )
    a, b = (sparse_conv3d(t, weight, bias, stride=2, padding=1) for t in (x, shuffled))
    assert torch.equal(a.coords_bzyx, b.coords_bzyx)
    assert_close(a.features, b.features)


def test_gradients_are_exact():
    x = sparse(num=12, channels=2, shape=(2, 4, 4), batches=1)
    weight, bias = weights((3, 3, 3), 2, 3)
    residual = random_tensor(12, 3, seed=8)
    coord_map = submanifold_map(x.coords_bzyx, (2, 4, 4))
    leaves = [t.clone().requires_grad_() for t in (x.features, weight, bias, residual)]

    def layer(features, weight, bias, residual):
        return gather_gemm_scatter(features, weight, coord_map, bias=bias, residual=residual)

    assert torch.autograd.gradcheck(layer, leaves)


def test_repeated_coordinates_are_refused():
    """Fault class: with duplicate rows the result depended on which one won a race."""
    x = sparse(num=10, batches=1)
    twice = SparseTensor(x.features.repeat(2, 1), x.coords_bzyx.repeat(2, 1), SHAPE)
    weight, bias = weights((3, 3, 3), 6, 4)
    with pytest.raises(InvalidFrame, match="10 repeated rows"):
        subm_conv3d(twice, weight, bias)


def test_what_does_not_belong_together_is_refused_with_both_shapes():
    x = sparse()
    weight, bias = weights((3, 3, 3), 6, 4)
    other = submanifold_map(x.coords_bzyx[:5], SHAPE)
    for arguments, name in (
        ((x, weight[:9], bias), "weight"),
        ((x, weight[:, :5], bias), "weight"),
        ((x, weight, bias[:3]), "bias"),
    ):
        with pytest.raises(ConfigError, match=f"needs '{name}' of shape"):
            subm_conv3d(*arguments)
    with pytest.raises(ConfigError, match="'coord_map' was made for 5 other rows"):
        subm_conv3d(x, weight, bias, coord_map=other)
    with pytest.raises(ConfigError, match="needs 'features' of shape"):
        gather_gemm_scatter(x.features, weight, other, bias=bias)
    with pytest.raises(InvalidFrame, match="one row per coordinate"):
        SparseTensor(x.features[:3], x.coords_bzyx, SHAPE)


def test_a_map_of_as_many_other_cells_is_refused_not_used():
    x = sparse()
    weight, bias = weights((3, 3, 3), 6, 4)
    other = submanifold_map(x.coords_bzyx.flip(0), SHAPE)
    with pytest.raises(ConfigError, match="'coord_map' was made for"):
        subm_conv3d(x, weight, bias, coord_map=other)
    forward = strided_map(x.coords_bzyx, SHAPE, 3, 2, 1)
    y = sparse_conv3d(x, weight, bias, coord_map=forward)
    with pytest.raises(ConfigError, match="takes 'inverse_map' of the map"):
        inverse_conv3d(y, weights((3, 3, 3), 4, 6)[0], coord_map=forward)
    assert inverse_conv3d(y, weights((3, 3, 3), 4, 6)[0], coord_map=inverse_map(forward))


# --- repeatability ----------------------------------------------------------------------------

REPEAT = """
import sys
sys.path[:0] = [{repo!r}]
import zlib, torch
from driveRT_ros.core.sparse_conv import SparseTensor, sparse_conv3d, subm_conv3d
torch.set_num_threads(2)
g = torch.Generator().manual_seed(0)
cells = torch.randperm(20 * 60 * 60, generator=g)[:1500]
coords = torch.stack((cells * 0, cells // 3600, cells // 60 % 60, cells % 60), 1).int()
x = SparseTensor(torch.randn(1500, 32, generator=g), coords, (20, 60, 60))
w = torch.randn(27, 32, 32, generator=g)
crc = set()
for _ in range({runs}):
    y = sparse_conv3d(subm_conv3d(x, w), w, stride=2, padding=1)
    crc.add(zlib.crc32(y.features.numpy().tobytes()))
print(sorted(crc))
"""


def test_a_hundred_passes_and_two_processes_give_the_same_bytes(pytestconfig):
    """Fault class: the same layer on the same input gave another result each pass."""
    # Idle threads sleep instead of spinning, which on a busy machine would take minutes.
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    seen = set()
    for runs in (100, 2):
        code = REPEAT.format(repo=str(pytestconfig.rootpath), runs=runs)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        )
        seen.add(done.stdout)
    assert len(seen) == 1
    assert seen.pop().count(",") == 0  # one checksum over all passes
