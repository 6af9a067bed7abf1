"""The pipeline with the real engine, its kernels on the CPU shim, against the reference path."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from driveRT_ros.core import pipeline as pipeline_module
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu.back_end import EngineBackEnd
from driveRT_ros.core.gpu.front_end import make_engine
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import CountedRows
from driveRT_ros.core.stages import crc32
from test.support import engine

SMALL = engine.SMALL | {
    "voxelization.max_points_per_voxel": 1,
    "post_process_params.score_thresholds": [0.001],
}


@pytest.fixture(autouse=True)
def shim(monkeypatch):
    engine.put_on_the_shim(monkeypatch)
    monkeypatch.setattr(engine.BACKEND, "seed", 0)
    monkeypatch.setattr(engine.BACKEND, "resident", 1)


def settings(**changes) -> LidarConfig:
    return LidarConfig.from_dict(SMALL | {k.replace("__", "."): v for k, v in changes.items()})


def cloud(count: int, seed: int = 0) -> torch.Tensor:
    points = engine.street(count, seed, edge_m=(4.8, 3.6))
    points[::37, 3] = torch.nan
    return points


def pipelines(config: LidarConfig, precision: str = "fp32") -> tuple[LidarPipeline, LidarPipeline]:
    """Return a pipeline on the engine and one on the reference."""
    plain, pipeline = (LidarPipeline(config, None, "cpu") for _ in range(2))
    wanted = LidarConfig.from_dict({**config.to_dict(), "precision": precision})
    front, plan, note = make_engine(
        wanted, pipeline.weights, pipeline._tensors, pipeline.device, plain._front_end
    )
    assert plan is not None and plan.precision == precision and note == ""
    pipeline._front_end = front
    pipeline._back_end = pipeline._make_back_end(config)
    assert isinstance(pipeline._back_end, EngineBackEnd)
    return pipeline, plain


def test_the_engine_and_the_reference_give_the_same_frame():
    pipeline, plain = pipelines(settings())
    for count in (1500, 1, 0, 300):
        points = cloud(count, seed=count)
        got, want = (
            p.process(points, with_bev=True, with_fingerprint=True) for p in (pipeline, plain)
        )
        assert torch.equal(got.labels, want.labels)
        torch.testing.assert_close(got.boxes, want.boxes, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.scores, want.scores, rtol=1e-4, atol=1e-5)
        assert got.report.dropped == want.report.dropped
        assert got.bev is not None and want.bev is not None
        for name, layer in want.bev.layers.items():
            np.testing.assert_allclose(got.bev.layers[name], layer, rtol=1e-4, atol=1e-5)
        assert got.report.voxels_per_level == want.report.voxels_per_level
        assert got.report.notes == want.report.notes and got.report.overflow == {}
        for stage in ("coords", "features"):
            assert got.report.fingerprint[stage] == want.report.fingerprint[stage]
        if count == 1500:
            assert len(want) > 5
            reasons = ("non_finite_points", "out_of_range_points", "over_capacity_points")
            assert all(want.report.dropped[reason] > 0 for reason in reasons)


def test_the_fingerprint_comes_with_the_result_and_is_that_of_the_bytes_of_the_rows(monkeypatch):
    """Nobody asks for the rows once the frame is over; no point, one, as many as there is room."""

    def never(*args):
        raise AssertionError("the rows were read after the frame")

    monkeypatch.setattr(pipeline_module, "row_crcs", never)
    pipeline, _ = pipelines(settings())
    maps = pipeline._front_end._engine.maps
    for count in (2000, 0, 1, 700):
        report = pipeline.process(cloud(count, seed=count), with_fingerprint=True).report
        voxels, rows = int(maps.levels[0].counts[1]), int(maps.levels[7].counts[1])
        assert report.overflow == {} and (voxels > 100) == (rows > 5) == (count > 1)
        want = {
            "points": maps.points[:count],
            "coords": maps.levels[0].coords_zyx[:voxels],
            "features": maps.features[:voxels],
            "bev": pipeline._front_end._engine.features[:rows],
        }
        found = {stage: crc for stage, crc in report.fingerprint.items() if stage in want}
        assert found == {stage: crc32(tensor) for stage, tensor in want.items()}
    assert pipeline.process(cloud(700)).report.fingerprint == {}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_detections_have_the_same_bytes_whatever_the_schedule(precision, monkeypatch):
    pipeline, _ = pipelines(settings(), precision)
    points, found = cloud(1000, seed=2), []
    monkeypatch.setattr(engine.BACKEND, "resident", 3)
    for seed in (1, 2):
        monkeypatch.setattr(engine.BACKEND, "seed", seed)
        found.append(pipeline.process(points, with_fingerprint=True).report.fingerprint)
    assert found[0] == found[1]


def test_half_precision_finds_the_same_strong_boxes():
    pipeline, plain = pipelines(settings(), "fp16")
    points = cloud(1500, seed=4)
    got, want = pipeline.process(points), plain.process(points)
    strong = want.scores > 0.02
    assert strong.sum() >= 3
    distance = (want.boxes[strong, None, :3] - got.boxes[None, :, :3]).norm(dim=2)
    distance[want.labels[strong, None] != got.labels[None]] = torch.inf
    assert distance.min(dim=1).values.max() < 0.1


def test_more_voxels_than_fit_give_the_frame_of_the_reference():
    tight = settings(voxelization__max_voxels=200, overflow_policy="degrade")
    pipeline, plain = pipelines(tight)
    points = cloud(1200, seed=3)
    got, want = (p.process(points, with_fingerprint=True) for p in (pipeline, plain))
    assert got.report.fingerprint == want.report.fingerprint and len(want) > 0
    assert got.report.dropped == want.report.dropped
    needed, room = got.report.overflow["rows of level 1"]
    assert (needed - room, room) == (want.report.dropped["over_capacity_voxels"], 200)
    assert pipeline.process(points[:20]).report.overflow == {}


def test_a_frame_that_does_not_fit_is_that_of_a_larger_engine_which_stays():
    """Nothing is lost: the bytes are those of an engine that had the room from the start."""
    tight = settings(voxelization__max_voxels=200, input__point_capacity=700)
    (pipeline, _), points = pipelines(tight), cloud(1200, seed=3)
    small = pipeline.process(points[:20], with_fingerprint=True)
    got = pipeline.process(points, with_bev=True, with_fingerprint=True)
    roomy, _ = pipelines(settings(voxelization__max_voxels=1500, input__point_capacity=2000))
    want = roomy.process(points, with_bev=True, with_fingerprint=True)
    assert got.report.fingerprint == want.report.fingerprint and len(want) > 5
    assert got.report.dropped == want.report.dropped
    assert got.report.voxels_per_level == want.report.voxels_per_level
    assert got.report.overflow["points"] == (1200, 700)
    needed, room = got.report.overflow["rows of level 1"]
    assert needed == got.report.num_voxels > room == 200
    assert "engine_grown" in got.report.notes and "engine_overflow" not in got.report.notes
    again = pipeline.process(points, with_fingerprint=True)  # it fits now
    assert again.report.overflow == {} and "engine_grown" not in again.report.notes
    assert (
        again.report.fingerprint == roomy.process(points, with_fingerprint=True).report.fingerprint
    )
    assert pipeline.process(points[:20], with_fingerprint=True).report.fingerprint == (
        small.report.fingerprint
    )
    marks = again.report.high_water
    assert marks["points"][0] == 1200 <= marks["points"][1]
    assert marks["rows of level 1"][0] == needed <= marks["rows of level 1"][1]


def test_a_pipeline_with_another_threshold_follows_the_engine_that_grew():
    """It was made before the engine grew, and shares it: its heads must find the new rows."""
    tight = settings(voxelization__max_voxels=200)
    pipeline, _ = pipelines(tight)
    points = cloud(1200, seed=3)
    other = pipeline.reconfigured(
        settings(voxelization__max_voxels=200, post_process_params__score_thresholds=[0.002])
    )
    other.process(points[:20])
    found = pipeline.process(points)
    assert "engine_grown" in found.report.notes
    strict = other.process(points)
    assert strict.report.overflow == {}
    kept = found.scores > 0.002
    assert 0 < kept.sum() < len(found) and torch.equal(strict.boxes, found.boxes[kept])
    assert strict.report.voxels_per_level == found.report.voxels_per_level


def counted(points: torch.Tensor, room: int) -> CountedRows:
    """Return points as they lie on a device that alone knows how many they are."""
    rows = torch.full((room, 5), 0.5)
    rows[: len(points)] = points
    return CountedRows(rows, torch.tensor([len(points)], dtype=torch.int32), lambda: len(points))


def test_points_that_the_device_alone_has_counted_give_the_same_frame():
    """What lies behind them in their buffer is no point, also where it would fit the grid."""
    pipeline, plain = pipelines(settings(voxelization__max_voxels=40))
    options = {"with_bev": True, "with_fingerprint": True}
    points, frames = cloud(120), []
    for room in (1900, 2001):  # of the last there may be more than the engine has room for
        said: list[int] = []
        meanwhile = functools.partial(said.append, room)
        frames.append(pipeline.process(counted(points, room), **options, meanwhile=meanwhile))
        assert said == [room], "once a frame, before the host waits"
    want = pipeline.process(points, **options)
    for got in frames:
        assert torch.equal(got.boxes, want.boxes) and torch.equal(got.labels, want.labels)
        assert got.report.fingerprint == want.report.fingerprint
        assert (got.report.num_points, got.report.dropped) == (120, want.report.dropped)
        assert got.report.high_water == want.report.high_water
    assert ["engine_grown" in got.report.notes for got in frames] == [True, False]
    assert plain.process(counted(points, 900)).report.num_points == 120
