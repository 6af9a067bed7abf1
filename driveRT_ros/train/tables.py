"""All coordinate maps of a batch as tables of neighbours, with few launches and few waits.

The reference keeps the pairs of every tap, which costs a launch or more a tap and a wait for how
many there are. Here rows stand in the order of their cells, and all taps of all rows are sought in
one go: a table has one row number a row and tap, or the number of rows where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from driveRT_ros.core.reference.coordmap import cell_keys, cells_of_keys
from driveRT_ros.core.reference.segments import group_rows
from driveRT_ros.models.graph import Graph, LayerSpec, Triple
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS


@dataclass(frozen=True, eq=False)
class TableMap:
    """What a convolution by table needs of its map.

    Args:
        forward_table: (num_out, K) int32 input row of each tap; num_in where there is none.
        backward_table: (num_in, K) int32 output row of each tap; num_out where there is none.
    """

    forward_table: torch.Tensor
    backward_table: torch.Tensor


@dataclass(frozen=True, eq=False)
class BatchTables:
    """The maps of one batch.

    Args:
        order: (N,) int64 the rows of the batch in the order of their cells.
        by_key: Maps by the key that layers name.
        merge: Adds up rows of the merged levels, given one after the other, that share a cell of
            the bird's-eye view.
        coords_bzyx: (M, 4) int32 rows of the heads.
        shape_zyx: Cells of the bird's-eye view.
    """

    order: torch.Tensor
    by_key: Mapping[str, TableMap]
    merge: Callable[[torch.Tensor], torch.Tensor]
    coords_bzyx: torch.Tensor
    shape_zyx: Triple


class _Cells(NamedTuple):
    """Occupied cells in ascending order: keys (N,) int64, coordinates (N, 4) int32, grid."""

    keys: torch.Tensor
    coords_bzyx: torch.Tensor
    shape_zyx: Triple


def build_tables(graph: Graph, coords_bzyx: torch.Tensor, shape_zyx: Triple) -> BatchTables:
    """Build every map of a batch.

    Args:
        graph: The network.
        coords_bzyx: (N, 4) int32, unique.
        shape_zyx: Cells of the voxel grid.
    """
    keys, order = cell_keys(coords_bzyx, shape_zyx).sort()
    cells = _Cells(keys, coords_bzyx[order], shape_zyx)
    by_key: dict[str, TableMap] = {}
    levels = []
    for level in graph.levels:
        cells = _add_maps(by_key, level, cells)
        levels.append(cells)
    merge, cells = _merge([levels[n - 1] for n in MERGED_LEVELS])
    cells = _add_maps(by_key, graph.bev, cells)
    return BatchTables(order, by_key, merge, cells.coords_bzyx, cells.shape_zyx)


def _add_maps(by_key: dict[str, TableMap], layers: tuple[LayerSpec, ...], cells: _Cells) -> _Cells:
    """Add the maps of some layers and return the cells after the last."""
    for layer in layers:
        if layer.map_key in by_key:
            continue
        if layer.op == "subm":
            table = _sources(cells, cells, layer)
            # A submanifold map is its own mirror.
            by_key[layer.map_key] = TableMap(table, table.flip(1))
        else:
            by_key[layer.map_key], cells = _strided(cells, layer)
    return cells


def _strided(cells: _Cells, layer: LayerSpec) -> tuple[TableMap, _Cells]:
    """Return the map of a layer that makes rows, and the cells it makes."""
    stride, padding, kernel = layer.stride_zyx, layer.padding_zyx, layer.kernel_zyx
    nz, ny, nx = (
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip(cells.shape_zyx, padding, kernel, stride)
    )
    shape = nz, ny, nx
    sought, there = [], []
    for axis in range(3):
        taps = torch.arange(kernel[axis], device=cells.keys.device)
        shifted = cells.coords_bzyx[:, axis + 1, None].long() + padding[axis] - taps
        cell = shifted.div(stride[axis], rounding_mode="floor")
        sought.append(cell)
        there.append((cell * stride[axis] == shifted) & (cell >= 0) & (cell < shape[axis]))
    keys, inside = _joined(cells.coords_bzyx, sought, there, shape)
    made = torch.unique(keys[inside])
    out = _Cells(made, cells_of_keys(made, shape), shape)
    return TableMap(_sources(out, cells, layer), _rows_of(made, keys, inside)), out


def _sources(out: _Cells, cells: _Cells, layer: LayerSpec) -> torch.Tensor:
    """Return (rows of ``out``, K) int32 row of ``cells`` that each tap reads."""
    sought, there = [], []
    for axis in range(3):
        taps = torch.arange(layer.kernel_zyx[axis], device=cells.keys.device)
        first = out.coords_bzyx[:, axis + 1, None].long() * layer.stride_zyx[axis]
        cell = first - layer.padding_zyx[axis] + taps
        sought.append(cell)
        there.append((cell >= 0) & (cell < cells.shape_zyx[axis]))
    keys, inside = _joined(out.coords_bzyx, sought, there, cells.shape_zyx)
    return _rows_of(cells.keys, keys, inside)


def _joined(
    coords_bzyx: torch.Tensor, axes: list[torch.Tensor], there: list[torch.Tensor], shape: Triple
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N, K) keys out of (N, taps) cells on each axis, and whether they are on the grid."""
    nz, ny, nx = shape
    z, y, x = axes[0][:, :, None, None], axes[1][:, None, :, None], axes[2][:, None, None, :]
    plane = (coords_bzyx[:, 0].long()[:, None, None, None] * nz + z) * ny + y
    inside = there[0][:, :, None, None] & there[1][:, None, :, None] & there[2][:, None, None, :]
    return (plane * nx + x).flatten(1), inside.flatten(1)


