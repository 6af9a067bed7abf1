"""The tables of ``kernels/README.md`` about whole frames, and about the node over DDS."""

from __future__ import annotations

from typing import Any

from benchmarks.report_operators import markdown, place

Table = dict[str, Any]


def frame_tables(report: Table, name: str) -> str:
    """Return one line a frame and detector: boxes that it should find, and times from its input.

    Args:
        report: Content of a result of ``drivert bench frame``.
        name: Its file name.
    """
    head = ["frame, detector", "boxes", "points to boxes", "message to boxes"]
    lines = []
    for frame, found in report["frames"].items():
        ours = next(c for n, c in found["candidates"].items() if n.startswith("ours"))
        for detector, times in found["candidates"].items():
            if "absent" in times:
                lines.append([f"{frame}, {detector}", f"absent: {times['absent']}", "", ""])
                continue
            boxes = times["boxes"]
            line = [f"{frame}, {detector}", f"{boxes['matched']}/{boxes['wanted']}"]
            for form in ("points", "message"):
                wall = times[form]["wall_us"]["median"]
                compared = times is not ours and "absent" not in ours
                over = f" ({wall / ours[form]['wall_us']['median']:.1f}×)" if compared else ""
                line.append(f"{wall / 1e3:.2f}{over}")
            lines.append(line)
    text = (
        f"{place(report, name)} Medians in ms of wall time, from points in ordinary host memory "
        "or from a PointCloud2 to boxes on the host; in brackets, over ours. Peers: the network of "
        "spconv, with voxels, heads and suppression in eager torch. Boxes: of those of the "
        "reference in float32, those that a detector finds."
    )
    return "\n\n".join((text, markdown(head, lines)))


def ros_tables(report: Table, name: str) -> str:
    """Return one line a size and rate: clouds sent, what became of them, and their latency.

    Args:
        report: Content of a result of ``drivert bench ros``.
        name: Its file name.
    """
    head = ["MB of a cloud, Hz", "sent", "answered", "dropped", "lost", "p50", "p95", "p99", "max"]
    lines = []
    for case in report["cases"]:
        line = [f"{case['data_bytes'] / 1e6:.3g}, {case['rate_hz']:.0f}"]
        line += [f"{case[key]:,}" for key in ("sent", "answered", "dropped", "lost")]
        line += [f"{case['latency_ms'][key]:.1f}" for key in ("p50", "p95", "p99", "max")]
        lines.append(line)
    text = (
        f"{place(report, name)} {report['precision']}; ms from publishing a cloud in one process "
        "until its detections are there, by way of the node in another; transports: "
        f"{report['transports']}."
    )
    return "\n\n".join((text, markdown(head, lines)))
