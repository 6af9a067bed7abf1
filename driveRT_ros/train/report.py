"""What an evaluation says: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.train.evaluate import RANGE_EDGES_M, Evaluation, Scores
from driveRT_ros.train.matching import ERRORS, THRESHOLDS_M, OperatingPoint

_ERROR_HEADS = {"trans": "ATE", "scale": "ASE", "orient": "AOE", "vel": "AVE", "attr": "AAE"}


def class_table(evaluation: Evaluation) -> Table:
    """Return one line a class, and the means."""
    caption = "recall: within 2 m, at most one false detection a hit"
    heads = ("truth", "found", "AP", *_ERROR_HEADS.values(), "recall")
    table = _table(f"{evaluation.num_frames:,} frames", heads, caption)
    for result in evaluation.classes:
        scores = result.overall
        counts = (f"{scores.num_truth:,}", f"{scores.num_found:,}")
        values = (scores.mean_ap, *(scores.errors[e] for e in ERRORS), scores.best.recall)
        cells = map(number, values) if scores.num_truth else "-" * len(values)
        table.add_row(result.name, *counts, *cells)
    table.add_section()
    for name, ap, errors in (
        ("mean", evaluation.mean_ap, evaluation.errors),
        ("mean of present", evaluation.mean_ap_present, evaluation.errors_present),
    ):
        cells = ("", "", number(ap), *(number(errors[e]) for e in ERRORS), "")
        table.add_row(name, *cells, style="bold")
    return table


def range_table(evaluation: Evaluation) -> Table:
    """Return average precision by threshold and by range, one line a class with ground truth."""
    ranges = (f"{a:g}-{b:g}" for a, b in zip(RANGE_EDGES_M, RANGE_EDGES_M[1:]))
    heads = (*(f"<{t:g}" for t in THRESHOLDS_M), *ranges)
    table = _table("AP by threshold and by range, metres", heads)
    for result in evaluation.classes:
        if result.overall.num_truth:
            far = (s.mean_ap if s.num_truth else math.nan for s in result.by_range)
            table.add_row(result.name, *map(number, (*result.overall.ap, *far)))
    return table


def point_table(evaluation: Evaluation) -> Table:
    """Return what is found at two scores, one line a class with ground truth, and all together."""
    title = f"Within 2 m, at the best score and then at {evaluation.fixed.score:g}"
    caption = "best: the least score, chosen here, with at most one false detection a hit"
    counts = ("hits", "wrong", "rec", "prec")
    table = _table(title, ("best", *counts, *counts), caption)
    shown = [(c.name, c.overall.best, c.overall.fixed) for c in evaluation.classes]
    shown = [(name, *points) for name, *points in shown if points[0].hits + points[0].missed]
    for name, best, fixed in (*shown, ("all", evaluation.best, evaluation.fixed)):
        table.add_row(name, number(best.score), *_cells(best), *_cells(fixed))
    return table


def _cells(point: OperatingPoint) -> tuple[str, ...]:
    counts = (f"{point.hits:,}", f"{point.wrong:,}")
    return (*counts, number(point.recall), number(point.precision))


def _table(title: str, heads: Iterable[str], caption: str | None = None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("class", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def headline(evaluation: Evaluation) -> str:
    """Return mAP and NDS as a sentence."""
    if math.isnan(evaluation.nds):
        return f"mAP {evaluation.mean_ap:.4f}; no NDS: the ground truth lacks velocities."
    return f"mAP {evaluation.mean_ap:.4f}, NDS {evaluation.nds:.4f}."


def number(value: float) -> str:
    """Return three decimals, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def report(evaluation: Evaluation, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as plain values; what is unknown is None.

    Args:
        evaluation: The numbers.
        about: What was evaluated, and how.
    """
    return {
        "about": dict(about),
        "num_frames": evaluation.num_frames,
        "mean_ap": _plain(evaluation.mean_ap),
        "nds": _plain(evaluation.nds),
        "errors": _plain_all(evaluation.errors),
        "mean_ap_of_present_classes": _plain(evaluation.mean_ap_present),
        "errors_of_present_classes": _plain_all(evaluation.errors_present),
        "at_half_precision": _point(evaluation.best),
        "at_fixed_score": _point(evaluation.fixed),
        "thresholds_m": list(THRESHOLDS_M),
        "range_edges_m": list(RANGE_EDGES_M),
        "classes": {
            result.name: {
                **_scores(result.overall),
                "by_range": [_scores(scores) for scores in result.by_range],
                "precision": [_rounded(c.precision) for c in result.curves],
                "confidence": [_rounded(c.confidence) for c in result.curves],
            }
            for result in evaluation.classes
        },
    }


def write_report(document: Mapping[str, Any], path: Path) -> Path:
    """Write a report as JSON; same report, same bytes.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Report '{path}' cannot be written: {error}.") from None
    return path


def _scores(scores: Scores) -> dict[str, Any]:
    return {
        "num_truth": scores.num_truth,
        "num_found": scores.num_found,
        "mean_ap": _plain(scores.mean_ap),
        "ap": [_plain(ap) for ap in scores.ap],
        "errors": _plain_all(scores.errors),
        "at_half_precision": _point(scores.best),
        "at_fixed_score": _point(scores.fixed),
    }


def _point(point: OperatingPoint) -> dict[str, float | None]:
    return {
        "score": _plain(point.score),
        "hits": point.hits,
        "wrong": point.wrong,
        "missed": point.missed,
        "recall": _plain(point.recall),
        "precision": _plain(point.precision),
    }


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(v), 6) for v in values]


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _plain_all(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _plain(value) for name, value in values.items()}
