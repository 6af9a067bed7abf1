"""Check, then time, the pooling of camera features: our kernels beside others, one GPU, one run.

A contender whose result differs from a float64 sum of the same inputs has no time. ``warm``: one
set of tensors again and again, so all that fits the L2 cache is in it. ``cold``: sets taken in turn
that are three times the L2 together. Both are CUDA graphs of many launches one after the other.

Ours write the occupied cells of a result that stays; so do the baselines here, although the
published ones also clear the result every time: that favours them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from driveRT_ros.bench.pool_cases import PoolCase
from driveRT_ros.bench.timing import clocks, machine, summary
from driveRT_ros.core.cuda import device_arch
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.bev_pool import bind
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.nvrtc import compile_cubin
from driveRT_ros.core.pool_candidates import candidates
from driveRT_ros.core.pool_tactics import (
    PoolShape,
    PoolTactic,
    Work,
    default_tactic,
    tensors_of,
)
from driveRT_ros.core.pool_types import MAP_ARRAYS
from driveRT_ros.core.pool_work import TILE_ROWS, Slots, Tiles

FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
TOLERANCE = {"fp32": 1e-5, "fp16": 2e-3, "fp8": 2e-3, "half sums": 2e-2}
"""Largest error over the largest result; the float64 sum has the same rounded inputs."""
LAUNCHES = 20  # of one contender in a graph, while everything is warm
SECTOR = 32  # bytes that a gathered depth moves


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something that pools.

    Args:
        name: For tables.
        features: Key of ``FORMATS``.
        tactic: One of our kernels, or
        torch_way: ``index_add`` or ``csr``.
        depth_by_column: Depths lie as (N, W, D, H) in memory.
    """

    name: str
    features: str
    tactic: PoolTactic | None = None
    torch_way: str = ""
    depth_by_column: bool = False


def default_contenders(channels: int, formats: Sequence[str] = ("fp16", "fp8")) -> list[Contender]:
    """Return the baselines and our best."""
    found = []
    for features in formats:
        baselines = (("V2-style", "v2"), ("V2+DO-style", "v2_depth"), ("V3-style", "v3"))
        found += [Contender(f"{n} {features}", features, PoolTactic(k)) for n, k in baselines]
        found.append(Contender(f"balanced {features}", features, PoolTactic("balanced")))
        best = default_tactic(_shape(channels, features), _FRUSTUM)
        if best.kind != "balanced":
            found.append(Contender(f"{best.kind} {features}", features, best))
    found.append(Contender("torch index_add_ fp16", "fp16", torch_way="index_add"))
    found.append(Contender("torch CSR x dense fp32", "fp32", torch_way="csr"))
    return found


def scan_contenders(channels: int, formats: Sequence[str] = ("fp16", "fp8")) -> list[Contender]:
    """Return every variant worth timing."""
    found = default_contenders(channels, formats)
    for features in formats:
        shape = _shape(channels, features)
        for t in candidates(shape, _FRUSTUM):
            name = f"{t.kind} {features} "
            if t.kind == "tiles":
                name += f"w{t.warps} s{t.steps} g{t.groups} b{t.min_blocks} p{t.passes}"
                name += f" v{t.vector}" + " sectors" * t.whole_sectors
            else:
                name += f"s{t.block_slots} n{t.chunk} f{t.in_flight}"
            found.append(Contender(name, features, t))
        best = default_tactic(shape, _FRUSTUM)
        found.append(Contender(f"{best.kind} {features} by column", features, best, "", True))
        half = PoolTactic("balanced", half_sum=True)
        found.append(Contender(f"balanced {features} half sums", features, half))
    return found


_FRUSTUM = (6, 59, 16, 44)


def _shape(channels: int, features: str) -> PoolShape:
    """Return the shape of aligned tensors."""
    kind = FORMATS[features]
    other = torch.float32 if features == "fp32" else torch.float16
    align = math.gcd(16, channels * kind.itemsize) // kind.itemsize
    return PoolShape(channels, kind, other, other, align)


