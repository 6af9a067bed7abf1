"""What happens to a cloud that needs more room than the engine has, by policy."""

from __future__ import annotations

import weakref

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import DeviceError, InvalidFrame
from driveRT_ros.core.gpu.growth import MOST_POINTS, MOST_VOXELS, HighWater, larger, refusal
from driveRT_ros.core.pipeline import LidarPipeline
from test.support.fake_engine import FakeEngine, FakeHeads, engine_pipeline
from test.support.lidar_frames import street

SMALL = {
    "model.channels": [8] * 6,
    "voxelization.point_cloud_range": [-12.0, -12.0, -5.0, 12.0, 12.0, 3.0],
    "voxelization.voxel_size": [0.15, 0.15, 0.2],
    "voxelization.max_voxels": 300,
    "input.point_capacity": 1000,
}


def settings(**changes) -> LidarConfig:
    return LidarConfig.from_dict(SMALL | {k.replace("__", "."): v for k, v in changes.items()})


@pytest.fixture(scope="module")
def cloud() -> torch.Tensor:
    return street(seed=3, rings=10, azimuths=160, sweeps=1)


def room(config: LidarConfig) -> tuple[int, int]:
    return config.input.point_capacity, config.voxelization.max_voxels


def test_a_larger_engine_has_room_for_the_frame_and_some_more():
    over = {"points": (2000, 1000), "rows of level 1": (400, 300), "leaves of level 3": (900, 300)}
    points, voxels = room(larger(settings(), over))
    assert 2000 < points <= 3000 and 900 < voxels <= 1350
    assert room(larger(settings(), {"points": (1001, 1000)})) == (1252, 300)
    assert room(larger(settings(), {"tiles of subm1": (7, 6)}))[0] == 1000


def test_room_ends_at_a_limit_and_beyond_it_there_is_none():
    at = {"points": (MOST_POINTS, 1000)}
    assert room(larger(settings(), at)) == (MOST_POINTS, 300)
    assert larger(settings(), {"points": (MOST_POINTS + 1, 1000)}) is None
    assert room(larger(settings(), {"rows of level 1": (MOST_VOXELS, 300)})) == (1000, MOST_VOXELS)
    assert larger(settings(), {"rows of level 1": (MOST_VOXELS + 300, 300)}) is None


def test_a_frame_runs_again_on_a_larger_engine_and_the_next_one_at_once(cloud):
    pipeline, first = engine_pipeline(settings())
    got = pipeline.process(cloud, with_bev=True)
    roomy = settings(voxelization__max_voxels=50_000, input__point_capacity=50_000)
    want = LidarPipeline(roomy, None, "cpu").process(cloud, with_bev=True)
    assert len(want) > 5 and torch.equal(got.labels, want.labels)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=1e-5, atol=1e-5)
    assert got.report.dropped == want.report.dropped
    assert got.report.num_voxels == want.report.num_voxels > 300
    assert got.report.overflow["points"] == (len(cloud), 1000)
    assert got.report.overflow["rows of level 1"] == (want.report.num_voxels, 300)
    assert "engine_grown" in got.report.notes and "engine_overflow" not in got.report.notes
    assert list(got.report.stage_ms) == ["voxelize", "maps", "backbone", "head", "postprocess"]
    engine = pipeline._front_end._engine
    assert engine is not first
    again = pipeline.process(cloud)
    assert pipeline._front_end._engine is engine and again.report.overflow == {}
    assert again.report.notes == want.report.notes


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: out of memory\nOf pinned memory."),
        DeviceError("CUDA error 2 (out of memory) while loading 'levels'.", 2),
    ],
)
def test_without_memory_for_a_larger_engine_the_reference_goes_on_and_nothing_is_tried_again(
    error, cloud
):
    pipeline, first = engine_pipeline(settings())
    tried = []

    def make(config: LidarConfig) -> FakeEngine:
        tried.append(config)
        raise error

    pipeline._front_end._make = make
    want = LidarPipeline(settings(), None, "cpu").process(cloud)
    for _ in range(2):
        got = pipeline.process(cloud)
        assert torch.equal(got.boxes, want.boxes)
        assert "engine_overflow" in got.report.notes and "engine_grown" not in got.report.notes
    assert len(tried) == 1 and pipeline._front_end._engine is first
    assert pipeline.process(cloud[:100]).report.overflow == {}


