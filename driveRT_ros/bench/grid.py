"""Check, then time, the operators on NanoVDB grids, beside zlib on one core of the CPU.

The active values of a grid are known apart from it, so every result is checked without the code
that made it: the checksum by zlib, statistics by sums over the values, the grid of values by its
active voxels. An operator that is wrong has no time. On a GPU results must also repeat, and be
those of the reference bit by bit where the grid is small enough to wait for it.

``wall``: one call from the host until its result is complete; of a checksum, until the host has it.
``host``: what such a call keeps the host busy without waiting. ``repeated``: as ``wall``, where the
call was prepared once. ``graph``: replays of one CUDA graph, the kernels alone. ``idle call``: the
wall time of filling one word, taken beside every grid: a host that others use shows in it. Each
writes into memory that is there already. Peers do the same work on the same bytes, memory that they
free inside a call kept for the next; ``as is``: given back to the device.
"""

from __future__ import annotations

import os
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from driveRT_ros.bench.grid_cases import CASES
from driveRT_ros.bench.reference import processor
from driveRT_ros.bench.timing import clocks, machine, summary
from driveRT_ros.core import grid_ops
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.grid_repeat import Repeated, RepeatedChecksum
from driveRT_ros.core.nanovdb_layout import HEAD, HEAD_FROM, VOXEL_VOLUME
from driveRT_ros.core.reference import grid_ops as reference
from driveRT_ros.core.reference import grid_stats as reference_stats

CHECKSUM, STATS, EXTREMES, INDEX = "checksum", "statistics", "extremes", "index to grid"
ZLIB = "zlib on one core"
REFERENCE_MB = 100
"""Larger grids are not compared with the reference bit by bit: it takes a minute a GB."""
_LONGEST_REPLAY_US = 20_000.0


class Operator(NamedTuple):
    """One operator on one grid.

    Args:
        enqueue: Enqueues it.
        call: Calls it as users do.
        repeated: Prepares it to be called again and again.
        moved: Bytes that it must read and write.
        reads: Whether it writes next to nothing.
    """

    enqueue: Callable[[], Any]
    call: Callable[[], Any]
    repeated: Callable[[], Callable[[], Any]]
    moved: int
    reads: bool


class Peer(Protocol):
    """Another implementation of the operators.

    Args:
        name: What the table calls it.
    """

    name: str

    def operators(self, bench: GridBench) -> dict[str, tuple[Callable[[int], list[float]], str]]:
        """Return, by operator, what times some calls, and what is wrong with the result."""

    def keep_memory(self, keep: bool) -> None:
        """Keep memory that calls free for the next, or give it back to the device."""


class GridBench:
    """One grid and what is known of it.

    Args:
        index: (bytes,) uint8, an index grid.
        device: Where it is measured.
        seed: Of the values.
    """

    def __init__(self, index: np.ndarray, device: torch.device, seed: int = 0) -> None:
        self.index = torch.from_numpy(index).to(device)
        self.index_header = grid_ops.grid_header(self.index)
        generator = torch.Generator(device).manual_seed(seed)
        self.values = torch.randn(
            self.index_header.value_count, generator=generator, device=device, dtype=torch.float32
        )
        self.grid = grid_ops.index_to_grid(
            self.index, self.values, self.index_header, grid_class=VOXEL_VOLUME
        )
        self.header = grid_ops.grid_header(self.grid)
        self.out = torch.empty_like(self.grid)
        self.written = self.grid.clone()

    def operators(self) -> dict[str, Operator]:
        """Return each operator by name."""
        size, header, device = len(self.grid), self.header, self.grid.device

        def operator(work: Callable[[], Any], moved: int, reads: bool) -> Operator:
            return Operator(work, work, lambda: Repeated(work, device), moved, reads)

        return {
            CHECKSUM: Operator(
                lambda: grid_ops.checksum_bits(self.grid, header),
                self.checksum,
                lambda: RepeatedChecksum(self.grid, header),
                size,
                True,
            ),
            STATS: operator(lambda: self._statistics(True), size, True),
            EXTREMES: operator(lambda: self._statistics(False), size, True),
            INDEX: operator(self._convert, len(self.index) + self.values.nbytes + size, False),
        }

    def checksum(self) -> tuple[int, int]:
        """Return the checksum of the grid."""
        return grid_ops.checksum(self.grid, self.header)

    def with_statistics(self, *, moments: bool) -> torch.Tensor:
        """Return the grid with statistics in its nodes."""
        self._statistics(moments)
        return self.written

    def _statistics(self, moments: bool) -> grid_ops.GridStats:
        return grid_ops.grid_stats(self.written, self.header, moments=moments, write=True)

    def _convert(self) -> torch.Tensor:
        how = {"grid_class": VOXEL_VOLUME, "out": self.out}
        return grid_ops.index_to_grid(self.index, self.values, self.index_header, **how)

    def failures(self) -> dict[str, str]:
        """Return what is wrong with the results of each operator, empty where nothing is."""
        host = self.grid.cpu().numpy()
        found = {CHECKSUM: self._wrong_checksum(host), INDEX: self._wrong_values(host)}
        for name, moments in ((STATS, True), (EXTREMES, False)):
            found[name] = self._wrong_statistics(host, moments)
        return found

    def _wrong_checksum(self, host: np.ndarray) -> str:
        expected = zlib_checksum(host)
        repeated = RepeatedChecksum(self.grid, self.header)
        got = [self.checksum(), self.checksum(), repeated(), repeated()]
        return "" if got == [expected] * 4 else f"checksums {got} instead of {expected}"

    def _wrong_values(self, host: np.ndarray) -> str:
        self.out.fill_(0x5B)  # what is not written shows
        if not np.array_equal(self._convert().cpu().numpy(), host):
            return "two conversions differ"
        leaves = reference.nodes_of(host, self.header, 0)
        values, at = self.values.cpu().numpy(), 1
        for begin in range(0, len(leaves), 4096):
            part = leaves[begin : begin + 4096]
            active = reference.bits_of(part["value_mask"])
            count = int(active.sum())
            if not np.array_equal(part["values"][active], values[at : at + count]):
                return f"values of leaves {begin} to {begin + len(part)} are others"
            if (part["values"][~active] != values[0]).any():
                return f"leaves {begin} to {begin + len(part)} lack the background"
            at += count
        return "" if at == len(values) else f"{at} of {len(values)} values were used"

    def _wrong_statistics(self, host: np.ndarray, moments: bool) -> str:
        runs = [grid_ops.grid_stats(self.grid, self.header, moments=moments) for _ in range(3)]
        if any(not torch.equal(runs[0].records, run.records) for run in runs):
            return "results do not repeat"
        whole, values = runs[0].whole(), self.values[1:].cpu().numpy()
        exact = (len(values), 0, float(values.min()), float(values.max()))
        got = (whole.count, whole.nans, whole.minimum, whole.maximum)
        if got != exact:
            return f"count, NaN, least and most {got} instead of {exact}"
        mean, deviation = values.mean(dtype=np.float64), values.std(dtype=np.float64)
        wrong = max(abs(whole.mean - mean), abs(whole.stddev - deviation)) if moments else 0.0
        if wrong > 1e-10:
            return f"mean and deviation are off by {wrong:.1e}"
        if self.grid.is_cuda and len(host) <= REFERENCE_MB * 1e6:
            records = reference_stats.grid_stats(host, self.header, moments=moments)
            if runs[0].host().tobytes() != records.tobytes():
                return "records differ from the reference"
        return ""


