"""Check, then time, every variant of the tensor-core convolution on each map of one frame.

    python benchmarks/bench_conv_mma.py --data DATA [--stages subm3,subm4] [--precisions F16]

Maps, masks and sorted tables come from the kernels of the engine; tables in spatial order, for rows
that are not staged, are made here from the same maps. A variant is compared with float64 and run
twice for equal bytes before it is timed: ten launches in one graph, twenty replays between two
events, median. Where taps are divided into groups the pass that adds them is part of the time.
cuBLAS multiplies matrices of as many operations in the same precision (F16X3 and F64: in
fp32).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from driveRT_ros.bench.frames import load_frames
from driveRT_ros.bench.timing import machine
from driveRT_ros.core.candidates import tensor_core_variants as variants
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.cuda import Kernel
from driveRT_ros.core.gpu.frame_maps import DomainBuffers, FrameMaps
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.plan import default_plan
from driveRT_ros.core.sparse_conv_mma import PARAMETERS, MmaTactic, pack_weight, round_tf32

LAUNCHES, REPLAYS = 10, 20
TOLERANCE = {"F16": 1e-3, "TF32": 2e-5, "F16X3": 1e-6, "F64": 3e-7}
"""Of the largest output, against float64 of the operands as the precision rounds them. The unit
cuts off low bits at each of some 400 sums, always towards zero; F16X3 adds up outside of it. F64
rounds once a group of taps, and the groups are added in float32."""


@dataclasses.dataclass
class Tables:
    """Tiles of one map in one order."""

    name: str
    order: torch.Tensor
    table: torch.Tensor
    tile_mask: torch.Tensor
    tile_rank: torch.Tensor | None
    n_tiles: torch.Tensor
    executed: float
    """Work of whole tiles over the work needed."""


class Maps:
    """The frame's maps for every tile height and grouping that a variant asks for."""

    def __init__(self, config: LidarConfig, points: torch.Tensor) -> None:
        self.config, self.points, self._made = config, points.cuda(), {}

    def get(self, groups: int, tile_rows: int) -> FrameMaps:
        """Return maps whose tables have these groups (one or three where there are nine taps)."""
        key = (groups, tile_rows)
        if key not in self._made:
            plan = default_plan(self.config.model.channels, torch.cuda.get_device_capability())
            tactics = {
                name: dataclasses.replace(
                    tactic,
                    groups=min(groups, 3) if name.endswith("_out") else groups,
                    tile_rows=tile_rows,
                )
                for name, tactic in plan.tactics.items()
            }
            maps = FrameMaps(
                self.config, dataclasses.replace(plan, tactics=tactics), torch.device("cuda", 0)
            )
            maps.arena.clear()
            maps.load(self.points)
            for launch in maps.map_launches:
                launch()
            torch.cuda.synchronize()
            self._made[key] = maps
        return self._made[key]


def sources_of(domain: DomainBuffers, rows: int) -> torch.Tensor:
    """Return (taps, rows) input rows or -1, read back from the tables of a map."""
    shape = domain.shape
    taps = shape.groups * shape.group_taps
    tiles = int(domain.counts[0])
    order, mask = domain.order[:tiles].long(), domain.tile_mask[:tiles].long() & 0xFFFFFFFF
    device = order.device
    found = torch.full((taps, rows), -1, dtype=torch.int32, device=device)
    slot = torch.zeros(tiles, dtype=torch.long, device=device)
    for tap in range(taps):
        used = torch.nonzero(mask >> tap & 1)[:, 0]
        named = order[used]
        there = named >= 0
        found[tap][(named % shape.row_capacity)[there]] = domain.table[used, slot[used]][there]
        slot[used] += 1
    return found


