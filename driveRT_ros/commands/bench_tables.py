"""How ``drivert bench`` prints a model that was timed whole and by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from driveRT_ros.commands.common import console


def show_tables(report: dict[str, Any], *tables: Sequence[Sequence[str]]) -> None:
    """Print what was measured on, then tables.

    Args:
        report: Of the suite.
        tables: Rows of each, its head first.
    """
    machine = report["gpu"] if report["device"] == "cuda" else report["cpu"]
    console.print(
        f"{machine}, {report['threads']} threads, torch {report['torch']}, {report['date']}; "
        f"weights: {report['weights']}"
    )
    for head, *lines in tables:
        shown = Table(*head, box=None)
        for line in lines:
            shown.add_row(*line)
        console.print(shown)
