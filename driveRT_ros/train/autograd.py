"""Differentiable sparse convolution on coordinate maps, in two ways with the same result.

Tap by tap: gather, multiply and scatter one kernel tap at a time: the least arithmetic, the best on
a CPU. By table: gather all taps of a row side by side, absent neighbours as zeros, and multiply
once: few launches and large products, the best on a GPU. The gradient of the features is the same
operation on the transposed table, so nothing is ever scattered, and what it gathers serves the
gradient of the weight, too.

Both are deterministic: in one tap a row is met at most once, so no addition depends on timing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from driveRT_ros.core.gpu.gather_rows import gather_rows
from driveRT_ros.core.sparse_types import CoordMap
from driveRT_ros.train.tables import TableMap

CHUNK_ELEMENTS = 1 << 28
"""Gathered values held at a time: 512 MiB in half precision."""

_WIDE = torch.complex128
"""Rows are gathered in words of 16 bytes."""
_SPLIT_ROWS = 2048
"""Rows of one part of a sum over all rows: a product with few results is left to many cores."""


def sparse_conv(
    features: torch.Tensor, weight: torch.Tensor, conv_map: CoordMap | TableMap
) -> torch.Tensor:
    """Convolve; differentiable once in features and weight.

    Args:
        features: (num_in, C_in).
        weight: (K, C_in, C_out) with K = taps of the map's kernel.
        conv_map: Map on the same device; its kind says which way is taken.

    Returns:
        (num_out, C_out) in the dtype of the features, or that of autocast where it is on.
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        features, weight = features.to(dtype), weight.to(dtype)
    out: torch.Tensor
    with torch.autocast(device, enabled=False):
        if isinstance(conv_map, TableMap):
            out = _TableConv.apply(features, weight, conv_map)
        else:
            out = _TapConv.apply(features, weight, conv_map)
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
        ctx: Any, features: torch.Tensor, weight: torch.Tensor, tables: TableMap
    ) -> torch.Tensor:
        features = features.contiguous()
        ctx.save_for_backward(features, weight)
        ctx.tables = tables
        flat, padded, table = _flat(weight), _padded(features), tables.forward_table
        out = features.new_empty(len(table), weight.shape[2])
        for rows in _chunks(table, padded.shape[1]):
            torch.mm(_columns(padded, table[rows]), flat, out=out[rows])
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, None]:
        features, weight = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            grad_features, grad_weight = _both_gradients(features, weight, grad_out, ctx.tables)
        else:
            grad_features = None
            grad_weight = _weight_gradient(features, weight, grad_out, ctx.tables.forward_table)
        return grad_features, grad_weight.to(weight.dtype), None


def _weight_gradient(
    features: torch.Tensor, weight: torch.Tensor, grad_out: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    taps, c_in, c_out = weight.shape
    padded = _padded(features)
    total = _zeros(features, c_out, taps * padded.shape[1])
    for rows in _chunks(table, padded.shape[1]):
        total += _correlation(grad_out[rows], _columns(padded, table[rows]))
    return total.view(c_out, taps, -1)[:, :, :c_in].permute(1, 2, 0)


def _both_gradients(
    features: torch.Tensor, weight: torch.Tensor, grad_out: torch.Tensor, tables: TableMap
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs of rows are the same for both: one gather of the columns serves both."""
    taps, c_in, c_out = weight.shape
    padded = _padded(grad_out)
    by_tap = _flat(weight.transpose(1, 2)).view(taps, -1, c_in)
    if tables.order is not None:
        features = _rows(features, tables.order)
    grad_features = torch.empty_like(features)
    total = _zeros(features, c_in, taps, padded.shape[1])
    first = 0
    for group in tables.groups:
        every = len(group.taps) == taps
        flat = (by_tap if every else by_tap.index_select(0, group.taps)).flatten(0, 1)
        for rows in _chunks(group.table, padded.shape[1]):
            mine = slice(first + rows.start, first + min(rows.stop, len(group.table)))
            columns = _columns(padded, group.table[rows])
            torch.mm(columns, flat, out=grad_features[mine])
            part = _correlation(features[mine], columns).view(c_in, -1, padded.shape[1])
            if every:
                total += part
            else:
                total.index_add_(1, group.taps, part)  # each tap once: nothing depends on timing
        first += len(group.table)
    if tables.place is not None:
        grad_features = _rows(grad_features, tables.place)
    return grad_features, total[:, :, :c_out].transpose(0, 1)


def _padded(features: torch.Tensor) -> torch.Tensor:
    """Return the rows with a row of zeros after the last, and zeros up to whole words."""
    spare = -features.shape[1] % (_WIDE.itemsize // features.element_size())
    return functional.pad(features, (0, spare, 0, 1))


def _flat(weight: torch.Tensor) -> torch.Tensor:
    """Return (K * C_in, C_out), its rows padded as those of :func:`_padded` are."""
    spare = -weight.shape[1] % (_WIDE.itemsize // weight.element_size())
    return functional.pad(weight, (0, 0, 0, spare)).flatten(0, 1)


def _rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return some rows, in whole words where these fit."""
    if rows.shape[1] * rows.element_size() % _WIDE.itemsize:
        return rows.index_select(0, index)
    if rows.is_cuda:
        return gather_rows(rows, index)
    return rows.view(_WIDE).index_select(0, index).view(rows.dtype)


def _columns(padded: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return (rows, K * C): the rows that all taps read, side by side."""
    return _rows(padded, table.flatten()).view(len(table), -1)


def _correlation(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return rows.T @ columns in float32 at least, summed up part by part."""
    count = len(rows) // _SPLIT_ROWS
    whole = count * _SPLIT_ROWS
    total = (rows[whole:].T @ columns[whole:]).to(_sum_dtype(rows))
    if count:
        left = rows[:whole].reshape(count, _SPLIT_ROWS, -1).transpose(1, 2)
        parts = torch.bmm(left, columns[:whole].view(count, _SPLIT_ROWS, -1))
        total += parts.sum(dim=0, dtype=total.dtype)
    return total


def _zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=_sum_dtype(like), device=like.device)


def _chunks(table: torch.Tensor, channels: int) -> list[slice]:
    size = max(CHUNK_ELEMENTS // max(table.shape[1] * channels, 1), 1)
    if size > _SPLIT_ROWS:  # so that only the last has a part of its own for what is left over
        size -= size % _SPLIT_ROWS
    return [slice(start, start + size) for start in range(0, len(table), size)]


def _taps(pairs: CoordMap) -> list[tuple[int, tuple[torch.Tensor, torch.Tensor]]]:
    return [(k, pairs.pairs(k)) for k, count in enumerate(pairs.counts) if count]


def _sum_dtype(features: torch.Tensor) -> torch.dtype:
    return torch.promote_types(features.dtype, torch.float32)
