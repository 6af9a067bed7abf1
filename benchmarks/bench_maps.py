"""Time every launch that builds the maps and voxel features of a frame, by what it adds to a graph.

    python benchmarks/bench_maps.py [--data DATA] [--frames C] [--json] [--output NAME.json]

Without the real frames, the simulated one of the same size. A launch costs what the graph of all
launches up to it takes longer than the graph without it; these graphs begin by restoring what whole
frames leave behind, since they end in the middle of one. ``maps`` is one graph of all of them, as a
frame has it. Graphs are sampled in turns. The digest tells whether two versions of the kernels make
the same levels, masks and tiles: it covers all that does not depend on the order of the threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

from driveRT_ros.bench.frames import load_frames, present  # noqa: E402
from driveRT_ros.bench.timing import clocks, machine  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.cuda import Launch  # noqa: E402
from driveRT_ros.core.gpu.frame_maps import FrameMaps  # noqa: E402
from driveRT_ros.core.gpu.replay import captured, replay_times  # noqa: E402
from driveRT_ros.core.plan import default_plan  # noqa: E402

Work = Callable[[], None]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("DRIVERT_DATA", REPO.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=data, help="folder of the real frames")
    parser.add_argument("--frames", default="C", help="in this order, by comma")
    parser.add_argument("--precision", default="fp32", help="of the default Plan")
    parser.add_argument("--samples", type=int, default=30, help="of each graph")
    parser.add_argument("--replays", type=int, default=10, help="in a sample")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="JSON file to write as well")
    return parser.parse_args()


def in_turn(*steps: Work) -> Work:
    """Return a function that takes the steps one after the other."""

    def work() -> None:
        for step in steps:
            step()

    return work


def regions(maps: FrameMaps) -> tuple[dict[str, Work], dict[str, Work]]:
    """Return the starts of a frame, each a launch longer, and what is timed as a whole."""
    launches: Sequence[Launch] = (*maps.map_launches, *maps.voxel_launches)
    names = ["clear", *(launch.kernel.name for launch in launches)]
    starts = {"": maps.arena.restore}
    for i, name in enumerate(names):
        starts[name] = in_turn(maps.arena.restore, maps.arena.clear, *launches[:i])
    wholes = {
        "levels": in_turn(maps.arena.restore, maps.arena.clear, *maps.map_launches[:3]),
        "maps": in_turn(maps.arena.clear, *maps.map_launches),
        "maps and voxels": in_turn(maps.arena.clear, *launches),
    }
    return starts, wholes


def sample(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int, replays: int) -> dict[str, float]:
    """Return the median microseconds of each graph, sampled in turns."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name] += replay_times(graph, 1, replays)
    return {name: statistics.median(found) for name, found in times.items()}


def digest(maps: FrameMaps) -> str:
    """Return a checksum of levels, masks and tiles; groups of all taps keep their tiles out."""
    crc = 0

    def add(tensor: torch.Tensor) -> None:
        nonlocal crc
        crc = zlib.crc32(tensor.contiguous().cpu().numpy().tobytes(), crc)

    rows = [min(int(level.counts[1]), level.shape.row_capacity) for level in maps.levels]
    for level, count in zip(maps.levels, rows):
        add(level.counts)
        add(level.coords_zyx[:count])
    for domain in maps.domains.values():
        add(domain.mask[: rows[domain.shape.out_level]])
        if domain.shape.group_taps <= 9:
            add(domain.counts)
            add(domain.tile_mask[: min(int(domain.counts[0]), domain.shape.tile_capacity)])
    return f"{crc:08x}"


def measure(maps: FrameMaps, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each launch adds, the totals and the digest of the frame that is loaded."""
    starts, wholes = regions(maps)
    graphs = {name: captured(work) for name, work in starts.items()}
    times = sample(graphs, options.samples, options.replays)
    steps = {b: round(times[b] - times[a], 1) for a, b in zip(times, list(times)[1:])}
    maps.arena.restore()
    graphs = {name: captured(work) for name, work in wholes.items()}
    totals = sample(graphs, options.samples, options.replays)
    totals["levels"] -= times[""]
    return {
        "rows": [int(level.counts[1]) for level in maps.levels],
        "launches": steps,
        **{name: round(us, 1) for name, us in totals.items()},
        "digest": digest(maps),
    }


def main() -> None:
    """Print one table a frame, or JSON."""
    options = arguments()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no CUDA device; this benchmark needs one.")
    config, device = LidarConfig(), torch.device("cuda", 0)
    names = options.frames.split(",")
    if any(name in "ABC" and name not in present(options.data) for name in names):
        print(f"No real frames in '{options.data}': S10 is simulated.", file=sys.stderr)
        names = ["S10"]
    capability = torch.cuda.get_device_capability(device)
    plan = default_plan(config.model.channels, capability, options.precision)
    maps = FrameMaps(config, plan, device)
    report: dict[str, Any] = {
        "machine": machine(),
        "clocks": clocks("start"),
        "precision": plan.precision,
        "frames": {},
    }
    for frame in load_frames(names, options.data, config):
        maps.load(frame.points.cuda())
        found = measure(maps, options)
        report["frames"][frame.name] = found
        if not options.json:
            print(f"{frame.name}: {found['rows'][0]} voxels, digest {found['digest']}")
            for name, us in (*found["launches"].items(), *list(found.items())[2:-1]):
                print(f"  {name:16} {us:7.1f} us")
    text = json.dumps(report, indent=1)
    if options.json:
        print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main()
