"""The sparse backbone on a GPU against the float64 reference: same rows, same sums, no waits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame, PlanMismatch
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.models.voxelnext import Backbone

pytestmark = pytest.mark.gpu

SMALL = {
    "voxelization.point_cloud_range": [-12.0, -9.6, -5.0, 12.0, 9.6, 3.0],
    "voxelization.voxel_size": [0.15, 0.15, 0.2],
    "voxelization.max_voxels": 20_000,
    "input.point_capacity": 60_000,
}


def street(count: int, seed: int) -> torch.Tensor:
    """Return points on a ground plane, walls and crowded lumps, some outside the grid."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform((-14, -11, -2), (14, 11, -1.7), (count, 3))
    wall, lump = count // 3, count // 10
    xyz[:wall] = rng.uniform((4, -9, -2), (4.2, 9, 2.8), (wall, 3))
    xyz[wall : wall + lump] = rng.normal((2, 2, -1), 0.3, (lump, 3))
    extra = np.stack([rng.uniform(0, 255, count), rng.choice([0, 0.05, 0.1], count)], axis=1)
    return torch.from_numpy(np.concatenate([xyz, extra], axis=1).astype(np.float32))


def reference(config: LidarConfig, points: torch.Tensor):
    """Return voxels and the rows of the float64 network on the CPU."""
    ops = Ops.for_device("cpu")
    tensors = untrained_weights(config.model, 0).to("cpu", torch.float64)
    backbone = Backbone(config.model, tensors, ops)
    voxels = ops.voxelize(points, config.voxelization)
    maps = backbone.build_maps(voxels.coords_bzyx, config.voxelization.sparse_shape_zyx)
    return voxels, maps, backbone.run(voxels.features.double(), maps)


def engine(config: LidarConfig, plan: Plan | None = None):
    from driveRT_ros.core.gpu.backbone import SparseBackbone

    tensors = untrained_weights(config.model, 0).to("cuda", torch.float32)
    return SparseBackbone(config, tensors, torch.device("cuda", 0), plan)


def in_order(coords: torch.Tensor) -> torch.Tensor:
    """Return the order of rows by b, z, y, x."""
    b, z, y, x = coords.long().cpu().unbind(1)
    return (((b << 12 | z) << 16 | y) << 16 | x).argsort()


@pytest.fixture(scope="module")
def config() -> LidarConfig:
    return LidarConfig.from_dict(SMALL)


@pytest.fixture(scope="module")
def backbone(config):
    return engine(config)


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 1000, 30_000])
def test_rows_and_features_equal_the_float64_reference(backbone, config, count):
    points = street(count, seed=count)
    voxels, maps, expected = reference(config, points)
    backbone.maps.load(points.cuda())
    backbone.run()
    got = backbone.rows()
    assert backbone.maps.overflow() == {}
    for level, coords in zip(backbone.maps.levels, maps.level_coords):
        assert int(level.counts[1]) == len(coords)
    assert backbone.maps.dropped.tolist() == [
        voxels.dropped["non_finite_points"],
        voxels.dropped["out_of_range_points"],
    ]
    mine, theirs = in_order(got.coords_bzyx), in_order(expected.coords_bzyx)
    assert torch.equal(got.coords_bzyx.cpu()[mine], expected.coords_bzyx[theirs])
    if len(theirs):
        error = (got.features.cpu().double()[mine] - expected.features[theirs]).abs().max()
        assert error <= 1e-5 * expected.features.abs().max()


def test_voxel_features_are_those_of_the_reference_bit_for_bit(backbone, config):
    points = street(30_000, seed=5)
    points[::97, 2] = torch.nan
    voxels, _, _ = reference(config, points)
    backbone.maps.load(points.cuda())
    backbone.run()
    zyx = backbone.maps.levels[0].coords_zyx[: len(voxels)]
    coords = torch.cat((torch.zeros_like(zyx[:, :1]), zyx), dim=1)
    features = backbone.maps.features[: len(voxels)].cpu()[in_order(coords)]
    assert torch.equal(features, voxels.features[in_order(voxels.coords_bzyx)])


def test_a_frame_never_waits_for_the_host(backbone):
    points = street(20_000, seed=1).cuda()
    backbone.maps.load(points)
    backbone.run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        backbone.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def test_the_same_frame_gives_the_same_bytes_a_hundred_times_and_in_a_graph(backbone):
    backbone.maps.load(street(30_000, seed=2).cuda())
    backbone.run()
    rows = backbone.rows()
    first, coords = rows.features.clone(), rows.coords_bzyx.clone()
    for _ in range(100):
        backbone.run()
    assert torch.equal(backbone.rows().features, first)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        backbone.run()
    graph.replay()
    assert torch.equal(backbone.rows().features, first)
    assert torch.equal(backbone.rows().coords_bzyx, coords)


def test_what_a_large_frame_left_behind_does_not_reach_a_small_one(backbone, config):
    backbone.maps.load(street(30_000, seed=3).cuda())
    backbone.run()
    backbone.maps.load(street(500, seed=4).cuda())
    backbone.run()
    small = backbone.rows().features.clone()
    fresh = engine(config)
    fresh.maps.load(street(500, seed=4).cuda())
    fresh.run()
    assert torch.equal(fresh.rows().features, small)


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_capacity_is_kept_and_overflow_is_told_with_both_numbers(config, spare):
    points = street(5000, seed=6)
    voxels, _, _ = reference(config, points)
    tight = LidarConfig.from_dict(SMALL | {"voxelization.max_voxels": len(voxels) + spare})
    small = engine(tight)
    small.maps.load(points.cuda())
    small.run()
    torch.cuda.synchronize()
    over = small.maps.overflow()
    assert ("rows of level 1" in over) == (spare < 0)
    if spare < 0:
        assert over["rows of level 1"] == (len(voxels), len(voxels) - 1)


def test_nan_features_reach_the_rows_they_touch(backbone):
    points = street(2000, seed=7)
    backbone.maps.load(points.cuda())
    backbone.run()
    clean = backbone.rows().features.clone()
    weight = backbone._tensors["conv1.0.conv1.weight"]
    kept = weight.clone()
    weight[13, 0, 0] = torch.nan  # the centre tap of one channel
    backbone.run()
    weight.copy_(kept)
    assert backbone.rows().features.isnan().any()
    backbone.run()
    assert torch.equal(backbone.rows().features, clean)


def test_bad_points_are_refused_by_name(backbone):
    with pytest.raises(InvalidFrame, match="float32"):
        backbone.maps.load(torch.zeros(3, 4, device="cuda"))
    with pytest.raises(InvalidFrame, match="elsewhere"):
        backbone.maps.load(torch.zeros(3, 5))
    with pytest.raises(InvalidFrame, match="point_capacity"):
        backbone.maps.load(torch.zeros(60_001, 5, device="cuda"))


def test_a_plan_for_another_gpu_or_layer_is_refused(config):
    plan = default_plan(config.model.channels, (9, 0))
    with pytest.raises(PlanMismatch, match="tuned on 'another'"):
        engine(config, dataclasses.replace(plan, gpu="another"))
    swapped = {**plan.tactics, "subm1": plan.tactics["subm4"]}
    with pytest.raises(ConfigError, match=r"cannot run domain 'subm1'"):
        engine(config, dataclasses.replace(plan, tactics=swapped))