class CaseBench:
    """One case on the GPU.

    Args:
        case: The configuration.
        seed: Of depths and features.
    """

    def __init__(self, case: PoolCase, seed: int = 0) -> None:
        self.case = case
        self.map = case.scatter_map().to("cuda").trimmed()
        n, d, h, w = self.map.frustum_shape
        generator = torch.Generator("cuda").manual_seed(seed)
        logits = torch.randn(1, n, d, h, w, generator=generator, device="cuda")
        self.depth = logits.softmax(2)
        self.context = torch.randn(1, n, h, w, case.channels, generator=generator, device="cuda")
        self.scale = float(self.context.abs().max()) / 448
        self._exact: dict[str, torch.Tensor] = {}
        self._work: dict[str, Work] = {}

    def inputs(self, contender: Contender) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return new copies of depth and context, and the scale of the result."""
        kind = FORMATS[contender.features]
        depth = self.depth.to(torch.float32 if contender.features == "fp32" else torch.float16)
        depth = depth.clone()
        if contender.depth_by_column:
            depth = depth.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
        scale = self.scale if contender.features == "fp8" else 1.0
        return depth, (self.context / scale).to(kind).clone(), scale

    def exact(self, features: str) -> torch.Tensor:
        """Return the float64 result of the rounded inputs."""
        if features not in self._exact:
            depth, context, scale = self.inputs(Contender("", features))
            rows = context.float().double().reshape(-1, self.case.channels)
            out = torch.zeros(self.map.cells, self.case.channels, dtype=torch.float64).cuda()
            ranks = [r.long() for r in self.map.arrays()[:3]]
            for part in torch.arange(len(ranks[0]), device="cuda").split(1 << 20):
                d, f, cell = (r[part] for r in ranks)
                out.index_add_(0, cell, depth.reshape(-1)[d].double()[:, None] * rows[f])
            self._exact[features] = out * scale
        return self._exact[features]

    def work(self, tactic: PoolTactic) -> Work:
        """Return what a tactic works off; made once."""
        if tactic.work_key not in self._work:
            self._work[tactic.work_key] = tactic.work(self.map)
        return self._work[tactic.work_key]

    def made(self, contender: Contender) -> tuple[Callable[[], None], torch.Tensor, int]:
        """Return work on tensors of its own, its result and the bytes that it touches."""
        if contender.tactic is None:
            return torch_work(self, contender)
        depth, context, scale = self.inputs(contender)
        dtype = torch.float32 if contender.features == "fp32" else torch.float16
        out = torch.zeros(self.map.cells, self.case.channels, dtype=dtype, device="cuda")
        tables = [table.clone() for table in tensors_of(self.work(contender.tactic))]
        arrays = [] if contender.tactic.kind == "tiles" else self.map.arrays()
        copy = dict(zip(MAP_ARRAYS, (array.clone() for array in arrays)))
        launch = contender.tactic.launch(
            depth,
            context,
            out.view(1, *self.map.grid_shape_zyx, -1),
            dataclasses.replace(self.map, **copy),
            contender.tactic.work_of(tables),
            scale,
        )
        bound = bind(launch, depth.device)
        occupied = int(self.map.counts[1]) * self.case.channels * out.element_size()
        read = sum(t.nbytes for t in (depth, context, *tables, *copy.values()))

        def work(keep: object = (launch, out)) -> None:
            bound()

        return work, out, read + occupied

    def measure(self, contender: Contender, samples: int, *, cold: bool = True) -> dict[str, Any]:
        """Check and time one contender."""
        record: dict[str, Any] = {"features": contender.features}
        if contender.tactic:
            record["tactic"] = dataclasses.asdict(contender.tactic)
        try:
            work, out, touched = self.made(contender)
            error = self._error(contender, work, out)
        except (ConfigError, RuntimeError, NotImplementedError) as reason:
            return {**record, "absent": str(reason).splitlines()[0][:200]}
        record |= {"error": error, "touched_mb": round(touched / 1e6, 3)}
        key = "half sums" if _sums_halves(contender) else contender.features
        if not error <= TOLERANCE[key]:
            return {**record, "absent": f"error {error:.2e} exceeds {TOLERANCE[key]:g}"}
        once = replay_times(captured(work), 3, 1)
        launches = max(2, min(LAUNCHES, int(2000 / min(once))))
        record["warm_us"] = _graph_us([work] * launches, samples)
        record["moved_mb"] = round(moved_bytes(self, contender) / 1e6, 3)
        if cold:
            l2 = torch.cuda.get_device_properties(0).L2_cache_size
            copies = min(max(4, math.ceil(3 * l2 / touched)), 200)
            sets = [work, *(self.made(contender)[0] for _ in range(copies - 1))]
            record["cold_us"] = _graph_us(sets, max(samples // 4, 10))
        return record

    def _error(self, contender: Contender, work: Callable[[], None], out: torch.Tensor) -> float:
        results = []
        for _ in range(3):
            flat = out.view(self.map.cells, -1)
            flat[self.map.ranks_bev.long()] = float("nan")  # what is not written shows
            work()
            torch.cuda.synchronize()
            results.append(out.clone())
        if contender.tactic and not all(torch.equal(results[0], r) for r in results):
            return float("inf")
        exact = self.exact(contender.features)
        got = results[0].view(self.map.cells, -1).double()
        return float((got - exact).abs().max() / exact.abs().max())


def _sums_halves(contender: Contender) -> bool:
    tactic = contender.tactic
    return contender.torch_way == "index_add" or bool(
        tactic and (tactic.half_sum or tactic.kind == "v2_depth")
    )


def _graph_us(works: Sequence[Callable[[], None]], samples: int) -> dict[str, float]:
    """Return the time of one of several works that a graph runs one after the other."""

    def all_of_them() -> None:
        for work in works:
            work()

    return summary([t / len(works) for t in replay_times(captured(all_of_them), samples, 1)])


def torch_work(bench: CaseBench, contender: Contender) -> tuple[Callable[[], None], Any, int]:
    """Return what torch has for it."""
    depth, context, _ = bench.inputs(contender)
    channels, cells = bench.case.channels, bench.map.cells
    d, f, cell = (r.long() for r in bench.map.arrays()[:3])
    rows, weights = context.view(-1, channels), depth.view(-1)
    out = torch.zeros(cells, channels, dtype=context.dtype, device="cuda")
    touched = depth.nbytes + context.nbytes + 3 * d.nbytes + out.nbytes
    if contender.torch_way == "index_add":

        def add() -> None:
            out.zero_()
            out.index_add_(0, cell, weights[d][:, None] * rows[f])

        return add, out, touched + len(d) * channels * context.element_size()
    starts = torch.zeros(cells + 1, dtype=torch.int64, device="cuda")
    starts[1:] = torch.bincount(cell, minlength=cells).cumsum(0)
    matrix = torch.sparse_csr_tensor(starts, f, weights[d], (cells, len(rows)))

    def multiply() -> None:
        torch.index_select(weights, 0, d, out=matrix.values())
        torch.mm(matrix, rows, out=out)

    return multiply, out, touched


def moved_bytes(bench: CaseBench, contender: Contender) -> int:
    """Return what goes through the L2 cache: gathered rows, depths by sector, tables, results."""
    made, channels = bench.map, bench.case.channels
    points, intervals = made.counts.tolist()
    size = FORMATS[contender.features].itemsize
    out = intervals * channels * max(size, 2)
    if contender.tactic is None:
        return 0
    work = bench.work(contender.tactic)
    if isinstance(work, Tiles):
        steps = len(work.step_place)
        rows = steps * TILE_ROWS * channels * size
        tables = work.entries.nbytes + work.step_place.nbytes
        return rows + tables + points * SECTOR + out
    tables = work.table.nbytes if isinstance(work, Slots) else intervals * 12
    repeated = channels if contender.tactic.kind == "v2" else 1
    return points * (channels * size + SECTOR) + points * 8 * repeated + tables + out


def floor(bench: CaseBench, features: str, copy_tb_per_s: float) -> dict[str, float]:
    """Return the bytes that any kernel must move once, and the time of moving them.

    Features, the depths of points in the grid, a word a point of map, and the occupied cells.
    """
    points, intervals = bench.map.counts.tolist()
    size = FORMATS[features].itemsize
    depth = points * (4 if features == "fp32" else 2)
    result = intervals * bench.case.channels * max(size, 2)
    total = bench.context.numel() * size + depth + points * 4 + result
    return {"mb": round(total / 1e6, 3), "us": round(total / copy_tb_per_s / 1e6, 3)}


def memory_class(bench: CaseBench) -> dict[str, Any]:
    """Return whether the working set fits the L2 cache, which decides what to save."""
    points, intervals = bench.map.counts.tolist()
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    channels = bench.case.channels
    inputs = bench.depth.numel() * 2 + bench.context.numel() * 2
    unique = inputs + points * 12 + bench.map.cells * channels * 2
    traffic = points * (channels * 2 + 14) + bench.map.cells * channels * 4
    return {
        "l2_mb": round(l2 / 1e6, 1),
        "working_set_mb": round(unique / 1e6, 2),
        "gathered_mb": round(traffic / 1e6, 2),
        "class": "resident in L2: latency and occupancy decide" if unique < l2
        else "exceeds L2: bytes decide, results are streamed past it",
    }  # fmt: skip


def measure(
    cases: Iterable[PoolCase],
    contenders: Callable[[int], Sequence[Contender]],
    *,
    samples: int = 120,
    cold: bool = True,
    copy_tb_per_s: float = 0.0,
    commit: str = "",
    told: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the whole report.

    Args:
        cases: Configurations.
        contenders: From channels to what is timed.
        samples: Graph replays that are timed, each of 20 launches.
        cold: Time with cold caches, too.
        copy_tb_per_s: Bandwidth of device memory, for the floor.
        commit: What was measured.
        told: Hears a line about every contender.
    """
    report = machine(commit) | {"suite": "bevpool", "samples": samples, "clocks": [clocks("start")]}
    report["cases"] = {}
    cases = list(cases)
    _compile(cases, contenders)
    for case in cases:
        bench = CaseBench(case)
        points, intervals = bench.map.counts.tolist()
        found: dict[str, Any] = {}
        longest = int(bench.map.interval_lengths.max())
        shape = list(bench.map.frustum_shape)
        entry = {"channels": case.channels, "points": points, "intervals": intervals}
        entry |= {"longest_interval": longest, "frustum": shape, "memory": memory_class(bench)}
        told(f"== {case.name}: {entry}")
        for contender in contenders(case.channels):
            found[contender.name] = record = bench.measure(contender, samples, cold=cold)
            told(_line(case, contender, record))
        if copy_tb_per_s:
            used = dict.fromkeys(r["features"] for r in found.values())
            entry["floor"] = {k: floor(bench, k, copy_tb_per_s) for k in used}
        report["cases"][case.name] = entry | {"contenders": found}
        report["clocks"].append(clocks(case.name))
    return report


