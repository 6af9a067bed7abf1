"""Operators on grids that stay where they are, called again and again at the least cost.

What one call costs the host, arguments, buffers and one launch after another, is spent once here:
on a GPU the work becomes a CUDA graph, and each call is one request to the driver. Contents may
change between calls, addresses and sizes may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from driveRT_ros.core import grid_ops
from driveRT_ros.core.nanovdb_layout import GridHeader

Result = TypeVar("Result")


class Repeated(Generic[Result]):
    """One piece of work on buffers that stay.

    Args:
        work: Enqueues it on torch's current stream without waiting, and returns its results, such
            as ``lambda: grid_stats(grid, header)``; called three times here on a GPU.
        device: Where its tensors lie.
    """

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            from driveRT_ros.core.gpu.replay import captured  # needs a driver

            with torch.cuda.device(device):
                kept: list[Result] = []  # not on self: the graph would keep that alive

                def keep() -> None:
                    kept[:] = [work()]

                self._graph = captured(keep)
                self._result = kept[0]

    def __call__(self) -> Result:
        """Enqueue the work; every call returns the same tensors, so it overwrites the last."""
        if self._graph is None:
            return self._work()
        self._graph.replay()
        return self._result


class RepeatedChecksum:
    """The checksum of a grid that stays where it is; see :func:`~grid_ops.checksum`.

    Args:
        grid: (bytes,) uint8, aligned to 4 bytes.
        header: Of the grid, where known. Sizes and version are taken from it once and for all.

    Raises:
        ConfigError: If it is no grid that can be read.
    """

    def __init__(self, grid: torch.Tensor, header: GridHeader | None = None) -> None:
        header = header or grid_ops.grid_header(grid)
        self._device = grid.device
        bits = torch.empty(2, dtype=torch.int32, pin_memory=grid.is_cuda)
        self._words = bits.numpy()

        def work() -> None:
            bits.copy_(grid_ops.checksum_bits(grid, header), non_blocking=True)

        self._run = Repeated(work, grid.device)

    def __call__(self) -> tuple[int, int]:
        """Return the CRC-32 of head and tail, waiting for them."""
        self._run()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        head, tail = self._words.tolist()
        return head & 0xFFFFFFFF, tail & 0xFFFFFFFF
