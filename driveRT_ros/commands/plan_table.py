"""What a Plan holds, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from driveRT_ros.commands.common import console
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.verdict import Verdict


def show_plan(path: str) -> None:
    """Print what a Plan is for, and what was qualified.

    Raises:
        ConfigError: If the file cannot be read or is no Plan.
        PlanMismatch: If it was written for other kernels.
    """
    plan = Plan.load(path)
    weights = plan.weights_sha256[:12] or "any"
    console.print(
        f"{path}: precision {plan.precision}, GPU {plan.gpu or 'any'}, weights {weights}, "
        f"{len(plan.tactics)} tactics of the LiDAR network, {len(plan.pools)} of pooling."
    )
    for name, tactic in plan.tactics.items():
        console.print(f"  {name:<12}{tactic.kind}, {tactic.arithmetic}")
    if plan.qualified:
        show_verdicts(plan.qualified)
    else:
        console.print(f"Nothing was qualified; 'drivert qualify --plan {path}' does that.")


def show_verdicts(verdicts: Mapping[str, Verdict]) -> None:
    """Print the figures of every precision side by side, then why some failed."""
    columns = [_column(verdict) for verdict in verdicts.values()]
    table = Table("beside fp32", *verdicts, box=None)
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, "") for column in columns))
    console.print(table)
    console.print(
        "Errors of features: the largest, of the largest feature of its frame / root mean square, "
        "of that of the features. Agreeing boxes have their like in the other precision, or lack "
        "it by rounding alone."
    )
    for precision, verdict in verdicts.items():
        for reason in verdict.reasons:
            console.print(f"{precision}: {reason}.")


def _column(verdict: Verdict) -> dict[str, str]:
    figures = verdict.figures
    boxes: Mapping[str, Any] = figures["boxes"]
    column = {"verdict": "passed" if verdict.passed else "FAILED"}
    for stage, error in figures["features"].items():
        both = (error["largest"], error["rms"])
        shown = "not finite" if None in both else "{:.1e} / {:.1e}".format(*both)
        column[f"features, {stage}"] = shown
    column["boxes of fp32"], column["boxes"] = str(boxes["wanted"]), str(boxes["got"])
    column["matched"] = f"{100 * boxes['matched_share']:.1f} %"
    column["agreeing"] = f"{100 * boxes['agreeing_share']:.1f} %"
    if figures["mean_ap"]:
        column["mAP of fp32"] = f"{figures['mean_ap']['fp32']:.3f}"
        column["mAP"] = f"{figures['mean_ap']['found']:.3f}"
    column["frames"] = str(len(figures["frames"]))
    column["weights"], column["date"] = verdict.weights_sha256[:12], verdict.date
    return {**column, "GPU": verdict.gpu}
