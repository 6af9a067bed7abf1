"""Enqueue the checksum of blocks of a NanoVDB grid: what a call costs the host is prepared by size.

Nothing of a grid is kept but its size, so a grid may be changed, freed or moved between two calls.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable

import numpy as np
import torch

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.cuda import Kernel
from driveRT_ros.core.gpu.crc_powers import operators_on
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.nanovdb_layout import HEAD_FROM
from driveRT_ros.core.reference.grid_ops import BLOCK

THREADS, MOST_STEPS = 256, 64
"""As in kernels/grid_ops_diagonals.cu."""
_STEPS = 16  # of 4 blocks each in a span: several waves of spans even out
_BLOCKS_PER_PROCESSOR = 4
_WARP_WORDS = 32  # words of the message of a span that the threads of a warp take together
_PREPARED = 64  # sizes of grids, a few KB of host memory each

Run = Callable[..., None]
"""Launches ``(stem, kernel, blocks, threads, *arguments)``."""


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


def arguments(device: torch.device, size: int, blocks: int, steps: int) -> np.void:
    """Return what ``sum_diagonals`` must know of a grid."""
    fields = {
        **{**operators_on(device, _WARP_WORDS), "blocks": blocks, "steps": steps},
        **{"tail_begin": nvdb.HEAD, "tail_end": size},
        **{"head_begin": HEAD_FROM, "head_bytes": nvdb.HEAD - HEAD_FROM},
    }
    return struct_value("grid_ops_diagonals.cu", "Diagonals", fields)


def checksum(
    grid: torch.Tensor, size: int, run: Run | None = None, resident: int = 0
) -> torch.Tensor:
    """Enqueue the checksum; see :func:`driveRT_ros.core.gpu.grid_ops.checksum`."""
    if run is None:
        prepared = _prepared(grid.device, size)
        out = torch.empty(2, dtype=torch.int32, device=grid.device)
        prepared.enqueue(grid, out.data_ptr(), torch.cuda.current_stream(grid.device).cuda_stream)
        return out
    blocks, steps, count = shape(size, resident, _STEPS)
    found = torch.empty(count, dtype=torch.int32, device=grid.device)
    out = torch.empty(2, dtype=torch.int32, device=grid.device)
    value = arguments(grid.device, size, blocks, steps)
    run("grid_ops_diagonals", "sum_diagonals", count, THREADS, value, grid, found)
    run("grid_ops_diagonals", "fold_diagonals", 1, THREADS, found, out, count, dependent=True)
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
    _prepared(device, size).enqueue(grid, out.data_ptr(), stream.cuda_stream)
    stream.synchronize()
    head, tail = out.tolist()
    return head & 0xFFFFFFFF, tail & 0xFFFFFFFF


class _Prepared:
    """Both launches for grids of one size, in which addresses alone change.

    Args:
        device: CUDA device.
        size: Bytes of the grid.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        blocks, steps, self._count = shape(size, _BLOCKS_PER_PROCESSOR * processors, _STEPS)
        self._device, self._lock = device, threading.Lock()
        self._grid, self._found, self._out = (ctypes.c_void_p() for _ in range(3))
        value = arguments(device, size, blocks, steps)
        self._sum = Kernel("grid_ops_diagonals", "sum_diagonals", device=device).bind(
            self._count, THREADS, value, self._grid, self._found
        )
        self._fold = Kernel("grid_ops_diagonals", "fold_diagonals", device=device).bind(
            1, THREADS, self._found, self._out, self._count, dependent=True
        )

    def enqueue(self, grid: torch.Tensor, out: int, stream: int) -> None:
        """Enqueue the checksum of a grid.

        Args:
            grid: (bytes,) uint8.
            out: Address of two words, on the device or page-locked on the host.
            stream: Torch's current one.
        """
        found = torch.empty(self._count, dtype=torch.int32, device=self._device)
        with self._lock:
            self._grid.value, self._found.value, self._out.value = (
                grid.data_ptr(),
                found.data_ptr(),
                out,
            )
            self._sum(stream)
            self._fold(stream)


@functools.lru_cache(_PREPARED)
def _prepared(device: torch.device, size: int) -> _Prepared:
    return _Prepared(device, size)


_of_thread = threading.local()


def _host_pair() -> torch.Tensor:
    """Return two page-locked words of this thread, which waits before it uses them again."""
    pair: torch.Tensor | None = getattr(_of_thread, "pair", None)
    if pair is None:
        pair = _of_thread.pair = torch.empty(2, dtype=torch.int32, pin_memory=True)
    return pair
