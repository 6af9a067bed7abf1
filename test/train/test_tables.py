"""Voxels and maps of a whole batch at once, against those of one frame after the other."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.reference.bev_merge import bev_merge
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.models.graph import build_graph
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS, Backbone
from driveRT_ros.train.samples import unpack
from driveRT_ros.train.tables import build_tables
from driveRT_ros.train.voxels import voxelize_batch
from test.support.training import backward_table, small_config, small_sample, table_map


def clouds():
    """Return three frames: one with points off the grid and not finite, one empty."""
    first, last = (torch.from_numpy(unpack(small_sample(seed).points)) for seed in (1, 2))
    first[::50, 0] = 99.0
    first[7, 3] = float("nan")
    return [first, first[:0], last]


def batch_of(frames, config):
    return voxelize_batch(torch.cat(frames), [len(frame) for frame in frames], config)


@pytest.mark.parametrize("room", [(10, 160_000), (2, 400)], ids=["enough", "too little"])
def test_a_batch_has_the_voxels_of_its_frames(room):
    grid = small_config().voxelization.to_dict()
    config = VoxelizationConfig.from_dict(
        {**grid, "max_points_per_voxel": room[0], "max_voxels": room[1]}
    )
    features, coords = batch_of(clouds(), config)
    assert (coords[1:].unique(dim=0) == coords[1:]).all(), "ascending and unique"
    for number, cloud in enumerate(clouds()):
        want = Ops.for_device("cpu").voxelize(cloud, config)
        mine = coords[:, 0] == number
        z, y, x = want.coords_bzyx[:, 1:].long().unbind(1)
        order = ((z * 10_000 + y) * 10_000 + x).argsort()
        assert torch.equal(coords[mine, 1:], want.coords_bzyx[order, 1:])
        assert torch.equal(features[mine], want.features[order])
    # Repeated points fill a cell beyond its room.
    assert room[1] > 400 or mine.sum() == 400


def test_tables_hold_the_pairs_of_the_reference():
    config = small_config()
    graph = build_graph(config.model)
    _, coords = batch_of(clouds(), config.voxelization)
    shape = config.voxelization.sparse_shape_zyx
    want = Backbone(config.model, {}, Ops.for_device("cpu")).build_maps(coords, shape)
    found = build_tables(graph, coords, shape)
    assert found.by_key.keys() == want.by_key.keys()
    for key, pairs in want.by_key.items():
        tables = table_map(pairs)
        assert torch.equal(found.by_key[key].forward_table, tables.forward_table), key
        back = [backward_table(t, pairs.num_out) for t in (found.by_key[key], tables)]
        assert torch.equal(*back), key
    last = want.by_key[graph.bev[-1].map_key]
    assert torch.equal(found.coords_bzyx, last.out_coords_bzyx)
    assert found.shape_zyx == last.out_shape_zyx

    shuffled = torch.randperm(len(coords), generator=torch.Generator().manual_seed(0))
    again = build_tables(graph, coords[shuffled], shape)
    assert torch.equal(coords[shuffled][again.order], coords)
    assert torch.equal(again.by_key["subm1"].forward_table, found.by_key["subm1"].forward_table)

    generator = torch.Generator().manual_seed(1)
    levels = [
        SparseTensor(
            torch.randn(len(c), 3, generator=generator, dtype=torch.float64).requires_grad_(), c, s
        )
        for c, s in ((want.level_coords[n - 1], want.level_shapes[n - 1]) for n in MERGED_LEVELS)
    ]
    theirs = bev_merge(levels, MERGE_SCALES).features
    mine = found.merge(torch.cat([level.features for level in levels]))
    torch.testing.assert_close(mine, theirs)
    gradients = [
        torch.autograd.grad(rows.square().sum(), [level.features for level in levels])
        for rows in (mine, theirs)
    ]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b)
