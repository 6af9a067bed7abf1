"""Two front ends, one result: row order, too small buffers and Plans change nothing else."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.fingerprint import cell_order
from driveRT_ros.core.gpu import front_end as gpu_front_end
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.plan import PRECISIONS, default_plan
from driveRT_ros.models.voxelnext import untrained_weights
from test.support.fake_engine import engine_pipeline
from test.support.lidar_frames import street

STAGES = ["voxelize", "maps", "backbone", "head", "postprocess"]
SMALL = {
    "model.channels": [8, 8, 16, 16, 16, 16],
    "voxelization.point_cloud_range": [-24.0, -24.0, -5.0, 24.0, 24.0, 3.0],
    "voxelization.voxel_size": [0.15, 0.15, 0.2],
    "voxelization.max_voxels": 20_000,
    "voxelization.max_points_per_voxel": 3,
    "input.point_capacity": 40_000,
    "overflow_policy": "degrade",
}
CONFIG = LidarConfig.from_dict(SMALL)


@pytest.fixture(scope="module")
def cloud() -> torch.Tensor:
    points = street(seed=3, rings=12, azimuths=300, sweeps=2)
    points[::97, 3] = torch.nan
    return points


def detect(pipeline: LidarPipeline, cloud: torch.Tensor):
    return pipeline.process(cloud, with_bev=True, with_fingerprint=True)


def same_bytes(a, b) -> bool:
    tensors = ((a.boxes, b.boxes), (a.scores, b.scores), (a.labels, b.labels))
    return all(torch.equal(x, y) for x, y in tensors)


def test_an_engine_with_rows_in_another_order_gives_the_objects_of_the_reference(cloud):
    pipeline, engine = engine_pipeline(CONFIG)
    got, want = detect(pipeline, cloud), detect(LidarPipeline(CONFIG, None, "cpu"), cloud)
    assert engine.runs == 1 and len(want) > 10
    assert torch.equal(got.labels, want.labels)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores, want.scores, rtol=1e-5, atol=1e-6)
    for name, layer in want.bev.layers.items():
        np.testing.assert_allclose(got.bev.layers[name], layer, rtol=1e-5, atol=1e-6)
    report = got.report
    assert report.num_voxels == want.report.num_voxels
    assert report.voxels_per_level == want.report.voxels_per_level
    assert report.dropped == want.report.dropped
    assert report.dropped["non_finite_points"] > 0 and report.dropped["over_capacity_points"] > 0
    assert report.notes == want.report.notes and report.overflow == {}
    assert list(report.stage_ms) == list(want.report.stage_ms) == STAGES


def test_cells_are_in_order_cube_by_cube():
    cells = torch.randint(0, 40, (300, 3), generator=torch.Generator().manual_seed(1)).unique(dim=0)
    got = cells[cell_order(cells.int(), (41, 40, 44))]
    keys = [[*(row // 8).tolist(), *(row % 8).tolist()] for row in got]
    assert keys == sorted(keys) and len({tuple(key) for key in keys}) == len(cells)


def test_the_fingerprint_does_not_depend_on_the_order_of_rows(cloud):
    pipeline, _ = engine_pipeline(CONFIG)
    first, second = (detect(pipeline, cloud).report.fingerprint for _ in range(2))
    want = detect(LidarPipeline(CONFIG, None, "cpu"), cloud).report.fingerprint
    for stage in ("coords", "features", "bev"):
        assert first[stage] == second[stage] == want[stage]


def test_equal_scores_are_ordered_by_class_then_cell_whatever_the_order_of_rows(cloud):
    """All heat is equal here, so the cap and the order hang on the ties alone."""
    weights = untrained_weights(CONFIG.model, 0)
    tied = {
        name: torch.zeros_like(t) if name.endswith("hm.out.weight") else t
        for name, t in weights.tensors.items()
    }
    tied |= {n: torch.zeros_like(t) for n, t in tied.items() if n.endswith("hm.out.bias")}
    config = LidarConfig.from_dict(
        {**SMALL, "post_process_params.top_k": 40, "post_process_params.iou_nms_threshold": 1.0}
    )
    pipeline, _ = engine_pipeline(config)
    plain = LidarPipeline(config, dataclasses.replace(weights, tensors=tied), "cpu")
    pipeline._back_end = plain._back_end
    got, again, want = (p.process(cloud) for p in (pipeline, pipeline, plain))
    assert len(want) > 100 and set(want.scores.tolist()) == {0.5}
    for other in (got, again):
        assert torch.equal(other.labels, want.labels)
        torch.testing.assert_close(other.boxes, want.boxes, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"voxelization.max_voxels": 500}, "rows of level 1"),
        ({"input.point_capacity": 1000}, "points"),
    ],
)
def test_a_frame_that_does_not_fit_runs_on_the_reference_and_says_what_it_needs(
    changed, name, cloud
):
    config = LidarConfig.from_dict({**SMALL, **changed})
    pipeline, _ = engine_pipeline(config)
    got, want = detect(pipeline, cloud), detect(LidarPipeline(config, None, "cpu"), cloud)
    assert same_bytes(got, want)
    assert got.report.fingerprint == want.report.fingerprint
    assert got.report.dropped == want.report.dropped
    needed, room = got.report.overflow[name]
    assert needed > room == next(iter(changed.values()))
    assert "engine_overflow" in got.report.notes and "engine_overflow" not in want.report.notes
    assert list(got.report.stage_ms) == STAGES
    if name != "points":
        assert got.report.dropped["over_capacity_voxels"] == needed - room


def test_too_many_tiles_are_an_overflow_too_and_the_next_frame_is_an_ordinary_one(cloud):
    pipeline, _ = engine_pipeline(CONFIG, tile_capacity=20)
    assert pipeline.process(cloud).report.overflow.keys() == {"tiles of subm1"}
    found = pipeline.process(cloud[:200])
    assert found.report.overflow == {} and "engine_overflow" not in found.report.notes


@pytest.mark.parametrize("count", [0, 1, 31])
def test_small_clouds_after_a_large_one_see_nothing_of_it(count, cloud):
    pipeline, _ = engine_pipeline(CONFIG)
    pipeline.process(cloud)
    got = detect(pipeline, cloud[1 : count + 1])
    want = detect(LidarPipeline(CONFIG, None, "cpu"), cloud[1 : count + 1])
    assert torch.equal(got.labels, want.labels)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=1e-5, atol=1e-5)
    assert got.report.voxels_per_level == want.report.voxels_per_level
    assert got.report.notes == want.report.notes


def test_a_fault_of_the_device_reaches_the_caller_and_the_next_frame_works(cloud):
    pipeline, engine = engine_pipeline(CONFIG)
    works = engine.run_maps

    def fails() -> None:
        raise DeviceError("CUDA error 700 while launching 'mark_points'.")

    engine.run_maps = fails
    with pytest.raises(DeviceError, match="mark_points"):
        pipeline.process(cloud)
    engine.run_maps = works
    assert len(pipeline.process(cloud)) > 10


def test_another_threshold_keeps_the_engine_and_another_grid_does_not(cloud):
    pipeline, engine = engine_pipeline(CONFIG)
    before = pipeline.process(cloud)
    limit = before.scores.median().item()
    strict = LidarConfig.from_dict({**SMALL, "post_process_params.score_thresholds": [limit]})
    found = pipeline.reconfigured(strict).process(cloud)
    assert 0 < len(found) < len(before) and found.scores.min() > limit
    assert engine.runs == 2
    assert torch.equal(pipeline.process(cloud).labels, before.labels)  # the old one is as it was
    wide = LidarConfig.from_dict({**SMALL, "voxelization.voxel_size": [0.3, 0.3, 0.2]})
    found = pipeline.reconfigured(wide).process(cloud)
    assert engine.runs == 3
    assert found.report.num_voxels < before.report.num_voxels


def test_warming_up_runs_frames_and_leaves_no_trace(cloud):
    pipeline, engine = engine_pipeline(CONFIG)
    pipeline.warm_up()
    assert engine.runs == 2
    cold, _ = engine_pipeline(CONFIG)
    assert torch.equal(pipeline.process(cloud).labels, cold.process(cloud).labels)


# ---- precision and Plan -------------------------------------------------------------------------


def test_the_precisions_of_the_configuration_are_those_of_the_plan():
    [precision] = [p for p in LidarConfig.parameters() if p.name == "precision"]
    assert precision.info.choices == PRECISIONS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "fp32"])
def test_a_precision_that_a_cpu_lacks_is_refused_with_what_would_do(precision, dtype):
    config = LidarConfig.from_dict({**SMALL, "precision": precision})
    with pytest.raises(ConfigError, match=f"'precision' is '{precision}'.*'cpu'; use 'fp32'"):
        LidarPipeline(config, None, "cpu", dtype)


def test_a_plan_on_a_cpu_is_named_as_not_used(cloud):
    config = LidarConfig.from_dict({**SMALL, "plan_path": "/nowhere/plan.json"})
    pipeline = LidarPipeline(config, None, "cpu")
    assert pipeline.plan is None
    assert "/nowhere/plan.json" in pipeline.plan_note and "'cpu'" in pipeline.plan_note
    assert "plan_not_used" in pipeline.process(cloud[:100]).report.notes
    assert "plan_not_used" not in LidarPipeline(CONFIG, None, "cpu").process(cloud).report.notes


@pytest.fixture
def gpu(monkeypatch):
    """A CUDA device of which only the name is asked for."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    engine = SimpleNamespace(maps=SimpleNamespace(device=torch.device("cuda", 0)))
    monkeypatch.setattr(gpu_front_end, "SparseBackbone", lambda *args: engine)