@pytest.mark.parametrize("points", [1000, 50_000])
@pytest.mark.parametrize("full", ["engine that runs", "heads", "heads that run"])
def test_memory_that_ends_after_the_growth_costs_the_growth_and_no_frame(
    full, points, cloud, monkeypatch
):
    """Two engines, and heads over both, may be more than there is room for."""
    config = settings(input__point_capacity=points)
    pipeline, first = engine_pipeline(config)
    front, made, alive = pipeline._front_end, [], []
    make, refer = front._make, front._fallback.run

    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def make_larger(config: LidarConfig) -> FakeEngine:
        engine = make(config)
        made.append(weakref.ref(engine))
        if full == "engine that runs":
            engine.run_layers = no_memory
        return engine

    def make_heads(config: LidarConfig, engine: FakeEngine) -> FakeHeads:
        if full == "heads" and engine is not first:
            no_memory()
        return FakeHeads(engine, full=engine is not first)

    def run(*given):
        alive.append(made[0]() is not None)
        return refer(*given)

    front._make, front._make_heads = make_larger, make_heads
    monkeypatch.setattr(front._fallback, "run", run)
    pipeline._back_end = pipeline._make_back_end(config)
    want = LidarPipeline(config, None, "cpu").process(cloud)
    for _ in range(2):
        got = pipeline.process(cloud)
        assert len(got) > 5 and torch.equal(got.boxes, want.boxes)
        assert got.report.voxels_per_level == want.report.voxels_per_level
        assert got.report.overflow
        assert "engine_overflow" in got.report.notes and "engine_grown" not in got.report.notes
    assert alive == [False, False], "the reference needs the memory of the larger engine"
    assert len(made) == 1 and front._engine is pipeline._back_end._engine is first
    assert front.high_water["points"][1] == points
    assert pipeline.process(cloud[:100]).report.overflow == {} and len(alive) == 2


def test_another_error_of_the_heads_over_a_larger_engine_comes_out(cloud):
    pipeline, first = engine_pipeline(settings())

    def make_heads(config: LidarConfig, engine: FakeEngine) -> FakeHeads:
        if engine is not first:
            raise DeviceError("CUDA error 719 (unspecified launch failure) in a test.", 719)
        return FakeHeads(engine)

    pipeline._front_end._make_heads = make_heads
    pipeline._back_end = pipeline._make_back_end(settings())
    with pytest.raises(DeviceError, match="719"):
        pipeline.process(cloud)


@pytest.mark.parametrize("changed", [{}, {"input.point_capacity": 100_000}])
def test_strict_refuses_the_frame_by_name_and_takes_the_next(changed, cloud):
    config = LidarConfig.from_dict(SMALL | changed | {"overflow_policy": "strict"})
    pipeline, _ = engine_pipeline(config)
    with pytest.raises(InvalidFrame, match="'overflow_policy' to 'retry'") as refused:
        pipeline.process(cloud)
    assert refused.value.code == "engine_overflow"
    name, of = ("rows of level 1", 300) if changed else ("points", 1000)
    assert f"{name} of {of}" in str(refused.value)
    assert pipeline.process(cloud[:100]).report.overflow == {}


def test_the_refusal_names_both_numbers():
    assert "2000 points of 1000, 9 rows of level 2 of 8" in str(
        refusal({"points": (2000, 1000), "rows of level 2": (9, 8)})
    )


def test_high_water_is_the_most_of_all_frames_beside_the_room():
    water = HighWater()
    for points, rows in ((10, (5, 9, 3, 1, 1, 1)), (30, (4, 2, 8, 1, 1, 0))):
        water.see(points, rows)
    water.see(40)
    marks = water.marks(50, (10, 20, 30, 40, 50, 60))
    assert marks["points"] == (40, 50)
    assert [marks[f"rows of level {i}"] for i in range(1, 7)] == [
        (5, 10), (9, 20), (8, 30), (1, 40), (1, 50), (1, 60),
    ]  # fmt: skip


def test_the_report_holds_the_marks_of_the_engine_and_none_of_the_reference(cloud):
    roomy = settings(voxelization__max_voxels=50_000, input__point_capacity=50_000)
    pipeline, _ = engine_pipeline(roomy)
    large = pipeline.process(cloud).report
    marks = pipeline.process(cloud[:50]).report.high_water
    assert marks["points"] == (len(cloud), 50_000)
    assert marks["rows of level 1"] == (large.num_voxels, 50_000)
    assert [marks[f"rows of level {i}"][0] for i in range(1, 7)] == list(large.voxels_per_level)
    assert LidarPipeline(roomy, None, "cpu").process(cloud).report.high_water == {}
