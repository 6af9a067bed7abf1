"""Enqueue the operators on NanoVDB grids; nothing here waits for the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.cuda import Kernel
from driveRT_ros.core.gpu import grid_blocks
from driveRT_ros.core.gpu.crc_powers import operators_on
from driveRT_ros.core.grid_types import STATS, GridStats
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.nanovdb_layout import HEAD_FROM, GridHeader
from driveRT_ros.core.reference.grid_ops import BLOCK, chunks, head_end

WARPS, THREADS, LEAF_THREADS, UPPER_PARTS, MESSAGES = 8, 128, 256, 8, 8
"""As in kernels/grid_ops_*.cu."""
_BLOCKS_PER_PROCESSOR = 5  # of the checksum: all that its registers let in, so one wave does it
_BLOCK_SHARED = 42 * 1024  # bytes that each takes of shared memory, what the driver adds included
_LEAST_SHARED = 64 * 1024  # of a multiprocessor, where torch does not tell

Run = Callable[..., None]
"""Launches ``(stem, kernel, blocks, threads, *arguments)``."""


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
    run, resident = run or _launcher(device), resident or _resident(device)
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
    ends = np.cumsum([1 - (-count // (WARPS * rounds)) for count in counts])
    rest = MESSAGES - len(tensors)
    fields = {
        **{**operators_on(sums.device, BLOCK // 4), "sums": sums, "rounds": rounds},
        **{"data": [*tensors, *([None] * rest)], "bytes": [*sizes, *([0] * rest)]},
        "block_end": [*ends, *([0] * rest)],
    }
    return struct_value("grid_ops_checksum.cu", "Messages", fields), int(ends[-1])


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
        rounds, blocks = _spread(count, resident or _resident(grid.device))
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
    run = run or _launcher(grid.device)
    leaves, lowers, uppers = header.node_counts
    total = leaves + lowers + uppers + 1
    records = torch.empty((total, STATS.itemsize), dtype=torch.uint8, device=grid.device)
    fields = {
        **{"grid": grid, "records": records, "is_float": int(header.layout is nvdb.FLOAT)},
        **dict(zip(("leaf", "lower", "upper"), header.node_offsets)),
        **{"leaves": leaves, "lowers": lowers, "uppers": uppers, "tiles": header.table_size},
        **{"moments": int(moments), "write": int(write)},
    }
    value = struct_value("grid_ops_stats.cu", "GridStats", fields)
    per_block = LEAF_THREADS // 32
    for i, (name, blocks, threads) in enumerate((
        ("leaf_stats", -(-leaves // per_block), LEAF_THREADS),
        ("lower_stats", lowers, THREADS),
        ("upper_stats", uppers, THREADS),
        ("root_stats", 1, THREADS),
    )):  # fmt: skip
        if blocks:
            run("grid_ops_stats", name, blocks, threads, value, dependent=i > 0 and leaves > 0)
    return GridStats(records, grid[header.background_at :][:4], header)


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
    run = run or _launcher(grid.device)
    dtype = np.dtype(np.float32 if values.dtype == torch.float32 else np.int32)
    made = nvdb.converted(header, dtype)
    leaves, lowers, uppers = header.node_counts
    fields = {
        **{"source": grid, "out": out, "values": values, "value_count": len(values)},
        **dict(zip(("leaf_in", "lower_in", "upper_in"), header.node_offsets)),
        **dict(zip(("leaf_out", "lower_out", "upper_out"), made.node_offsets)),
        **{"size": made.size, "leaves": leaves, "lowers": lowers, "uppers": uppers},
        **{"tiles": header.table_size, "flags": made.flags, "grid_class": grid_class},
        **{"grid_type": made.layout.grid_type},
    }
    value = struct_value("grid_ops_index.cu", "IndexToGrid", fields)
    blocks = 1 + UPPER_PARTS * uppers + lowers + -(-leaves // (LEAF_THREADS // 32))
    run("grid_ops_index", "index_to_grid", blocks, LEAF_THREADS, value, dependent=False)


# ---- launches -----------------------------------------------------------------------------------


@functools.cache
def _resident(device: torch.device) -> int:
    """Return how many blocks of the checksum a device runs at once."""
    properties = torch.cuda.get_device_properties(device)
    by_threads = properties.max_threads_per_multi_processor // (32 * WARPS)
    shared = getattr(properties, "shared_memory_per_multiprocessor", _LEAST_SHARED)
    blocks = min(_BLOCKS_PER_PROCESSOR, by_threads, shared // _BLOCK_SHARED)
    return properties.multi_processor_count * blocks


@functools.cache
def _kernel(stem: str, name: str, device: torch.device) -> Kernel:
    kernel = Kernel(stem, name, device=device)
    return (
        kernel.prefer_shared(100) if stem == "grid_ops_checksum" else kernel
    )  # what 5 blocks need


def _launcher(device: torch.device) -> Run:
    def run(
        stem: str, name: str, grid: int, block: int, *args: object, dependent: bool = False
    ) -> None:
        # Not dependent: the first kernel here, behind what torch launched.
        _kernel(stem, name, device).bind(grid, block, *args, dependent=dependent)()

    return run