def spatial_tables(sources: torch.Tensor, tile_rows: int, window: int) -> Tables:
    """Cut rows into tiles as they lie, or sorted by taps inside windows of so many rows."""
    taps, rows = sources.shape
    device = sources.device
    present = sources >= 0
    bits = (present.long() << torch.arange(taps, device=device)[:, None]).sum(0)
    at = torch.arange(rows, device=device)
    if window > 1:
        at = at[torch.argsort(bits + (at // window << taps), stable=True)]
    tiles = -(-rows // tile_rows)
    order = torch.full((tiles * tile_rows,), -1, dtype=torch.int32, device=device)
    order[:rows] = at.int()
    padded = torch.full((taps, tiles * tile_rows), -1, dtype=torch.int32, device=device)
    padded[:, :rows] = sources[:, at]
    by_tile = padded.reshape(taps, tiles, tile_rows).transpose(0, 1)
    union = (by_tile >= 0).any(2)  # (tiles, taps)
    first = torch.argsort((~union).int(), dim=1, stable=True)  # taps in use, ascending, then others
    table = torch.gather(by_tile, 1, first[:, :, None].expand(-1, -1, tile_rows))
    mask = (union.long() << torch.arange(taps, device=device)).sum(1).int()
    name = f"window{window}" if window > 1 else "spatial"
    executed = float(union.sum()) * tile_rows / max(int(present.sum()), 1)
    n_tiles = torch.tensor([tiles], dtype=torch.int32, device=device)
    shape = (tiles, tile_rows)
    return Tables(name, order.reshape(shape), table.contiguous(), mask, None, n_tiles, executed)


def sorted_tables(domain: DomainBuffers) -> Tables:
    """Return the tables that the engine made."""
    executed = float(domain.counts[1]) / max(float(domain.counts[2]), 1)
    return Tables(
        f"groups{domain.shape.groups}", domain.order, domain.table, domain.tile_mask,
        domain.tile_rank, domain.counts, executed,
    )  # fmt: skip


class Layer:
    """One convolution with random operands, and its exact result."""

    def __init__(self, name: str, sources: torch.Tensor, in_rows: int, c_in: int, c_out: int):
        generator = torch.Generator("cuda").manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda")

        self.name, self.sources, self.c_in, self.c_out = name, sources, c_in, c_out
        self.taps, self.rows = sources.shape
        self.pairs = int((sources >= 0).sum())
        self.flops = 2 * self.pairs * c_in * c_out
        self.x = normal(in_rows, c_in)
        self.weight = normal(self.taps, c_in, c_out) * (2 * self.rows / self.pairs / c_in) ** 0.5
        self.bias, self.residual = normal(c_out), normal(self.rows, c_out)

    def expected(self, precision: str) -> torch.Tensor:
        """Return float64 of operands rounded as the precision says."""

        def rounded(values: torch.Tensor) -> torch.Tensor:
            if precision == "TF32":
                return round_tf32(values).double()
            return (values.half() if precision == "F16" else values).double()

        x, weight = rounded(self.x), rounded(self.weight)
        out = self.bias.double() + self.residual.double()
        for tap in range(self.taps):
            at = torch.nonzero(self.sources[tap] >= 0)[:, 0]
            out[at] += x[self.sources[tap, at].long()] @ weight[tap]
        return out.clamp(min=0)

    def cublas_us(self, precision: str) -> float:
        """Return the time of one product of as many operations."""
        inner = max(8, round(self.pairs / self.rows * self.c_in / 8) * 8)
        kind = torch.float16 if precision == "F16" else torch.float32
        torch.backends.cuda.matmul.allow_tf32 = precision == "TF32"
        a = torch.randn(self.rows, inner, device="cuda").to(kind)
        b = torch.randn(inner, self.c_out, device="cuda").to(kind)
        out = torch.empty(self.rows, self.c_out, device="cuda", dtype=kind)

        def work() -> None:
            for _ in range(LAUNCHES):
                torch.mm(a, b, out=out)

        return statistics.median(replay_times(captured(work), 5, REPLAYS)) / LAUNCHES


class Run:
    """One variant on one layer, bound to buffers of its own."""

    def __init__(self, layer: Layer, tactic: MmaTactic, tables: Tables, maps: FrameMaps) -> None:
        self.layer, self.tactic, half = layer, tactic, tactic.precision == "F16"
        self.partial = tactic.groups > 1
        kind = torch.float16 if half else torch.float32
        domain = maps.domains[layer.name]
        capacity = domain.shape.row_capacity
        self.x, self.residual = layer.x.to(kind), layer.residual.to(kind)
        self.packed, scale = pack_weight(layer.weight, tactic.precision)
        self.out = torch.empty(capacity, layer.c_out, device="cuda", dtype=kind)
        self.tickets = torch.zeros(LAUNCHES, dtype=torch.int32, device="cuda")
        kernel = Kernel(
            tactic.kernel, tactic.kernel,
            tactic.defines(layer.c_in, layer.c_out, layer.taps),
            shared_bytes=tactic.shared_bytes(layer.c_in, layer.c_out, layer.taps),
        )  # fmt: skip
        self.keep = tables
        tiles = int(tables.n_tiles[0])
        most = maps.multiprocessors * tactic.min_blocks
        grid = max(1, min(-(-tiles // tactic.tiles_per_block), most))
        sums = tactic.groups * capacity * layer.c_out if self.partial else 1
        self.part = torch.empty(sums, device="cuda")
        fields: dict[str, Any] = {
            "x": self.x, "weight": self.packed, "bias": None if self.partial else layer.bias,
            "residual": None if self.partial else self.residual,
            "out": self.part if self.partial else self.out, "order": tables.order,
            "table": tables.table, "tile_mask": tables.tile_mask, "tile_rank": tables.tile_rank,
            "n_tiles": tables.n_tiles, "group_taps": layer.taps // tactic.groups,
            "relu": int(not self.partial), "x_scale": 1.0, "out_scale": 1 / scale,
        }  # fmt: skip
        self.launches = [
            kernel.bind(
                grid,
                tactic.threads(layer.c_out),
                struct_value(*PARAMETERS, {**fields, "ticket": t}),
                dependent=True,
            )
            for t in self.tickets.split(1)
        ]
        self.finish = self._finish(domain, maps) if self.partial else None

    def _finish(self, domain: DomainBuffers, maps: FrameMaps) -> Any:
        layer, shape = self.layer, domain.shape
        fields = {
            "part": self.part, "mask": domain.mask, "bias": layer.bias,
            "residual": self.residual, "out": self.out, "group_taps": shape.group_taps, "relu": 1,
        }  # fmt: skip
        value = struct_value("epilogue.cu", "Finish", fields)
        defines = {"GROUPS": self.tactic.groups, "COUT": layer.c_out}
        defines["HALF"] = int(self.out.dtype == torch.float16)
        kernel = Kernel("epilogue", "finish_groups", defines)
        level = maps.level_values[shape.out_level]
        return kernel.bind(maps.multiprocessors * 8, 256, level, value, dependent=True)

    def __call__(self, *, finish: bool = True) -> None:
        """Launch it as often as a graph holds it."""
        self.tickets.zero_()
        for launch in self.launches:
            launch()
            if finish and self.finish:
                self.finish()

    def error(self, expected: torch.Tensor) -> float:
        """Return the largest error over the largest output; infinite where a check fails."""
        results = []
        for _ in range(2):
            self.out.fill_(float("nan"))
            self.part.fill_(float("nan"))
            self()
            torch.cuda.synchronize()
            results.append(self.out[: self.layer.rows].clone())
        bytes_ = [r.view(torch.int16 if r.dtype == torch.float16 else torch.int32) for r in results]
        if not torch.equal(*bytes_) or bool(results[0].isnan().any()):
            return float("inf")
        return float((results[0].double() - expected).abs().max() / expected.abs().max())

    def microseconds(self, *, finish: bool = True) -> float:
        """Return the median time of one convolution."""
        graph = captured(lambda: self(finish=finish))
        return statistics.median(replay_times(graph, 5, REPLAYS)) / LAUNCHES


def runs_of(layer: Layer, maps: Maps, precision: str) -> Iterator[tuple[Tables, MmaTactic, Run]]:
    """Yield every variant that fits the layer, over every order of rows that it is made for."""
    capability = torch.cuda.get_device_capability()
    for tactic in variants(layer.c_in, layer.c_out, layer.taps, precision):
        if tactic.supports(layer.c_in, layer.c_out, layer.taps, capability):
            continue
        made = maps.get(tactic.groups, tactic.tile_rows)
        orders = [sorted_tables(made.domains[layer.name])]
        if not tactic.stages_rows:
            orders += [spatial_tables(layer.sources, tactic.tile_rows, w) for w in (1, 512)]
        for tables in orders:
            yield tables, tactic, Run(layer, tactic, tables, made)


def bench_layer(layer: Layer, maps: Maps, precisions: list[str]) -> list[dict[str, Any]]:
    """Check and time one layer; prints a line a variant."""
    records = []
    for precision in precisions:
        expected, cublas = layer.expected(precision), layer.cublas_us(precision)
        for tables, tactic, run in runs_of(layer, maps, precision):
            error = run.error(expected)
            good = error <= TOLERANCE[precision]
            us = run.microseconds() if good else float("nan")
            conv = run.microseconds(finish=False) if good and tactic.groups > 1 else us
            rate, ratio = layer.flops / us / 1e6, us / cublas
            print(
                f"{layer.name:10} {precision:5} {tactic.flow:8} {tables.name:13} "
                f"T{tactic.tile_rows:<3} K{tactic.slab:<3} {tactic.warps_m}x{tactic.warps_n} "
                f"s{tactic.stages} b{tactic.min_blocks} {us:7.1f} us (conv {conv:.1f}) "
                f"{rate:6.1f} TFLOP/s {ratio:5.2f} x cuBLAS {cublas:.1f} "
                f"executed {tables.executed:.2f} error {error:.1e}{'' if good else ' WRONG'}",
                flush=True,
            )
            records.append(
                {
                    "stage": layer.name, "rows": layer.rows, "pairs": layer.pairs,
                    "order": tables.name, **dataclasses.asdict(tactic), "us": us, "conv_us": conv,
                    "cublas_us": cublas, "error": error, "executed": tables.executed,
                }
            )  # fmt: skip
    return records


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the real frames")
    parser.add_argument("--frame", default="C")
    parser.add_argument("--stages", default="", help="maps, by comma; all by default")
    parser.add_argument("--precisions", default="F16,F16X3,TF32,F64")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    config = LidarConfig()
    (frame,) = load_frames([args.frame], args.data, config)
    maps = Maps(config, frame.points)
    base, channels = maps.get(3, 64), config.model.channels
    records: list[dict[str, Any]] = []
    for name, domain in base.domains.items():
        if args.stages and name not in args.stages.split(","):
            continue
        number = int(name[-1]) if name[-1].isdigit() else len(channels)
        c_out = channels[number - 1]
        c_in = channels[number - 2] if name == f"spconv{number}" else c_out
        rows = int(base.levels[domain.shape.out_level].counts[1])
        in_rows = int(base.levels[domain.shape.in_level].counts[1])
        layer = Layer(name, sources_of(domain, rows), in_rows, c_in, c_out)
        records += bench_layer(layer, maps, args.precisions.split(","))
    if args.output:
        args.output.write_text(json.dumps({"machine": machine(), "runs": records}, indent=1))


if __name__ == "__main__":
    main()
