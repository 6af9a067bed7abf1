"""Variants of the tensor-core convolution worth timing, by widths.

A row is tile rows, slab, warps along rows and along channels, stages, blocks a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterator

from driveRT_ros.core.sparse_conv_mma import MmaTactic

Shape = tuple[int, int, int, int, int, int]

# Slabs in 32-byte units of a row: 16 halves or 8 floats.
STAGED: dict[int, list[Shape]] = {
    16: [(128, 1, 4, 1, 4, 6), (64, 1, 2, 1, 4, 8)],
    32: [(64, 2, 2, 1, 4, 6), (128, 2, 4, 1, 4, 4)],
    64: [(64, 4, 2, 2, 3, 4), (128, 4, 4, 2, 3, 2), (64, 4, 2, 1, 3, 4)],
    128: [
        (64, 4, 2, 2, 3, 3), (64, 2, 2, 2, 4, 3), (64, 2, 2, 2, 4, 4),
        (128, 4, 4, 2, 3, 1), (64, 2, 1, 2, 4, 3), (32, 4, 1, 4, 3, 3),
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
SHARED_LIMIT = 227 * 1024


def variants(c_in: int, c_out: int, taps: int, precision: str) -> Iterator[MmaTactic]:
    """Yield what is worth timing for one layer."""
    unit = 16 if precision == "F16" else 8
    groups = 3 if c_out < 128 or taps == 9 else None

    def made(shape: Shape, groups: int, flow: str) -> MmaTactic:
        rows, slab, warps_m, warps_n, stages, blocks = shape
        channels = min(c_in, slab * unit) if slab else c_in
        channels = max(channels, 16)
        return MmaTactic(groups, rows, channels, warps_m, warps_n, stages, blocks, precision, flow)

    for shape in STAGED[c_out]:
        choices = (groups,) if groups else ((9,) if shape[0] == 32 else (3,))
        for g in choices:
            yield made(shape, g, "staged")
        yield made(shape, 1, "staged")
    for shape in DIRECT.get(c_out, []):
        yield made(shape, 1, "direct")
    for shape in RESIDENT.get((c_in, c_out), []):
        tactic = made(shape, 1, "resident")
        if tactic.shared_bytes(c_in, c_out, taps) * tactic.min_blocks <= SHARED_LIMIT:
            yield tactic
