"""Check, then time, on the machine at hand.

Every candidate is compared with a float64 run of the same network on the same frame first; one
that fails has no time. On a GPU the sparse engine runs as one CUDA graph, from raw points to the
rows that the heads share; its stages are graphs of their own. Wall times include the launches.
The suite ``frame`` has the whole detector, ``soak`` its memory over thousands of frames,
``camera`` the camera model, ``grid`` the operators on NanoVDB grids, and ``ros`` the node, from the
publishing of a cloud to its detections in another process.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from driveRT_ros.commands import bench_camera, bench_frame, bench_grid, bench_ros, bench_soak
from driveRT_ros.commands.bench_options import (
    ALL_FRAMES,
    DEFAULT_ROUNDS,
    check_options,
    frame_names,
    peer_names,
    plans,
)
from driveRT_ros.commands.common import console, progress
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.plan import PRECISIONS

if TYPE_CHECKING:
    from driveRT_ros.core.config import LidarConfig

HELP = "check, then time, engine, detector, grid operators or node on this machine"
EXAMPLES = """\
examples:
  drivert bench sparse                                 simulated frames, on the GPU
  drivert bench sparse --precision fp16 --data DIR     with the real frames A, B, C in DIR
  drivert bench sparse --plan plan.json                the default Plan beside a tuned one
  drivert bench sparse --peers spconv,torch,cublas     beside what can be imported
  drivert bench sparse --device cpu                    the reference operators
  drivert bench frame --peers spconv --data DIR        points to boxes, beside the same from spconv
  drivert bench frame --device cpu                     what a machine without a GPU takes for it
  drivert bench soak --precision fp16                  memory over 2000 clouds of all sizes
  drivert bench camera                                 six images to layers, with and without graphs
  drivert bench grid --sizes 7,500                     NanoVDB grids of 7 and 500 MB, on the GPU
  drivert bench ros --precision fp16 --duration 60     clouds of 0.694 and 6 MB at 10 and 20 Hz
  drivert bench ros --device cpu --sizes 0.1 --rates 1 a small sensor for a slow machine
"""

PEERS = ("spconv", "torch", "cublas")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert bench``."""
    parser.add_argument("suite", choices=tuple(SUITES), help="what to measure")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu times the reference"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="default: that of the Plan, or fp32"
    )
    parser.add_argument("--plan", metavar="FILE", help="time this Plan (sparse, frame: too)")
    parser.add_argument(
        "--frames", metavar="NAMES", help="by comma: S1, S5, S10, S15 (simulated), A, B, C"
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the real frames A, B and C")
    parser.add_argument("--peers", metavar="NAMES", help=f"by comma, of {', '.join(PEERS)}")
    parser.add_argument(
        "--rounds", type=int, help=f"interleaved rounds (default: {DEFAULT_ROUNDS})"
    )
    parser.add_argument("--sizes", metavar="MB", help="of grids or clouds, by comma (grid, ros)")
    parser.add_argument("--rates", metavar="HZ", help="of clouds, by comma (ros)")
    parser.add_argument("--duration", type=float, metavar="S", help="of each case (ros)")
    parser.add_argument("--count", type=int, metavar="N", help="frames to run (soak)")
    parser.add_argument("--config", metavar="YAML", help="parameter file: grid and channels")
    parser.add_argument("--output", metavar="JSON", help="file for the result")


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert bench``."""
    from driveRT_ros.bench.timing import write_report

    check_options(args)
    measure, show = SUITES[args.suite]
    report = measure(args)
    show(report)
    if args.output:
        write_report(report, Path(args.output))
        console.print(f"Wrote {args.output}.")
    return 0


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    from driveRT_ros.core.config import LidarConfig

    config = LidarConfig.from_yaml(args.config) if args.config else LidarConfig()
    return _on_cpu(args, config) if args.device == "cpu" else _on_gpu(args, config)


def _on_gpu(args: argparse.Namespace, config: LidarConfig) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to measure on; "
            "'drivert bench sparse --device cpu' times the reference operators."
        )
    from driveRT_ros.bench.frames import load_frames
    from driveRT_ros.bench.sparse import Protocol, SparseBench, measure

    names, peers = frame_names(args, ALL_FRAMES), peer_names(args, PEERS)
    data = Path(args.data) if args.data else None
    with torch.no_grad(), progress() as bar:
        task = bar.add_task("frames", total=None)
        frames = list(load_frames(names, data, config))
        parts = len(frames) * (2 if {"spconv", "torch"} & set(peers) else 1) + 2
        bar.update(task, total=parts, description="compile")
        bench = SparseBench(config, plans(args), peers, Protocol(rounds=args.rounds))

        def told(part: str) -> None:
            bar.advance(task)
            bar.update(task, description=part)

        told("measure")
        return measure(bench, frames, told)


def _on_cpu(args: argparse.Namespace, config: LidarConfig) -> dict[str, Any]:
    if args.plan or args.peers or args.precision not in (None, "fp32"):
        raise ConfigError("Options --plan, --peers and --precision need a GPU, not --device cpu.")
    from driveRT_ros.bench.frames import load_frames
    from driveRT_ros.bench.reference import measure_reference

    names = frame_names(args, ALL_FRAMES[:1])
    with progress() as bar:
        task = bar.add_task("reference", total=len(names))
        frames = list(load_frames(names, Path(args.data) if args.data else None, config))
        return measure_reference(config, frames, args.rounds, told=lambda part: bar.advance(task))


def _show(report: dict[str, Any]) -> None:
    """Print one line a candidate, then the stages of the engine."""
    from driveRT_ros.bench.table import stage_table, whole_table

    machine = report["gpu"] or report["cpu"]
    driver = f", driver {report['driver']}" if report["driver"] else ""
    commit = f", commit {report['commit']}" if report["commit"] else ""
    console.print(f"{machine}{driver}, torch {report['torch']}, {report['date']}{commit}")
    candidates = [name for frame in report["frames"].values() for name in frame["candidates"]]
    first = next(iter(candidates))
    for head, *lines in (whole_table(report), stage_table(report, first)):
        table = Table(*head, box=None)
        for line in lines:
            table.add_row(*line)
        console.print(table)


SUITES = {
    "sparse": (_measure, _show),
    "frame": (bench_frame.measure, bench_frame.show),
    "soak": (bench_soak.measure, bench_soak.show),
    "camera": (bench_camera.measure, bench_camera.show),
    "grid": (bench_grid.measure, bench_grid.show),
    "ros": (bench_ros.measure, bench_ros.show),
}
"""What measures and what shows, by suite."""
