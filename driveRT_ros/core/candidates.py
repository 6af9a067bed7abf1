"""Tactics worth timing for a layer: the one list that the tuner and the benchmarks search.

A row of a table is one shape that was the fastest somewhere, or came close; shapes that lost
everywhere are recorded in ``benchmarks/experiments`` and not tried again. Order is fixed: the same
layer, precision and chip always give the same list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from driveRT_ros.core.plan import ARITHMETIC, check_precision
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import ConvTactic, Tactic

Shape = tuple[int, int, int, int, int, int]

# Tile rows, slab, rows and channels of a thread, stages, blocks a multiprocessor.
CUDA_CORES: dict[int, list[Shape]] = {
    16: [(64, 16, 4, 4, 3, 8), (64, 16, 4, 4, 2, 8), (128, 16, 8, 4, 3, 4)],
    32: [
        (64, 32, 4, 4, 2, 8), (64, 32, 4, 4, 2, 6), (64, 16, 4, 4, 3, 6), (64, 16, 4, 4, 2, 8),
        (128, 16, 8, 4, 3, 4),
    ],
    64: [
        (64, 16, 4, 8, 3, 4), (64, 16, 4, 8, 2, 4), (64, 16, 8, 8, 3, 6), (128, 16, 8, 8, 3, 3),
    ],
    128: [
        (64, 16, 8, 8, 3, 3), (64, 16, 8, 8, 2, 3), (64, 32, 8, 8, 2, 3), (64, 16, 8, 8, 3, 4),
        (32, 16, 4, 8, 3, 4), (32, 16, 4, 8, 2, 3), (32, 16, 8, 8, 3, 4), (32, 32, 4, 8, 2, 4),
    ],
}  # fmt: skip

# Tile rows, slab, warps along rows and along channels, stages, blocks a multiprocessor.
# Slabs in 32-byte units of a row: 16 halves or 8 floats.
STAGED: dict[int, list[Shape]] = {
    16: [(128, 1, 4, 1, 4, 6), (64, 1, 2, 1, 4, 8)],
    32: [(64, 2, 2, 1, 4, 6), (128, 2, 4, 1, 4, 4)],
    64: [(64, 4, 2, 2, 3, 4), (128, 4, 4, 2, 3, 2), (64, 4, 2, 1, 3, 4)],
    128: [
        (64, 4, 2, 2, 3, 3), (64, 2, 2, 2, 4, 3), (64, 2, 2, 2, 4, 4),
        (128, 4, 4, 2, 3, 1), (128, 2, 4, 2, 4, 2), (128, 2, 2, 2, 4, 2), (64, 2, 1, 2, 4, 3),
        (32, 4, 1, 4, 3, 3),
    ],
}  # fmt: skip
# More of F16, whose operands are small: eight warps a tile, so that each has half as much to do
# before the next barrier.
STAGED_F16: dict[int, list[Shape]] = {
    64: [(64, 4, 4, 2, 3, 4)],
    128: [(64, 4, 4, 2, 3, 3), (64, 4, 2, 4, 3, 3)],
}
# The same of F64, whose sums take twice the registers; slabs in 8 floats.
STAGED_F64: dict[int, list[Shape]] = {
    16: [(128, 2, 4, 1, 3, 4), (64, 2, 2, 1, 4, 6), (64, 2, 2, 1, 3, 8), (128, 2, 4, 1, 4, 4)],
    32: [
        (64, 4, 2, 1, 3, 4), (64, 2, 2, 1, 4, 4), (64, 2, 4, 1, 4, 4), (128, 2, 4, 1, 3, 3),
        (64, 4, 2, 1, 3, 6), (64, 4, 2, 1, 2, 8), (64, 2, 2, 1, 3, 8),
    ],
    64: [
        (64, 2, 2, 2, 4, 3), (64, 4, 2, 2, 3, 3), (64, 2, 2, 2, 4, 4), (64, 4, 2, 1, 3, 4),
        (32, 4, 1, 2, 3, 6), (128, 4, 4, 2, 3, 2), (64, 4, 2, 2, 3, 4), (64, 8, 2, 2, 2, 3),
    ],
    128: [
        (32, 4, 1, 4, 3, 3), (32, 2, 1, 4, 4, 3), (64, 2, 2, 2, 4, 2), (32, 2, 2, 2, 4, 4),
        (64, 2, 2, 2, 3, 3), (64, 4, 2, 2, 3, 2), (32, 4, 1, 4, 2, 4), (64, 4, 1, 4, 3, 2),
        (64, 4, 2, 4, 3, 2),
        # For layers of few rows: more tiles, more warps a tile, fewer barriers.
        (16, 4, 1, 4, 3, 4), (16, 4, 1, 4, 2, 5), (16, 8, 1, 4, 2, 3),
        (32, 4, 2, 4, 3, 2), (32, 8, 1, 4, 2, 2), (32, 2, 1, 4, 4, 4),
    ],
}  # fmt: skip
# The same where blocks share the channels of a tile: how many, then warps along those of one.
SHARED_F64: dict[int, list[tuple[int, Shape]]] = {
    128: [
        (2, (64, 2, 2, 2, 4, 4)), (2, (64, 4, 2, 2, 3, 3)), (2, (64, 8, 2, 2, 2, 3)),
        (2, (32, 4, 1, 2, 3, 6)), (4, (64, 4, 4, 1, 3, 4)),
    ],
}  # fmt: skip
DIRECT: dict[int, list[Shape]] = {
    64: [(64, 2, 2, 2, 4, 4), (128, 2, 4, 2, 4, 2), (64, 4, 2, 2, 4, 3)],
    128: [(64, 2, 2, 4, 4, 2), (128, 2, 4, 4, 4, 1), (64, 2, 2, 2, 4, 3), (32, 2, 1, 4, 4, 4)],
}
RESIDENT: dict[tuple[int, int], list[Shape]] = {
    (16, 16): [(32, 0, 8, 1, 2, 3), (16, 0, 8, 1, 2, 4)],
    (16, 32): [(32, 0, 8, 1, 2, 2), (16, 0, 8, 1, 2, 3)],
    (32, 32): [
        (32, 0, 8, 1, 2, 2),
        (32, 0, 16, 1, 2, 1),
        (16, 0, 8, 1, 2, 3),
        (16, 0, 16, 1, 2, 2),
    ],
    (32, 64): [(32, 0, 12, 1, 2, 1), (16, 0, 16, 1, 2, 1)],
}
ONE_GROUP = ("F16", "TF32")
"""Where one group of all taps was measured to win: sums need no second pass, but tiles hold a third
more rows than there is work for, which slower arithmetic cannot afford."""
SHARED_A_MULTIPROCESSOR = 227 * 1024
"""Weights of all resident blocks must fit; of 9.0 and 10.0, no chip has more."""


def candidates(
    c_in: int, c_out: int, taps: int, precision: str, capability: tuple[int, int]
) -> tuple[ConvTactic, ...]:
    """Return what is worth timing for a layer on a chip, without repetition, in a fixed order.

    Args:
        c_in: Input channels.
        c_out: Output channels.
        taps: 27 or 9.
        precision: Of the Plan; what it may compute with is tried from the matrix units down.
        capability: CUDA compute capability.

    Raises:
        ConfigError: If there is no such precision.
    """
    check_precision(precision)
    found: dict[ConvTactic, None] = {}
    for arithmetic in reversed(ARITHMETIC[precision]):
        every: Iterator[ConvTactic] = (
            cuda_core_variants(c_out, taps)
            if arithmetic == "FFMA"
            else tensor_core_variants(c_in, c_out, taps, arithmetic)
        )
        for tactic in every:
            if not tactic.supports(c_in, c_out, taps, capability):
                found[tactic] = None
    return tuple(found)


def cuda_core_variants(c_out: int, taps: int) -> Iterator[Tactic]:
    """Yield shapes of the FP32 kernel of the CUDA cores; some may not support the layer."""
    for shape in CUDA_CORES[_width(c_out)]:
        for groups in _groups(taps, shape[0]):
            yield Tactic(groups, *shape)


def tensor_core_variants(c_in: int, c_out: int, taps: int, arithmetic: str) -> Iterator[MmaTactic]:
    """Yield shapes of the tensor-core kernels; some may not support the layer."""
    unit = 16 if arithmetic == "F16" else 8

    def made(shape: Shape, groups: int, flow: str, parts: int = 1) -> MmaTactic:
        rows, slab, warps_m, warps_n, stages, blocks = shape
        channels = min(c_in, slab * unit) if slab else c_in
        channels = max(channels, 16)
        return MmaTactic(
            groups, rows, channels, warps_m, warps_n, stages, blocks, arithmetic, flow, parts
        )

    width = _width(c_out)
    shapes = (STAGED_F64 if arithmetic == "F64" else STAGED)[width]
    if arithmetic == "F16":
        shapes = shapes + STAGED_F16.get(width, [])
    for shape in shapes:
        for groups in _groups(taps, shape[0]):
            yield made(shape, groups, "staged")
            if arithmetic == "F16":
                yield dataclasses.replace(made(shape, groups, "staged"), folded=True)
    if arithmetic == "F64":
        for parts, shape in SHARED_F64.get(width, []):
            for groups in _groups(taps, shape[0]):
                yield made(shape, groups, "staged", parts)
    if arithmetic not in ONE_GROUP:
        return
    if taps == 27:
        for shape in STAGED[width]:
            yield made(shape, 1, "staged")
    for shape in DIRECT.get(width, []):
        yield made(shape, 1, "direct")
    for shape in RESIDENT.get((c_in, c_out), []):
        tactic = made(shape, 1, "resident")
        if tactic.shared_bytes(c_in, c_out, taps) * tactic.min_blocks <= SHARED_A_MULTIPROCESSOR:
            yield tactic


def _groups(taps: int, tile_rows: int) -> tuple[int, ...]:
    """Return the divisions into planes or lines; lines pay where rows, and so tiles, are few."""
    if taps == 9:
        return (3, 1)
    return (3, 9) if tile_rows <= 64 else (3,)


def _width(c_out: int) -> int:
    """Return the table to look a layer up in: the widest that is not wider than the layer."""
    return max((w for w in CUDA_CORES if w <= c_out), default=min(CUDA_CORES))
