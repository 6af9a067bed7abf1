"""Check, then time, the sparse engine on a GPU beside its peers: one command, one JSON file.

    python benchmarks/bench_sparse_gpu.py --data DATA --output benchmarks/results/NAME.json

Every candidate is compared with a float64 run of the same network on the same frame first; one
that fails has no time. ``benchmarks/README.md`` says what is measured and how.
"""

from __future__ import annotations

import time

_PROCESS_START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402
from peers_triton import time_triton  # noqa: E402

from driveRT_ros.bench.contenders import Ours  # noqa: E402
from driveRT_ros.bench.frames import load_frames, network_tensors  # noqa: E402
from driveRT_ros.bench.sparse import Protocol, SparseBench  # noqa: E402
from driveRT_ros.bench.timing import (  # noqa: E402
    ceilings,
    clocks,
    warm_profiler,
    write_report,
)
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.errors import DriveRTError  # noqa: E402


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the real frames")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--commit", default="", help="commit measured; by default git's")
    parser.add_argument("--frames", default="A,B,C,S10,S1", help="in this order")
    parser.add_argument("--precisions", default="fp32", help="of ours, by comma")
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


def made(options: argparse.Namespace) -> SparseBench:
    """Return the candidates: every precision with its default Plan, then the Plans named."""
    plans: list[tuple[str, Path | None]] = [(p, None) for p in options.precisions.split(",")]
    for text in options.plan:
        precision, path = text.split("=", 1)
        plans.append((precision, Path(path)))
    protocol = Protocol(options.rounds, options.samples, options.replays)
    peers = list(filter(None, options.peers.split(",")))
    return SparseBench(LidarConfig(), plans, peers, protocol, options.commit)


# ---- start-up -----------------------------------------------------------------------------------


def start(options: argparse.Namespace) -> None:
    """Print how long this process took from its start to the first frame, as JSON."""
    imported = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    context = time.perf_counter()
    config = LidarConfig()
    first = next(load_frames(options.frames.split(","), options.data, config))
    tensors, points = network_tensors(config, torch.device("cuda", 0)), first.points.cuda()
    torch.cuda.synchronize()
    ready = time.perf_counter()
    ours = Ours("ours fp32", "fp32", config, tensors).backbone
    built = time.perf_counter()
    ours.enqueue(points)
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

    bench = made(options)

    def told(part: str) -> None:
        write_report(bench.report, options.output)
        print(f"{time.perf_counter() - begin:6.1f} s  {part}", flush=True)

    report = bench.report
    told("candidates made")
    report["start"] = time_starts(options)
    report["ceilings"] = ceilings()
    told("starts and ceilings")
    frames = []
    for frame in load_frames(options.frames.split(","), options.data, bench.config):
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
    write_report(report, options.output)
    print(short_table(report))


if __name__ == "__main__":
    try:
        with torch.no_grad():
            main()
    except DriveRTError as error:
        sys.exit(str(error))
