"""``drivert bench soak``: thousands of clouds of all sizes, and whether memory stays as it is."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from rich.table import Table

from driveRT_ros.commands.bench_options import plans
from driveRT_ros.commands.common import console, progress
from driveRT_ros.core.errors import ConfigError, DeviceError


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report.

    Raises:
        ConfigError: If an option cannot be used here.
        DeviceError: If there is no GPU to measure on.
    """
    import torch

    from driveRT_ros.bench.frame import weights_of
    from driveRT_ros.bench.soak import FRAMES, soak, soak_clouds
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.pipeline import LidarPipeline

    count = FRAMES if args.count is None else args.count
    if not 4 <= count <= 1_000_000:
        raise ConfigError(f"Option --count takes 4 to 1000000 frames, got {count}.")
    on_gpu = args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to measure on; "
            "'drivert bench soak --device cpu' watches the reference."
        )
    config = LidarConfig.from_yaml(args.config) if args.config else LidarConfig()
    precision, path = plans(args)[-1]
    config = dataclasses.replace(config, precision=precision, plan_path=str(path or ""))
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    with progress() as bar:
        task = bar.add_task("simulate", total=count)
        clouds = list(soak_clouds(config))
        bar.update(task, description="prepare")
        weights = weights_of(config)
        device = torch.device(args.device, 0) if on_gpu else torch.device("cpu")
        pipeline = LidarPipeline(config, weights, device)
        if pipeline.plan_note:
            raise ConfigError(pipeline.plan_note)
        pipeline.warm_up()
        bar.update(task, description="frames")
        found = soak(
            pipeline, clouds, config, device, count, lambda done: bar.update(task, completed=done)
        )
    return {**found, "weights": weights.name}


def show(report: dict[str, Any]) -> None:
    """Print memory and times."""
    from driveRT_ros.bench.soak import growth_table

    machine = report["gpu"] if report["device"] == "cuda" else report["cpu"]
    low, high = report["points"]
    console.print(
        f"{machine}, {report['precision']}, {report['frames']} frames of {low:,} to {high:,} "
        f"points, {report['date']}; weights: {report['weights']}"
    )
    head, *lines = growth_table(report)
    shown = Table(*head, box=None)
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    times = ", ".join(f"{name} {value:,.2f}" for name, value in report["wall_ms"].items())
    console.print(f"Message to detections, ms: {times}; {report['overflows']} frames overflowed.")
