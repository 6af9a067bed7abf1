"""Find the fastest kernels for the GPU at hand and write them down as a Plan.

Every candidate of every stage is compared with a float64 run first and timed only if it is right,
in turns with the one it would replace. The Plan is accepted by whole frames that the search never
saw; where they do not agree, the default Plan is written, with the reason. A search that was
interrupted continues where it was: start the same command again.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from driveRT_ros.commands.common import config_value, console, detector_config, progress
from driveRT_ros.commands.tuned_gpu import Gpu, earlier_plan, find_gpu, plan_file
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.plan import PRECISIONS, Plan, default_plan, domain_layers

if TYPE_CHECKING:
    from rich.progress import Progress

    from driveRT_ros.bench.frames import Frame
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.tactics import ConvTactic
    from driveRT_ros.core.tuner_device import Progress as Told
    from driveRT_ros.core.tuner_device import Settings, TuningDevice
    from driveRT_ros.models.voxelnext import VoxelNeXtWeights

HELP = "find the fastest kernels for this GPU and write them down as a Plan"
EXAMPLES = """\
examples:
  drivert tune --output plan.json
  drivert tune --precision fp16 --output plan-fp16.json --time-limit 120
  drivert tune --bag my_bag --checkpoint voxelnext.safetensors --output plan.json
  drivert run --bag my_bag --set plan_path=plan.json      use it
  drivert tune --camera --set precision=fp16 --output plan.json    how camera features are pooled
"""

_BAG_FRAMES = 25
_LEAST_BAG_FRAMES = 5
"""One calibration frame and four held-out ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert tune``."""
    parser.add_argument("--output", metavar="JSON", default="plan.json", help="Plan to write")
    parser.add_argument(
        "--camera", action="store_true", help="tune the pooling of camera features instead"
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="default: that of the parameters")
    parser.add_argument(
        *("--checkpoint", "--weights"), metavar="FILE", help="default: those of the package"
    )
    parser.add_argument("--config", metavar="YAML", help="parameter file, plain or in ROS form")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one parameter; repeatable"
    )
    parser.add_argument("--bag", metavar="PATH", help="frames of a bag; default: simulated ones")
    parser.add_argument("--topic", default="", help="the point cloud topic, if a bag has several")
    parser.add_argument(
        "--time-limit", type=float, default=0.0, metavar="S",
        help="end the search after this; start again to continue",
    )  # fmt: skip
    parser.add_argument(
        "--min-gain", type=float, default=2.0, metavar="PERCENT",
        help="what a kernel must save to replace another (default: 2)",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert tune``."""
    if args.camera:
        from driveRT_ros.commands import tune_cameras

        return tune_cameras.execute(args)
    from driveRT_ros.core.tuner import Tuner
    from driveRT_ros.core.tuner_device import Settings
    from driveRT_ros.core.tuner_state import StateFile

    settings = Settings(min_gain=args.min_gain / 100, time_limit_s=args.time_limit)
    config, output = detector_config(args), plan_file(args.output)
    gpu = find_gpu(config.device)
    precision = args.precision or config.precision
    weights = weights_of(config)
    default = dataclasses.replace(
        default_plan(config.model.channels, gpu.capability, precision),
        gpu=gpu.name,
        # Only trained weights bind a Plan: times do not depend on them, but what fits a half does.
        weights_sha256=weights.sha256 if weights.trained else "",
    )
    calibration, held_out = _frames(args, config)
    device = open_device(config, weights, gpu, default)
    calibration, held_out = _that_fit(device, calibration), _that_fit(device, held_out)
    choices = choices_for(config, precision, gpu.capability)
    key = _key(config, gpu, default, weights, choices, [*calibration, *held_out], settings)
    file = StateFile(output.with_name(output.name + ".partial.json"), key)
    with progress() as bar:
        told = _follow(bar, choices, len(held_out))
        tuner = Tuner(device, default, choices, calibration, held_out, file, settings, told)
        if file.note:
            console.print(file.note)
        plan = tuner.run()
    earlier = earlier_plan(output, gpu)
    if earlier:
        # A verdict names the tactics that it is about: what was said of others does no harm.
        kept = {"pools": earlier.measured["pools"]} if "pools" in earlier.measured else {}
        measured = {**plan.measured, **kept}
        both = {"pools": earlier.pools, "qualified": earlier.qualified}
        plan = dataclasses.replace(plan, measured=measured, **both)
    plan.save(output)
    _show(plan, output)
    return 0


