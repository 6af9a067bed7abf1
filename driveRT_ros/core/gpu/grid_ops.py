"""Enqueue the operators on NanoVDB grids; nothing here waits for the GPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.cuda import Kernel
from driveRT_ros.core.gpu import grid_blocks
from driveRT_ros.core.gpu.crc_powers import operators_on
from driveRT_ros.core.gpu.prepared import Prepared, Run, Step, launch_each
from driveRT_ros.core.grid_types import STATS, GridStats
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.nanovdb_layout import HEAD_FROM, GridHeader
from driveRT_ros.core.reference.grid_ops import BLOCK, chunks, head_end
from driveRT_ros.core.reference.grid_stats import LOWER_LANES, TOP_LANES

WARPS, LEAF_THREADS, UPPER_PARTS, MESSAGES = 8, 256, 8, 8
"""As in kernels/grid_ops_*.cu."""
_BLOCKS_PER_PROCESSOR = 5  # of the checksum: all that its registers let in, so one wave does it
_BLOCK_SHARED = 42 * 1024  # bytes that each takes of shared memory, what the driver adds included
_LEAST_SHARED = 64 * 1024  # of a multiprocessor, where torch does not tell

_PREPARED = 64  # shapes of grids, a few KB of host memory each

Offsets = tuple[int, int, int, int]
Counts = tuple[int, int, int]

# ---- checksum -----------------------------------------------------------------------------------


def crc32(*tensors: torch.Tensor, run: Run | None = None, resident: int = 0) -> torch.Tensor:
    """Enqueue the CRC-32 of all bytes of each tensor.

    Args:
        tensors: Contiguous, aligned to 4 bytes, on one device.
        run: Launches a kernel; by default on the device of the tensors.
        resident: Blocks that run at once; as many as the device holds by default.

    Returns:
        (number of tensors,) int32: the bits of each CRC.
    """
    device = tensors[0].device
    run, resident = run or _launcher(device), resident or resident_blocks(device)
    out = torch.full((len(tensors),), -1, dtype=torch.int32, device=device)
    for at in range(0, len(tensors), MESSAGES):
        value, blocks = _messages(tensors[at : at + MESSAGES], out[at:], resident)
        run("grid_ops_checksum", "crc_messages", blocks, 32 * WARPS, value, dependent=at > 0)
    return out


def _messages(
    tensors: Sequence[torch.Tensor], sums: torch.Tensor, resident: int
) -> tuple[np.void, int]:
    """Return the argument of ``crc_messages``, and its blocks."""
    sizes = [data.nbytes for data in tensors]
    # Whole chunks of 4 KB; what follows has 1 to 4096 bytes and a block of its own.
    counts = [max(size - 1, 0) // BLOCK for size in sizes]
    rounds = _spread(sum(counts), resident)[0]
    ends = list(itertools.accumulate(1 - (-count // (WARPS * rounds)) for count in counts))
    value, used = _no_messages(sums.device).copy(), slice(len(tensors))
    value["sums"], value["rounds"] = sums.data_ptr(), rounds
    value["data"][used] = [data.data_ptr() for data in tensors]
    value["bytes"][used], value["block_end"][used] = sizes, ends
    return value, ends[-1]


@functools.cache
def _no_messages(device: torch.device) -> np.void:
    nothing = dict.fromkeys(("data", "bytes", "block_end"), [0] * MESSAGES)
    fields = {**operators_on(device, BLOCK // 4), **nothing, "sums": None, "rounds": 0}
    return struct_value("grid_ops_checksum.cu", "Messages", fields)


def checksum(
    grid: torch.Tensor, header: GridHeader, run: Run | None = None, resident: int = 0
) -> torch.Tensor:
    """Enqueue the checksum of a grid.

    Args:
        grid: (bytes,) uint8, aligned to 16 bytes.
        header: Of the grid.
        run: Launches a kernel; by default on the device of the grid.
        resident: Blocks that run at once; as many as the device holds by default.

    Returns:
        (2,) int32: the bits of head and tail.
    """
    if header.checksum_of_blocks:
        return grid_blocks.checksum(grid, header.size, run, resident)
    run = run or _launcher(grid.device)
    runs = [part for part in chunks(header) if part[2]]
    total = sum(count for _, _, count in runs)
    out = torch.full((2,), -1 if total else 0, dtype=torch.int32, device=grid.device)
    before = 0
    for begin, size, count in runs or [(0, nvdb.HEAD, 0)]:
        rounds, blocks = _spread(count, resident or resident_blocks(grid.device))
        end = begin + size * count
        fields = {
            **{"data": grid, **operators_on(grid.device, 1), "begin": begin, "end": end},
            **{"chunk_bytes": size, "chunks": count, "rounds": rounds, "chunks_before": before},
            **{"chunks_after": total - before - count, "extra_begin": HEAD_FROM},
            **{"extra_bytes": 0 if before else head_end(header) - HEAD_FROM},
            **{"plain": 0, "head": out[:1], "sum": out[1:]},
        }
        value = struct_value("grid_ops_checksum.cu", "Checksum", fields)
        blocks += 0 if before else 1
        run("grid_ops_checksum", "crc_chunks", blocks, 32 * WARPS, value, dependent=before > 0)
        before += count
    return out


def _spread(count: int, resident: int) -> tuple[int, int]:
    """Return how many rounds of 8 chunks a block makes, and how many blocks, for one wave."""
    rounds = max(1, -(-count // (WARPS * resident)))
    return rounds, -(-count // (WARPS * rounds))


# ---- statistics ---------------------------------------------------------------------------------


def grid_stats(
    grid: torch.Tensor,
    header: GridHeader,
    *,
    moments: bool = True,
    write: bool = False,
    run: Run | None = None,
) -> GridStats:
    """Enqueue the statistics of every node.

    Args:
        grid: (bytes,) uint8, aligned to 16 bytes, of float or int32 values.
        header: Of the grid.
        moments: Compute means and deviations, too.
        write: Write the statistics into the nodes.
        run: Launches a kernel; by default on the device of the grid.
    """
    device, layout = grid.device, (header.node_offsets, header.node_counts, header.table_size)
    how = (*layout, header.layout is nvdb.FLOAT, moments, write)
    nodes = sum(header.node_counts) + 1
    # One more holds the word with which the kernels find out which of their blocks is the last.
    records = torch.empty((nodes + 1, STATS.itemsize), dtype=torch.uint8, device=device)
    if run is None:
        prepared = _prepared_stats(device, *how)
        prepared.enqueue(torch.cuda.current_stream(device).cuda_stream, grid, records)
    else:
        fields = {**_stats_fields(*how), "grid": grid, "records": records}
        launch_each(run, "grid_ops_stats", "GridStats", fields, _stats_steps(header.node_counts))
    background = grid[header.background_at : header.background_at + 4]
    return GridStats(records[:nodes], background, header)


def _stats_fields(
    offsets: Offsets, counts: Counts, tiles: int, is_float: bool, moments: bool, write: bool
) -> dict[str, object]:
    return {
        **dict(zip(("leaf", "lower", "upper"), offsets)),
        **dict(zip(("leaves", "lowers", "uppers"), counts)),
        **{"tiles": tiles, "is_float": int(is_float)},
        **{"moments": int(moments), "write": int(write)},
    }


def _stats_steps(counts: Counts) -> tuple[Step, ...]:
    leaves, lowers, uppers = counts
    return (  # the first is behind what torch launched, and is there without leaves, too
        Step("leaf_stats", max(1, -(-leaves // (LEAF_THREADS // 32))), LEAF_THREADS, False),
        Step("lower_stats", lowers, LOWER_LANES, True),
        Step("top_stats", max(1, uppers), TOP_LANES, True),
    )


@functools.lru_cache(_PREPARED)
def _prepared_stats(
    device: torch.device,
    offsets: Offsets,
    counts: Counts,
    tiles: int,
    is_float: bool,
    moments: bool,
    write: bool,
) -> Prepared:
    fields = _stats_fields(offsets, counts, tiles, is_float, moments, write)
    steps = _stats_steps(counts)
    return Prepared("grid_ops_stats", "GridStats", fields, ("grid", "records"), steps, device)


# ---- index to grid ------------------------------------------------------------------------------


def index_to_grid(
    grid: torch.Tensor,
    header: GridHeader,
    values: torch.Tensor,
    grid_class: int,
    out: torch.Tensor,
    run: Run | None = None,
) -> None:
    """Enqueue the conversion of an index grid and its values into a grid of values.

    Args:
        grid: (bytes,) uint8, aligned to 16 bytes, an index grid.
        header: Of the grid.
        values: (value count,) float32 or int32, contiguous; the first is the background.
        grid_class: Class of the result.
        out: (bytes of the result,) uint8, aligned to 16 bytes; every byte is written.
        run: Launches a kernel; by default on the device of the grid.
    """
    how = _Conversion(
        header.node_offsets,
        header.node_counts,
        header.table_size,
        header.version,
        header.flags,
        values.dtype == torch.float32,
        len(values),
        grid_class,
    )
    if run is None:
        stream = torch.cuda.current_stream(grid.device).cuda_stream
        _prepared_index(grid.device, how).enqueue(stream, grid, out, values)
        return
    fields = {**how.fields(), "source": grid, "out": out, "values": values}
    launch_each(run, "grid_ops_index", "IndexToGrid", fields, (how.step(),))


class _Conversion(NamedTuple):
    """What of a conversion its grids decide, whatever they hold."""

    offsets: Offsets
    counts: Counts
    tiles: int
    version: Counts
    flags: int
    is_float: bool
    value_count: int
    grid_class: int

    def fields(self) -> dict[str, object]:
        """Return the fields of the struct ``IndexToGrid``, but for the addresses."""
        kind = nvdb.FLOAT if self.is_float else nvdb.INT32
        made = nvdb.sequential(kind, self.counts, self.tiles, self.version)
        return {
            **dict(zip(("leaf_in", "lower_in", "upper_in"), self.offsets)),
            **dict(zip(("leaf_out", "lower_out", "upper_out"), made.node_offsets)),
            **dict(zip(("leaves", "lowers", "uppers"), self.counts)),
            **{"size": made.size, "value_count": self.value_count, "tiles": self.tiles},
            **{"flags": self.flags & made.flags, "grid_class": self.grid_class},
            **{"grid_type": made.layout.grid_type},
        }

    def step(self) -> Step:
        """Return the launch."""
        leaves, lowers, uppers = self.counts
        blocks = 1 + UPPER_PARTS * uppers + lowers + -(-leaves // (LEAF_THREADS // 32))
        return Step("index_to_grid", blocks, LEAF_THREADS, False)


@functools.lru_cache(_PREPARED)
def _prepared_index(device: torch.device, how: _Conversion) -> Prepared:
    addresses = ("source", "out", "values")
    return Prepared("grid_ops_index", "IndexToGrid", how.fields(), addresses, (how.step(),), device)


# ---- launches -----------------------------------------------------------------------------------


@functools.cache
def resident_blocks(device: torch.device) -> int:
    """Return how many blocks of the checksum a device runs at once."""
    properties = torch.cuda.get_device_properties(device)
    by_threads = properties.max_threads_per_multi_processor // (32 * WARPS)
    shared = getattr(properties, "shared_memory_per_multiprocessor", _LEAST_SHARED)
    blocks = min(_BLOCKS_PER_PROCESSOR, by_threads, shared // _BLOCK_SHARED)
    return properties.multi_processor_count * blocks


@functools.cache
def grid_kernel(stem: str, name: str, device: torch.device) -> Kernel:
    """Return a kernel of the grids, looked up once for a device."""
    kernel = Kernel(stem, name, device=device)
    # Of the checksum five blocks need all the shared memory that there is.
    return kernel.prefer_shared(100) if stem == "grid_ops_checksum" else kernel


def _launcher(device: torch.device) -> Run:
    def run(
        stem: str, name: str, grid: int, block: int, *args: object, dependent: bool = False
    ) -> None:
        # Not dependent: the first kernel here, behind what torch launched.
        grid_kernel(stem, name, device).bind(grid, block, *args, dependent=dependent)()

    return run
