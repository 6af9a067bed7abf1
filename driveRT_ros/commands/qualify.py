"""Compare every precision with fp32 on this GPU, and write into the Plan which of them pass.

Features of every stage, boxes and, with trained weights, average precision on simulated scenes are
compared with those of fp32. A detector refuses to run a precision that its Plan says has failed.
Exit code 1: a precision failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from driveRT_ros.commands.common import console, detector_config, progress
from driveRT_ros.commands.plan_table import show_verdicts
from driveRT_ros.commands.tune import bag_frames, weights_of
from driveRT_ros.commands.tuned_gpu import Gpu, find_gpu, plan_file
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.plan import PRECISIONS, Plan, default_plan
from driveRT_ros.core.verdict import Verdict

if TYPE_CHECKING:
    from rich.progress import Progress

    from driveRT_ros.bench.frames import Frame
    from driveRT_ros.commands.qualify_scenes import Scenes
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.qualify import Detect, Figures, Limits, Stages
    from driveRT_ros.models.weights import VoxelNeXtWeights

HELP = "compare every precision with fp32 and write into the Plan which pass"
EXAMPLES = """\
examples:
  drivert qualify --plan plan.json --checkpoint voxelnext.safetensors
  drivert qualify --plan plan.json --precision fp16 --bag my_bag --checkpoint voxelnext.safetensors
  drivert qualify --plan plan.json --frames S5,C --data DIR --scenes 0
  drivert info plan.json                         the verdicts of a Plan
  drivert run --bag my_bag --set plan_path=plan.json --set precision=fp16    refused if it failed
"""

CANDIDATES = tuple(name for name in PRECISIONS if name != "fp32")
_SIM_SEED = 1100
_DRIVES = 2
_SCENES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert qualify``."""
    parser.add_argument("--plan", metavar="JSON", required=True, help="Plan that gets the verdicts")
    parser.add_argument(
        "--precision", nargs="+", choices=CANDIDATES, help="default: all that the GPU runs"
    )
    group = parser.add_argument_group("detector")
    group.add_argument(
        *("--checkpoint", "--weights"), metavar="FILE", help="default: those of the package"
    )
    group.add_argument("--config", metavar="YAML", help="parameter file, plain or in ROS form")
    group.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one parameter; repeatable"
    )
    group = parser.add_argument_group("frames")
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--sim", type=int, metavar="N", help=f"five frames of each of N drives (default: {_DRIVES})"
    )
    one.add_argument("--bag", metavar="PATH", help="up to 25 clouds of a bag, as drivert tune does")
    one.add_argument("--frames", metavar="A,B", help="S1, S5, S10, S15; with --data A, B, C, too")
    group.add_argument("--topic", default="", help="the point cloud topic, if a bag has several")
    group.add_argument("--data", metavar="DIR", help="folder of the real frames")
    group = parser.add_argument_group("scenes with ground truth, for mAP with trained weights")
    group.add_argument(
        "--scenes", type=int, default=_SCENES, metavar="N",
        help=f"simulated ones (default: {_SCENES}); 0: none",
    )  # fmt: skip
    group.add_argument(
        "--jobs", type=int, default=1, metavar="N",
        help="processes that simulate (default: 1); 0: all cores",
    )  # fmt: skip
    _add_limits(parser)


_LIMITS = {
    "feature_error": ("--max-feature-error", "error of a feature, of the largest of its stage"),
    "center_m": ("--max-center", "metres between the centres of matched boxes"),
    "score": ("--max-score", "difference of their scores"),
    "matched": ("--min-matched", "share of boxes with a partner"),
    "agreeing": ("--min-agreeing", "share with a partner, or about which rounding decides"),
    "map_drop": ("--max-map-drop", "average precision that may be lost"),
}


