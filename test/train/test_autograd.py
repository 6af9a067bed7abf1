"""Differentiable sparse convolution against a dense matrix and against finite differences."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core.coordmap import strided_map, submanifold_map
from driveRT_ros.train import autograd
from driveRT_ros.train.autograd import sparse_conv
from test.support.training import dense_weights, table_map


def some_map(kind: str, seed: int = 0, rows: int = 40):
    generator = torch.Generator().manual_seed(seed)
    shape = (4, 6, 6)
    cells = torch.randperm(2 * 4 * 6 * 6, generator=generator)[:rows].sort()[0]
    coords = torch.stack((cells // 144, cells // 36 % 4, cells // 6 % 6, cells % 6), dim=1).int()
    if kind == "subm":
        return submanifold_map(coords, shape)
    if kind == "flat":
        coords[:, 1] = 0
        return strided_map(coords.unique(dim=0), (1, 6, 6), (1, 3, 3), 1, (0, 1, 1))
    return strided_map(coords, shape, 3, 2, 1)


def operands(coord_map, dtype=torch.float64, c_in=3, c_out=4):
    generator = torch.Generator().manual_seed(1)
    taps = len(coord_map.counts)
    features = torch.randn(coord_map.num_in, c_in, generator=generator, dtype=dtype)
    weight = torch.randn(taps, c_in, c_out, generator=generator, dtype=dtype)
    return features.requires_grad_(), weight.requires_grad_()


def way(coord_map, by_table):
    return table_map(coord_map) if by_table else coord_map


WAYS = pytest.mark.parametrize("by_table", [False, True], ids=["taps", "table"])
KINDS = pytest.mark.parametrize("kind", ["subm", "strided", "flat"])


@WAYS
@KINDS
def test_both_ways_equal_a_dense_matrix(kind, by_table):
    coord_map = some_map(kind)
    features, weight = operands(coord_map)
    out = sparse_conv(features, weight, way(coord_map, by_table))
    want = (features.flatten() @ dense_weights(coord_map, weight)).view(coord_map.num_out, -1)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).double()
    got = torch.autograd.grad(out, (features, weight), upstream)
    expected = torch.autograd.grad(want, (features, weight), upstream)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@WAYS
@KINDS
def test_gradients_equal_finite_differences(kind, by_table):
    coord_map = some_map(kind, rows=14)
    conv_map = way(coord_map, by_table)
    features, weight = operands(coord_map, c_in=2, c_out=2)
    assert torch.autograd.gradcheck(lambda f, w: sparse_conv(f, w, conv_map), (features, weight))


def test_a_table_larger_than_the_room_is_worked_off_in_chunks(monkeypatch):
    coord_map = some_map("subm")
    features, weight = operands(coord_map)
    conv_map = table_map(coord_map)
    whole = sparse_conv(features, weight, conv_map)
    grads = torch.autograd.grad(whole.square().sum(), (features, weight))
    monkeypatch.setattr(autograd, "CHUNK_ELEMENTS", 7 * 27 * 4)
    monkeypatch.setattr(autograd, "_SPLIT_ROWS", 3)
    parts = sparse_conv(features, weight, conv_map)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(parts.square().sum(), (features, weight)), grads):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@WAYS
def test_halves_are_added_up_in_float32(by_table):
    """A sum of 27 taps rounded after each addition would lose more than one rounding at the end."""
    coord_map = some_map("subm", rows=140)
    features, weight = operands(coord_map, torch.float32, c_in=16)
    with torch.autocast("cpu", torch.bfloat16):
        out = sparse_conv(features, weight, way(coord_map, by_table))
    assert out.dtype == torch.bfloat16
    rounded = [t.detach().bfloat16().double() for t in (features, weight)]
    exact = sparse_conv(*rounded, way(coord_map, by_table))
    # One rounding of the result, and one of each product where they are added tap by tap.
    scale = exact.abs().max()
    assert (out.double() - exact).abs().max() < scale * 2**-8
    gradients = torch.autograd.grad(out.float().sum(), (features, weight))
    assert [g.dtype for g in gradients] == [torch.float32, torch.float32]


@WAYS
def test_no_rows_and_one_row_are_ordinary(by_table):
    for rows in (0, 1):
        coords = torch.tensor([[0, 1, 1, 1]], dtype=torch.int32)[:rows]
        coord_map = submanifold_map(coords, (4, 6, 6))
        features, weight = operands(coord_map)
        out = sparse_conv(features, weight, way(coord_map, by_table))
        assert out.shape == (rows, 4)
        gradient = torch.autograd.grad(out.sum(), weight)[0]
        assert (gradient != 0).any(2).any(1).sum() == rows


@pytest.mark.gpu
def test_a_gpu_gives_the_same_gradients_again_and_again():
    coord_map = some_map("subm", rows=140)
    moved = submanifold_map(coord_map.in_coords_bzyx.cuda(), (4, 6, 6))
    runs = []
    for by_table in (False, True, True):
        features, weight = (t.detach().cuda().requires_grad_() for t in operands(coord_map))
        out = sparse_conv(features, weight, way(moved, by_table))
        runs.append(torch.autograd.grad(out.square().sum(), (features, weight)))
    for a, b, c in zip(*runs):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        assert torch.equal(b, c)
