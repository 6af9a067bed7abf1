"""Time every launch that builds the maps and voxel features of a frame, by what it adds to a graph.

    python benchmarks/bench_maps.py --data DATA [--frames A,B,C] [--output NAME.json]

A launch costs what the graph of all launches up to it takes longer than the graph without it. These
graphs begin by restoring what whole frames leave behind, since they end in the middle of one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

from driveRT_ros.bench.contenders import in_turn  # noqa: E402
from driveRT_ros.bench.frames import load_frames, network_tensors  # noqa: E402
from driveRT_ros.bench.timing import clocks  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.cuda import Launch  # noqa: E402
from driveRT_ros.core.gpu.backbone import SparseBackbone  # noqa: E402
from driveRT_ros.core.gpu.replay import captured, replay_times  # noqa: E402
from driveRT_ros.core.plan import default_plan  # noqa: E402


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the real frames")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--frames", default="A,B,C", help="in this order")
    parser.add_argument("--precision", default="fp32", help="of the default Plan")
    parser.add_argument("--samples", type=int, default=15, help="of each graph")
    parser.add_argument("--replays", type=int, default=10, help="in a sample")
    return parser.parse_args()


def part(backbone: SparseBackbone, launches: Sequence[Launch]) -> Callable[[], None]:
    """Return a function that enqueues the start of a frame, one launch after the other."""

    def work() -> None:
        backbone.maps.arena.restore()
        backbone.maps.arena.clear()
        for launch in launches:
            launch()

    return work


def regions(backbone: SparseBackbone) -> dict[str, Callable[[], None]]:
    """Return what is timed: up to each launch, all maps, all that convolutions need, a frame."""
    maps, first = backbone.maps, next(iter(backbone.stages.values()))
    everything = (*maps.map_launches, *maps.voxel_launches, *first)
    names = ["clear", *(launch.kernel.name for launch in everything)]
    found = {f"{i} {name}": part(backbone, everything[:i]) for i, name in enumerate(names)}

    def whole(*launches: Launch) -> Callable[[], None]:
        return in_turn(maps.arena.clear, *launches)

    found["maps"] = whole(*maps.map_launches)
    found["maps, voxels, input"] = whole(*everything)
    found["frame"] = backbone.run
    return found


def main() -> None:
    """Print one table a frame."""
    options = arguments()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no CUDA device; this benchmark needs one.")
    config, device = LidarConfig(), torch.device("cuda", 0)
    capability = torch.cuda.get_device_capability(device)
    plan = default_plan(config.model.channels, capability, options.precision)
    backbone = SparseBackbone(config, network_tensors(config, device), device, plan)
    graphs = {name: captured(work) for name, work in regions(backbone).items()}
    report: dict[str, Any] = {"clocks": clocks("start"), "precision": plan.precision, "frames": {}}
    for frame in load_frames(options.frames.split(","), options.data, config):
        backbone.maps.load(frame.points.cuda())
        times = {}
        for name, graph in graphs.items():
            backbone.maps.arena.restore()
            times[name] = statistics.median(replay_times(graph, options.samples, options.replays))
        steps = [(b, times[b] - times[a]) for a, b in zip(times, list(times)[1:-3])]
        totals = {name: round(times[name], 1) for name in list(times)[-3:]}
        found = {**{name: round(step, 1) for name, step in steps}, **totals}
        report["frames"][frame.name] = found
        print(f"{frame.name}:", ", ".join(f"{name} {us}" for name, us in found.items()))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main()
