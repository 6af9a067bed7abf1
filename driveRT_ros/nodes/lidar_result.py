"""The result of one cloud: what the detector reported, and what decoding left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from driveRT_ros.core.frame import Detections, FrameReport, PointBatch
from driveRT_ros.core.raw_cloud import CloudSummary
from driveRT_ros.nodes.result import FrameResult


def lidar_result(
    msg: Any,
    cloud: PointBatch | CloudSummary,
    found: Detections,
    messages: Mapping[str, Any],
    stage_ms: dict[str, float],
    faults: Mapping[str, str] | None = None,
) -> FrameResult:
    """Return everything about one processed cloud.

    Args:
        msg: The PointCloud2 itself.
        cloud: What was decoded of it.
        found: Detections, with the report of the detector.
        messages: Message by output name.
        stage_ms: Milliseconds by stage.
        faults: Sentence by kind of fault beside.
    """
    report, decoded = found.report, cloud.report
    left_out = Counter(decoded.dropped)
    left_out.update(report.dropped)
    overflow = {"engine_overflow": _overflow_text(report)} if report.overflow else {}
    return FrameResult(
        stamp_ns=cloud.stamp_ns,
        found=found,
        messages=messages,
        stage_ms=stage_ms,
        left_out=left_out,
        notes=tuple(dict.fromkeys((*decoded.notes, *report.notes))),
        reached={
            "points_per_cloud": len(cloud),
            "points": report.num_points,
            "voxels": report.num_voxels,
            **{mark_key(name): most for name, (most, _) in report.high_water.items()},
        },
        faults={**overflow, **(faults or {})},
        cloud=msg,
    )


def mark_key(name: str) -> str:
    """Return the key in diagnostics of a high-water mark of the GPU engine: ``rows.level1``."""
    return name.replace(" of ", ".").replace(" ", "")


def _overflow_text(report: FrameReport) -> str:
    needed = ", ".join(f"{n} {name} of {room}" for name, (n, room) in report.overflow.items())
    grown = "engine_grown" in report.notes
    after = "a larger one was built for it" if grown else "it took the slow reference path"
    return (
        f"A cloud needs more room than the GPU engine had ({needed}), so {after}; raise "
        "voxelization.max_voxels, or input.point_capacity for points."
    )
