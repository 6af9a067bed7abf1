"""Tactics of the tensor-core convolution and the packing of its weights.

The kernels are ``kernels/sparse_conv_mma.cu`` and ``kernels/sparse_conv_direct.cu``;
``kernels/mma.cuh`` says why the weights lie as they do. Nothing here launches anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.tactics import shared_limit

PRECISIONS = ("F16", "TF32", "F16X3", "F64")
WIDTHS = (16, 32, 64, 128)
FULL_RATE_F64 = ((8, 0), (9, 0), (10, 0))
"""Chips whose float64 matrix unit is worth using; others have a token one, or none (7.5)."""
FLOWS = ("staged", "direct", "resident")
PARAMETERS = ("conv_mma.cuh", "Convolution")
"""Where the struct that both kernels take is declared."""


@dataclass(frozen=True)
class MmaTactic:
    """One variant of the tensor-core implicit GEMM.

    Args:
        groups: Groups the taps are divided into; with more than one, each writes fp32 sums that
            ``kernels/epilogue.cu`` adds.
        tile_rows: Output rows of a tile.
        slab: Input channels staged at once.
        warps_m: Warps along the rows of a tile.
        warps_n: Warps along its output channels.
        stages: Slabs in flight.
        min_blocks: Blocks that must fit a multiprocessor: the register limit.
        precision: One of ``PRECISIONS``.
        flow: ``staged``: rows and weights pass through shared memory, for tiles sorted by taps.
            ``direct``: rows go from the cache to registers, for tiles in spatial order.
            ``resident``: as direct, with the weights of all taps kept in shared memory and
            ``tile_rows`` the tile of a single warp.
        parts: Blocks that share the output channels of a tile; with more than one, ``warps_n``
            warps share those of a part. For layers of few rows, whose tiles leave
            multiprocessors idle; ``staged`` alone.
        folded: Whether blocks go through the tiles in a fixed order, forwards and backwards in
            turns, instead of by ticket: the block of a dear tile goes on with a cheap one, and
            no warp waits for what it looks up; ``staged`` alone.
    """

    groups: int
    tile_rows: int
    slab: int
    warps_m: int
    warps_n: int
    stages: int
    min_blocks: int
    precision: str
    flow: str = "staged"
    parts: int = 1
    folded: bool = False

    @property
    def kind(self) -> str:
        """See ``ConvTactic`` in core/tactics.py, which this class meets."""
        return "tensor_cores"

    @property
    def arithmetic(self) -> str:
        """How products and sums are made."""
        return self.precision

    @property
    def parameters(self) -> tuple[str, str]:
        """File that declares the struct which the kernel takes, and the struct."""
        return PARAMETERS

    @property
    def tiles_per_block(self) -> int:
        """Tiles that a block works on at the same time: one a warp where weights are resident."""
        return self.warps_m if self.flow == "resident" else 1

    @property
    def kernel(self) -> str:
        """Name of the kernel and of its source file."""
        return "sparse_conv_mma" if self.stages_rows else "sparse_conv_direct"

    @property
    def stages_rows(self) -> bool:
        """Whether input rows pass through shared memory beside the weights."""
        return self.flow == "staged"

    @property
    def element_bytes(self) -> int:
        """Bytes of a feature, and of what is stored for a weight."""
        return 2 if self.precision == "F16" else 4

    def threads(self, c_out: int) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n

    def shared_bytes(self, c_in: int, c_out: int, taps: int) -> int:
        """Dynamic shared memory of a block."""
        if self.flow == "resident":
            return taps * c_in * c_out * self.element_bytes
        staged_rows = self.tile_rows if self.stages_rows else 0
        return (
            self.stages
            * self.slab
            * (staged_rows + c_out // max(self.parts, 1))
            * self.element_bytes
        )

    def defines(self, c_in: int, c_out: int, taps: int) -> dict[str, object]:
        """Compile-time constants of the kernel."""
        constants: dict[str, object] = {
            "CIN": c_in,
            "COUT": c_out,
            "TM": self.tile_rows,
            "KC": self.slab,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "STAGES": self.stages,
            "MIN_BLOCKS": self.min_blocks,
            "PRECISION": self.precision,
            "PARTIAL": int(self.groups > 1),
        }
        if self.parts > 1:
            constants["COLUMNS"] = c_out // self.parts
        if self.folded:
            constants["FOLDED"] = 1
        if not self.stages_rows:
            constants |= {"RESIDENT": int(self.flow == "resident"), "TAPS": taps}
        return constants

    def supports(self, c_in: int, c_out: int, taps: int, capability: tuple[int, int]) -> str:
        """Return why this variant cannot run a layer on a chip, or an empty string where it can."""
        if self.precision not in PRECISIONS or c_in not in WIDTHS or c_out not in WIDTHS:
            return f"{self.precision} {c_in} -> {c_out}: one of {PRECISIONS}, widths of {WIDTHS}"
        if capability < (7, 5) or (capability < (8, 0) and self.precision == "TF32"):
            return f"compute capability {capability} has no {self.precision} matrix unit"
        if self.precision == "F64" and capability not in FULL_RATE_F64:
            return (
                f"compute capability {capability} multiplies F64 at 1/64 of its float32 rate or "
                f"not at all; F64 is for {', '.join(f'{a}.{b}' for a, b in FULL_RATE_F64)}"
            )
        row_bytes = self.slab * self.element_bytes
        fragment_bytes = 32 if self.precision == "F64" else min(64, c_in * self.element_bytes)
        run = 2 if c_out == 16 else 4  # channels of a lane: 8 lanes make one result
        resident, threads = self.flow == "resident", self.threads(c_out)
        sharing = 1 if resident else max(self.warps_m, 1)  # warps along the rows of a tile
        copies = self.tile_rows * row_bytes if self.stages_rows else 0
        rules = {
            "flow": self.flow in FLOWS,
            "groups": taps % self.groups == 0 and taps <= 32,
            "slab": c_in % self.slab == 0
            and row_bytes % fragment_bytes == 0
            and (not resident or self.slab == c_in),
            "warps_m": self.warps_m >= 1 and self.tile_rows % (8 * sharing) == 0,
            "warps_n": self.warps_n >= 1
            and c_out % (8 * run * self.warps_n * max(self.parts, 1)) == 0
            and (not resident or self.warps_n == 1),
            "parts": self.parts == 1 or (self.parts > 1 and self.flow == "staged"),
            "folded": self.stages_rows or not self.folded,
            "stages": 2 <= self.stages <= 6,
            "threads": 0 < threads <= 1024 and copies % (16 * max(threads, 1)) == 0,
            "shared memory": self.shared_bytes(c_in, c_out, taps) <= shared_limit(capability) - 256,
        }
        bad = [name for name, good in rules.items() if not good]
        return f"{', '.join(bad)} of {self} do not fit {taps} taps {c_in} -> {c_out}" if bad else ""

    def pack(self, weight: Tensor) -> tuple[Tensor, float]:
        """Return weights as the kernel reads them, and their scale; see :func:`pack_weight`."""
        return pack_weight(weight, self.precision)


def weight_scale(weight: Tensor) -> float:
    """Return the power of two that lifts the largest weight into [2^13, 2^14).

    The low half of a split weight is 2^-11 of it, so even weights 2^-16 of the largest keep all 22
    bits, and sums stay far from the end of fp32.
    """
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    if not (largest > 0 and math.isfinite(largest)):
        return 1.0
    return 2.0 ** (14 - math.frexp(largest)[1])


def pack_weight(weight: Tensor, precision: str) -> tuple[Tensor, float]:
    """Put weights into the order in which the lanes of a warp read them.

    Args:
        weight: (taps, c_in, c_out) floating point; both widths one of ``WIDTHS``.
        precision: One of ``PRECISIONS``.

    Returns:
        The packed weights, float16 for F16 and F16X3 (twice as many: high and low halves) and
        float32 for TF32 (rounded to tf32) and F64 (unchanged), and the scale that was applied (1
        but for F16X3).

    Raises:
        ConfigError: If the kernel has no such width or precision, or a weight overflows a half.
    """
    taps, c_in, c_out = weight.shape
    if precision not in PRECISIONS or c_in not in WIDTHS or c_out not in WIDTHS:
        raise ConfigError(
            f"No tensor-core convolution {precision} {c_in} -> {c_out}; precisions are "
            f"{PRECISIONS}, widths {WIDTHS}."
        )
    scale = weight_scale(weight) if precision == "F16X3" else 1.0
    if precision == "F16" and float(weight.abs().max()) > 65504:
        raise ConfigError(
            f"A weight of {float(weight.abs().max()):.6g} does not fit a half (65504 at most); "
            "choose TF32, F16X3 or fp32 for this layer."
        )
    lanes = _by_lane(weight, precision)
    if precision == "F16":
        return lanes.half().contiguous(), scale
    if precision == "TF32":
        return round_tf32(lanes.float()).contiguous(), scale
    if precision == "F64":
        return lanes.float().contiguous(), scale
    scaled = lanes.float() * scale
    high = scaled.half()
    low = (scaled - high.float()).half()
    return torch.stack((high, low), dim=4).contiguous(), scale


def _by_lane(weight: Tensor, precision: str) -> Tensor:
    """Return (taps, blocks, c_out / 16, products, g, t, values): what lane 4 g + t reads."""
    taps, c_in, c_out = weight.shape
    pairs = 1 if precision in ("TF32", "F64") else 2  # consecutive k in one register
    one = precision in ("F16X3", "F64") or (precision == "F16" and c_in == 16)
    products = 1 if one else 2
    # Channel of operand m, slot 8 h + g: 4 g + 2 (m % 2) + h in each 32, or 2 g + h of 16.
    operands = 1 if c_out == 16 else 2
    # k of a block: lane t, product, half kh of its registers, then the pair inside one.
    split = weight.reshape(
        taps, -1, 4, products, 2, pairs, c_out // (16 * operands), 8, operands, 2
    )
    tap, block, t, product, kh, pair, group, g, operand, h = range(10)
    order = (tap, block, group, operand, product, g, t, kh, h, pair)
    blocks = split.shape[block]
    return split.permute(order).reshape(taps, blocks, c_out // 16, products, 8, 4, 4 * pairs)


def round_tf32(values: Tensor) -> Tensor:
    """Round float32 to 10 bits of mantissa, ties away from zero, as ``cvt.rna.tf32`` does."""
    bits = values.contiguous().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)
