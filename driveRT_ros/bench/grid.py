"""Check, then time, the operators on NanoVDB grids, beside zlib on one core of the CPU.

The active values of a grid are known apart from it, so every result is checked without the code
that made it: the checksum by zlib, statistics by sums over the values, the grid of values by its
active voxels. An operator that is wrong has no time. On a GPU results must also repeat, and be
those of the reference bit by bit where the grid is small enough to wait for it.

``wall``: one call from the host until its result is complete. ``graph``: replays of one CUDA graph.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from driveRT_ros.bench.grid_cases import CASES
from driveRT_ros.bench.reference import processor
from driveRT_ros.bench.timing import clocks, machine, summary
from driveRT_ros.core import grid_ops
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.nanovdb_layout import HEAD, HEAD_FROM, VOXEL_VOLUME
from driveRT_ros.core.reference import grid_ops as reference
from driveRT_ros.core.reference import grid_stats as reference_stats

CHECKSUM, STATS, EXTREMES, INDEX = "checksum", "statistics", "extremes", "index to grid"
ZLIB = "zlib on one core"
REFERENCE_MB = 100
"""Larger grids are not compared with the reference bit by bit: it takes a minute a GB."""
_LONGEST_REPLAY_US = 20_000.0


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

    def operators(self) -> dict[str, tuple[Callable[[], Any], int]]:
        """Return each operator, and the bytes that it must read and write."""
        size, header = len(self.grid), self.header
        converted = len(self.index) + self.values.nbytes + size
        return {
            CHECKSUM: (lambda: grid_ops.checksum_bits(self.grid, header), size),
            STATS: (lambda: grid_ops.grid_stats(self.grid, header), size),
            EXTREMES: (lambda: grid_ops.grid_stats(self.grid, header, moments=False), size),
            INDEX: (self._convert, converted),
        }

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
        got = [grid_ops.checksum(self.grid, self.header) for _ in range(3)]
        return "" if got == [expected] * 3 else f"checksums {got} instead of {expected}"

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


def measure(
    sizes_mb: Sequence[float],
    *,
    device: torch.device,
    cases: Sequence[str] = tuple(CASES),
    rounds: int = 20,
    copy_tb_per_s: float = 0.0,
    commit: str = "",
    told: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Return the report.

    Args:
        sizes_mb: Million bytes of the grids of floats.
        device: Where to measure.
        cases: Keys of ``CASES``.
        rounds: Timed calls, and graph replays, of each operator.
        copy_tb_per_s: Bandwidth of a copy, bytes read and written, where it was measured.
        commit: See :func:`~driveRT_ros.bench.timing.machine`.
        told: Called after each grid with a line about it.
    """
    report: dict[str, Any] = {
        **machine(commit),
        "suite": "grid",
        "device": device.type,
        "cpu": processor(),
        "protocol": {"rounds": rounds, "reference_mb": REFERENCE_MB},
        "ceilings": {"copy_tb_per_s": copy_tb_per_s} if copy_tb_per_s else {},
        "clocks": [clocks("start")] if device.type == "cuda" else [],
        "grids": {},
    }
    for name in cases:
        for mb in sizes_mb:
            bench = GridBench(CASES[name](mb), device)
            record = _record(bench, rounds, copy_tb_per_s)
            report["grids"][f"{name}, {mb:g} MB"] = record
            if device.type == "cuda":
                report["clocks"].append(clocks(f"{name}, {mb:g} MB"))
            told(f"{name}, {mb:g} MB")
    return report


def _record(bench: GridBench, rounds: int, copy_tb_per_s: float) -> dict[str, Any]:
    failures, operators = bench.failures(), {}
    for name, (work, moved) in bench.operators().items():
        if failures[name]:
            operators[name] = {"absent": failures[name]}
            continue
        found: dict[str, Any] = {"moved_mb": round(moved / 1e6, 3)}
        found["wall_us"] = summary(_wall_us(work, rounds, bench.grid.is_cuda))
        best = found["wall_us"]["median"]
        if bench.grid.is_cuda:
            found["graph_us"] = summary(_graph_us(work, rounds))
            best = found["graph_us"]["median"]
        found["gb_per_s"] = round(moved / best / 1e3, 3)
        if copy_tb_per_s:
            found["of_copy"] = round(moved / best / 1e6 / copy_tb_per_s, 3)
        operators[name] = found
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
        "operators": operators,
    }


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


def _graph_us(work: Callable[[], Any], rounds: int) -> list[float]:
    def run() -> None:
        work()

    graph = captured(run)
    once = min(replay_times(graph, 3, 1))
    return replay_times(graph, rounds, max(1, min(20, int(_LONGEST_REPLAY_US / once))))


def table(report: dict[str, Any]) -> list[list[str]]:
    """Return one line a grid and operator; the first line is the head."""
    lines = [["grid", "MB", "operator", "graph µs", "wall µs", "GB/s", "of copy"]]
    for grid, record in report["grids"].items():
        for name, found in record["operators"].items():
            start = [grid, f"{record['bytes'] / 1e6:,.1f}", name]
            if "absent" in found:
                lines.append([*start, f"absent: {found['absent']}", "", "", ""])
                continue
            graph = f"{found['graph_us']['median']:,.1f}" if "graph_us" in found else ""
            share = f"{found['of_copy']:.0%}" if "of_copy" in found else ""
            wall, rate = f"{found['wall_us']['median']:,.0f}", f"{found['gb_per_s']:,.2f}"
            lines.append([*start, graph, wall, rate, share])
    return lines
