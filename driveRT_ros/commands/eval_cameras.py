"""``drivert eval --cameras``: the bird's-eye view of the cameras beside that of the simulator."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from driveRT_ros.commands.common import config_from, console, output_folder, progress
from driveRT_ros.core.errors import ConfigError

if TYPE_CHECKING:
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.core.camera_pipeline import CameraPipeline
    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.train.camera_eval import IoUCounts

_NOT_FOR_CAMERAS = (
    *("bag", "nuscenes", "kitti", "run", "topic", "results", "detections", "version", "split"),
    *("keyframes_only", "statistics", "data", "max_range", "submission", "every_box"),
)


def execute(args: argparse.Namespace) -> int:
    """Count cells on simulated scenes; write report.json and pictures.

    Raises:
        ConfigError: If an option is not for cameras, or a parameter cannot be used.
    """
    from driveRT_ros.train.camera_config import CameraDataConfig
    from driveRT_ros.train.camera_eval import IoUCounts, draw_scene, render_scenes
    from driveRT_ros.train.plots import write_picture
    from driveRT_ros.train.report import write_report

    _refuse_useless(args)
    config = _config(args)
    drives, about = _scenes(args)
    pipeline, of_weights = _pipeline(config)
    out = output_folder(args)
    counts, min_pixels = IoUCounts(config.model), CameraDataConfig().min_pixels
    jobs = _num_jobs(args)
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(drives))
        for number, scene in enumerate(render_scenes(drives, config.model, min_pixels, jobs)):
            found = pipeline.process(scene.decoded()).bev
            counts.add(found, scene.truth)
            if number < args.worst:
                picture = draw_scene(scene, found, counts.layers)
                write_picture(out / f"scene_{scene.seed}.png", picture)
            bar.advance(task)
    about |= {**of_weights, "min_pixels": min_pixels}
    write_report({"about": about, **counts.report()}, out / "report.json")
    _print(counts, out, trained=pipeline.weights.trained)
    return 0


def _refuse_useless(args: argparse.Namespace) -> None:
    for name in _NOT_FOR_CAMERAS:
        if getattr(args, name, None):
            raise ConfigError(
                f"Option --{name.replace('_', '-')} is not for cameras; leave it out, or --cameras."
            )
    if args.sim is None or args.sim < 1:
        raise ConfigError("Option --cameras needs simulated scenes: add --sim N, N from 1.")
    if args.worst < 0:
        raise ConfigError(f"Option --worst must be 0 or more, got {args.worst}.")
    if args.jobs is not None and args.jobs < 0:
        raise ConfigError(f"Option --jobs must be 0 (all cores) or more, got {args.jobs}.")


def _num_jobs(args: argparse.Namespace) -> int:
    from driveRT_ros.commands.eval import num_jobs

    return num_jobs(args)


def _config(args: argparse.Namespace) -> CameraConfig:
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.models.shipped import with_shipped_weights
    from driveRT_ros.train.camera_config import LAYERS

    named = {"device": args.device, "precision": args.precision, "plan_path": args.plan}
    forced = {name: value for name, value in named.items() if value}
    config = config_from(CameraConfig, args.config, args.checkpoint, args.set, forced)
    config = with_shipped_weights(config)
    unknown = [name for name in config.model.network.segmentation if name not in LAYERS]
    if unknown or not config.model.network.segmentation:
        raise ConfigError(
            f"The simulator knows the truth of {', '.join(LAYERS)}; this model has the layers "
            f"{list(config.model.network.segmentation)}."
        )
    return config


def _scenes(args: argparse.Namespace) -> tuple[list[SimConfig], dict[str, Any]]:
    import dataclasses

    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.train.camera_eval import SWEEP
    from driveRT_ros.train.config import FIRST_TRAINING_SEED
    from driveRT_ros.train.evaluate import HELD_OUT_SEED

    seed = HELD_OUT_SEED if args.sim_seed is None else args.sim_seed
    if seed + args.sim > FIRST_TRAINING_SEED:
        console.print(f"Scenes with seeds from {FIRST_TRAINING_SEED} on may have been trained on.")
    base = SimConfig.from_yaml(args.sim_config) if args.sim_config else SimConfig()
    base = dataclasses.replace(base, num_sweeps=max(base.num_sweeps, SWEEP + 1))
    drives = [dataclasses.replace(base, seed=seed + k) for k in range(args.sim)]
    return drives, {"source": f"simulator, seeds {seed} to {seed + args.sim - 1}"}


def _pipeline(config: CameraConfig) -> tuple[CameraPipeline, dict[str, Any]]:
    import torch

    from driveRT_ros.core.camera_pipeline import CameraPipeline
    from driveRT_ros.models.lss_weights import load_camera_weights
    from driveRT_ros.models.strict import file_sha256

    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    about: dict[str, Any] = {"weights": "untrained", "precision": config.precision}
    weights, path = None, config.checkpoint_path
    if path:
        weights = load_camera_weights(path, config)
        about |= {"weights": Path(path).name, "weights_sha256": file_sha256(Path(path))}
    pipeline = CameraPipeline(config, weights, config.device)
    if pipeline.plan_note:
        console.print(pipeline.plan_note)
    return pipeline, about | {"device": str(pipeline.device)}


def _print(counts: IoUCounts, out: Path, *, trained: bool) -> None:
    report = counts.report()
    edges = report["range_edges_m"]
    table = Table(title=f"{counts.frames} scenes, probability above 0.5; IoU also by range in m")
    rings = [f"{near:g}-{far:g}" for near, far in zip(edges, edges[1:])]
    table.add_column("layer")
    for name in ("IoU", "prec.", "recall", *rings, "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, layer in report["layers"].items():
        first = (layer[key] for key in ("iou", "precision", "recall"))
        values = (*first, *layer["iou_by_range"], layer["iou_of_hidden_objects_too"])
        table.add_row(name.replace("_", " "), *("-" if v is None else f"{v:.3f}" for v in values))
    console.print(table)
    console.print("Objects that no camera sees count in the last column only, 'all'.")
    if not trained:
        console.print("The weights are not trained: layers mean nothing. Give --checkpoint.")
    console.print(f"Report and pictures are in {out}.")
