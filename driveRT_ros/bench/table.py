"""The tables of a report for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Table = list[list[str]]
"""Cells by line; the first line is the head."""


def device_us(found: Mapping[str, Any]) -> float:
    """Return the device time of a candidate: graph replays, else the sum of its kernels."""
    if "frame" in found.get("graph_us", {}):
        return float(found["graph_us"]["frame"]["median"])
    if "kernels_us" in found:
        return float(found["kernels_us"]["total"]["median"])
    return math.nan


def whole_table(report: Mapping[str, Any]) -> Table:
    """Return one line a candidate: device and wall time of every frame, and its error."""
    frames = report["frames"]
    head = [
        "median µs: device, wall, error",
        *(f"{n}: {f['rows'][0]:,}" for n, f in frames.items()),
    ]
    names = {name: None for frame in frames.values() for name in frame["candidates"]}
    lines = []
    for name in names:
        found = [frame["candidates"].get(name) for frame in frames.values()]
        lines.append([name, *(_whole_cell(each) for each in found)])
    return [head, *lines]


def _whole_cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if "absent" in found:
        return f"absent: {found['absent'][:60]}"
    if "wall_us" not in found:  # products: no frame, but every stage
        return f"{sum(times['median'] for times in found['graph_us'].values()):,.0f} all stages"
    device = device_us(found)
    parts = [f"{device:,.0f}"] if math.isfinite(device) else []
    parts += [f"{found['wall_us']['median']:,.0f}", f"{max(found['error'].values()):.0e}"]
    return ", ".join(parts)


def stage_table(report: Mapping[str, Any], candidate: str) -> Table:
    """Return the stages of one candidate, one column a frame."""
    frames = report["frames"]
    times = {
        name: found.get("graph_us") or found.get("stage_us") or {}
        for name, frame in frames.items()
        if (found := frame["candidates"].get(candidate)) is not None and "absent" not in found
    }
    stages = {stage: None for found in times.values() for stage in found}
    lines = [
        [
            stage,
            *(
                f"{found[stage]['median']:,.1f}" if stage in found else ""
                for found in times.values()
            ),
        ]
        for stage in stages
    ]
    return [[f"{candidate}: median µs", *times], *lines]
