"""The parts of ``/diagnostics`` that every perception node has, with the keys of Autoware."""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from driveRT_ros.core.config import DiagnosticsConfig
from driveRT_ros.nodes.health import ERROR, OK, WARN, Health

UNTRAINED = "Runs untrained weights: its output is meaningless. Set checkpoint_path."


def named(node_name: str, found: list[DiagnosticStatus], weights: Any) -> list[DiagnosticStatus]:
    """Return the statuses with the name of the node, and with a warning of untrained weights."""
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
    return make_status(f"{node_name}: latency_percentiles", level, message, values, node_name)


def processing_time(
    limits: DiagnosticsConfig,
    health: Health,
    now_s: float,
    sizes: dict[str, Any],
    overflow: str = "",
) -> DiagnosticStatus:
    """Return how long frames take.

    Args:
        limits: What is too long.
        health: State of the node, locked.
        now_s: Steady time in seconds.
        sizes: More values to show.
        overflow: Sentence about a last frame that was too large, or "".
    """
    total_ms = health.latency.last_ms.get("total", 0.0)
    in_time = total_ms <= limits.max_allowed_processing_time_ms
    delay_ms = health.latency.consecutive_delay_ms(now_s)
    delay_in_range = delay_ms <= limits.max_acceptable_consecutive_delay_ms
    level, message = OK, f"The last frame took {total_ms:.1f} ms."
    if overflow:
        level, message = WARN, overflow
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
        **sizes,
    }
    return make_status("processing_time_status", level, message, values)


def input_status(health: Health, now_s: float, nouns: str) -> DiagnosticStatus:
    """Return what came in and what was lost; ``nouns`` is what frames are called."""
    state, faults = health.state, health.faults(now_s)
    level = faults[0].level if faults else OK
    message = " ".join(f.sentence for f in faults) or f"{state.processed} {nouns} processed."
    values: dict[str, Any] = {
        "received": state.received,
        "processed": state.processed,
        "lost_by_transport": state.lost,
        "dropped": sum(state.dropped.values()),
        "time_jumps": state.time_jumps,
    }
    values |= {f"dropped.{reason}": n for reason, n in sorted(state.dropped.items())}
    values |= {f"left_out.{reason}": n for reason, n in sorted(state.left_out.items())}
    return make_status("input_status", level, message, values)


def model_status(
    health: Health,
    weights: Any,
    precision: str,
    capacity: dict[str, int],
    plan_note: str = "",
) -> DiagnosticStatus:
    """Return what runs, and how much of its room was ever used.

    Args:
        health: State of the node, locked.
        weights: What runs; None before configure.
        precision: Its arithmetic on the device that was configured.
        capacity: Room by the name of a high-water mark.
        plan_note: Why the Plan that was asked for is not used, or "".
    """
    if weights is None:
        return make_status("model_status", WARN, "Not configured.", {})
    values: dict[str, Any] = {
        "weights_source": weights.source,
        "weights_sha256": weights.sha256,
        # On a CPU, which also stands in for a GPU that failed, everything is float32.
        "precision": "fp32" if health.state.device == "cpu" else precision,
        "device": health.state.device,
        "notes": ", ".join(health.state.notes),
    }
    for name, reached in sorted(health.state.high_water.items()):
        values[f"high_water.{name}"] = reached
        if name in capacity:
            values[f"capacity.{name}"] = capacity[name]
    faults = [] if weights.trained else [UNTRAINED]
    faults += [plan_note] if plan_note else []
    if faults:
        return make_status("model_status", WARN, " ".join(faults), values)
    return make_status("model_status", OK, f"Runs weights of '{weights.source}'.", values)


def make_status(
    name: str, level: int, message: str, values: dict[str, Any], hardware_id: str = ""
) -> DiagnosticStatus:
    """Return one status."""
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
