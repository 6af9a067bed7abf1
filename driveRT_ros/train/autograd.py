"""Differentiable sparse convolution on coordinate maps, in two ways with the same result.

Tap by tap: gather, multiply and scatter one kernel tap at a time: the least arithmetic, the best on
a CPU. By table: gather all taps of a row side by side, absent neighbours as zeros, and multiply
once: few launches and large products, the best on a GPU. The gradient of the features is the same
operation on the transposed table, so nothing is ever scattered.

Both are deterministic: in one tap a row is met at most once, so no addition depends on timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from driveRT_ros.core.sparse_types import CoordMap

CHUNK_ELEMENTS = 1 << 28
"""Gathered values held at a time: 512 MiB in half precision."""


@dataclass(frozen=True, eq=False)
class ConvMap:
    """A coordinate map with what both directions of a convolution need.

    Args:
        pairs: The map.
        by_table: Convolve by table rather than tap by tap.
    """

    pairs: CoordMap
    by_table: bool

    @cached_property
    def forward_table(self) -> torch.Tensor:
        """(num_out, K) int32 input row of each tap; num_in where there is none."""
        pairs = self.pairs
        return _table(pairs, pairs.out_rows, pairs.in_rows, (pairs.num_out, pairs.num_in))

    @cached_property
    def backward_table(self) -> torch.Tensor:
        """(num_in, K) int32 output row of each tap; num_out where there is none."""
        pairs = self.pairs
        if pairs.identity_offset is not None:
            return self.forward_table.flip(1)  # a submanifold map is its own mirror
        return _table(pairs, pairs.in_rows, pairs.out_rows, (pairs.num_in, pairs.num_out))


def _table(
    coord_map: CoordMap, rows: torch.Tensor, values: torch.Tensor, sizes: tuple[int, int]
) -> torch.Tensor:
    """Return (rows of one side, K) of the rows of the other side, given the size of both."""
    taps = len(coord_map.counts)
    height, absent = sizes
    counts = torch.tensor(coord_map.counts, device=rows.device)
    tap = torch.repeat_interleave(
        torch.arange(taps, device=rows.device), counts, output_size=len(rows)
    )
    table = torch.full((height * taps,), absent, dtype=torch.int32, device=rows.device)
    table[rows * taps + tap] = values.int()
    return table.view(height, taps)


def sparse_conv(features: torch.Tensor, weight: torch.Tensor, conv_map: ConvMap) -> torch.Tensor:
    """Convolve; differentiable once in features and weight.

    Args:
        features: (num_in, C_in).
        weight: (K, C_in, C_out) with K = taps of the map's kernel.
        conv_map: Map on the same device.

    Returns:
        (num_out, C_out) in the dtype of the features, or that of autocast where it is on.
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        features, weight = features.to(dtype), weight.to(dtype)
    out: torch.Tensor
    with torch.autocast(device, enabled=False):
        if conv_map.by_table:
            tables = conv_map.forward_table, conv_map.backward_table
            out = _TableConv.apply(features, weight, *tables)
        else:
            out = _TapConv.apply(features, weight, conv_map.pairs)
    return out


class _TapConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: torch.Tensor, weight: torch.Tensor, pairs: CoordMap
    ) -> torch.Tensor:
        ctx.save_for_backward(features, weight)
        ctx.pairs = pairs
        # Halves are added up in float32, as inside a product.
        out = torch.zeros(
            pairs.num_out, weight.shape[2], dtype=_sum_dtype(features), device=features.device
        )
        for k, (rows_in, rows_out) in _taps(pairs):
            out.index_add_(0, rows_out, (features[rows_in] @ weight[k]).to(out.dtype))
        return out.to(features.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, None]:
        features, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0]
        grad_features = torch.zeros_like(features, dtype=_sum_dtype(features))
        grad_weight = torch.zeros_like(weight)
        for k, (rows_in, rows_out) in _taps(ctx.pairs):
            grad = grad_out[rows_out]
            grad_weight[k] = features[rows_in].T @ grad
            if wanted:
                product = (grad @ weight[k].T).to(grad_features.dtype)
                grad_features.index_add_(0, rows_in, product)
        return grad_features.to(features.dtype) if wanted else None, grad_weight, None


class _TableConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        weight: torch.Tensor,
        forward_table: torch.Tensor,
        backward_table: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(features, weight, forward_table, backward_table)
        return _gathered_product(features, weight.flatten(0, 1), forward_table)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, None, None]:
        features, weight, forward_table, backward_table = ctx.saved_tensors
        grad_features = None
        if ctx.needs_input_grad[0]:
            transposed = weight.transpose(1, 2).flatten(0, 1)
            grad_features = _gathered_product(grad_out, transposed, backward_table)
        taps, c_in, c_out = weight.shape
        grad_weight = torch.zeros(
            taps * c_in, c_out, dtype=_sum_dtype(features), device=features.device
        )
        padded = _with_zero_row(features)
        for rows in _chunks(forward_table, c_in):
            columns = padded.index_select(0, forward_table[rows].flatten()).view(-1, taps * c_in)
            grad_weight += columns.T @ grad_out[rows]
        return grad_features, grad_weight.view_as(weight).to(weight.dtype), None, None


def _gathered_product(
    features: torch.Tensor, weight: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """Return (rows of the table, C_out) of the gathered rows times weight (K * C_in, C_out)."""
    padded = _with_zero_row(features)
    out = features.new_empty(len(table), weight.shape[1])
    for rows in _chunks(table, features.shape[1]):
        columns = padded.index_select(0, table[rows].flatten()).view(-1, len(weight))
        torch.mm(columns, weight, out=out[rows])
    return out


def _with_zero_row(features: torch.Tensor) -> torch.Tensor:
    return torch.cat((features, features.new_zeros(1, features.shape[1])))


def _chunks(table: torch.Tensor, channels: int) -> list[slice]:
    size = max(CHUNK_ELEMENTS // (table.shape[1] * channels), 1)
    return [slice(start, start + size) for start in range(0, len(table), size)]


def _taps(pairs: CoordMap) -> list[tuple[int, tuple[torch.Tensor, torch.Tensor]]]:
    return [(k, pairs.pairs(k)) for k, count in enumerate(pairs.counts) if count]


def _sum_dtype(features: torch.Tensor) -> torch.dtype:
    return torch.promote_types(features.dtype, torch.float32)
