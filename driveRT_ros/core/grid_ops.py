"""Maintain NanoVDB grids where they lie: checksums, statistics, index grids turned into values.

``crc32_bits`` takes any tensors.

A grid is (bytes,) uint8 on the CPU or a CUDA device. On the CPU the reference runs; on CUDA kernels
do, on the current stream, with the same result bit by bit. What the host must know of a grid is its
``header``: pass it and nothing waits for the GPU; without it the first bytes are copied here first.

The nodes of a grid are trusted: check what came from a file (its checksum) before.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.grid_types import GridStats, Statistics
from driveRT_ros.core.nanovdb_layout import ON_INDEX, GridHeader
from driveRT_ros.core.reference import grid_ops as reference
from driveRT_ros.core.reference import grid_stats as reference_stats
from driveRT_ros.core.stages import crc32

__all__ = [
    "GridHeader",
    "GridStats",
    "Statistics",
    "checksum",
    "checksum_bits",
    "crc32_bits",
    "grid_header",
    "grid_stats",
    "index_to_grid",
    "store_checksum",
]

_ALIGNMENT = 16  # of what kernels read and write


def grid_header(grid: torch.Tensor) -> GridHeader:
    """Read what the host must know of a grid; on CUDA this waits for it.

    Args:
        grid: (bytes,) uint8.

    Raises:
        ConfigError: If it is no grid that can be read, or a damaged one.
    """
    if grid.dtype != torch.uint8 or grid.ndim != 1 or not grid.is_contiguous():
        raise ConfigError(
            f"A grid is a contiguous (bytes,) uint8 tensor, got {tuple(grid.shape)} {grid.dtype}."
        )
    return nvdb.read_header(grid[: nvdb.HEADER_BYTES].cpu().numpy(), len(grid))


def checksum(grid: torch.Tensor, header: GridHeader | None = None) -> tuple[int, int]:
    """Return the CRC-32 of the head and of the tail of a grid, waiting for them.

    The head is the grid and tree data without magic and checksum. The tail is the CRC of the CRCs
    of blocks of 4 KB from the root on, the last of which takes the remainder; of a grid shorter
    than a block it is 0. In grids of version 32.6.0 and before, the head goes up to the first node
    and the tail is the CRC of the CRCs of nodes, 4 bytes each, as NanoVDB reads them since; tools
    of that time wrote 8 bytes each on 64-bit Linux, so the tail of an old file may be another.

    Args:
        grid: (bytes,) uint8.
        header: Of the grid, where known.

    Raises:
        ConfigError: If it is no grid that can be read, or too short for the header.
    """
    header = _header_of(grid, header)
    if grid.is_cuda and header.checksum_of_blocks:
        from driveRT_ros.core.gpu import grid_blocks as gpu  # needs a driver

        return gpu.checksum_now(_aligned(grid), header.size)
    head, tail = (int(bits) & 0xFFFFFFFF for bits in checksum_bits(grid, header).tolist())
    return head, tail


def checksum_bits(grid: torch.Tensor, header: GridHeader | None = None) -> torch.Tensor:
    """Return the bits of :func:`checksum` as (2,) int32 on the grid's device, without waiting."""
    header = _header_of(grid, header)
    if grid.is_cuda:
        from driveRT_ros.core.gpu import grid_ops as gpu  # needs a driver

        return gpu.checksum(_aligned(grid), header)
    pair = np.array(reference.checksum(grid.numpy(), header), np.uint32)
    return torch.from_numpy(pair.view(np.int32))


def crc32_bits(*tensors: torch.Tensor) -> torch.Tensor:
    """Return the bits of the CRC-32, that of zlib, of all bytes of each tensor, without waiting.

    Args:
        tensors: One or more on one device, of any shape and type; those that are not contiguous
            are copied.

    Returns:
        (number of tensors,) int32 on their device; 0 for no bytes.
    """
    plain = [tensor.contiguous() for tensor in tensors]
    if plain[0].is_cuda:
        from driveRT_ros.core.gpu import grid_ops as gpu  # needs a driver

        return gpu.crc32(*(t if t.data_ptr() % 4 == 0 else t.clone() for t in plain))
    crcs = [crc32(t) for t in plain]
    return torch.from_numpy(np.array(crcs, np.uint32).view(np.int32))


def store_checksum(grid: torch.Tensor, header: GridHeader | None = None) -> None:
    """Write the checksum of a grid into it, without waiting.

    Args:
        grid: (bytes,) uint8, changed in place.
        header: Of the grid, where known; its own checksum is not looked at.
    """
    grid[8:16] = checksum_bits(grid, header).view(torch.uint8)


