"""Sparsity on /diagnostics: key values when it is on, nothing when it is off."""

from __future__ import annotations

from typing import Any

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes.diagnostics import statuses
from driveRT_ros.nodes.handler import LidarHandler, PosedCloud
from driveRT_ros.nodes.health import Health
from test.support.lidar_messages import SECOND, SMALL_STILL, make_cloud


def by_name(handler: LidarHandler, health: Health, frames: int) -> dict[str, Any]:
    """Handle frames, and return the values of every status."""
    for k in range(frames):
        health.processed(handler.handle(PosedCloud(make_cloud((k + 1) * SECOND)), ()), float(k))
    found = statuses("lidar", handler.config, health, None, float(frames))
    return {s.name.removeprefix("lidar: "): {v.key: v.value for v in s.values} for s in found}


def test_sparsity_is_reported_from_the_next_frame_after_it_is_switched_on() -> None:
    off = LidarConfig.from_dict(SMALL_STILL)
    on = LidarConfig.from_dict({**SMALL_STILL, "diagnostics.sparsity": True})
    handler = LidarHandler(off, LidarPipeline(off, None, "cpu"))
    health = Health(off.diagnostics, None)
    assert "sparsity_status" not in by_name(handler, health, 1)
    handler.reconfigure(on)
    first = by_name(handler, health, 1)["sparsity_status"]
    assert "predicted_ms" not in first and float(first["measured_ms"]) > 0
    both = by_name(handler, health, 2)
    values, processing = both["sparsity_status"], both["processing_time_status"]
    assert float(values["predicted_ms"]) > 0 and float(values["per_pair_ns"]) > 0
    assert values["voxels.level1"] == processing["num_voxels"]
    degrees = [int(values[f"voxels.neighbours_{n}"]) for n in range(27)]
    assert sum(degrees) == int(values["voxels.level1"]) > 0
    assert 1.0 <= float(values["tile_waste"]) <= 27.0 and int(values["leaves"]) > 0
    handler.reconfigure(off)
    assert "sparsity_status" not in by_name(handler, health, 1)
