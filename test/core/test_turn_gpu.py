"""Points are turned on a CUDA device as on a CPU, to the byte, and without a wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import CountedRows
from driveRT_ros.core.turn import Turn, facing
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
X_AHEAD = 0.0


@pytest.fixture(scope="module")
def cloud() -> torch.Tensor:
    (frame,) = simulate(SimConfig.from_dict({"seed": 6, "num_sweeps": 1}))
    points = frame.points
    columns = (points.xyz, points.intensity, points.time_lag_s)
    return torch.from_numpy(np.column_stack(columns).astype(np.float32))


def on_device(points: torch.Tensor, room: int) -> CountedRows:
    """Return points whose number only the device knows; what lies behind them is no point."""
    rows = torch.full((room, 5), torch.nan, device=DEVICE)
    rows[: len(points)] = points.to(DEVICE)
    count = torch.tensor([len(points)], dtype=torch.int32, device=DEVICE)
    return CountedRows(rows, count, lambda: len(points))


@pytest.mark.parametrize("yaw_deg", [90.0, 180.0, 270.0, 41.5])
def test_a_device_turns_as_a_cpu_does(cloud, yaw_deg):
    turn = Turn(yaw_deg)
    assert torch.equal(turn.rows(cloud.to(DEVICE)).cpu(), turn.rows(cloud))


def test_a_sensor_with_x_ahead_gets_the_same_boxes_in_its_own_frame(cloud):
    straight = LidarPipeline(LidarConfig(), None, DEVICE)
    want = straight.process(cloud, with_bev=True, with_fingerprint=True)
    turned = straight.reconfigured(facing(LidarConfig(), X_AHEAD))
    to_sensor = Turn.to_network(turned.config).back
    given = to_sensor.rows(cloud)
    for form in (given, given.to(DEVICE), on_device(given, len(given) + 1000)):
        found = turned.process(form, with_bev=True, with_fingerprint=True)
        for stage in ("coords", "features", "bev"):
            assert found.report.fingerprint[stage] == want.report.fingerprint[stage]
        assert torch.equal(found.boxes, to_sensor.boxes(want.boxes)) and len(found) > 10
        assert torch.equal(found.scores, want.scores)
        for name, layer in want.bev.layers.items():
            if name.startswith("heat_"):
                assert np.array_equal(found.bev.layers[name], layer.T[::-1], True), name


def test_turning_waits_for_nothing(cloud):
    """torch refuses every synchronising call; waiting for an event is none."""
    pipeline = LidarPipeline(facing(LidarConfig(), X_AHEAD), None, DEVICE)
    pipeline.warm_up()
    counted = on_device(cloud, len(cloud) + 1000)
    want = pipeline.process(counted)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = pipeline.process(counted)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.boxes, want.boxes) and torch.equal(found.scores, want.scores)
