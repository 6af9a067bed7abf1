"""How the hidden layers of the detection heads are computed, by width, arithmetic and chip."""

from __future__ import annotations

from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import ConvTactic, Tactic

_TAPS = 9  # of shared_conv, the layer before: Tactic asks for taps that it knows


class ExactBranches(Tactic):
    """FP32 on the CUDA cores (``kernels/heads.cu``): tiles as those of the convolution."""

    @property
    def kernel(self) -> str:
        """See ``ConvTactic``."""
        return "heads"


class MatrixBranches(MmaTactic):
    """The tensor cores (``kernels/heads_mma.cu``): all weights of a branch in shared memory."""

    @property
    def kernel(self) -> str:
        """See ``ConvTactic``."""
        return "heads_mma"

    def shared_bytes(self, c_in: int, c_out: int, taps: int) -> int:
        """See ``ConvTactic``."""
        return c_in * c_out * self.element_bytes


EXACT = {
    16: ExactBranches(1, 64, 16, 4, 4, 3, 8),
    32: ExactBranches(1, 64, 16, 4, 4, 3, 4),
    64: ExactBranches(1, 64, 16, 4, 8, 3, 4),
    128: ExactBranches(1, 64, 16, 8, 8, 3, 3),
}
MATRIX = {
    (width, arithmetic): MatrixBranches(
        1, rows, width, warps_m, warps_n, 2, blocks, arithmetic, "direct"
    )
    for arithmetic in ("TF32", "F16X3")
    for width, rows, warps_m, warps_n, blocks in (
        (16, 128, 4, 1, 4),
        (32, 128, 4, 1, 4),
        (64, 128, 4, 1, 2),
        (128, 128, 4, 2, 2),
    )
}
_ARITHMETIC = {"F16X3": "F16X3", "TF32": "TF32", "F16": "TF32"}
"""By that of the layer before. F16 becomes TF32, of as many digits: the rows are floats."""


def head_tactic(width: int, arithmetic: str, capability: tuple[int, int]) -> ConvTactic | None:
    """Return what runs hidden layers, or None where nothing can.

    Args:
        width: Channels of the rows and of every hidden layer.
        arithmetic: Of the layer whose rows these are. Float64 sums belong to staged rows, so after
            F64 the CUDA cores go on; they also serve chips that lack a matrix unit, or the shared
            memory for the weights.
        capability: CUDA compute capability.
    """
    matrix = MATRIX.get((width, _ARITHMETIC.get(arithmetic, "")))
    for tactic in (matrix, EXACT.get(width)):
        if tactic is not None and not tactic.supports(width, width, _TAPS, capability):
            return tactic
    return None
