"""All coordinate maps of a batch as tables of neighbours, with few launches and few waits.

The reference keeps the pairs of every tap, which costs a launch or more a tap and a wait for how
many there are. Here rows stand in the order of their cells, and all taps of all rows are sought in
one go: a table has one row number a row and tap, or the number of rows where there is none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.reference.coordmap import cells_of_keys, prove_key_range
from driveRT_ros.core.reference.segments import group_rows
from driveRT_ros.models.graph import Graph, LayerSpec, Triple
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS
from driveRT_ros.train.constants import constant_like

_SPARE = 1
"""Kernels of up to three cells reach so far beyond the grid."""


class TapGroup(NamedTuple):
    """Input rows that meet output rows under the same taps.

    Args:
        taps: (T,) int64 the taps, ascending.
        table: (rows, T) int32 output row of each tap; num_out where there is none.
    """

    taps: torch.Tensor
    table: torch.Tensor


@dataclass(frozen=True, eq=False)
class TableMap:
    """What a convolution by table needs of its map.

    Args:
        forward_table: (num_out, K) int32 input row of each tap; num_in where there is none.
        groups: The way back, the rows of one group after those of the other. A stride of two on
            three axes makes eight groups: an even cell meets one of three taps, an odd one two.
        order: (num_in,) int64 input row of each row of the groups; None for as they are.
    """

    forward_table: torch.Tensor
    groups: tuple[TapGroup, ...]
    order: torch.Tensor | None = None

    @functools.cached_property
    def place(self) -> torch.Tensor | None:
        """(num_in,) int64 row of the groups of each input row; None for as they are."""
        if self.order is None:
            return None
        rows = torch.arange(len(self.order), device=self.order.device)
        return torch.empty_like(self.order).scatter_(0, self.order, rows)


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
    """Occupied cells in ascending order: keys (N,), coordinates (N, 4) int32, and the grid.

    Keys number the cells of a grid with :data:`_SPARE` cells more on every axis: a neighbour off
    the grid has the key of a spare cell, this side or the other, which is never occupied.
    """

    keys: torch.Tensor
    coords_bzyx: torch.Tensor
    shape_zyx: Triple


def build_tables(
    graph: Graph, coords_bzyx: torch.Tensor, shape_zyx: Triple, frames: int | None = None
) -> BatchTables:
    """Build every map of a batch; waits for a GPU twice for each set of cells that is made.

    Args:
        graph: The network.
        coords_bzyx: (N, 4) int32, unique.
        shape_zyx: Cells of the voxel grid.
        frames: Of the batch; None asks the coordinates, which is one more wait.
    """
    if frames is None:
        frames = int(coords_bzyx[:, 0].max()) + 1 if len(coords_bzyx) else 1
    keys = _keys(coords_bzyx, shape_zyx, frames)
    if frames * math.prod(_spacious(shape_zyx)) < 1 << 31:
        keys = keys.int()  # tables of keys are large: half the bytes, half the time
    keys, order = keys.sort()
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
            taps = torch.arange(layer.taps, device=table.device)
            by_key[layer.map_key] = TableMap(table, (TapGroup(taps, table.flip(1)),))
        else:
            by_key[layer.map_key], cells = _strided(cells, layer)
    return cells


def _strided(cells: _Cells, layer: LayerSpec) -> tuple[TableMap, _Cells]:
    """Return the map of a layer that makes rows, and the cells it makes."""
    stride, padding, kernel = layer.stride_zyx, layer.padding_zyx, layer.kernel_zyx
    depth, height, width = (
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip(cells.shape_zyx, padding, kernel, stride)
    )
    shape = depth, height, width
    # Under tap t a cell meets (cell + padding - t) / stride, if that is whole: what is left of the
    # division is the first tap, every stride-th one follows, each a cell further down.
    shifted = cells.coords_bzyx[:, 1:] + constant_like(padding, cells.coords_bzyx)
    left = shifted % constant_like(stride, shifted)
    phase = (left[:, 0] * stride[1] + left[:, 1]) * stride[2] + left[:, 2]
    batch, order = cells.coords_bzyx[:, 0].to(cells.keys.dtype), None
    if math.prod(stride) > 1:
        phase, order = phase.sort(stable=True)
        shifted, left, batch = shifted[order], left[order], batch[order]
    sought, there = [], []
    for axis, (k, s, n) in enumerate(zip(kernel, stride, shape)):
        turn = torch.arange(-(-k // s), dtype=shifted.dtype, device=shifted.device)
        cell = shifted[:, axis, None] // s - turn
        sought.append(cell)
        there.append((left[:, axis, None] + turn * s < k) & (cell >= 0) & (cell < n))
    nz, ny, nx = _spacious(shape)
    z, y, x = sought[0][:, :, None, None], sought[1][:, None, :, None], sought[2][:, None, None, :]
    keys = ((batch[:, None, None, None] * nz + z) * ny + y) * nx + x
    on_z, on_y, on_x = there
    inside = on_z[:, :, None, None] & on_y[:, None, :, None] & on_x[:, None, None, :]
    # A key beyond all others for what is off the grid costs no wait, unlike a selection.
    beyond = keys.new_full((1,), torch.iinfo(keys.dtype).max)
    keys = torch.where(inside, keys, beyond).flatten(1)
    made = torch.unique(torch.cat((keys.flatten(), beyond)))[:-1]
    table = _rows_of(made, keys)
    phases = _phases(kernel, stride, keys.device)
    edges = torch.arange(len(phases) + 1, dtype=phase.dtype, device=keys.device)
    counts = torch.searchsorted(phase, edges).diff().tolist() if order is not None else [len(keys)]
    groups = tuple(
        TapGroup(taps, part.index_select(1, columns))
        for (taps, columns), part in zip(phases, table.split(counts))
    )
    out = _Cells(made, cells_of_keys(made, (nz, ny, nx)), shape)
    return TableMap(_sources(out, cells, layer), groups, order), out


@functools.cache
def _phases(
    kernel: Triple, stride: Triple, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return, for each remainder of a cell on the axes, its taps and their columns of a table."""
    widths = [-(-k // s) for k, s in zip(kernel, stride)]
    phases = []
    for residues in product(*map(range, stride)):
        found = []
        for column, turns in enumerate(product(*map(range, widths))):
            z, y, x = (r + j * s for r, j, s in zip(residues, turns, stride))
            if z < kernel[0] and y < kernel[1] and x < kernel[2]:
                found.append(((z * kernel[1] + y) * kernel[2] + x, column))
        taps, columns = torch.tensor(found, dtype=torch.int64, device=device).view(-1, 2).unbind(1)
        phases.append((taps.contiguous(), columns.contiguous()))
    return phases


def _spacious(shape_zyx: Triple) -> Triple:
    nz, ny, nx = shape_zyx
    return nz + _SPARE, ny + _SPARE, nx + _SPARE


def _steps(shape_zyx: Triple) -> tuple[int, int, int, int]:
    """Return how far apart the keys of neighbours are: in b, z, y and x."""
    nz, ny, nx = _spacious(shape_zyx)
    return nz * ny * nx, ny * nx, nx, 1


def _keys(coords_bzyx: torch.Tensor, shape_zyx: Triple, frames: int) -> torch.Tensor:
    """Return (N,) int64 keys, without a wait for the greatest frame."""
    prove_key_range(torch.tensor([[frames - 1, 0, 0, 0]]), _spacious(shape_zyx))
    coords = coords_bzyx.long()
    return (coords * constant_like(_steps(shape_zyx), coords)).sum(dim=1)


def _sources(out: _Cells, cells: _Cells, layer: LayerSpec) -> torch.Tensor:
    """Return (rows of ``out``, K) int32 row of ``cells`` that each tap reads."""
    reach = max(max(p, k - 1 - p) for k, p in zip(layer.kernel_zyx, layer.padding_zyx))
    if reach > _SPARE:
        raise ConfigError(
            f"Layer '{layer.name}' reaches {reach} cells beyond the grid, but keys of cells leave "
            f"room for {_SPARE}; train it tap by tap."
        )
    steps, dtype = _steps(cells.shape_zyx), cells.keys.dtype
    coords = out.coords_bzyx.to(dtype)
    far = tuple(n * s for n, s in zip(steps, (1, *layer.stride_zyx)))
    first = (coords * constant_like(far, coords)).sum(dim=1, dtype=dtype)
    taps = tuple(
        sum((tap - pad) * n for tap, pad, n in zip(at, layer.padding_zyx, steps[1:]))
        for at in product(*map(range, layer.kernel_zyx))
    )
    return _rows_of(cells.keys, first[:, None] + constant_like(taps, coords))


def _rows_of(keys: torch.Tensor, sought: torch.Tensor) -> torch.Tensor:
    """Return the int32 row of each key sought; the number of rows where it is absent."""
    position = torch.searchsorted(keys, sought, out_int32=True)
    padded = functional.pad(keys, (0, 1), value=-1)  # sought beyond the last is never below zero
    there = padded.index_select(0, position.flatten()).view_as(position)
    return torch.where(there == sought, position, len(keys))


def _merge(
    levels: list[_Cells],
) -> tuple[Callable[[torch.Tensor], torch.Tensor], _Cells]:
    """Return the merge of some levels into the bird's-eye view, and its cells."""
    _, ny, nx = levels[0].shape_zyx
    flat = []
    frame, _, line, cell = _steps((1, ny, nx))
    for level, scale in zip(levels, MERGE_SCALES):
        coords = level.coords_bzyx.long()
        steps = constant_like((frame, 0, line * scale, cell * scale), coords)
        flat.append((coords * steps).sum(dim=1))
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
    cells = _Cells(groups.keys, cells_of_keys(groups.keys, _spacious((1, ny, nx))), (1, ny, nx))
    table = table.int()
    return lambda features: _GroupSum.apply(features, table, owner), cells


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
