"""The state of the LiDAR node as diagnostic_msgs."""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.sparsity import SparsityReport
from driveRT_ros.nodes.health import OK, Health
from driveRT_ros.nodes.lidar_result import mark_key
from driveRT_ros.nodes.status import (
    input_status,
    make_status,
    model_status,
    named,
    processing_time,
)


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
        capacity |= {mark_key(name): room for name, (_, room) in report.high_water.items()}
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
    if report.sparsity is not None:
        found.append(sparsity_status(report.sparsity))
    return named(node_name, found, weights)


def sparsity_status(found: SparsityReport) -> DiagnosticStatus:
    """Return the sparsity of the last frame, and its predicted beside its measured time."""
    values: dict[str, Any] = {
        f"voxels.level{number}": rows for number, rows in enumerate(found.voxels_per_level, 1)
    }
    values |= {f"voxels.neighbours_{n}": rows for n, rows in enumerate(found.degree_histogram)}
    values |= {
        "distinct_masks": found.distinct_masks,
        "tile_rows": found.tile_rows,
        "tile_waste": found.tile_waste,
        "leaves": found.leaves,
        "leaf_filled": found.leaf_filled,
        "layer_pairs": found.layer_pairs,
        "measured_ms": found.measured_ms,
    }
    expected = "nothing to predict it from"
    if found.predicted_ms is not None:
        values |= {"predicted_ms": found.predicted_ms, "per_pair_ns": found.per_pair_ns}
        expected = f"{found.predicted_ms:.1f} ms predicted"
    message = f"The pipeline took {found.measured_ms:.1f} ms, {expected}."
    return make_status("sparsity_status", OK, message, values)