def zlib_checksum(grid: np.ndarray) -> tuple[int, int]:
    """Return head and tail of a checksum of blocks by zlib alone."""
    head, tail = grid[HEAD_FROM:HEAD], memoryview(grid[HEAD:].data)
    count = len(tail) // 4096
    blocks = [tail[i * 4096 : (i + 1) * 4096 if i + 1 < count else None] for i in range(count)]
    crcs = np.array([zlib.crc32(block) for block in blocks], "<u4")
    return zlib.crc32(head.data), zlib.crc32(crcs.data)


def read_tb_per_s(device: torch.device, items: int = 1 << 30) -> float:
    """Return the bandwidth of reading memory once: the best of two reductions of torch."""
    source = torch.zeros(items, device=device)
    works = (lambda: torch.sum(source), lambda: torch.amax(source))
    best = min(statistics.median(replay_times(captured(work), 5, 4)) for work in works)
    return round(source.nbytes / best / 1e6, 3)


def measure(
    sizes_mb: Sequence[float],
    *,
    device: torch.device,
    cases: Sequence[str] = tuple(CASES),
    rounds: int = 20,
    ceilings: Mapping[str, float] | None = None,
    peers: Sequence[Peer] = (),
    commit: str = "",
    told: Callable[[str], None] = lambda part: None,
    saved: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Return the report.

    Args:
        sizes_mb: Million bytes of the grids of floats.
        device: Where to measure.
        cases: Keys of ``CASES``.
        rounds: Timed calls, and graph replays, of each operator.
        ceilings: Measured bandwidths: ``copy_tb_per_s``, bytes read and written, and
            ``read_tb_per_s``.
        peers: Others to be measured beside ours.
        commit: See :func:`~driveRT_ros.bench.timing.machine`.
        told: Called after each grid with a line about it.
        saved: Called after each grid with the report so far.
    """
    report: dict[str, Any] = {
        **machine(commit),
        "suite": "grid",
        "device": device.type,
        "cpu": processor(),
        "protocol": {"rounds": rounds, "reference_mb": REFERENCE_MB},
        "ceilings": dict(ceilings or {}),
        "clocks": [clocks("start")] if device.type == "cuda" else [],
        "grids": {},
    }
    for name in cases:
        for mb in sizes_mb:
            bench = GridBench(CASES[name](mb), device)
            record = _record(bench, rounds, report["ceilings"])
            for peer in peers:
                record["operators"] |= _peer_record(bench, peer, rounds, record["operators"])
            report["grids"][f"{name}, {mb:g} MB"] = record
            if device.type == "cuda":
                report["clocks"].append(clocks(f"{name}, {mb:g} MB"))
            saved(report)
            told(f"{name}, {mb:g} MB")
    return report


def _record(bench: GridBench, rounds: int, ceilings: Mapping[str, float]) -> dict[str, Any]:
    failures, operators = bench.failures(), {}
    word = torch.zeros(1, device=bench.grid.device)
    idle = summary(_wall_us(word.zero_, rounds, bench.grid.is_cuda))
    for name, operator in bench.operators().items():
        if failures[name]:
            operators[name] = {"absent": failures[name]}
            continue
        operators[name] = _operator_record(operator, rounds, bench.grid.is_cuda, ceilings)
    host = bench.grid.cpu().numpy()
    times = _wall_us(lambda: zlib_checksum(host), min(rounds, 5), False)
    operators[ZLIB] = {
        "moved_mb": round(len(host) / 1e6, 3),
        "wall_us": summary(times),
        "gb_per_s": round(len(host) / statistics.median(times) / 1e3, 3),
    }
    leaves, lowers, uppers = bench.header.node_counts
    return {
        "bytes": len(host),
        "index_bytes": len(bench.index),
        "nodes": {"leaf": leaves, "lower": lowers, "upper": uppers},
        "active_voxels": bench.index_header.value_count - 1,
        "idle_call_us": idle,
        "load": list(os.getloadavg()),
        "operators": operators,
    }


def _operator_record(
    operator: Operator, rounds: int, on_gpu: bool, ceilings: Mapping[str, float]
) -> dict[str, Any]:
    found: dict[str, Any] = {"moved_mb": round(operator.moved / 1e6, 3)}
    found["wall_us"] = summary(_wall_us(operator.call, rounds, on_gpu))
    best = found["wall_us"]["median"]
    if on_gpu:
        found["host_us"] = summary(_host_us(operator.enqueue, rounds))
        found["repeated_us"] = summary(_wall_us(operator.repeated(), rounds, on_gpu))
        found["graph_us"] = summary(_graph_us(operator.enqueue, rounds))
        best = found["graph_us"]["median"]
    found["gb_per_s"] = round(operator.moved / best / 1e3, 3)
    for share, ceiling in (("of_copy", "copy_tb_per_s"), ("of_read", "read_tb_per_s")):
        if ceiling in ceilings and (operator.reads or share == "of_copy"):
            found[share] = round(operator.moved / best / 1e6 / ceilings[ceiling], 3)
    return found


def _peer_record(
    bench: GridBench, peer: Peer, rounds: int, ours: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a peer takes; ``over_ours``: times our call, times our repeated call."""
    records: dict[str, Any] = {}
    for name, (timed, wrong) in peer.operators(bench).items():
        try:
            if wrong:
                raise ConfigError(wrong)
            found: dict[str, Any] = {"wall_us": summary(timed(rounds))}
            peer.keep_memory(False)
            found["as_is_us"] = summary(timed(rounds))
            peer.keep_memory(True)
        except ConfigError as error:
            records[f"{peer.name}: {name}"] = {"absent": str(error)}
            continue
        mine = ours.get(name, {})
        found["over_ours"] = {
            kind: round(found["wall_us"]["median"] / mine[kind]["median"], 3)
            for kind in ("wall_us", "repeated_us")
            if kind in mine
        }
        records[f"{peer.name}: {name}"] = found
    return records


def _wall_us(work: Callable[[], Any], rounds: int, on_gpu: bool) -> list[float]:
    times = []
    for i in range(rounds + 1):  # the first warms
        begin = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        if i:
            times.append((time.perf_counter() - begin) * 1e6)
    return times


def _host_us(work: Callable[[], Any], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e6)
    torch.cuda.synchronize()
    return times


def _graph_us(work: Callable[[], Any], rounds: int) -> list[float]:
    def run() -> None:
        work()

    graph = captured(run)
    once = min(replay_times(graph, 3, 1))
    return replay_times(graph, rounds, max(1, min(20, int(_LONGEST_REPLAY_US / once))))


def table(report: dict[str, Any]) -> list[list[str]]:
    """Return one line a grid and operator; the first line is the head. Columns of nothing are out.

    ``of peak``: of the bandwidth of reading for what reads, else of copying. ``over ours``: the
    wall time of a peer over that of our call, then over that of our repeated call.
    """
    head = ["grid", "operator", "graph µs", "host µs", "wall µs", "repeated"]
    head += ["GB/s", "of peak", "over ours"]
    lines = [head]
    for grid, record in report["grids"].items():
        for name, found in record["operators"].items():
            title = f"{name}, absent: {found['absent']}" if "absent" in found else name
            times = [
                f"{found[kind]['median']:,.1f}" if kind in found else ""
                for kind in ("graph_us", "host_us", "wall_us", "repeated_us")
            ]
            rate = f"{found['gb_per_s']:,.1f}" if "gb_per_s" in found else ""
            share = found.get("of_read", found.get("of_copy"))
            over = ", ".join(f"{v:.2f}" for v in found.get("over_ours", {}).values())
            peak = "" if share is None else f"{share:.0%}"
            lines.append([grid, title, *times, rate, peak, over])
    used = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    return [[line[i] for i in used] for line in lines]