def open_device(
    config: LidarConfig, weights: VoxelNeXtWeights, gpu: Gpu, default: Plan
) -> TuningDevice:
    """Return the device that checks and times."""
    import torch

    from driveRT_ros.core.gpu.tuning import GpuTuningDevice

    torch.cuda.set_device(gpu.device)  # streams, events and graphs are those of the current device
    tensors = weights.to(gpu.device, torch.float32)
    return GpuTuningDevice(config, tensors, gpu.device, default)


def choices_for(
    config: LidarConfig, precision: str, capability: tuple[int, int]
) -> dict[str, tuple[ConvTactic, ...]]:
    """Return the candidates of every domain, those with most work first."""
    from driveRT_ros.core.candidates import candidates
    from driveRT_ros.core.gpu.domains import level_shapes
    from driveRT_ros.core.gpu.exact import domain_layers_of
    from driveRT_ros.models.graph import build_graph

    layers, levels = domain_layers_of(build_graph(config.model)), level_shapes(config)

    def work(domain: str) -> int:
        level = int(domain[-1]) - 1 if domain[-1].isdigit() else len(levels) - 1
        each = layers[domain].layers
        weights = sum(layer.taps * layer.in_channels * layer.out_channels for layer in each)
        return weights * levels[level].row_capacity

    sizes = domain_layers(config.model.channels)
    order = sorted(sizes, key=work, reverse=True)
    return {domain: candidates(*sizes[domain], precision, capability) for domain in order}


# ---- weights and frames -------------------------------------------------------------------------


def weights_of(config: LidarConfig) -> VoxelNeXtWeights:
    """Return the weights of ``checkpoint_path``, or seeded untrained ones."""
    if config.checkpoint_path:
        from driveRT_ros.models.checkpoint import load_weights

        return load_weights(config.checkpoint_path, config, layout=config.checkpoint_layout)
    from driveRT_ros.models.untrained import untrained_weights

    return untrained_weights(config.model, config.seed)


def _frames(args: argparse.Namespace, config: LidarConfig) -> tuple[list[Frame], list[Frame]]:
    """Return calibration and held-out frames."""
    from driveRT_ros.bench.frames import tuning_frames

    both: dict[bool, list[Frame]] = {True: [], False: []}
    with progress() as bar:
        source = bag_frames(args.bag, args.topic, config) if args.bag else tuning_frames(config)
        task = bar.add_task("read frames" if args.bag else "simulate frames", total=_BAG_FRAMES)
        for calibrates, frame in source:
            both[calibrates].append(frame)
            bar.advance(task)
    return both[True], both[False]


def bag_frames(path: str, topic: str, config: LidarConfig) -> Iterator[tuple[bool, Frame]]:
    """Yield up to 25 clouds spread over a bag, joined with those before them as a node joins them.

    Every fifth is for calibration (True). Ahead is along +y in all, as in simulated frames.

    Raises:
        ConfigError: If the bag has fewer than five clouds.
    """
    from driveRT_ros.bench.frames import Frame
    from driveRT_ros.commands.results import look_at_bag, scene_frames
    from driveRT_ros.core.config import NUSCENES_FORWARD_YAW_DEG
    from driveRT_ros.core.sweeps import SweepBuffer
    from driveRT_ros.core.turn import Turn

    path, topic, count = look_at_bag(path, topic)
    if count < _LEAST_BAG_FRAMES:
        raise ConfigError(
            f"Bag '{path}' has {count} clouds on '{topic}'; tuning needs {_LEAST_BAG_FRAMES}."
        )
    total = min(count, _BAG_FRAMES)
    wanted = {round(i * (count - 1) / (total - 1)): i for i in range(total)}
    buffer = SweepBuffer(config.densification_params)
    turn = Turn.between(config.input.forward_yaw_deg, NUSCENES_FORWARD_YAW_DEG)
    for number, frame in enumerate(scene_frames(path, topic, config)):
        pose = None if frame.T_world_ego is None else frame.T_world_ego @ frame.T_ego_lidar
        points = turn.rows(buffer.push(frame.points, pose))
        if number in wanted:
            source = f"cloud {number + 1} of {path}"
            yield wanted[number] % 5 == 2, Frame(f"cloud{number + 1}", source, points)


