"""Where the time went: percentiles by stage, as a table for people and JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from driveRT_ros.core.latency import TOTAL, percentile

QUANTILE_METHOD = "nearest_rank"


@dataclass(frozen=True)
class LatencyRow:
    """One stage over many frames.

    The quantiles are nearest-rank: the least measured time with at least that share of the frames
    at or below it. Every figure is thus a time that was measured; with fewer than 100 frames p99
    is the maximum.

    Args:
        stage: Name of the stage.
        count: Frames measured.
        p50_ms: Median.
        p95_ms: 95th percentile.
        p99_ms: 99th percentile.
        max_ms: Slowest frame.
        not_finite: Measurements left out because they were NaN or infinite.
    """

    stage: str
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    not_finite: int = 0


def summarize(stage_ms: Mapping[str, Sequence[float]]) -> tuple[LatencyRow, ...]:
    """Return one row a stage, in the given order but with ``total`` last.

    Args:
        stage_ms: Milliseconds of every frame by stage. A stage without a single finite time has
            no row.
    """
    rows = []
    for stage in sorted(stage_ms, key=lambda name: name == TOTAL):
        times = [float(t) for t in stage_ms[stage] if math.isfinite(t)]
        if not times:
            continue
        p50, p95, p99 = (percentile(times, percent) for percent in (50, 95, 99))
        left_out = len(stage_ms[stage]) - len(times)
        rows.append(LatencyRow(stage, len(times), p50, p95, p99, max(times), left_out))
    return tuple(rows)


def latency_table(rows: Sequence[LatencyRow], title: str = "Latency") -> Table:
    """Return a rich table of the rows, in milliseconds."""
    table = Table(
        title=title,
        title_justify="left",
        caption="nearest-rank percentiles, milliseconds",
        caption_justify="left",
    )
    table.add_column("stage")
    for name in ("p50 ms", "p95 ms", "p99 ms", "max ms", "frames"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.stage == TOTAL and len(rows) > 1:
            table.add_section()
        times = (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms)
        table.add_row(
            row.stage,
            *(f"{t:,.2f}" for t in times),
            f"{row.count:,}" + (f" (+{row.not_finite} not finite)" if row.not_finite else ""),
            style="bold" if row.stage == TOTAL else None,
        )
    return table


def print_latency(
    stage_ms: Mapping[str, Sequence[float]],
    console: Console | None = None,
    title: str = "Latency",
) -> tuple[LatencyRow, ...]:
    """Print the table of :func:`summarize`, or one sentence where nothing was measured.

    Returns:
        The rows that were printed.
    """
    rows = summarize(stage_ms)
    console = console or Console()
    if rows:
        console.print(latency_table(rows, title))
    else:
        console.print(f"{title}: no frame was measured.")
    return rows


def latency_json(rows: Sequence[LatencyRow]) -> str:
    """Return the rows as JSON, with unit and quantile method named."""
    document = {
        "unit": "ms",
        "quantile_method": QUANTILE_METHOD,
        "stages": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def write_latency_json(rows: Sequence[LatencyRow], path: str | Path) -> Path:
    """Write :func:`latency_json` to a file, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(latency_json(rows), encoding="utf-8")
    return path