def _compile(cases: Sequence[PoolCase], contenders: Callable[[int], Sequence[Contender]]) -> None:
    """Fill the cache of kernels, many at a time."""
    arch, jobs = device_arch(torch.cuda.current_device()), set()
    for case in cases:
        for contender in contenders(case.channels):
            if contender.tactic:
                shape = _shape(case.channels, contender.features)
                if not contender.tactic.supports(shape):
                    stem = "bev_pool_tiles" if contender.tactic.kind == "tiles" else "bev_pool"
                    jobs.add((stem, tuple(sorted(contender.tactic.defines(shape).items()))))
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda job: compile_cubin(job[0], arch, dict(job[1])), sorted(jobs)))


def _line(case: PoolCase, contender: Contender, record: dict[str, Any]) -> str:
    if "absent" in record:
        return f"{case.name:10} {contender.name:28} absent: {record['absent']}"
    warm = record["warm_us"]["median"]
    cold = f"cold {record['cold_us']['median']:8.2f} " if "cold_us" in record else ""
    return (
        f"{case.name:10} {contender.name:28} warm {warm:8.2f} {cold}us  "
        f"moved {record['moved_mb']:7.1f} MB {record['moved_mb'] / warm:5.2f} TB/s  "
        f"error {record['error']:.1e}"
    )