def _rows_of(keys: torch.Tensor, sought: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Return the int32 row of each key sought; the number of rows where it is absent."""
    position = torch.searchsorted(keys, sought)
    padded = torch.cat((keys, keys.new_full((1,), -1)))  # a place beyond the last holds no key
    found = inside & (padded[position] == sought)
    return torch.where(found, position, len(keys)).int()


def _merge(
    levels: list[_Cells],
) -> tuple[Callable[[torch.Tensor], torch.Tensor], _Cells]:
    """Return the merge of some levels into the bird's-eye view, and its cells."""
    _, ny, nx = levels[0].shape_zyx
    flat = []
    for level, scale in zip(levels, MERGE_SCALES):
        b, _, y, x = level.coords_bzyx.long().unbind(1)
        flat.append((b * ny + y * scale) * nx + x * scale)
    # A stable sort keeps the levels as given, and in a level z ascends.
    groups = group_rows(torch.cat(flat))
    most = int(groups.counts.max()) if len(groups.counts) else 0
    slots = torch.arange(most, device=groups.order.device)
    place = groups.starts[:, None] + slots
    rows, total = groups.order, len(groups.order)
    table = torch.where(
        slots < groups.counts[:, None], rows[place.clamp(max=max(total - 1, 0))], total
    )
    owner = torch.empty_like(rows)
    group = torch.arange(len(groups.counts), device=rows.device)
    owner[rows] = group.repeat_interleave(groups.counts, output_size=total)
    cells = _Cells(groups.keys, cells_of_keys(groups.keys, (1, ny, nx)), (1, ny, nx))
    return lambda features: _GroupSum.apply(features, table.int(), owner), cells


class _GroupSum(torch.autograd.Function):
    """Sum of the rows of each group; each row belongs to one, so its gradient is one gather."""

    @staticmethod
    def forward(
        ctx: Any, features: torch.Tensor, table: torch.Tensor, owner: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(owner)
        padded = torch.cat((features, features.new_zeros(1, features.shape[1])))
        gathered = padded.index_select(0, table.flatten())
        return gathered.view(*table.shape, features.shape[1]).sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (owner,) = ctx.saved_tensors
        return grad.contiguous().index_select(0, owner), None, None
