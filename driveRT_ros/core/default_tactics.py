"""The tactic of a domain that needs no search."""

from __future__ import annotations

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import ConvTactic, Tactic

# Staged tactics, measured on an H200: tile rows, slab, warps along rows and along channels, stages,
# blocks.
_STAGED = {
    "F16": {
        16: (64, 16, 2, 1, 4, 8),
        32: (64, 32, 2, 1, 4, 6),
        64: (64, 64, 2, 2, 3, 4),
        128: (64, 64, 2, 2, 3, 3),
    },
    "F16X3": {
        16: (64, 16, 2, 1, 4, 8),
        32: (128, 16, 4, 1, 4, 4),
        64: (64, 32, 2, 1, 3, 4),
        128: (64, 16, 2, 2, 4, 3),
    },
    "F64": {
        16: (128, 16, 4, 1, 3, 4),
        32: (64, 32, 2, 1, 3, 4),
        64: (64, 16, 2, 2, 4, 3),
        128: (32, 32, 1, 4, 3, 3),
    },
}
_STAGED["TF32"] = _STAGED["F16X3"]
# The same for levels 5 and 6, whose lines of taps are groups of their own.
_FEW_ROWS = {
    "F16": (64, 32, 2, 2, 4, 3),
    "F16X3": (64, 16, 2, 2, 4, 3),
    "F64": (32, 32, 1, 4, 3, 3),
}
_FEW_ROWS["TF32"] = _FEW_ROWS["F16X3"]
_SHARED_TILES = MmaTactic(9, 64, 32, 4, 1, 3, 4, "F64", parts=4)
# Measured domain by domain, with its widths, on the chips of _MEASURED. F64: blocks share the
# channels of a tile where a domain fills a wide chip badly. F16: tall tiles, and tiles in a
# fixed order, where that won on frames B and C.
_OF_DOMAIN: dict[str, dict[tuple[str, int, int], MmaTactic]] = {
    "F64": {
        ("spconv4", 64, 128): MmaTactic(9, 64, 16, 2, 2, 4, 4, "F64", parts=2),
        ("spconv5", 128, 128): _SHARED_TILES,
        ("subm5", 128, 128): _SHARED_TILES,
        ("spconv6", 128, 128): MmaTactic(9, 16, 32, 1, 4, 2, 5, "F64"),
        ("subm6", 128, 128): _SHARED_TILES,
        ("spconv_out", 128, 128): MmaTactic(3, 64, 32, 4, 1, 3, 4, "F64", parts=4),
    },
    "F16": {
        ("subm1", 16, 16): MmaTactic(3, 128, 16, 4, 1, 4, 6, "F16"),
        ("spconv2", 16, 32): MmaTactic(3, 128, 16, 4, 1, 4, 4, "F16"),
        ("spconv3", 32, 64): MmaTactic(3, 128, 32, 4, 2, 3, 2, "F16", folded=True),
        ("subm3", 64, 64): MmaTactic(3, 128, 64, 4, 2, 3, 2, "F16", folded=True),
        ("spconv4", 64, 128): MmaTactic(3, 64, 64, 2, 2, 3, 3, "F16", folded=True),
        ("subm4", 128, 128): MmaTactic(3, 64, 64, 2, 2, 3, 3, "F16", folded=True),
        ("spconv_out", 128, 128): MmaTactic(3, 128, 32, 2, 2, 4, 2, "F16", folded=True),
        ("subm_out", 128, 128): MmaTactic(3, 128, 32, 2, 2, 4, 2, "F16", folded=True),
    },
}
_RESIDENT_F16 = MmaTactic(1, 16, 32, 16, 1, 2, 2, "F16", "resident")
_ROOM_FOR_TWO = ((8, 0), (9, 0), (10, 0))  # multiprocessors that hold its weights twice
_MEASURED = ((9, 0),)
_TENSOR_ARITHMETIC = {"fp32x3": "F16X3", "tf32": "TF32", "fp16": "F16"}


def default_tactic(
    domain: str, layer: tuple[int, int, int], capability: tuple[int, int], precision: str
) -> ConvTactic:
    """Return how a domain computes where nothing was searched; see ``default_plan``.

    Args:
        domain: Its name.
        layer: Input channels, output channels and taps.
        capability: CUDA compute capability.
        precision: Of the Plan.

    Raises:
        ConfigError: If nothing can run the domain.
    """
    few = domain[-1] in "56t"  # the upper levels and the bird's-eye view
    arithmetic = _TENSOR_ARITHMETIC.get(precision, "F64")
    tactic = None
    if capability in _MEASURED:
        tactic = _OF_DOMAIN.get(arithmetic, {}).get((domain, *layer[:2]))
    if tactic is None and (arithmetic != "F64" or capability in _MEASURED):
        tactic = _tensor_cores(*layer, few, capability, arithmetic)
    if tactic is not None:
        return tactic
    if precision == "fp16":
        raise ConfigError(
            f"Precision 'fp16' cannot run domain '{domain}', {layer[0]} -> {layer[1]} "
            f"channels, at compute capability {capability[0]}.{capability[1]}: it needs "
            "7.5 and widths of 16, 32, 64 or 128; use 'fp32'."
        )
    return _cuda_cores(*layer, few, capability)


def _tensor_cores(
    c_in: int, c_out: int, taps: int, few: bool, capability: tuple[int, int], arithmetic: str
) -> MmaTactic | None:
    """Return the tactic with as many stages as the chip has room for, or None."""
    if (c_in, c_out, arithmetic) == (32, 32, "F16") and capability in _ROOM_FOR_TWO and not few:
        return _RESIDENT_F16
    by_lines = few and c_out == 128 and taps == 27
    shape = _FEW_ROWS[arithmetic] if by_lines else _STAGED[arithmetic].get(c_out)
    if shape is None:
        return None
    rows, slab, warps_m, warps_n, most_stages, blocks = shape
    for stages in range(most_stages, 1, -1):
        tactic = MmaTactic(
            9 if by_lines else 3,
            rows,
            min(slab, c_in),
            warps_m,
            warps_n,
            stages,
            blocks,
            arithmetic,
        )
        if not tactic.supports(c_in, c_out, taps, capability):
            return tactic
    return None


def _cuda_cores(c_in: int, c_out: int, taps: int, few: bool, capability: tuple[int, int]) -> Tactic:
    """Return the tactic; GPUs before 8.0 lack shared memory for three stages of the widest tile."""
    stages = 3 if capability >= (8, 0) else 2
    groups = 9 if few and taps == 27 else 3
    if c_out >= 128 and few:
        return Tactic(groups, 32, 16, 4, 8, stages, 4 if stages == 3 else 3)
    if c_out >= 128:
        return Tactic(groups, 64, 16, 8, 8, stages, 3)
    if c_out >= 64:
        return Tactic(groups, 64, 16, 4, 8, stages, 4)
    if c_out >= 32:
        return Tactic(groups, 64, min(32, c_in), 4, 4, 2, 8)
    return Tactic(groups, 64, 16, 4, 4, stages, 8)