def _add_limits(parser: argparse.ArgumentParser) -> None:
    from driveRT_ros.core.qualify import Limits

    group = parser.add_argument_group("limits")
    for name, value in vars(Limits()).items():
        option, text = _LIMITS[name]
        group.add_argument(
            option, dest=name, type=float, default=value, metavar="X",
            help=f"{text} (default: {value:g})",
        )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert qualify``."""
    from driveRT_ros.core.config import NUSCENES_FORWARD_YAW_DEG
    from driveRT_ros.core.qualify import Limits
    from driveRT_ros.core.turn import facing

    limits = Limits(**{name: getattr(args, name) for name in _LIMITS})
    _check(args)
    path = plan_file(args.plan)
    if not path.exists():
        raise ConfigError(f"Plan '{path}' does not exist; 'drivert tune --output {path}' makes it.")
    plan, config = Plan.load(path), detector_config(args)
    if not plan.tactics:
        raise ConfigError(
            f"Plan '{path}' is for cameras alone; 'drivert tune --output {path}' adds the LiDAR "
            "network."
        )
    gpu = find_gpu(config.device, "qualify", "Only 'fp32' runs on a CPU.")
    weights = weights_of(config)
    plan.check_device(gpu.name, weights.sha256)
    plan.check_layers(config.model.channels, gpu.capability)
    if not weights.trained:
        console.print("The weights are not trained: what holds for them tells little of others.")
    plans = _plans(plan, args.precision, config, gpu)
    with progress() as bar, tempfile.TemporaryDirectory() as folder:
        frames = _frames(args, config, bar)
        config = facing(config, NUSCENES_FORWARD_YAW_DEG)  # as frames and scenes are
        bench = Bench(config, weights, gpu, frames, limits, Path(folder))
        if weights.trained and args.scenes:
            bench.simulate(args.scenes, args.jobs or os.cpu_count() or 1, bar)
        for precision, candidate in plans.items():
            try:
                figures = bench.measure(candidate, bar)
            except RuntimeError as error:  # of torch: out of memory, or a fault of CUDA
                raise DeviceError(f"{precision} cannot be compared with fp32: {error}") from error
            verdict = bench.verdict(candidate, figures)
            plan = dataclasses.replace(plan, qualified={**plan.qualified, precision: verdict})
            plan.save(path)
            for name, reason in figures.left_out.items():
                console.print(f"{precision}: frame {name} is left out: {reason}")
    found = {precision: plan.qualified[precision] for precision in plans}
    show_verdicts(found)
    console.print(f"Wrote {path}.")
    return 0 if all(verdict.passed for verdict in found.values()) else 1


def _check(args: argparse.Namespace) -> None:
    """Refuse options that would change nothing, and numbers that mean nothing."""
    for name, needs in (("topic", "bag"), ("data", "frames")):
        if getattr(args, name) and not getattr(args, needs):
            raise ConfigError(f"Option --{name} needs --{needs}.")
    if args.sim is not None and args.sim < 1:
        raise ConfigError(f"Option --sim takes a number of drives from 1 on, got {args.sim}.")
    if args.scenes < 0 or args.jobs < 0:
        raise ConfigError(
            f"Options --scenes and --jobs must be 0 or more, got {args.scenes} and {args.jobs}."
        )


def _plans(
    plan: Plan, wanted: Sequence[str] | None, config: LidarConfig, gpu: Gpu
) -> dict[str, Plan]:
    """Return what would run in each precision: the Plan in its own, the default in the others."""
    plans: dict[str, Plan] = {}
    for precision in dict.fromkeys(wanted or CANDIDATES):
        if precision == plan.precision:
            plans[precision] = plan
            continue
        try:
            plans[precision] = default_plan(config.model.channels, gpu.capability, precision)
        except ConfigError as error:
            if wanted:
                raise
            console.print(f"{precision} is left out: {error}")
    return plans


def _frames(args: argparse.Namespace, config: LidarConfig, bar: Progress) -> list[Frame]:
    from driveRT_ros.bench import frames as source

    made: Iterator[Frame]
    total: int | None = None
    if args.bag:
        made = (frame for _, frame in bag_frames(args.bag, args.topic, config))
        text = "read frames"
    elif args.frames:
        names = [name.strip() for name in args.frames.split(",")]
        made = source.load_frames(names, Path(args.data) if args.data else None, config)
        total, text = len(names), "frames"
    else:
        seeds = range(_SIM_SEED, _SIM_SEED + (args.sim or _DRIVES))
        sweeps = source.TUNING_SWEEPS
        made = (frame for seed in seeds for frame in source.drive(seed, sweeps, config))
        total, text = len(seeds) * len(sweeps), "simulate frames"
    task, found = bar.add_task(text, total=total), []
    for frame in made:
        found.append(frame)
        bar.advance(task)
    return found


# ---- the measuring ------------------------------------------------------------------------------


def open_stages(config: LidarConfig, weights: VoxelNeXtWeights, gpu: Gpu, plan: Plan) -> Stages:
    """Return what makes the features of every stage under a Plan."""
    import torch

    from driveRT_ros.core.gpu.backbone import SparseBackbone
    from driveRT_ros.core.gpu.stage_rows import EngineStages

    torch.cuda.set_device(gpu.device)
    tensors = weights.to(gpu.device, torch.float32)
    return EngineStages(SparseBackbone(config, tensors, gpu.device, plan))


def open_detector(
    config: LidarConfig, weights: VoxelNeXtWeights, gpu: Gpu, plan: Plan, folder: Path
) -> Detect:
    """Return the detector under a Plan, whatever was said of it so far.

    Args:
        config: Everything else.
        weights: Of the detector.
        gpu: Where it runs.
        plan: Tactics and precision.
        folder: For the Plan without verdicts; it must outlive the detector.

    Raises:
        ConfigError: If the Plan cannot run: another one would be judged in its name.
    """
    from driveRT_ros.core.pipeline import LidarPipeline

    path = folder / f"{plan.precision}.json"
    dataclasses.replace(plan, qualified={}).save(path)
    wanted = dataclasses.replace(config, precision=plan.precision, plan_path=str(path))
    pipeline = LidarPipeline(wanted, weights, gpu.device)
    if pipeline.plan_note:
        raise ConfigError(pipeline.plan_note)
    return pipeline.process


class Bench:
    """What every precision is compared on.

    Args:
        config: Grid, thresholds and limits of the detector.
        weights: Of both precisions.
        gpu: Where both run.
        frames: Compared stage by stage and box by box.
        limits: What a precision may do.
        folder: For Plans.
    """

    def __init__(
        self,
        config: LidarConfig,
        weights: VoxelNeXtWeights,
        gpu: Gpu,
        frames: Sequence[Frame],
        limits: Limits,
        folder: Path,
    ) -> None:
        self._config, self._weights, self._gpu = config, weights, gpu
        self._frames, self._limits, self._folder = frames, limits, folder
        self._reference = default_plan(config.model.channels, gpu.capability)
        self._scenes: Scenes | None = None
        self._fp32_ap: float | None = None

    def simulate(self, scenes: int, jobs: int, bar: Progress) -> None:
        """Make scenes with ground truth for average precision."""
        from driveRT_ros.commands.qualify_scenes import Scenes

        task = bar.add_task("simulate scenes", total=scenes)
        self._scenes = Scenes(scenes, self._config, jobs, lambda: bar.advance(task))

    def measure(self, plan: Plan, bar: Progress) -> Figures:
        """Compare what a Plan runs with fp32."""
        from driveRT_ros.core.qualify import Figures, MeanAp, compare_detections, compare_stages

        scenes = len(self._scenes or ()) * (2 if self._fp32_ap is None else 1)
        task = bar.add_task(plan.precision, total=2 * len(self._frames) + scenes)

        def told(name: str = "") -> None:
            bar.advance(task)

        stages, frames, left_out = compare_stages(
            self._stages(self._reference), self._stages(plan), self._frames, told
        )
        bar.update(task, total=len(self._frames) + len(frames) + scenes)
        reference, found = self._detector(self._reference), self._detector(plan)
        boxes = compare_detections(reference, found, frames, self._config, self._limits, told)
        mean_ap = None
        if self._scenes is not None:
            if self._fp32_ap is None:
                self._fp32_ap = self._scenes.mean_ap(reference, told)
            found_ap = self._scenes.mean_ap(found, told)
            mean_ap = MeanAp(self._fp32_ap, found_ap, len(self._scenes))
        return Figures(tuple(f.name for f in frames), stages, boxes, mean_ap, left_out)

    def verdict(self, plan: Plan, figures: Figures) -> Verdict:
        """Return what the figures mean for a Plan."""
        faults = figures.faults(self._limits)
        return Verdict(
            passed=not faults,
            reasons=faults,
            figures=figures.to_json(),
            limits=dataclasses.asdict(self._limits),
            gpu=self._gpu.name,
            weights_sha256=self._weights.sha256,
            tactics_sha256=plan.tactics_sha256(),
            date=datetime.date.today().isoformat(),
        )

    def _stages(self, plan: Plan) -> Stages:
        return open_stages(self._config, self._weights, self._gpu, plan)

    def _detector(self, plan: Plan) -> Detect:
        return open_detector(self._config, self._weights, self._gpu, plan, self._folder)
