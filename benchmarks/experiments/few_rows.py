"""Check, then time, every fp32 candidate on the wide layers of few rows, beside cuBLAS.

    python benchmarks/experiments/few_rows.py [--data DATA] [--frames B,C] [--output NAME.json]

One layer with random operands, as a frame runs it: the convolution and, where taps are divided into
groups, the sum of the groups. Every candidate is compared with float64 and run twice for equal
bytes first. Then all candidates and cuBLAS (fp32, one product of as many operations) take turns:
ten layers in one graph, median over the rounds. The ratio is over cuBLAS.

The JSON file is written after each layer and before each candidate, whose name is its ``at``: where
a fault ends the process, it says which one was at hand and has the layers before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]

import torch  # noqa: E402
from bench_conv_mma import LAUNCHES, Layer, Maps, sources_of  # noqa: E402

from driveRT_ros.bench.frames import load_frames  # noqa: E402
from driveRT_ros.bench.timing import clocks, machine  # noqa: E402
from driveRT_ros.core.candidates import candidates  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.cuda import Kernel, Launch, device_arch  # noqa: E402
from driveRT_ros.core.errors import DriveRTError  # noqa: E402
from driveRT_ros.core.gpu.frame_maps import FrameMaps  # noqa: E402
from driveRT_ros.core.gpu.replay import captured, replay_times  # noqa: E402
from driveRT_ros.core.kernel_args import struct_value  # noqa: E402
from driveRT_ros.core.nvrtc import compile_cubin  # noqa: E402
from driveRT_ros.core.plan import default_plan, domain_layers  # noqa: E402
from driveRT_ros.core.tactics import ConvTactic  # noqa: E402
from driveRT_ros.core.tuner import describe  # noqa: E402

LAYERS = ("spconv4", "spconv5", "subm5", "spconv6", "subm6")
TOLERANCE = {"F64": 3e-7, "FFMA": 2e-6}
"""Of the largest output."""
ROUNDS, REPLAYS, SHOWN = 7, 10, 10


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("DRIVERT_DATA", REPO.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=data, help="folder of the real frames")
    parser.add_argument("--frames", default="B,C", help="in this order, by comma")
    parser.add_argument("--layers", default=",".join(LAYERS), help="by comma")
    parser.add_argument("--all", action="store_true", help="print every candidate, not the best")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


class Report:
    """What was measured so far, and what is at hand.

    Args:
        path: JSON file; None writes nothing.
        values: What the file begins with.
    """

    def __init__(self, path: Path | None, values: dict[str, Any]) -> None:
        self._path = path
        self.values: dict[str, Any] = {**values, "at": None, "runs": []}

    def at(self, where: str, doing: str, tactic: str, *, save: bool = True) -> None:
        """Say what comes next."""
        self.values["at"] = {"layer": where, "doing": doing, "tactic": tactic}
        if save:
            self.save()

    def add(self, run: dict[str, Any]) -> None:
        """Keep the results of a layer."""
        self.values["runs"].append(run)
        self.values["at"] = None
        self.save()

    def save(self) -> None:
        """Write the file."""
        if self._path:
            self._path.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")


class Run:
    """One candidate on one layer, several times in a row."""

    def __init__(
        self, layer: Layer, tactic: ConvTactic, maps: FrameMaps, part: torch.Tensor
    ) -> None:
        domain = maps.domains[layer.name]
        sizes = (layer.c_in, layer.c_out, layer.taps)
        self.layer, self.part = layer, part
        self.out = torch.empty(domain.shape.row_capacity, layer.c_out, device="cuda")
        self.weight, scale = tactic.pack(layer.weight)
        self.tickets = torch.zeros(LAUNCHES, dtype=torch.int32, device="cuda")
        partial = tactic.groups > 1
        self.fields: dict[str, Any] = {
            "x": layer.x, "weight": self.weight, "bias": None if partial else layer.bias,
            "residual": None if partial else layer.residual, "out": part if partial else self.out,
            "order": domain.order, "table": domain.table, "tile_mask": domain.tile_mask,
            "tile_rank": domain.tile_rank, "n_tiles": domain.counts,
            "group_taps": domain.shape.group_taps, "relu": int(not partial),
        }  # fmt: skip
        if tactic.kind == "tensor_cores":
            self.fields |= {"x_scale": 1.0, "out_scale": 1.0 / scale}
        kernel = Kernel(
            tactic.kernel, tactic.kernel, tactic.defines(*sizes),
            shared_bytes=tactic.shared_bytes(*sizes),
        )  # fmt: skip
        grid = min(domain.shape.tile_capacity, maps.multiprocessors * tactic.min_blocks)
        self.launches: list[Launch] = []
        finish = finishing(layer, maps, tactic, part, self.out) if partial else None
        for ticket in self.tickets.split(1):
            value = struct_value(*tactic.parameters, {**self.fields, "ticket": ticket})
            self.launches.append(
                kernel.bind(grid, tactic.threads(layer.c_out), value, dependent=True)
            )
            if finish:
                self.launches.append(finish)

    def __call__(self) -> None:
        """Launch it as often as a graph holds it."""
        self.tickets.zero_()
        for launch in self.launches:
            launch()

    def error(self, expected: torch.Tensor) -> float:
        """Return the largest error over the largest output; infinite where a check fails."""
        results = []
        for _ in range(2):
            self.out.fill_(torch.nan)
            self.part.fill_(torch.nan)
            self()
            results.append(self.out[: self.layer.rows].clone())
        same = torch.equal(*(result.view(torch.int32) for result in results))
        if not same or bool(results[0].isnan().any()):
            return float("inf")
        return float((results[0].double() - expected).abs().max() / expected.abs().max())


def finishing(
    layer: Layer, maps: FrameMaps, tactic: ConvTactic, part: torch.Tensor, out: torch.Tensor
) -> Launch:
    """Return the launch that adds the groups of taps."""
    domain = maps.domains[layer.name]
    fields = {
        "part": part, "mask": domain.mask, "bias": layer.bias, "residual": layer.residual,
        "out": out, "group_taps": domain.shape.group_taps, "relu": 1,
    }  # fmt: skip
    defines = {"GROUPS": tactic.groups, "COUT": layer.c_out, "HALF": 0}
    value = struct_value("epilogue.cu", "Finish", fields)
    kernel = Kernel("epilogue", "finish_groups", defines)
    level = maps.level_values[domain.shape.out_level]
    return kernel.bind(maps.multiprocessors * 8, 256, level, value, dependent=True)


def cublas(layer: Layer) -> torch.cuda.CUDAGraph:
    """Return as many products of as many operations, in fp32."""
    inner = max(8, round(layer.pairs / layer.rows * layer.c_in / 8) * 8)
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(layer.rows, inner, device="cuda")
    b = torch.randn(inner, layer.c_out, device="cuda")
    out = torch.empty(layer.rows, layer.c_out, device="cuda")

    def work() -> None:
        for _ in range(LAUNCHES):
            torch.mm(a, b, out=out)

    return captured(work)


def compile_all(choices: dict[str, tuple[ConvTactic, ...]], layers: dict[str, Any]) -> None:
    """Compile every candidate ahead, side by side; a fault shows where the candidate runs."""
    arch = device_arch(0)
    jobs = {
        (tactic.kernel, tuple(sorted(tactic.defines(*layers[name]).items())))
        for name, tactics in choices.items()
        for tactic in tactics
    }

    def compile_one(job: tuple[str, Any]) -> None:
        try:
            compile_cubin(job[0], arch, dict(job[1]))
        except DriveRTError:
            return

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        list(threads.map(compile_one, jobs))


def bench(
    layer: Layer, maps: Maps, tactics: tuple[ConvTactic, ...], report: Report, where: str
) -> list[dict[str, Any]]:
    """Check and time the candidates of one layer; the first record is of cuBLAS.

    Raises:
        RuntimeError: If a candidate ended the work of the device: no other can run after it.
    """
    expected = layer.expected("F64")
    groups = max(tactic.groups for tactic in tactics)
    capacity = maps.get(3, 64).domains[layer.name].shape.row_capacity
    part = torch.empty(groups * capacity, layer.c_out, device="cuda")
    report.at(where, "capture", "cuBLAS")
    graphs = {"cuBLAS": cublas(layer)}
    records: list[dict[str, Any]] = [{"tactic": "cuBLAS", "error": None}]
    for tactic in tactics:
        name = describe(tactic)
        report.at(where, "check", name)
        try:
            run = Run(layer, tactic, maps.get(tactic.groups, tactic.tile_rows), part)
            error = run.error(expected)
        except (DriveRTError, RuntimeError) as fault:
            torch.cuda.synchronize()  # raises where nothing can run any more
            records.append({"tactic": name, "error": None, "fault": str(fault)})
            continue
        records.append({"tactic": name, "error": error})
        if error <= TOLERANCE[tactic.arithmetic]:
            graphs[name] = captured(run)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS):
        for name, graph in graphs.items():
            report.at(where, "replay", name, save=turn == 0)
            times[name] += replay_times(graph, 1, REPLAYS)
    medians = {name: statistics.median(found) / LAUNCHES for name, found in times.items()}
    for record in records:
        record["us"] = medians.get(record["tactic"])
    return records


def show(where: str, records: list[dict[str, Any]], default: str, every: bool) -> None:
    """Print the best candidates, the default and whatever is wrong."""
    base, *rest = records
    timed = sorted((r for r in rest if r["us"] is not None), key=lambda r: r["us"])
    print(
        f"\n{where}, cuBLAS {base['us']:.1f} us, {len(timed)} of {len(rest)} candidates are right"
    )
    for number, record in enumerate(timed):
        is_default = record["tactic"] == default
        if every or number < SHOWN or is_default:
            ratio, mark = record["us"] / base["us"], " <- default" if is_default else ""
            print(f"  {record['us']:7.1f} us {ratio:5.2f}  {record['tactic']}{mark}")
    for record in rest:
        if record["us"] is None:
            why = record.get("fault") or f"error {record['error']:.1e}"
            print(f"  WRONG  {record['tactic']}: {why[:150]}")
    sys.stdout.flush()


def main() -> None:
    """Run it; where it ends early, say at which candidate."""
    options = arguments()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no CUDA device; this benchmark needs one.")
    report = Report(options.output, {"machine": machine(), "clocks": clocks("start")})
    try:
        bench_all(options, report)
    except BaseException:
        report.save()
        print(f"ended at {report.values['at']}", file=sys.stderr)
        raise


def bench_all(options: argparse.Namespace, report: Report) -> None:
    """Print one table a layer and frame."""
    config, capability = LidarConfig(), torch.cuda.get_device_capability()
    channels, names = config.model.channels, options.layers.split(",")
    plan, layers = default_plan(channels, capability), domain_layers(channels)
    choices = {
        name: (plan.tactics[name], *candidates(*layers[name], "fp32", capability)) for name in names
    }
    choices = {name: tuple(dict.fromkeys(tactics)) for name, tactics in choices.items()}
    compile_all(choices, layers)
    for frame in load_frames(options.frames.split(","), options.data, config):
        maps = Maps(config, frame.points)
        base = maps.get(3, 64)
        for name in names:
            domain = base.domains[name]
            rows = int(base.levels[domain.shape.out_level].counts[1])
            in_rows = int(base.levels[domain.shape.in_level].counts[1])
            layer = Layer(name, sources_of(domain, rows), in_rows, *layers[name][:2])
            where = f"{name} of frame {frame.name}: {rows} rows, {layer.flops / 1e9:.2f} GFLOP"
            records = bench(layer, maps, choices[name], report, where)
            show(where, records, describe(plan.tactics[name]), options.all)
            report.add({"frame": frame.name, "layer": name, "candidates": records})


if __name__ == "__main__":
    with torch.no_grad():
        main()
