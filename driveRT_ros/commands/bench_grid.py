"""``drivert bench grid``: check, then time, the operators on NanoVDB grids."""

from __future__ import annotations

import argparse
from typing import Any

from rich.table import Table

from driveRT_ros.commands.common import console, progress
from driveRT_ros.core.errors import ConfigError, DeviceError

DEFAULT_MB = {"cuda": "1,7,70,500", "cpu": "1,7"}
LARGEST_MB = 4200
"""Beyond it a grid has more bytes than the largest that is meant to be measured."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report.

    Raises:
        ConfigError: If a size cannot be.
        DeviceError: If there is no GPU to measure on.
    """
    import torch

    sizes = _sizes(args.sizes or DEFAULT_MB[args.device])
    if args.device == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to measure on; "
            "'drivert bench grid --device cpu' times the reference."
        )
    from driveRT_ros.bench import grid
    from driveRT_ros.bench.timing import ceilings

    limits: dict[str, float] = {}
    if args.device == "cuda":
        limits["copy_tb_per_s"] = ceilings()["copy_tb_per_s"]
        limits["read_tb_per_s"] = grid.read_tb_per_s(torch.device("cuda"))
    with progress() as bar:
        task = bar.add_task("grids", total=len(sizes) * len(grid.CASES))

        def told(part: str) -> None:
            bar.advance(task)
            bar.update(task, description=part)

        how = {"rounds": args.rounds, "ceilings": limits, "told": told}
        return grid.measure(sizes, device=torch.device(args.device), **how)


def _sizes(text: str) -> list[float]:
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(0.3 <= size <= LARGEST_MB for size in sizes):
        raise ConfigError(
            f"Option --sizes takes million bytes from 0.3 to {LARGEST_MB} by comma, got '{text}'."
        )
    return sizes


def show(report: dict[str, Any]) -> None:
    """Print one line a grid and operator."""
    from driveRT_ros.bench.grid import table

    console.print(f"{report['gpu'] or report['cpu']}, torch {report['torch']}, {report['date']}")
    head, *lines = table(report)
    shown = Table(*head, box=None)
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
