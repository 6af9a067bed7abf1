"""Enqueue the checksum of blocks of a NanoVDB grid: what a call costs the host is prepared by size.

Nothing of a grid is kept but its size, so a grid may be changed, freed or moved between two calls.
"""

from __future__ import annotations

import functools
import threading

import torch

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.gpu.crc_powers import operators_on
from driveRT_ros.core.gpu.prepared import Prepared, Run, Step, launch_each
from driveRT_ros.core.nanovdb_layout import HEAD_FROM
from driveRT_ros.core.reference.grid_ops import BLOCK

THREADS, MOST_STEPS = 256, 64
"""As in kernels/grid_ops_diagonals.cu."""
_STEPS = 16  # of 4 blocks each in a span: several waves of spans even out
_BLOCKS_PER_PROCESSOR = 4
_WARP_WORDS = 32  # words of the message of a span that the threads of a warp take together
_PREPARED = 64  # sizes of grids, a few KB of host memory each
_STEM, _STRUCT = "grid_ops_diagonals", "Diagonals"


def shape(size: int, resident: int, most_steps: int) -> tuple[int, int, int]:
    """Return how the checksum of a grid is shared out.

    Args:
        size: Bytes of the grid.
        resident: Spans that run at once.
        most_steps: Largest span, in steps of 4 blocks.

    Returns:
        Blocks of the tail, steps of a span, and blocks of the launch: the head, the last block of
        the tail and the spans.
    """
    blocks = (size - nvdb.HEAD) // BLOCK
    if not blocks:
        return 0, 1, 1
    steps = min(max(1, -(-(blocks - 1) // (4 * resident))), most_steps, MOST_STEPS)
    return blocks, steps, 2 + -(-(blocks - 1) // (4 * steps))


def checksum(
    grid: torch.Tensor, size: int, run: Run | None = None, resident: int = 0
) -> torch.Tensor:
    """Enqueue the checksum; see :func:`driveRT_ros.core.gpu.grid_ops.checksum`."""
    out = torch.empty(2, dtype=torch.int32, device=grid.device)
    if run is None:
        _enqueue(grid, size, out, torch.cuda.current_stream(grid.device).cuda_stream)
        return out
    fields, steps = _plan(grid.device, size, resident)
    found = torch.empty(steps[0].blocks, dtype=torch.int32, device=grid.device)
    tensors = {"grid": grid, "found": found, "out": out}
    launch_each(run, _STEM, _STRUCT, {**fields, **tensors}, steps)
    return out


def checksum_now(grid: torch.Tensor, size: int) -> tuple[int, int]:
    """Return head and tail, waiting for the current stream; kernels write them to the host.

    Args:
        grid: (bytes,) uint8 on a CUDA device, aligned to 16 bytes.
        size: Bytes of the grid.
    """
    device = grid.device
    out = _host_pair()
    stream = torch.cuda.current_stream(device)
    _enqueue(grid, size, out, stream.cuda_stream)
    stream.synchronize()
    head, tail = out.tolist()
    return head & 0xFFFFFFFF, tail & 0xFFFFFFFF


def _enqueue(grid: torch.Tensor, size: int, out: torch.Tensor, stream: int) -> None:
    """Enqueue the checksum on torch's current stream, into two words there or page-locked here."""
    prepared, parts = _prepared(grid.device, size)
    found = torch.empty(parts, dtype=torch.int32, device=grid.device)
    prepared.enqueue(stream, grid, found, out)


@functools.lru_cache(_PREPARED)
def _prepared(device: torch.device, size: int) -> tuple[Prepared, int]:
    """Return the launches for grids of a size, and how many blocks the first has."""
    fields, steps = _plan(device, size)
    prepared = Prepared(_STEM, _STRUCT, fields, ("grid", "found", "out"), steps, device)
    return prepared, steps[0].blocks


def _plan(
    device: torch.device, size: int, resident: int = 0
) -> tuple[dict[str, object], tuple[Step, Step]]:
    """Return what both kernels must know of grids of a size, addresses apart, and the launches."""
    if not resident:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        resident = _BLOCKS_PER_PROCESSOR * processors
    blocks, steps, parts = shape(size, resident, _STEPS)
    fields = {
        **{**operators_on(device, _WARP_WORDS), "blocks": blocks, "steps": steps, "parts": parts},
        **{"tail_begin": nvdb.HEAD, "tail_end": size},
        **{"head_begin": HEAD_FROM, "head_bytes": nvdb.HEAD - HEAD_FROM},
    }
    first = Step("sum_diagonals", parts, THREADS, False)  # behind what torch launched
    return fields, (first, Step("fold_diagonals", 1, THREADS, True))


_of_thread = threading.local()


def _host_pair() -> torch.Tensor:
    """Return two page-locked words of this thread, which waits before it uses them again."""
    pair: torch.Tensor | None = getattr(_of_thread, "pair", None)
    if pair is None:
        pair = _of_thread.pair = torch.empty(2, dtype=torch.int32, pin_memory=True)
    return pair
