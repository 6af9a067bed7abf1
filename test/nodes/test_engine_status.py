"""The room of the GPU engine on /diagnostics: what was ever needed beside what there is."""

from __future__ import annotations

from types import SimpleNamespace

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.diagnostics import statuses
from driveRT_ros.nodes.handler import LidarHandler, PosedCloud
from driveRT_ros.nodes.health import Health
from test.support.fake_engine import engine_pipeline
from test.support.lidar_messages import SECOND, SMALL_STILL, make_cloud

WEIGHTS = SimpleNamespace(trained=True, source="test", sha256="0")


def test_marks_are_the_most_of_all_frames_and_the_room_is_that_of_the_engine_that_grew() -> None:
    config = LidarConfig.from_dict(
        {**SMALL_STILL, "voxelization.max_voxels": 260, "input.point_capacity": 600}
    )
    pipeline, _ = engine_pipeline(config)
    handler, health = LidarHandler(config, pipeline), Health(config.diagnostics, None)
    found = []
    for k, points in enumerate((40, 500, 10)):
        cloud = make_cloud((k + 1) * SECOND, count=points)
        health.processed(handler.handle(PosedCloud(cloud), ()), float(k))
        [status] = [
            s for s in statuses("lidar", config, health, WEIGHTS, k) if "model_status" in s.name
        ]
        found.append({v.key: v.value for v in status.values})
    most = [int(values["high_water.rows.level1"]) for values in found]
    room = [int(values["capacity.rows.level1"]) for values in found]
    assert most[0] < room[0] == 260 < most[1] == most[2] <= room[1] == room[2]
    assert [values["high_water.points"] for values in found] == ["40", "500", "500"]
    assert [values["capacity.points"] for values in found] == ["600"] * 3
    assert {f"high_water.rows.level{i}" for i in range(1, 7)} <= found[0].keys()