def grid_stats(
    grid: torch.Tensor,
    header: GridHeader | None = None,
    *,
    moments: bool = True,
    write: bool = False,
) -> GridStats:
    """Compute the statistics of the active values of a grid, for every node and the whole.

    A tile counts as the voxels that it stands for. Values that are not numbers are counted apart
    and are in no other figure but the box. Means and deviations come from sums in float64 of a
    fixed order, so they repeat bit by bit.

    Args:
        grid: (bytes,) uint8, of float or int32 values.
        header: Of the grid, where known.
        moments: Compute means and deviations too; without them both are 0.
        write: Write statistics and boxes into the nodes, and the box in world units and the flags
            into the grid data, as NanoVDB keeps them: the checksum changes. A node without active
            values gets the background, and keeps its box, which also says where it lies.

    Returns:
        Statistics that may still be on their way; ``whole()`` waits for them.

    Raises:
        ConfigError: If the grid has no values, or is to be written and not aligned to 16 bytes.
    """
    header = _header_of(grid, header)
    if header.layout is ON_INDEX:
        raise ConfigError(
            "An index grid has no values to compute statistics of; turn it into one of values "
            "with index_to_grid first."
        )
    if grid.is_cuda:
        from driveRT_ros.core.gpu import grid_ops as gpu  # needs a driver

        if write and (grid.data_ptr() % _ALIGNMENT or not grid.is_contiguous()):
            raise ConfigError(
                "A grid to be written must be contiguous and aligned to 16 bytes; clone it first."
            )
        return gpu.grid_stats(_aligned(grid), header, moments=moments, write=write)
    data = grid.numpy()
    records = reference_stats.grid_stats(data, header, moments=moments)
    if write:
        reference_stats.write_grid_stats(data, header, records, moments=moments)
    raw = torch.from_numpy(records.view(np.uint8).reshape(len(records), -1))
    return GridStats(raw, grid[header.background_at :][:4], header)


def index_to_grid(
    grid: torch.Tensor,
    values: torch.Tensor,
    header: GridHeader | None = None,
    *,
    grid_class: int = nvdb.UNKNOWN_CLASS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Turn an index grid and its values into a grid of values.

    Every byte is written, those without a meaning as 0: same input, same bytes. Statistics, blind
    data and checksum are left out; see :func:`grid_stats` and :func:`store_checksum`.

    Args:
        grid: (bytes,) uint8, an index grid.
        values: (value count,) float32 or int32 on the same device; the first is the background.
        header: Of the grid, where known.
        grid_class: Class of the result.
        out: (bytes,) uint8 to write into, as long as the result; new by default.

    Returns:
        (bytes,) uint8, a grid of float or int32 values.

    Raises:
        ConfigError: If this is no index grid, or values or ``out`` do not fit it.
    """
    header = _header_of(grid, header)
    _check_values(header, values, grid.device)
    is_float = values.dtype == torch.float32
    size = _converted_size(is_float, header.node_counts, header.table_size, header.version)
    if out is None:
        out = torch.empty(size, dtype=torch.uint8, device=grid.device)
    aligned = out.data_ptr() % _ALIGNMENT == 0 and out.is_contiguous()
    if out.shape != (size,) or out.dtype != torch.uint8 or out.device != grid.device or not aligned:
        raise ConfigError(
            f"The result is ({size},) uint8 on {grid.device}, aligned to 16 bytes; got "
            f"{tuple(out.shape)} {out.dtype} on {out.device}."
        )
    if grid.is_cuda:
        from driveRT_ros.core.gpu import grid_ops as gpu  # needs a driver

        gpu.index_to_grid(_aligned(grid), header, values.contiguous(), grid_class, out)
    else:
        made = reference.index_to_grid(grid.numpy(), header, values.numpy(), grid_class)
        out.copy_(torch.from_numpy(made))
    return out


@functools.lru_cache(64)
def _converted_size(
    is_float: bool, counts: tuple[int, int, int], tiles: int, version: tuple[int, int, int]
) -> int:
    layout = nvdb.FLOAT if is_float else nvdb.INT32
    return nvdb.sequential(layout, counts, tiles, version).size


def _header_of(grid: torch.Tensor, header: GridHeader | None) -> GridHeader:
    """Return the header of a grid; one that was given must not name bytes that are not there."""
    if header is None:
        return grid_header(grid)
    if len(grid) < header.size:
        raise ConfigError(
            f"This header is of a grid of {header.size} bytes, {len(grid)} are there; pass the "
            "header of this grid."
        )
    return header


def _check_values(header: GridHeader, values: torch.Tensor, device: torch.device) -> None:
    if header.layout is not ON_INDEX:
        raise ConfigError(f"This is a grid of {header.layout.name} values, not of indices.")
    known = values.dtype in (torch.float32, torch.int32)
    expected = max(header.value_count, 1)
    if not known or values.shape != (expected,) or values.device != device:
        raise ConfigError(
            f"This grid needs ({expected},) float32 or int32 values on {device}, the background "
            f"first; got {tuple(values.shape)} {values.dtype} on {values.device}."
        )


def _aligned(grid: torch.Tensor) -> torch.Tensor:
    """Return the grid, or a copy where kernels could not read it in whole words."""
    grid = grid.contiguous()
    return grid if grid.data_ptr() % _ALIGNMENT == 0 else grid.clone()