def chosen(path, precision="fp32"):
    config = LidarConfig.from_dict({"plan_path": str(path), "precision": precision})
    weights = untrained_weights(config.model, 0)
    device = torch.device("cuda", 0)
    return gpu_front_end.make_engine(config, weights, {}, device, None), weights


@pytest.mark.parametrize("precision", PRECISIONS)
def test_without_a_plan_file_the_default_of_the_precision_runs(gpu, precision):
    (front, plan, note), _ = chosen("", precision)
    assert isinstance(front, gpu_front_end.EngineFrontEnd)
    assert plan == default_plan(LidarConfig().model.channels, (9, 0), precision)
    assert note == ""


def test_a_plan_that_fits_runs(gpu, tmp_path):
    path = tmp_path / "plan.json"
    channels = LidarConfig().model.channels
    sha256 = untrained_weights(LidarConfig().model, 0).sha256
    tuned = default_plan(channels, (9, 0))
    tuned = dataclasses.replace(tuned, gpu="GPU", weights_sha256=sha256)
    tuned.save(path)
    (_, plan, note), _ = chosen(path)
    assert (plan, note) == (tuned, "")


@pytest.mark.parametrize(
    ("stale", "part"),
    [
        ({"gpu": "Another GPU"}, "Another GPU"),
        ({"weights_sha256": "ab" * 32}, "weights abab"),
        ({"precision": "tf32"}, "precision 'tf32'"),
        (None, "cannot be read"),
    ],
)
def test_a_plan_that_does_not_fit_is_named_and_the_default_runs(gpu, tmp_path, stale, part):
    path = tmp_path / "plan.json"
    default = default_plan(LidarConfig().model.channels, (9, 0))
    if stale is not None:
        dataclasses.replace(default, **stale).save(path)
    (_, plan, note), _ = chosen(path)
    assert plan == default
    assert str(path) in note and part in note
