"""Mean features of voxels, bit for bit those of the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.voxelize import voxelize
from test.support import oracle
from test.support.kernel_cases import (
    CLOUDS,
    CONFIG,
    crowded_cloud,
    is_untouched,
    leaf_order,
    random_cloud,
    run_frame,
)
from test.support.launch import level_shapes


def in_row_order(voxels):
    """Return the features and counts of reference voxels in the order of the kernels' rows."""
    cells = [tuple(row) for row in voxels.coords_bzyx[:, 1:].tolist()]
    row_of = {cell: row for row, cell in enumerate(cells)}
    order = [row_of[cell] for cell in leaf_order(cells, level_shapes(CONFIG.grid_xyz)[0])]
    return voxels.features[order], voxels.num_points[order]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_features_are_those_of_the_reference_bit_for_bit(backend, cloud):
    points = CLOUDS[cloud]()
    frame = run_frame(backend, points)
    features, counts = in_row_order(voxelize(points, CONFIG))
    n = len(features)
    assert frame.count(0)[1] == n
    assert torch.equal(frame.features[:n].cpu(), features)
    assert torch.equal(frame.stored[:n].cpu(), counts)
    assert is_untouched(frame.features[n:])
    assert frame.buffers.intact()


@pytest.mark.parametrize("copies", [1, 2, 7])
def test_minus_zero_keeps_its_sign_as_in_the_reference(backend, copies):
    points = random_cloud(3, seed=1)[:1].repeat(copies, 1)
    points[:, 3:] = -0.0
    features, _ = in_row_order(voxelize(points, CONFIG))
    assert torch.signbit(features[:, 3:]).all()
    got = run_frame(backend, points).features[: len(features)].cpu()
    assert torch.equal(got.view(torch.int32), features.view(torch.int32))


def test_features_are_the_means_of_the_dictionary_oracle(backend):
    points = crowded_cloud()
    frame = run_frame(backend, points)
    low, high = CONFIG.point_cloud_range[:3], CONFIG.point_cloud_range[3:]
    limits = (CONFIG.max_points_per_voxel, CONFIG.max_voxels)
    grid = (CONFIG.voxel_size, CONFIG.grid_xyz)
    cells, means, _ = oracle.voxelize(points.numpy(), low, high, *grid, *limits)
    mean_of = dict(zip(cells, means))
    for cell, got in zip(frame.coords(0).tolist(), frame.features.cpu().numpy()):
        np.testing.assert_allclose(got, mean_of[tuple(cell)], rtol=2e-6, atol=1e-4)


@pytest.mark.parametrize("max_points", [1, 5, 32])
def test_any_number_of_points_up_to_a_warp_can_be_averaged(backend, max_points):
    points = crowded_cloud()
    frame = run_frame(backend, points, average=False)
    frame.average(max_points)
    config = type(CONFIG)(
        point_cloud_range=CONFIG.point_cloud_range,
        voxel_size=CONFIG.voxel_size,
        max_points_per_voxel=max_points,
    )
    features, counts = in_row_order(voxelize(points, config))
    assert torch.equal(frame.features[: len(features)].cpu(), features)
    assert torch.equal(frame.stored[: len(features)].cpu(), counts)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_voxels_beyond_the_capacity_do_not_disturb_the_others(backend, more):
    points = random_cloud(300, seed=9)
    features, _ = in_row_order(voxelize(points, CONFIG))
    fits = min(len(features) + more, len(features))
    frame = run_frame(backend, points, row_capacity=len(features) + more)
    assert torch.equal(frame.features[:fits].cpu(), features[:fits])
    assert frame.buffers.intact()


def test_a_frame_repeats_to_the_last_bit(backend):
    points = torch.cat((random_cloud(1200, seed=4), crowded_cloud()))
    backend.resident = 3
    first = None
    for _ in backend.repeats():
        frame = run_frame(backend, points)
        n = frame.count(0)[1]
        result = [frame.features[:n].view(torch.int32), frame.stored[:n]]
        result += [frame.coords(level) for level in range(8)]
        first = first or result
        assert all(torch.equal(a, b) for a, b in zip(first, result))
