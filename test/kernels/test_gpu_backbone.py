"""The backbone on a GPU, in every precision, against float64: same rows, same sums, no waits."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame, PlanMismatch
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.plan import PRECISIONS, Plan, default_plan
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import Tactic
from test.support.engine import TOLERANCE, check_result, in_order, reference, street, tensors_of

pytestmark = pytest.mark.gpu

SMALL = {
    "voxelization.point_cloud_range": [-12.0, -9.6, -5.0, 12.0, 9.6, 3.0],
    "voxelization.voxel_size": [0.15, 0.15, 0.2],
    "voxelization.max_voxels": 20_000,
    "input.point_capacity": 60_000,
}
NARROW = ("subm1", "spconv2", "subm2")


@pytest.fixture(scope="module")
def config() -> LidarConfig:
    return LidarConfig.from_dict(SMALL)


def engine(config: LidarConfig, precision: str = "fp32", plan: Plan | None = None):
    device = torch.device("cuda", 0)
    capability = torch.cuda.get_device_capability(device)
    plan = plan or default_plan(config.model.channels, capability, precision)
    return SparseBackbone(config, tensors_of(config, device), device, plan)


@pytest.fixture(scope="module")
def engines(config):
    return {precision: engine(config, precision) for precision in PRECISIONS}


@pytest.fixture(params=PRECISIONS)
def precision(request):
    return request.param


@pytest.fixture
def backbone(engines, precision):
    return engines[precision]


@functools.cache
def known(count, seed):
    """Return what every precision is compared with, computed once."""
    return reference(LidarConfig.from_dict(SMALL), street(count, seed))


def run(backbone, points):
    backbone.maps.load(points.cuda())
    backbone.run()
    return backbone.rows()


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 1000, 30_000])
def test_rows_and_features_equal_the_float64_reference(backbone, precision, config, count):
    points = street(count, seed=count)
    run(backbone, points)
    check_result(backbone, config, points, TOLERANCE[precision], known(count, count))


def narrow_plans(precision: str) -> dict[str, Plan]:
    """Return Plans whose narrow layers run in one group of 27 taps, and all tap groups."""
    base = default_plan(LidarConfig().model.channels, torch.cuda.get_device_capability(), precision)
    tactics = dict(base.tactics)
    arithmetic = {"fp32": "F64", "fp32x3": "F16X3", "tf32": "TF32", "fp16": "F16"}[precision]
    made = {}
    for flow, rows, warps in (("staged", 64, 2), ("direct", 64, 2), ("resident", 16, 8)):
        shape = (1, rows, 16, warps, 1, 2, 2, arithmetic, flow)
        made[flow] = {name: MmaTactic(*shape) for name in NARROW[: 1 if flow == "resident" else 2]}
    if precision == "fp32":
        made["CUDA cores"] = {name: dataclasses.replace(tactics[name], groups=1) for name in NARROW}
        made["nine groups"] = {name: Tactic(9, 32, 16, 4, 4, 2, 2) for name in NARROW}
    made["fixed order"] = {
        name: dataclasses.replace(tactic, folded=True)
        for name, tactic in tactics.items()
        if isinstance(tactic, MmaTactic) and tactic.stages_rows
    }
    return {
        name: dataclasses.replace(base, tactics={**tactics, **some}) for name, some in made.items()
    }


def test_other_flows_and_groupings_give_the_rows_of_float64(precision, config):
    points, ran = street(20_000, seed=8), []
    for name, plan in narrow_plans(precision).items():
        try:
            plan.check_layers(config.model.channels, torch.cuda.get_device_capability())
        except ConfigError:
            continue  # this chip lacks the unit or the memory
        backbone = engine(config, plan=plan)
        run(backbone, points)
        check_result(backbone, config, points, TOLERANCE[precision], known(20_000, 8))
        ran.append(name)
    assert ran or torch.cuda.get_device_capability() < (8, 0)


def test_voxel_features_are_those_of_the_reference_bit_for_bit(engines, config):
    points, backbone = street(30_000, seed=5), engines["fp32"]
    points[::97, 2] = torch.nan
    voxels, _, _ = reference(config, points)
    run(backbone, points)
    zyx = backbone.maps.levels[0].coords_zyx[: len(voxels)]
    coords = torch.cat((torch.zeros_like(zyx[:, :1]), zyx), dim=1)
    features = backbone.maps.features[: len(voxels)].cpu()[in_order(coords)]
    assert torch.equal(features, voxels.features[in_order(voxels.coords_bzyx)])


def test_a_frame_never_waits_for_the_host(backbone):
    """From the points on the device to the last row, loading included."""
    points = street(20_000, seed=1).cuda()
    backbone.maps.load(points)
    backbone.run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        backbone.maps.load(points)
        backbone.run()
        backbone.reset_tickets()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def test_the_same_frame_gives_the_same_bytes_a_hundred_times_and_in_a_graph(backbone):
    rows = run(backbone, street(30_000, seed=2))
    first, coords = rows.features.clone(), rows.coords_bzyx.clone()
    for _ in range(100):
        backbone.run()
        assert torch.equal(backbone.rows().features, first)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        backbone.run()
    backbone.features.fill_(torch.nan)
    graph.replay()
    assert torch.equal(backbone.rows().features, first)
    assert torch.equal(backbone.rows().coords_bzyx, coords)


def test_a_graph_fits_frames_of_other_sizes(backbone):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    run(backbone, street(10, seed=0))
    with torch.cuda.graph(graph, stream=stream):
        backbone.run()
    for count in (0, 1, 5000, 30_000, 1):
        points = street(count, seed=count).cuda()
        expected = run(backbone, points)
        features, coords = expected.features.clone(), expected.coords_bzyx.clone()
        backbone.maps.load(points)
        graph.replay()
        assert torch.equal(backbone.rows().features, features)
        assert torch.equal(backbone.rows().coords_bzyx, coords)


def test_what_a_large_frame_left_behind_does_not_reach_a_small_one(backbone, config, precision):
    run(backbone, street(30_000, seed=3))
    small = run(backbone, street(500, seed=4)).features.clone()
    assert torch.equal(run(engine(config, precision), street(500, seed=4)).features, small)


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_capacity_is_kept_and_overflow_is_told_with_both_numbers(config, precision, spare):
    points, (voxels, _, _) = street(5000, seed=6), known(5000, 6)
    tight = LidarConfig.from_dict(SMALL | {"voxelization.max_voxels": len(voxels) + spare})
    small = engine(tight, precision)
    run(small, points)
    torch.cuda.synchronize()
    over = small.maps.overflow()
    assert ("rows of level 1" in over) == (spare < 0)
    if spare < 0:
        assert over["rows of level 1"] == (len(voxels), len(voxels) - 1)


def test_nan_features_reach_the_rows_they_touch(config, precision):
    points, tensors = street(2000, seed=7), tensors_of(config, "cuda:0")
    tensors["conv1.0.conv1.weight"][13, 0, 0] = torch.nan  # the centre tap of one channel
    plan = default_plan(config.model.channels, torch.cuda.get_device_capability(), precision)
    broken = SparseBackbone(config, tensors, torch.device("cuda", 0), plan)
    assert run(broken, points).features.isnan().any()


def test_bad_input_is_refused_by_name(engines, config):
    maps = engines["fp32"].maps
    with pytest.raises(InvalidFrame, match="float32"):
        maps.load(torch.zeros(3, 4, device="cuda"))
    with pytest.raises(InvalidFrame, match="float32"):
        maps.load(torch.zeros(3, 5, device="cuda", dtype=torch.float16))
    with pytest.raises(InvalidFrame, match="elsewhere"):
        maps.load(torch.zeros(3, 5, device="meta"))
    with pytest.raises(InvalidFrame, match="point_capacity"):
        maps.load(torch.zeros(60_001, 5, device="cuda"))
    with pytest.raises(ConfigError, match="on cpu"):
        SparseBackbone(config, tensors_of(config), torch.device("cuda", 0))


def test_a_plan_for_another_gpu_or_layer_is_refused(config):
    plan = default_plan(config.model.channels, (9, 0))
    with pytest.raises(PlanMismatch, match="tuned on 'another'"):
        engine(config, plan=dataclasses.replace(plan, gpu="another"))
    swapped = {**plan.tactics, "subm1": plan.tactics["subm4"]}
    with pytest.raises(ConfigError, match=r"cannot run domain 'subm1'"):
        engine(config, plan=dataclasses.replace(plan, tactics=swapped))
