"""``drivert bench camera``: check, then time, the whole camera model with and without graphs."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from driveRT_ros.commands.bench_tables import show_tables
from driveRT_ros.commands.common import progress
from driveRT_ros.core.errors import ConfigError, DeviceError


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report.

    Raises:
        ConfigError: If an option cannot be used here.
        DeviceError: If there is no GPU to measure on.
    """
    import torch

    from driveRT_ros.bench import camera
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.core.camera_pipeline import CameraPipeline
    from driveRT_ros.models.lss_weights import load_camera_weights
    from driveRT_ros.models.shipped import with_shipped_weights

    on_gpu = args.device == "cuda"
    if not on_gpu and (args.plan or args.precision not in (None, "fp32")):
        raise ConfigError("Options --plan and --precision need a GPU, not --device cpu.")
    if args.precision not in (None, *camera.PRECISIONS):
        known = ", ".join(camera.PRECISIONS)
        raise ConfigError(
            f"The camera model has no precision '{args.precision}'; there are {known}."
        )
    if on_gpu and not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to measure on; "
            "'drivert bench camera --device cpu' times the reference."
        )
    config = CameraConfig.from_yaml(args.config) if args.config else CameraConfig()
    config = with_shipped_weights(dataclasses.replace(config, precision="fp32", plan_path=""))
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    path = config.checkpoint_path
    weights = load_camera_weights(path, config) if path else None
    all_of_them = camera.PRECISIONS if on_gpu else camera.PRECISIONS[:1]
    precisions = (args.precision,) if args.precision else all_of_them
    with progress() as bar:
        task = bar.add_task("render", total=None)
        sets = camera.simulated(config)
        bar.update(task, total=len(sets), description="prepare")
        reference = CameraPipeline(config, weights, "cpu")
        device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        tuned = dataclasses.replace(config, plan_path=args.plan or "")
        found = camera.candidates(tuned, weights, precisions, device)

        def told(part: str) -> None:
            bar.advance(task)
            bar.update(task, description=part)

        return camera.measure(found, reference, sets, rounds=args.rounds, told=told)


def show(report: dict[str, Any]) -> None:
    """Print one line a set of images and candidate."""
    from driveRT_ros.bench.camera import stage_table, whole_table

    show_tables(report, whole_table(report), stage_table(report))
