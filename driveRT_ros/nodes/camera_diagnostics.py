"""The state of the camera node as diagnostic_msgs: one status more for every camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_stream import MISSING, OK, REJECTED, CameraStatus
from driveRT_ros.nodes.camera_book import CameraBook, CameraPage
from driveRT_ros.nodes.health import OK as LEVEL_OK
from driveRT_ros.nodes.health import WARN, Health
from driveRT_ros.nodes.status import (
    input_status,
    make_status,
    model_status,
    named,
    processing_time,
)

MESSAGES = {
    "ok": "Delivers.",
    "late": "Its images come after their set has gone; raise sync.timeout_s, or fix its clock.",
    "missing": "Delivers nothing; sets go without it.",
}


def camera_statuses(
    node_name: str,
    config: CameraConfig,
    health: Health,
    weights: Any,
    now_s: float,
    streams: Sequence[CameraStatus],
    book: CameraBook,
    plan_note: str = "",
) -> list[DiagnosticStatus]:
    """Return the statuses of one ``/diagnostics`` message of the camera node.

    Args:
        node_name: Prefix of every status name.
        config: Limits.
        health: State of the node.
        weights: What runs; None before configure.
        now_s: Steady time in seconds.
        streams: How the stream of every camera is doing; empty while the node is not active.
        book: What became of the images.
        plan_note: Why the Plan that was asked for is not used, or "".
    """
    room = {"cameras": len(config.cameras)}
    with health.lock:
        left_out = health.state.last_report.dropped
        present = len(config.cameras) - sum(
            left_out.get(f"{kind}_cameras", 0) for kind in ("missing", "rejected")
        )
        sizes = {"num_cameras": present if health.state.processed else 0}
        found = [
            processing_time(config.diagnostics, health, now_s, sizes),
            input_status(health, now_s, "camera sets"),
            model_status(health, weights, config.precision, room, plan_note),
        ]
    found += [_camera(stream, book.page(stream.name)) for stream in streams]
    return named(node_name, found, weights)


def _camera(stream: CameraStatus, page: CameraPage) -> DiagnosticStatus:
    # An image may turn out to be bad only when it is decoded, long after it was paired.
    unusable = stream.state == OK and page.reason
    state = REJECTED if unusable else stream.state
    reason = page.reason if unusable else stream.reason
    message = f"Its images cannot be used. {reason}" if state == REJECTED else MESSAGES[state]
    values: dict[str, Any] = {"state": state, **asdict(stream.counts)}
    # Every bad image is in the book, those that were never paired included.
    values["rejected"] = sum(page.rejected.values())
    values |= {f"rejected.{code}": count for code, count in sorted(page.rejected.items())}
    values |= {"calibration": page.calibration, "recalibrations": page.recalibrations}
    if stream.skew_ns is not None and state != MISSING:
        values["skew_ms"] = stream.skew_ns / 1e6
    level = LEVEL_OK if state == OK else WARN
    return make_status(f"camera {stream.name}", level, message, values)
