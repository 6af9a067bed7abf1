"""How one convolution is run: the interface of all tactics, and those of the CUDA cores."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

TILE_ROWS = (16, 32, 64, 128)
"""Heights of tiles that coordinate maps can have; kernels/coordmap.cu."""
GROUP_TAPS = (3, 9, 27)
"""Taps that a group of them can have; kernels/coordmap.cu."""

_SHARED_KIB = {(7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
_SHARED_KIB_ELSEWHERE = 99  # of 8.6, 8.9 and 12.x; no chip since 8.0 has less


def shared_limit(capability: tuple[int, int]) -> int:
    """Return the bytes of shared memory that a block can have (CUDA C++ Programming Guide)."""
    return 1024 * _SHARED_KIB.get(capability, _SHARED_KIB_ELSEWHERE)


class ConvTactic(Protocol):
    """One variant of one convolution kernel; the channels and taps of the layer come on top."""

    @property
    def groups(self) -> int:
        """Groups the taps are divided into; with more than one, each writes float32 sums."""
        ...

    @property
    def tile_rows(self) -> int:
        """Output rows of a tile."""
        ...

    @property
    def min_blocks(self) -> int:
        """Blocks that must fit a multiprocessor."""
        ...

    @property
    def kind(self) -> str:
        """``cuda_cores`` or ``tensor_cores``: which class reads the tactic from JSON."""
        ...

    @property
    def arithmetic(self) -> str:
        """Products and sums: ``FFMA``, ``F64``, ``F16X3``, ``TF32`` or ``F16``."""
        ...

    @property
    def kernel(self) -> str:
        """Name of the kernel and of its source file."""
        ...

    @property
    def parameters(self) -> tuple[str, str]:
        """File that declares the struct which the kernel takes, and the struct."""
        ...

    @property
    def tiles_per_block(self) -> int:
        """Tiles that a block works on at the same time."""
        ...

    def threads(self, c_out: int) -> int:
        """Threads of a block."""
        ...

    def shared_bytes(self, c_in: int, c_out: int, taps: int) -> int:
        """Dynamic shared memory of a block."""
        ...

    def defines(self, c_in: int, c_out: int, taps: int) -> dict[str, object]:
        """Compile-time constants of the kernel."""
        ...

    def supports(self, c_in: int, c_out: int, taps: int, capability: tuple[int, int]) -> str:
        """Return why this variant cannot run a layer on a chip, or an empty string where it can."""
        ...

    def pack(self, weight: Tensor) -> tuple[Tensor, float]:
        """Return weights (taps, c_in, c_out) as the kernel reads them, and their scale."""
        ...


@dataclasses.dataclass(frozen=True)
class Tactic:
    """One variant of the exact FP32 implicit GEMM (``kernels/sparse_conv.cu``).

    Args:
        groups: Groups the taps are divided into: 3 planes or 9 lines of a 3x3x3 kernel, 1 plane or
            3 lines of a 3x3 one.
        tile_rows: Output rows of a tile.
        slab: Input channels staged at once.
        thread_rows: Rows of a tile that one thread multiplies.
        thread_channels: Output channels that one thread multiplies.
        stages: Slabs in flight.
        min_blocks: Blocks that must fit a multiprocessor: the register limit.
    """

    groups: int
    tile_rows: int
    slab: int
    thread_rows: int
    thread_channels: int
    stages: int
    min_blocks: int

    @property
    def kind(self) -> str:
        """See :class:`ConvTactic`."""
        return "cuda_cores"

    @property
    def arithmetic(self) -> str:
        """See :class:`ConvTactic`."""
        return "FFMA"

    @property
    def kernel(self) -> str:
        """See :class:`ConvTactic`."""
        return "sparse_conv"

    @property
    def parameters(self) -> tuple[str, str]:
        """See :class:`ConvTactic`."""
        return "sparse_conv.cu", "Convolution"

    @property
    def tiles_per_block(self) -> int:
        """See :class:`ConvTactic`."""
        return 1

    def threads(self, c_out: int) -> int:
        """See :class:`ConvTactic`."""
        return (c_out // self.thread_channels) * (self.tile_rows // self.thread_rows)

    def shared_bytes(self, c_in: int, c_out: int, taps: int) -> int:
        """See :class:`ConvTactic`."""
        return 4 * self.stages * (self.tile_rows * (self.slab + 4) + self.slab * c_out)

    def defines(self, c_in: int, c_out: int, taps: int) -> dict[str, object]:
        """See :class:`ConvTactic`."""
        return {
            "CIN": c_in,
            "COUT": c_out,
            "TM": self.tile_rows,
            "KC": self.slab,
            "RPT": self.thread_rows,
            "CPT": self.thread_channels,
            "STAGES": self.stages,
            "MIN_BLOCKS": self.min_blocks,
        }

    def supports(self, c_in: int, c_out: int, taps: int, capability: tuple[int, int]) -> str:
        """See :class:`ConvTactic`."""
        fits_thread = self.thread_rows > 0 and self.thread_channels > 0
        threads = self.threads(c_out) if fits_thread else 0
        rules = {
            "tile_rows": self.tile_rows in (32, 64, 128)
            and fits_thread
            and self.tile_rows % self.thread_rows == 0,
            "thread_channels": fits_thread
            and self.thread_channels % 4 == 0
            and c_out % self.thread_channels == 0,
            "slab": self.slab > 0 and self.slab % 4 == 0 and c_in % self.slab == 0,
            "groups": (taps, self.groups) in ((27, 1), (27, 3), (27, 9), (9, 1), (9, 3)),
            "stages": self.stages >= 2,
            "threads": 0 < threads <= 1024 and threads % 32 == 0,
            "min_blocks": self.min_blocks >= 1,
            "shared memory": self.shared_bytes(c_in, c_out, taps) <= shared_limit(capability) - 64,
        }
        bad = [name for name, good in rules.items() if not good]
        if not bad:
            copies = (self.tile_rows * self.slab // 4, self.slab * c_out // 4)
            bad = ["copies"] if any(c % threads for c in copies) else []
        return f"{', '.join(bad)} of {self} do not fit {taps} taps {c_in} -> {c_out}" if bad else ""

    def pack(self, weight: Tensor) -> tuple[Tensor, float]:
        """See :class:`ConvTactic`."""
        return weight.to(torch.float32).contiguous(), 1.0
