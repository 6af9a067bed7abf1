"""The state of the LiDAR node as diagnostic_msgs."""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.status import input_status, model_status, named, processing_time


def statuses(
    node_name: str,
    config: LidarConfig,
    health: Health,
    weights: Any,
    now_s: float,
    plan_note: str = "",
) -> list[DiagnosticStatus]:
    """Return the statuses of one ``/diagnostics`` message of the LiDAR node.

    Args:
        node_name: Prefix of every status name.
        config: Limits, and capacities for the high-water marks.
        health: State of the node.
        weights: ``trained``, ``source`` and ``sha256`` of the weights; None before configure.
        now_s: Steady time in seconds.
        plan_note: Why the Plan that was asked for is not used, or "".
    """
    capacity = {
        "points_per_cloud": config.input.point_capacity,
        "voxels": config.voxelization.max_voxels,
    }
    with health.lock:
        report = health.state.last_report
        cut = report.dropped.get("over_capacity_voxels", 0)
        full = (
            f"{report.num_voxels} voxels are kept, the limit of max_voxels; {cut} more are left "
            "out."
        )
        sizes = {
            "is_num_voxels_within_range": cut == 0,
            "num_voxels": report.num_voxels,
            "num_points": report.num_points,
        }
        found = [
            processing_time(config.diagnostics, health, now_s, sizes, full if cut else ""),
            input_status(health, now_s, "clouds"),
            model_status(health, weights, config.precision, capacity, plan_note),
        ]
    return named(node_name, found, weights)