def _that_fit(device: TuningDevice, frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames that the capacities hold; the others are named."""
    good = []
    for frame in frames:
        over = device.overflow(frame)
        if over:
            console.print(f"Frame {frame.name} is left out: it exceeds the capacities, {over}.")
        else:
            good.append(frame)
    return good


# ---- search -------------------------------------------------------------------------------------


def _follow(bar: Progress, choices: Mapping[str, Sequence[ConvTactic]], held_out: int) -> Told:
    """Return what moves a progress bar over all candidates and frames."""
    from driveRT_ros.core.tuner_device import HELD_OUT

    sizes = {**{domain: len(tactics) for domain, tactics in choices.items()}, HELD_OUT: held_out}
    before = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0)))
    task = bar.add_task("search", total=sum(sizes.values()))

    def told(domain: str, number: int, of: int) -> None:
        bar.update(task, description=domain, completed=before[domain] + number)

    return told


def _key(
    config: LidarConfig,
    gpu: Gpu,
    default: Plan,
    weights: VoxelNeXtWeights,
    choices: Mapping[str, Sequence[ConvTactic]],
    frames: Sequence[Frame],
    settings: Settings,
) -> dict[str, Any]:
    """Return what the results of a search depend on."""
    from driveRT_ros.core.plan import PLAN_VERSION

    names = ("voxelization", "model", "input.point_capacity")
    parts = {name: config_value(config, name) for name in names}
    points = hashlib.sha256()
    for frame in frames:
        points.update(frame.points.contiguous().numpy().tobytes())
    return {
        "gpu": gpu.name,
        "driver": gpu.driver,
        "precision": default.precision,
        "weights_sha256": weights.sha256,
        "config_sha256": _sha256(repr(parts)),
        "candidates_sha256": _sha256(repr((default.tactics, choices))),
        "kernels_sha256": _kernels_sha256(),
        "frames_sha256": points.hexdigest(),
        "plan_version": PLAN_VERSION,
        "min_gain": settings.min_gain,
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _kernels_sha256() -> str:
    from driveRT_ros.core.paths import share_path

    digest = hashlib.sha256()
    for path in sorted(share_path("kernels").glob("*.cu*")):
        digest.update(json.dumps([path.name, path.read_text(encoding="utf-8")]).encode())
    return digest.hexdigest()


# ---- summary ------------------------------------------------------------------------------------


def _show(plan: Plan, output: Path) -> None:
    found = plan.measured
    table = Table(
        "domain", "default µs", "chosen µs", "ratio", "tried", "faults", "tactic", box=None
    )
    for name, domain in found["domains"].items():
        numbers = (domain["default_us"], domain["chosen_us"], domain["ratio"])
        cells = [f"{v:.{d}f}" if v is not None else "" for v, d in zip(numbers, (1, 1, 3))]
        tried = f"{domain['tried']} of {domain['candidates']}"
        table.add_row(name, *cells, tried, str(domain["faults"]), domain["chosen"])
    console.print(table)
    for fault in found["faults"]:
        console.print(f"{fault['domain']}: {fault['tactic']}: {fault['fault'][:200]}")
    accepted = found["acceptance"]
    if accepted["accepted"]:
        console.print(
            f"Accepted on {accepted['frames']} held-out frames: {accepted['default_us']:.0f} -> "
            f"{accepted['tuned_us']:.0f} µs, median ratio {accepted['median_ratio']:.3f}, slowest "
            f"quarter {accepted['worst_quarter_ratio']:.3f}."
        )
    else:
        console.print(f"The default Plan stays: {accepted['reason']}.")
    if not found["complete"]:
        console.print("The search is not complete; start the same command again to continue.")
    console.print(f"Wrote {output}.")
    if plan.precision != "fp32":
        told = f"Whether {plan.precision} finds what fp32 finds, tells"
        console.print(f"{told} 'drivert qualify --plan {output}'.")
