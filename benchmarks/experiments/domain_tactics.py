"""Check, then time, other tactics beside the default of each domain; then whole frames.

    python benchmarks/experiments/domain_tactics.py [--data DATA] [--frames C,B,A]
        [--precision fp16] [--domains subm3,subm4] [--all] [--seconds 110] [--plan PLAN.json]
        [--output RESULTS.json]

One layer with random operands, as a frame runs it: dependent launches, the sum of tap groups
included. Each candidate is compared with float64 and run twice for equal bytes first, then all take
turns: ten layers in one graph, median over the rounds. The best of the first frame are put into one
Plan, and each frame is timed under it and under the default: maps of one group of taps take longer,
which no layer shows. With ``--all`` every candidate of the tuner runs, not those in three planes
alone; those that stage rows run with tiles in a fixed order too. No layer begins once the seconds
are over; it keeps its default.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]

import torch  # noqa: E402
from bench_conv_mma import (  # noqa: E402
    LAUNCHES,
    TOLERANCE,
    Layer,
    Maps,
    Run,
    sorted_tables,
    sources_of,
)
from few_rows import compile_all  # noqa: E402

from driveRT_ros.bench.frames import Frame, load_frames, network_tensors  # noqa: E402
from driveRT_ros.bench.timing import clocks, machine  # noqa: E402
from driveRT_ros.core.candidates import candidates  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.errors import DriveRTError  # noqa: E402
from driveRT_ros.core.gpu.backbone import SparseBackbone  # noqa: E402
from driveRT_ros.core.gpu.replay import captured, replay_times  # noqa: E402
from driveRT_ros.core.plan import Plan, default_plan, domain_layers  # noqa: E402
from driveRT_ros.core.sparse_conv_mma import MmaTactic  # noqa: E402
from driveRT_ros.core.tactics import ConvTactic  # noqa: E402
from driveRT_ros.core.tuner import describe  # noqa: E402
from driveRT_ros.models.graph import build_graph  # noqa: E402

ARITHMETIC = {"fp16": "F16", "tf32": "TF32", "fp32x3": "F16X3", "fp32": "F64"}
ROUNDS, REPLAYS, SHOWN = 5, 10, 8
Times = dict[str, dict[ConvTactic, float]]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("DRIVERT_DATA", REPO.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=data, help="folder of the real frames")
    parser.add_argument("--frames", default="C,B,A", help="by comma; the first chooses the Plan")
    parser.add_argument("--precision", choices=ARITHMETIC, default="fp16")
    parser.add_argument("--domains", help="by comma; all of them if not given")
    parser.add_argument("--all", action="store_true", help="every candidate of the tuner")
    parser.add_argument("--seconds", type=float, default=110, help="after which no layer begins")
    parser.add_argument("--plan", type=Path, help="file for the Plan of the winners")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def choices_of(
    options: argparse.Namespace, default: Plan, capability: tuple[int, int]
) -> dict[str, tuple[ConvTactic, ...]]:
    """Return the default and the candidates of every domain in the arithmetic of the precision."""
    layers = domain_layers(LidarConfig().model.channels)
    choices = {}
    for name in options.domains.split(",") if options.domains else layers:
        layer = layers[name]
        others = [
            tactic
            for tactic in candidates(*layer, options.precision, capability)
            if tactic.arithmetic == ARITHMETIC[options.precision]
            and (options.all or tactic.groups == 3)
        ]
        found: list[ConvTactic] = []
        for tactic in (default.tactics[name], *others):
            found.append(tactic)
            if isinstance(tactic, MmaTactic) and tactic.stages_rows:
                found.append(dataclasses.replace(tactic, folded=True))
        choices[name] = tuple(dict.fromkeys(found))
    return choices


def bench_layer(
    layer: Layer, maps: Maps, tactics: tuple[ConvTactic, ...], arithmetic: str
) -> tuple[dict[ConvTactic, float], list[dict[str, Any]]]:
    """Check and time the candidates of one layer; return microseconds of those that are right."""
    expected = layer.expected(arithmetic)
    graphs, records = {}, []
    for tactic in tactics:
        made = maps.get(tactic.groups, tactic.tile_rows)
        tables = sorted_tables(made.domains[layer.name])
        record: dict[str, Any] = {"tactic": describe(tactic), "executed": tables.executed}
        records.append(record)
        try:
            run = Run(layer, tactic, tables, made)
            record["error"] = run.error(expected)
        except (DriveRTError, RuntimeError) as fault:
            torch.cuda.synchronize()  # raises where nothing can run any more
            record["fault"] = str(fault)
            continue
        if record["error"] <= TOLERANCE[arithmetic]:
            graphs[tactic] = captured(run)
    samples: dict[ConvTactic, list[float]] = {tactic: [] for tactic in graphs}
    for _ in range(ROUNDS):
        for tactic, graph in graphs.items():
            samples[tactic] += replay_times(graph, 1, REPLAYS)
    times = {tactic: statistics.median(found) / LAUNCHES for tactic, found in samples.items()}
    for tactic, record in zip(tactics, records):
        record["us"] = times.get(tactic)
    return times, records


def show(title: str, records: list[dict[str, Any]], cublas: float) -> None:
    """Print the default, the best and whatever is wrong; the default is the first record."""
    default, timed = records[0], [r for r in records if r.get("us") is not None]
    print(f"\n{title}, cuBLAS {cublas:.1f} us, {len(timed)} of {len(records)} are right")
    for record in sorted(timed, key=lambda r: r["us"])[:SHOWN] + [default] * ("us" in default):
        mark = " <- default" if record is default else ""
        us = record["us"] if record["us"] is not None else float("nan")
        print(f"  {us:7.1f} us  executed {record['executed']:.2f}  {record['tactic']}{mark}")
    for record in records:
        if record.get("us") is None:
            why = record.get("fault") or f"error {record['error']:.1e}"
            print(f"  WRONG  {record['tactic']}: {why[:150]}")
    sys.stdout.flush()


def bench_frame(
    frame: Frame,
    config: LidarConfig,
    choices: dict[str, tuple[ConvTactic, ...]],
    arithmetic: str,
    end: float,
) -> tuple[Times, list[dict[str, Any]]]:
    """Time the domains of a frame, those with most layers and work first."""
    maps, layers = Maps(config, frame.points), domain_layers(config.model.channels)
    base, times, runs = maps.get(3, 64), {}, []
    for name in sorted(choices, key=lambda name: (name[:4] != "subm", name)):
        if time.monotonic() > end:
            print(f"out of time before {name} of frame {frame.name}")
            break
        domain = base.domains[name]
        rows, in_rows = (
            int(base.levels[level].counts[1])
            for level in (domain.shape.out_level, domain.shape.in_level)
        )
        layer = Layer(name, sources_of(domain, rows), in_rows, *layers[name][:2])
        cublas = layer.cublas_us(arithmetic)
        times[name], records = bench_layer(layer, maps, choices[name], arithmetic)
        title = f"{name} of frame {frame.name}: {rows} rows, {layer.flops / 1e9:.2f} GFLOP"
        show(title, records, cublas)
        runs.append(
            {"frame": frame.name, "layer": name, "cublas_us": cublas, "candidates": records}
        )
    return times, runs


def summary(config: LidarConfig, default: Plan, times: Times) -> dict[str, ConvTactic]:
    """Print what the layers of a frame take together, and the best tactic of every domain.

    Lines are written as in the table of ``core/default_tactics.py``. Returns these tactics.
    """
    graph, widths = build_graph(config.model), domain_layers(config.model.channels)
    layers = [layer for level in graph.levels for layer in level][1:] + list(graph.bev)
    best, before, after = dict(default.tactics), 0.0, 0.0
    for name, found in times.items():
        if not found:
            continue
        best[name] = min(found, key=lambda tactic: found[tactic])
        count = sum(layer.map_key == name for layer in layers)
        old = found.get(default.tactics[name], float("nan"))
        before, after = before + count * old, after + count * found[best[name]]
        line = f'("{name}", {", ".join(map(str, widths[name][:2]))}): {best[name]!r},'
        print(f"x{count} {old:7.1f} -> {found[best[name]]:7.1f} us  {line}")
    print(f"all layers {before:.0f} -> {after:.0f} us", flush=True)
    return best


def whole_frames(config: LidarConfig, frames: list[Frame], plans: dict[str, Plan]) -> list[Any]:
    """Time maps and whole backbones under each Plan, in turns."""
    device, results = torch.device("cuda", 0), []
    tensors = network_tensors(config, device)
    engines = {name: SparseBackbone(config, tensors, device, p) for name, p in plans.items()}
    for frame in frames:
        samples: dict[tuple[str, str], list[float]] = {}
        graphs = {}
        for name, engine in engines.items():
            engine.maps.load(frame.points.to(device))
            graphs[name, "frame"] = captured(engine.run)

            def maps(engine: SparseBackbone = engine) -> None:
                engine.maps.arena.clear()
                for launch in engine.maps.map_launches:
                    launch()

            graphs[name, "maps"] = captured(maps)
            engine.run()  # leaves nothing half done
        for _ in range(ROUNDS):
            for key, graph in graphs.items():
                samples.setdefault(key, []).extend(replay_times(graph, 1, REPLAYS))
        for (name, part), found in samples.items():
            us = statistics.median(found)
            print(f"frame {frame.name}, {name} Plan: {part} {us:.0f} us", flush=True)
            results.append({"frame": frame.name, "plan": name, "part": part, "us": us})
    return results


def main() -> None:
    """Run it."""
    options = arguments()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no CUDA device; this benchmark needs one.")
    end, config = time.monotonic() + options.seconds, LidarConfig()
    capability, arithmetic = torch.cuda.get_device_capability(), ARITHMETIC[options.precision]
    default = default_plan(config.model.channels, capability, options.precision)
    choices = choices_of(options, default, capability)
    compile_all(choices, domain_layers(config.model.channels))
    frames = list(load_frames(options.frames.split(","), options.data, config))
    results: dict[str, Any] = {"machine": machine(), "clocks": clocks("start"), "runs": []}
    winners: Plan | None = None
    for frame in frames:
        times, runs = bench_frame(frame, config, choices, arithmetic, end)
        results["runs"] += runs
        print(f"\nframe {frame.name}")
        best = summary(config, default, times)
        if winners is None:
            winners = dataclasses.replace(default, tactics=best, gpu=torch.cuda.get_device_name())
            plans = {"default": default, "winners": winners}
            results["frames"] = whole_frames(config, frames, plans)
            if options.plan:
                winners.save(options.plan)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main()
