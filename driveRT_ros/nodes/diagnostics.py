"""The state of the LiDAR node as diagnostic_msgs, with the keys that Autoware's tools look for."""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.health import ERROR, OK, WARN, Health

UNTRAINED = "Runs untrained weights: boxes are meaningless. Set checkpoint_path."


def statuses(
    node_name: str,
    config: LidarConfig,
    health: Health,
    weights: Any,
    now_s: float,
    plan_note: str = "",
) -> list[DiagnosticStatus]:
    """Return the statuses of one ``/diagnostics`` message.

    Args:
        node_name: Prefix of every status name.
        config: Limits, and capacities for the high-water marks.
        health: State of the node.
        weights: ``trained``, ``source`` and ``sha256`` of the weights; None before configure.
        now_s: Steady time in seconds.
        plan_note: Why the Plan that was asked for is not used, or "".
    """
    with health.lock:
        found = [
            _processing_time(config, health, now_s),
            _input(health, now_s),
            _model(config, health, weights, plan_note),
        ]
    note = "" if weights is None or weights.trained else UNTRAINED
    for status in found:
        status.name = f"{node_name}: {status.name}"
        status.hardware_id = node_name
        if note:  # every message says it, whichever status is looked at
            status.values.append(KeyValue(key="weights", value=note))
    return found


def latency_percentiles(node_name: str, health: Health) -> DiagnosticStatus:
    """Return p50, p95, p99, maximum and deadline misses over the window, in milliseconds."""
    with health.lock:
        latency = health.latency
        total = latency.summary()
        values: dict[str, Any] = {
            "p50": total.p50_ms,
            "p95": total.p95_ms,
            "p99": total.p99_ms,
            "max": total.max_ms,
            "deadline_misses": latency.deadline_misses,
            "deadline_ms": latency.deadline_ms,
            "frames": total.count,
            "window": latency.window,
        }
        for stage in latency.stages:
            one = latency.summary(stage)
            values[f"{stage}.p50"] = one.p50_ms
            values[f"{stage}.p95"] = one.p95_ms
            values[f"{stage}.p99"] = one.p99_ms
            values[f"{stage}.max"] = one.max_ms
        missed = latency.deadline_misses
    level = WARN if missed else OK
    message = f"{missed} of {total.count} frames took longer than {latency.deadline_ms:g} ms."
    return _status(f"{node_name}: latency_percentiles", level, message, values, node_name)


def _processing_time(config: LidarConfig, health: Health, now_s: float) -> DiagnosticStatus:
    limits, report = config.diagnostics, health.state.last_report
    total_ms = health.latency.last_ms.get("total", 0.0)
    in_time = total_ms <= limits.max_allowed_processing_time_ms
    delay_ms = health.latency.consecutive_delay_ms(now_s)
    delay_in_range = delay_ms <= limits.max_acceptable_consecutive_delay_ms
    voxels_in_range = report.dropped.get("over_capacity_voxels", 0) == 0
    level, message = OK, f"The last frame took {total_ms:.1f} ms."
    if not voxels_in_range:
        level = WARN
        message = (
            f"{report.num_voxels} voxels are kept, the limit of max_voxels; "
            f"{report.dropped['over_capacity_voxels']} more are left out."
        )
    if not in_time:
        level = WARN
        message = (
            f"The last frame took {total_ms:.1f} ms, more than "
            f"{limits.max_allowed_processing_time_ms:g} ms."
        )
    if not delay_in_range:
        level = ERROR
        message = (
            f"Every frame has been late for {delay_ms:.0f} ms, more than "
            f"{limits.max_acceptable_consecutive_delay_ms:g} ms."
        )
    values = {
        "is_processing_time_ms_in_expected_range": in_time,
        "processing_time_ms": total_ms,
        "is_consecutive_processing_delay_in_range": delay_in_range,
        "consecutive_processing_delay_ms": delay_ms,
        "is_num_voxels_within_range": voxels_in_range,
        "num_voxels": report.num_voxels,
        "num_points": report.num_points,
    }
    return _status("processing_time_status", level, message, values)


def _input(health: Health, now_s: float) -> DiagnosticStatus:
    state, faults = health.state, health.faults(now_s)
    level = faults[0].level if faults else OK
    message = " ".join(f.sentence for f in faults) or f"{state.processed} clouds processed."
    values: dict[str, Any] = {
        "received": state.received,
        "processed": state.processed,
        "lost_by_transport": state.lost,
        "dropped": sum(state.dropped.values()),
        "time_jumps": state.time_jumps,
    }
    values |= {f"dropped.{reason}": n for reason, n in sorted(state.dropped.items())}
    values |= {f"left_out.{reason}": n for reason, n in sorted(state.left_out.items())}
    return _status("input_status", level, message, values)


def _model(config: LidarConfig, health: Health, weights: Any, plan_note: str) -> DiagnosticStatus:
    if weights is None:
        return _status("model_status", WARN, "Not configured.", {})
    capacity = {
        "points_per_cloud": config.input.point_capacity,
        "voxels": config.voxelization.max_voxels,
    }
    values: dict[str, Any] = {
        "weights_source": weights.source,
        "weights_sha256": weights.sha256,
        "precision": config.precision,
        "notes": ", ".join(health.state.notes),
    }
    for name, reached in sorted(health.state.high_water.items()):
        values[f"high_water.{name}"] = reached
        if name in capacity:
            values[f"capacity.{name}"] = capacity[name]
    faults = [] if weights.trained else [UNTRAINED]
    faults += [plan_note] if plan_note else []
    if faults:
        return _status("model_status", WARN, " ".join(faults), values)
    return _status("model_status", OK, f"Runs weights of '{weights.source}'.", values)


def _status(
    name: str, level: int, message: str, values: dict[str, Any], hardware_id: str = ""
) -> DiagnosticStatus:
    return DiagnosticStatus(
        name=name,
        level=bytes([level]),
        message=message,
        hardware_id=hardware_id,
        values=[KeyValue(key=k, value=_text(v)) for k, v in values.items()],
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
