"""Rows by their numbers, gathered on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from driveRT_ros.core.cuda import kernel_on
from driveRT_ros.core.errors import ConfigError

_THREADS, _BATCHES, _MAX_BLOCKS = 256, 4, 4096  # the first two as in kernels/gather_rows.cu
_WORD_BYTES = 16
_NUMBERS = {torch.int32: "int", torch.int64: "long long"}

Run = Callable[..., None]
"""Launches ``(defines, grid, threads, *arguments)``."""


def gather_rows(rows: torch.Tensor, numbers: torch.Tensor, run: Run | None = None) -> torch.Tensor:
    """Return ``rows[numbers]``; nothing waits for the GPU, and the result has the same bytes.

    ``index_select`` of torch 2.11 gives each row a block of threads, which is slow where rows are
    short and many.

    Args:
        rows: (N, C) of any type, contiguous, rows a multiple of 16 bytes long.
        numbers: (M,) int32 or int64 in [0, N), on the same device; not checked.
        run: Launches the kernel; by default on the device of ``rows``.

    Returns:
        (M, C) in the type of ``rows``.

    Raises:
        ConfigError: If rows or numbers have another layout or type.
    """
    row_bytes = rows.shape[1] * rows.element_size()
    if row_bytes % _WORD_BYTES or not rows.is_contiguous() or rows.data_ptr() % _WORD_BYTES:
        raise ConfigError(
            f"Rows of {row_bytes} bytes with strides {rows.stride()} cannot be gathered: they must "
            f"be contiguous and aligned multiples of {_WORD_BYTES} bytes; pad them with zeros."
        )
    if numbers.dtype not in _NUMBERS or numbers.dim() != 1:
        raise ConfigError(
            f"Numbers of rows must be (M,) int32 or int64, got {tuple(numbers.shape)} "
            f"{numbers.dtype}."
        )
    out = rows.new_empty(len(numbers), rows.shape[1])
    words = row_bytes // _WORD_BYTES
    blocks = -(-len(numbers) * words // (_THREADS * _BATCHES))
    if not blocks:
        return out
    (run or _run)(
        {"NUMBER": _NUMBERS[numbers.dtype]},
        min(blocks, _MAX_BLOCKS),
        _THREADS,
        rows,
        numbers.contiguous(),
        out,
        ctypes.c_longlong(len(numbers)),
        words,
    )
    return out


def _run(defines: dict[str, str], grid: int, block: int, *args: object) -> None:
    rows = args[0]
    assert isinstance(rows, torch.Tensor)
    kernel_on(rows.device, "gather_rows", "gather_rows", defines).bind(grid, block, *args)()
