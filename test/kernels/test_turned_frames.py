"""Sensors mounted another way on the engine: its kernels run on the CPU shim, turned points in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.turn import Turn, facing
from test.kernels.test_engine_pipeline import cloud, counted, pipelines, settings
from test.support import engine

WITH = {"with_bev": True, "with_fingerprint": True}
X_AHEAD, ODD = 0.0, 41.5


@pytest.fixture(autouse=True)
def shim(monkeypatch):
    engine.put_on_the_shim(monkeypatch)
    monkeypatch.setattr(engine.BACKEND, "seed", 0)
    monkeypatch.setattr(engine.BACKEND, "resident", 1)


def test_the_engine_finds_in_a_turned_cloud_what_it_finds_in_the_cloud():
    straight, _ = pipelines(settings())
    points = cloud(1500)
    want = straight.process(points, **WITH)
    config = settings(input__forward_yaw_deg=X_AHEAD)
    turned, plain = pipelines(config)
    to_sensor = Turn.to_network(config).back
    given = to_sensor.rows(points)
    for form in (given, given.numpy(), counted(given, 1700)):
        found = turned.process(form, **WITH)
        for stage in ("coords", "features", "bev"):
            assert found.report.fingerprint[stage] == want.report.fingerprint[stage]
        assert torch.equal(found.boxes, to_sensor.boxes(want.boxes)) and len(found) > 5
        assert torch.equal(found.scores, want.scores)
        for name, layer in want.bev.layers.items():
            assert np.array_equal(found.bev.layers[name], layer.T[::-1], True), name
    reference = plain.process(given, **WITH)
    for stage in ("points", "coords", "features"):
        assert reference.report.fingerprint[stage] == found.report.fingerprint[stage]
    torch.testing.assert_close(reference.boxes, found.boxes, rtol=1e-4, atol=1e-4)


def test_engine_and_reference_turn_by_any_angle_alike():
    config = settings(input__forward_yaw_deg=ODD)
    turned, plain = pipelines(config)
    found, want = (p.process(cloud(900, seed=2), **WITH) for p in (turned, plain))
    for stage in ("points", "coords", "features"):
        assert found.report.fingerprint[stage] == want.report.fingerprint[stage]
    torch.testing.assert_close(found.boxes, want.boxes, rtol=1e-4, atol=1e-4)
    assert found.bev.shape == want.bev.shape and found.bev.origin_xy == want.bev.origin_xy


@pytest.mark.parametrize("policy", ["retry", "degrade"])
def test_a_turned_cloud_that_does_not_fit_is_turned_once_wherever_it_goes(policy):
    """A larger engine, or the reference path, takes points over that are turned already."""
    changes = {"overflow_policy": policy, "input__forward_yaw_deg": X_AHEAD}
    tight = {"voxelization__max_voxels": 200, "input__point_capacity": 700}
    turned, other = pipelines(settings(**tight, **changes))
    if policy == "retry":
        roomy = {"voxelization__max_voxels": 1500, "input__point_capacity": 2000}
        other, _ = pipelines(settings(**roomy, **changes))
    points = Turn(270.0).rows(cloud(1200, seed=3))
    for form in (points[:500], points, counted(points, 1300)):  # too many voxels, too many points
        found = turned.process(form, **WITH)
        want = other.process(points[: found.report.num_points], **WITH)
        assert found.report.fingerprint == want.report.fingerprint and len(found) > 0
    assert found.report.overflow or policy == "retry"


def test_a_pipeline_with_another_mounting_shares_the_engine():
    pipeline, _ = pipelines(settings())
    points = cloud(600, seed=5)
    want = pipeline.process(points)
    other = pipeline.reconfigured(facing(pipeline.config, X_AHEAD))
    assert other._front_end is pipeline._front_end
    found = other.process(Turn(270.0).rows(points))
    assert torch.equal(found.scores, want.scores)
    assert torch.equal(pipeline.process(points).boxes, want.boxes)
