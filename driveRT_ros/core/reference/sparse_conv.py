"""Sparse convolution in plain torch: gather, multiply, scatter, one kernel tap at a time."""

from __future__ import annotations

import torch

from driveRT_ros.core.sparse_types import CoordMap


def gather_gemm_scatter(
    features: torch.Tensor,
    weight: torch.Tensor,
    coord_map: CoordMap,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """Convolve, then add ``residual`` and clip at zero where asked.

    The order of the additions is fixed: bias, the identity tap, the other taps in ascending order,
    residual. A tap meets each output row at most once, so no addition depends on thread timing.

    Args:
        features: (num_in, C_in) float32 or float64.
        weight: (K, C_in, C_out), tap k first.
        coord_map: The pairs.
        bias: (C_out,).
        residual: (num_out, C_out).
        relu: Replace negative results by zero.

    Returns:
        (num_out, C_out).
    """
    centre = coord_map.identity_offset
    if centre is not None:  # every row maps to itself: no gather, no scatter
        out = features @ weight[centre]
        out = out if bias is None else out + bias
    else:
        out = features.new_zeros(coord_map.num_out, weight.shape[2])
        out = out if bias is None else out + bias
    for k, count in enumerate(coord_map.counts):
        if count == 0 or k == centre:
            continue
        in_rows, out_rows = coord_map.pairs(k)
        out.index_add_(0, out_rows, features.index_select(0, in_rows) @ weight[k])
    if residual is not None:
        out += residual
    return out.relu_() if relu else out
