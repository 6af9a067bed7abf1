"""Check, then time, the sparse engine on a GPU beside its peers: one command, one JSON file.

    python benchmarks/bench_sparse_gpu.py --data DATA --output benchmarks/results/NAME.json

Every candidate is compared with a float64 run of the same network on the same frame first; one
that fails has no time. ``benchmarks/README.md`` says what is measured and how.
"""

from __future__ import annotations

import time

_PROCESS_START = time.perf_counter()

import argparse  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from candidates import EqualProducts, Ours, Peer  # noqa: E402
from inputs import (  # noqa: E402
    Frame,
    distinct_voxels,
    load_frames,
    network_tensors,
    voxels_of,
)
from networks import TorchNetwork, stages_of  # noqa: E402
from peers_spconv import ALGORITHMS, PRECISIONS, spconv_peers  # noqa: E402
from peers_triton import time_triton  # noqa: E402
from timing import (  # noqa: E402
    captured,
    ceilings,
    clocks,
    machine,
    replay_times,
    summary,
    warm_profiler,
)

from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.plan import Plan  # noqa: E402
from driveRT_ros.models.graph import build_graph  # noqa: E402

EAGER_RUNS = 6  # a round
PROFILED_RUNS = 10


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the real frames")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--commit", default="", help="commit measured; by default git's")
    parser.add_argument("--frames", default="A,B,C,S10,S1", help="in this order")
    parser.add_argument("--peers", default="spconv,torch,cublas,triton", help="empty for none")
    parser.add_argument("--rounds", type=int, default=4, help="interleaved rounds")
    parser.add_argument("--samples", type=int, default=6, help="of a graph in a round")
    parser.add_argument("--replays", type=int, default=10, help="of a graph in a sample")
    parser.add_argument("--triton-seconds", type=float, default=60, help="limit of spconv-triton")
    parser.add_argument(
        "--plan", action="append", default=[], help="PRECISION=PATH of a further Plan to time"
    )
    parser.add_argument("--start", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


class Bench:
    """The candidates and the report that grows with every frame."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.config = options, LidarConfig()
        self.wanted = set(filter(None, options.peers.split(",")))
        self.tensors = network_tensors(self.config)
        oracle = {name: tensor.double() for name, tensor in self.tensors.items()}
        self.oracle = TorchNetwork(self.config, oracle)
        self.ours = self._our_candidates()
        self.peers = self._peers()
        self.report: dict[str, Any] = {
            **machine(options.commit),
            "protocol": {
                "rounds": options.rounds,
                "graph_samples": options.rounds * options.samples,
                "replays_a_sample": options.replays,
                "eager_runs": options.rounds * EAGER_RUNS,
                "profiled_runs": PROFILED_RUNS,
            },
            "clocks": [clocks("start")],
            "frames": {},
        }

    def _our_candidates(self) -> list[Ours]:
        found = [Ours("ours fp32", "fp32", self.config, self.tensors)]
        for text in self.options.plan:
            precision, path = text.split("=", 1)
            name = f"ours {precision} ({Path(path).stem})"
            found.append(Ours(name, precision, self.config, self.tensors, Plan.load(path)))
        return found

    def _peers(self) -> list[Peer]:
        found = []
        if "spconv" in self.wanted:
            found += spconv_peers("spconv", PRECISIONS, ALGORITHMS, self.config, self.tensors)
        if "torch" in self.wanted:
            make = functools.partial(TorchNetwork, self.config, self.tensors)
            found.append(Peer("torch fp32 gather-product-scatter", "fp32", make))
        return found

    def write(self) -> None:
        """Write the report so far."""
        partial = self.options.output.with_suffix(".part")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.options.output)

    def time_frame(self, frame: Frame) -> None:
        """Check all candidates on one frame and time those that pass, in turns."""
        voxels, points = voxels_of(frame.points, self.config), frame.points.cuda()
        self.oracle.load(voxels)
        self.oracle.run()
        want = self.oracle.outputs()
        rows = [len(want[f"subm{n}"][0]) for n in range(1, 7)]
        if frame.rows and rows != list(frame.rows):
            sys.exit(f"Frame {frame.name} has rows {rows}, the table says {list(frame.rows)}.")
        ours = [c for c in self.ours if c.prepare(points, want)]
        peers = [p for p in self.peers if p.prepare(voxels, want)]
        stages, maps = stages_of(build_graph(self.config.model)), self.oracle.maps.by_key
        precisions = PRECISIONS if "cublas" in self.wanted else ()
        products = [EqualProducts(maps, stages, precision) for precision in precisions]
        found = {
            "source": frame.source,
            "points": len(frame.points),
            "rows": [*rows, len(want["bev"][0]), len(want["subm_out"][0])],
            "candidates": {},
        }
        self.report["frames"][frame.name] = found
        sample = functools.partial(_sample, self.options)
        for turn in range(self.options.rounds):
            everyone = [*ours, *peers, *products]
            # There and back: what drifts during a round meets everyone alike.
            for candidate in everyone if turn % 2 == 0 else reversed(everyone):
                sample(candidate)
            if turn == 0:
                self.report["clocks"].append(clocks(f"frame {frame.name}"))
        for candidate in (*self.ours, *self.peers, *products):
            found["candidates"][candidate.name] = candidate.result()

    def profile_frame(self, frame: Frame) -> None:
        """Add kernel sums; the profiler may slow what runs after it, so this comes last."""
        voxels, points = voxels_of(frame.points, self.config), frame.points.cuda()
        found = self.report["frames"][frame.name]["candidates"]
        for candidate in (*self.ours, *self.peers):
            if "absent" not in found[candidate.name]:
                source = points if isinstance(candidate, Ours) else voxels
                found[candidate.name].update(candidate.profile(source, PROFILED_RUNS))

    def time_edges(self) -> dict[str, Any]:
        """Time our engine on clouds that peers refuse: none, one, and more than fit."""
        capacity = self.config.voxelization.max_voxels
        ours, found = self.ours[0].backbone, {}
        graph = captured(ours.run)
        for voxels in (0, 1, capacity + 1):
            points = distinct_voxels(voxels, self.config.voxelization).cuda()
            ours.maps.load(points)
            times = replay_times(graph, self.options.samples, self.options.replays)
            found[str(voxels)] = {
                "graph_us": summary(times),
                "overflow": {name: list(pair) for name, pair in ours.maps.overflow().items()},
            }
        return found


def _sample(options: argparse.Namespace, candidate: Ours | Peer | EqualProducts) -> None:
    if isinstance(candidate, Peer):
        candidate.sample(EAGER_RUNS)
    else:
        candidate.sample(options.samples, options.replays)


# ---- start-up -----------------------------------------------------------------------------------


def start(options: argparse.Namespace) -> None:
    """Print how long this process took from its start to the first frame, as JSON."""
    imported = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    context = time.perf_counter()
    config = LidarConfig()
    first = next(load_frames(options.data, options.frames.split(","), config))
    tensors, points = network_tensors(config), first.points.cuda()
    torch.cuda.synchronize()
    ready = time.perf_counter()
    ours = Ours("ours fp32", "fp32", config, tensors).backbone
    built = time.perf_counter()
    ours.maps.load(points)
    ours.run()
    ours.rows()
    done = time.perf_counter()
    seconds = {
        "import_s": imported - _PROCESS_START,
        "context_s": context - imported,
        "weights_and_points_s": ready - context,
        "compile_and_bind_s": built - ready,
        "first_frame_s": done - built,
        "engine_s": done - ready,
        "process_s": done - _PROCESS_START,
    }
    print(json.dumps({name: round(value, 3) for name, value in seconds.items()}))


def time_starts(options: argparse.Namespace) -> dict[str, Any]:
    """Start the engine in a process of its own with an empty cache, then with a full one."""
    command = [sys.executable, __file__, "--start", "--data", str(options.data), "--output", "-"]
    command += ["--frames", options.frames]
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        for name in ("cold", "warm"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            lines = done.stdout.strip().splitlines()
            if done.returncode or not lines:
                found[name] = {"absent": done.stderr.strip()[-300:]}
            else:
                found[name] = json.loads(lines[-1])
    return found


# ---- all of it ----------------------------------------------------------------------------------


def short_table(report: dict[str, Any]) -> str:
    """Return one line a candidate: medians in microseconds by frame."""
    names = list(report["frames"])
    lines = [
        f"{'median us: graph | kernels | events | wall':50}" + "".join(f"{n:>36}" for n in names)
    ]
    everyone = {c: None for f in report["frames"].values() for c in f["candidates"]}
    for name in everyone:
        cells = []
        for frame in report["frames"].values():
            found = frame["candidates"].get(name, {"absent": ""})
            if "absent" in found:
                cells.append(found["absent"][:34])
                continue
            graph = found.get("graph_us", {})
            if "wall_us" not in found:  # products
                cells.append(f"{sum(t['median'] for t in graph.values()):.0f} in all stages")
                continue
            kernels = found.get("kernels_us", {}).get("total", {}).get("median", float("nan"))
            cells.append(
                f"{graph.get('frame', {}).get('median', float('nan')):.0f} | {kernels:.0f} | "
                f"{found['eager_us']['median']:.0f} | {found['wall_us']['median']:.0f}"
                f" {max(found['error'].values()):.0e}"
            )
        lines.append(f"{name[:49]:50}" + "".join(f"{cell:>36}" for cell in cells))
    for name, frame in report["frames"].items():
        ours = next(iter(frame["candidates"].values()))
        if "absent" not in ours:
            stages = ", ".join(f"{s} {t['median']:.0f}" for s, t in ours["graph_us"].items())
            lines.append(f"{name}: {stages}; work {ours['executed_over_useful']['all']}")
    lines.append(f"start: {report.get('start')}; edges: {report.get('edges')}")
    return "\n".join(lines)


def main() -> None:
    """Measure everything and write the report after each part."""
    options = arguments()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no CUDA device; this benchmark needs one.")
    if options.start:
        start(options)
        return
    begin = time.perf_counter()

    def told(part: str) -> None:
        bench.write()
        print(f"{time.perf_counter() - begin:6.1f} s  {part}", flush=True)

    bench = Bench(options)
    report = bench.report
    told("candidates made")
    report["start"] = time_starts(options)
    report["ceilings"] = ceilings()
    told("starts and ceilings")
    frames = []
    for frame in load_frames(options.data, options.frames.split(","), bench.config):
        frames.append(frame)
        bench.time_frame(frame)
        told(f"frame {frame.name}")
    report["edges"] = bench.time_edges()
    told("edges")
    if "triton" in bench.wanted:
        names = [name for name in ("C", "B", "A") if name in report["frames"]]
        found = time_triton(options.data, names, options.triton_seconds) if names else {}
        for name, results in found.items():
            report["frames"][name]["candidates"].update(results)
        told("spconv-triton")
    warm_profiler()
    for frame in frames:
        bench.profile_frame(frame)
        told(f"profile of frame {frame.name}")
    report["clocks"].append(clocks("end"))
    report["seconds"] = round(time.perf_counter() - begin, 1)
    bench.write()
    print(short_table(report))


if __name__ == "__main__":
    with torch.no_grad():
        main()
