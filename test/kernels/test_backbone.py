"""The whole backbone on the CPU shim, in every precision, against the float64 network."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, DeviceError, InvalidFrame, PlanMismatch
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.domains import DomainShape, domain_shapes, level_shapes
from driveRT_ros.core.gpu.growth import MOST_VOXELS
from driveRT_ros.core.plan import PRECISIONS, Plan, default_plan
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import Tactic
from test.support import engine
from test.support.engine import SMALL, TOLERANCE, check_result, reference, street, tensors_of

CHANNELS = (16,) * 6
CPU = torch.device("cpu")
CAPABILITY = (9, 0)


@pytest.fixture(autouse=True)
def shim(monkeypatch):
    engine.put_on_the_shim(monkeypatch, CAPABILITY)
    monkeypatch.setattr(engine.BACKEND, "seed", 0)
    monkeypatch.setattr(engine.BACKEND, "resident", 1)


@pytest.fixture(scope="module")
def config() -> LidarConfig:
    return LidarConfig.from_dict(SMALL)


def made(config, precision="fp32", plan=None, tensors=None):
    plan = plan or default_plan(config.model.channels, CAPABILITY, precision)
    return SparseBackbone(config, tensors or tensors_of(config), CPU, plan)


def cloud(count: int, seed: int = 0) -> torch.Tensor:
    return street(count, seed, edge_m=(4.8, 3.6))


def run(backbone, points):
    """Run a frame; return copies of its rows and coordinates, in order of the coordinates."""
    backbone.maps.load(points)
    backbone.run()
    rows = backbone.rows()
    order = engine.in_order(rows.coords_bzyx)
    return rows.features[order], rows.coords_bzyx[order]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_stays_within_its_tolerance_of_float64(config, precision):
    backbone = made(config, precision)
    for count in (0, 1, 2, 33, 1500):
        points = cloud(count, seed=count)
        run(backbone, points)
        check_result(backbone, config, points, TOLERANCE[precision])
    assert backbone.features.dtype == torch.float32
    inner = torch.float16 if precision == "fp16" else torch.float32
    assert {backbone.output(name).dtype for name in ("conv_input", "conv4.1.conv2", "bev")} == {
        inner
    }


@pytest.mark.parametrize("kept", [0, 1], ids=["cells", "lists"])
def test_a_frame_that_was_cut_short_does_not_reach_the_next(config, kept):
    """Cells and lists of points are emptied by the launches that come last, here never enqueued."""

    def stop(stream=None):
        raise DeviceError("stopped")

    backbone, points = made(config), cloud(1500, seed=2)
    maps, launches = backbone.maps, backbone.maps.voxel_launches
    maps.load(cloud(1500, seed=1))
    maps.voxel_launches = (*launches[:kept], stop)
    with pytest.raises(DeviceError, match="stopped"):
        backbone.run()
    maps.voxel_launches = launches
    assert all(map(torch.equal, run(backbone, points), run(made(config), points)))


def test_a_frame_that_was_cut_short_waits_for_what_it_began_beside_the_stream(config, monkeypatch):
    """Else the next frame writes what those launches still read."""

    def stop(stream=None):
        raise DeviceError("stopped")

    joined = []
    monkeypatch.setattr(engine.ShimBranch, "join", lambda branch: joined.append(1))
    backbone = made(config)
    backbone.maps.load(cloud(100, seed=1))
    backbone.maps.voxel_launches = (*backbone.maps.voxel_launches, stop)
    with pytest.raises(DeviceError, match="stopped"):
        backbone.run()
    assert joined == [1]


def test_entries_of_the_largest_tables_are_numbered_with_31_bits():
    """Kernels count the places of an order and the entries of a table in integers of 32 bits."""
    large = LidarConfig.from_dict({"voxelization.max_voxels": MOST_VOXELS})
    plan = default_plan(large.model.channels, CAPABILITY)
    for shape in domain_shapes(level_shapes(large), plan.tactics):
        assert shape.tile_capacity * shape.tile_rows * shape.group_taps < 2**31
    with pytest.raises(ConfigError, match="max_voxels"):
        LidarConfig.from_dict({"voxelization.max_voxels": MOST_VOXELS + 1})


def variants(arithmetic: str) -> dict[str, tuple]:
    """Return tactics by name: every flow, and groups of 27, 9 and 3 taps."""
    if arithmetic == "FFMA":
        return {f"{g} groups": (Tactic(g, 64, 16, 4, 4, 2, 1), 3) for g in (1, 3, 9)}
    slab = 16
    shapes = {
        "one group, staged": (1, 32, slab, 2, 1, 2, 1, arithmetic, "staged"),
        "direct": (1, 64, slab, 2, 1, 2, 1, arithmetic, "direct"),
        "resident": (1, 16, slab, 4, 1, 2, 1, arithmetic, "resident"),
        "nine groups": (9, 32, slab, 1, 1, 2, 1, arithmetic, "staged"),
    }
    if arithmetic == "F16":
        shapes["fixed order"] = (3, 32, slab, 2, 1, 3, 1, arithmetic, "staged", 1, True)
    return {name: (MmaTactic(*shape), 1) for name, shape in shapes.items()}


@pytest.mark.parametrize("arithmetic", ["FFMA", "F64", "F16X3", "F16"])
def test_every_flow_and_grouping_gives_the_rows_of_float64(config, arithmetic):
    """Also where the last layer has one group, whose rows are float32 even in fp16."""
    precision = {"F16": "fp16", "F16X3": "fp32x3"}.get(arithmetic, "fp32")
    base, points = default_plan(CHANNELS, CAPABILITY, precision), cloud(1200, seed=3)
    for tactic, flat_groups in variants(arithmetic).values():
        flat = dataclasses.replace(tactic, groups=min(tactic.groups, flat_groups))
        tactics = {name: flat if name.endswith("_out") else tactic for name in base.tactics}
        backbone = made(config, plan=Plan(precision, tactics))
        run(backbone, points)
        check_result(backbone, config, points, TOLERANCE[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_frame_gives_the_same_bytes_whatever_the_schedule(config, precision, monkeypatch):
    backbone, points = made(config, precision), cloud(1000, seed=2)
    first = run(backbone, points)
    monkeypatch.setattr(engine.BACKEND, "resident", 3)
    for seed in (1, 2):
        monkeypatch.setattr(engine.BACKEND, "seed", seed)
        again = run(backbone, points)
        assert torch.equal(again[0].view(torch.int32), first[0].view(torch.int32))
        assert torch.equal(again[1], first[1])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_a_large_frame_left_behind_does_not_reach_a_small_one(config, precision):
    backbone = made(config, precision)
    run(backbone, cloud(1500, seed=4))
    used, few = run(backbone, cloud(60, seed=5)), run(made(config, precision), cloud(60, seed=5))
    assert torch.equal(used[0], few[0]) and torch.equal(used[1], few[1])


def test_layers_run_again_on_the_same_maps(config):
    backbone, points = made(config), cloud(500, seed=6)
    rows, _ = run(backbone, points)
    backbone.features.fill_(torch.nan)
    backbone.reset_tickets()
    for launches in backbone.stages.values():
        for launch in launches:
            launch()
    got = backbone.rows()
    assert torch.equal(got.features[engine.in_order(got.coords_bzyx)], rows)


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_capacity_is_kept_and_overflow_is_told_with_both_numbers(config, spare):
    points = cloud(700, seed=7)
    voxels, _, _ = reference(config, points)
    tight = LidarConfig.from_dict(SMALL | {"voxelization.max_voxels": len(voxels) + spare})
    backbone = made(tight)
    run(backbone, points)
    over = backbone.maps.overflow()
    told = {key: value for key, value in over.items() if key == "rows of level 1"}
    assert told == ({"rows of level 1": (len(voxels), len(voxels) - 1)} if spare < 0 else {})


# ---- input that is odd or wrong -----------------------------------------------------------------


def test_points_that_cannot_be_used_are_dropped_and_counted(config):
    """Not finite in any field, or outside the grid: the rest of the frame is as without them."""
    backbone, good = made(config), cloud(300, seed=8)
    inside = good[(good[:, 0].abs() < 4.5) & (good[:, 1].abs() < 3.5)]
    clean = run(backbone, inside)
    bad = inside[:10].clone()
    for i, value in enumerate((torch.nan, torch.inf, -torch.inf, torch.nan, torch.inf)):
        bad[i, i] = value
    bad[5:, 0], bad[7:, 2] = 4.81, 3.01
    mixed = run(backbone, torch.cat((bad[:4], inside, bad[4:])))
    assert backbone.maps.dropped.tolist() == [5, 5]
    assert torch.equal(mixed[0], clean[0]) and torch.equal(mixed[1], clean[1])


def test_points_in_one_voxel_are_averaged_so_no_coordinate_comes_twice(config):
    backbone, points = made(config), cloud(200, seed=9).repeat(3, 1)
    run(backbone, points)
    check_result(backbone, config, points, TOLERANCE["fp32"])
    level = backbone.maps.levels[0]
    rows = level.coords_zyx[: int(level.counts[1])]
    assert len(rows.unique(dim=0)) == len(rows)


def test_points_need_not_be_contiguous(config):
    backbone, points = made(config), cloud(200, seed=10)
    spread = torch.zeros(200, 10)
    spread[:, ::2] = points
    strided = run(backbone, spread[:, ::2])
    assert torch.equal(strided[0], run(backbone, points)[0])


def test_bad_points_are_refused_by_name(config):
    maps = made(config).maps
    for points, named in (
        (torch.zeros(3, 4), "float32"),
        (torch.zeros(3), "float32"),
        (torch.zeros(3, 5, dtype=torch.float16), "float16"),
        (torch.zeros(3, 5, device="meta"), "elsewhere"),
        (torch.zeros(2001, 5), "point_capacity"),
    ):
        with pytest.raises(InvalidFrame, match=named):
            maps.load(points)


def test_nan_in_a_weight_reaches_the_result(config):
    """Clipping at zero and halves must not hide a fault."""
    for precision in ("fp32", "fp16"):
        tensors = tensors_of(config)
        tensors["conv1.0.conv1.weight"][13, 0, 0] = torch.nan
        rows, _ = run(made(config, precision, tensors=tensors), cloud(300, seed=11))
        assert bool(rows.isnan().any())


def test_features_beyond_a_half_become_infinite_and_never_another_number(config):
    tensors = tensors_of(config)
    tensors["conv_input.bias"] += 1e6
    points = cloud(300, seed=12)
    backbone = made(config, "fp16", tensors=tensors)
    rows, _ = run(backbone, points)
    inner = backbone.output("conv_input")[: int(backbone.maps.levels[0].counts[1])]
    assert bool(inner.isinf().all()) and not bool(rows.isfinite().all())


def test_weights_that_do_not_fit_are_refused_by_name(config):
    name, good = "conv3.1.conv2.weight", tensors_of(config)
    fits = good[name]
    for tensor, named in (
        (None, "missing"),
        (fits[:, :8], r"\(27, 16, 16\) float32, got \(27, 8, 16\)"),
        (fits.double(), "float64"),
        (fits.half(), "float16"),
        (fits.to("meta"), "on meta"),
    ):
        tensors = {k: v for k, v in good.items() if k != name}
        if tensor is not None:
            tensors[name] = tensor
        with pytest.raises(ConfigError, match=f"{name}.*{named}"):
            made(config, tensors=tensors)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_weights_need_not_be_contiguous(config, precision):
    points, tensors = cloud(200, seed=13), tensors_of(config)
    strided = {k: v.transpose(0, -1).contiguous().transpose(0, -1) for k, v in tensors.items()}
    assert not strided["conv3.1.conv2.weight"].is_contiguous()
    expected, _ = run(made(config, precision, tensors=tensors), points)
    assert torch.equal(run(made(config, precision, tensors=strided), points)[0], expected)


def test_a_weight_beyond_a_half_is_refused_in_fp16(config):
    tensors = tensors_of(config)
    tensors["conv3.1.conv2.weight"][0, 0, 0] = 1e5
    with pytest.raises(ConfigError, match="does not fit a half"):
        made(config, "fp16", tensors=tensors)


def test_a_plan_for_another_gpu_precision_or_layer_is_refused(config):
    plan = default_plan(CHANNELS, CAPABILITY)
    with pytest.raises(PlanMismatch, match="tuned on 'another'"):
        made(config, plan=dataclasses.replace(plan, gpu="another"))
    with pytest.raises(ConfigError, match="'fp16' allows F16"):
        made(config, plan=dataclasses.replace(plan, precision="fp16"))
    wide = dataclasses.replace(plan.tactics["subm1"], slab=64)
    tactics = {**plan.tactics, "subm1": wide}
    with pytest.raises(ConfigError, match="cannot run domain 'subm1': slab"):
        made(config, plan=dataclasses.replace(plan, tactics=tactics))


@pytest.mark.parametrize(
    ("kernel", "groups", "tile_rows", "named"),
    [
        ((5, 3, 3), 5, 64, "45 taps"),
        ((3, 3, 5), 3, 64, "45 taps"),
        ((3, 3, 3), 2, 64, "27 taps in 2 groups"),
        ((3, 3, 3), 27, 64, "27 taps in 27 groups"),
        ((3, 3, 3), 3, 48, "tiles of 48 rows"),
    ],
)
def test_a_kernel_with_more_taps_than_a_mask_has_bits_is_refused(kernel, groups, tile_rows, named):
    with pytest.raises(ConfigError, match=named):
        DomainShape("odd", 0, 0, kernel, 1, 1, groups, tile_rows, 100)
