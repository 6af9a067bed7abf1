"""Coordinate maps in plain torch, by sorted 64-bit cell keys.

Memory depends on the number of rows alone: no table over the grid is ever made. The relation is
``fine = stride * coarse + tap * dilation - padding``; ``core/coordmap.py`` states the contract.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.sparse_types import CoordMap, Triple

Pairs = tuple[torch.Tensor, torch.Tensor]
"""Output rows and input rows of one tap."""


def cell_keys(coords_bzyx: torch.Tensor, shape_zyx: Triple) -> torch.Tensor:
    """Number cells in (b, z, y, x) order.

    Args:
        coords_bzyx: (N, 4) integers inside ``shape_zyx``.
        shape_zyx: Cells of the grid.

    Returns:
        (N,) int64.

    Raises:
        ConfigError: If the greatest key does not fit 63 bits, or a coordinate 31.
    """
    prove_key_range(coords_bzyx, shape_zyx)
    b, z, y, x = coords_bzyx.long().unbind(1)
    nz, ny, nx = shape_zyx
    return ((b * nz + z) * ny + y) * nx + x


def prove_key_range(coords_bzyx: torch.Tensor, shape_zyx: Triple) -> None:
    """Refuse a grid whose keys would overflow.

    Args:
        coords_bzyx: (N, 4) integers; only the batch column is read.
        shape_zyx: Cells of the grid.

    Raises:
        ConfigError: If a key does not fit 63 bits, or a coordinate 31.
    """
    batches = int(coords_bzyx[:, 0].max()) + 1 if len(coords_bzyx) else 1
    if batches * math.prod(shape_zyx) > 1 << 63 or max(shape_zyx) > 1 << 31:
        raise ConfigError(
            f"{batches} grids of {shape_zyx} cells need keys beyond 63 bits or coordinates beyond "
            "31; use larger voxels or a smaller range."
        )


def cells_of_keys(keys: torch.Tensor, shape_zyx: Triple) -> torch.Tensor:
    """Undo ``cell_keys``: (N,) int64 to (N, 4) int32."""
    coords = []
    for size in reversed(shape_zyx):
        coords.append(keys % size)
        keys = keys // size
    return torch.stack((keys, *reversed(coords)), dim=1).int()


def submanifold_map(
    coords_bzyx: torch.Tensor, shape_zyx: Triple, kernel_size: Triple, dilation: Triple
) -> CoordMap:
    """Build the map whose outputs are its inputs; taps come in mirrored pairs, so half are sought.

    If row i finds row j under tap k, then row j finds row i under tap K - 1 - k.
    """
    # Spare cells keep a neighbour beyond the edge from being the first cell of the next line.
    reach = [k // 2 * d for k, d in zip(kernel_size, dilation)]
    nz, ny, nx = (s + r for s, r in zip(shape_zyx, reach))
    keys, rows = _sort_cells(cell_keys(coords_bzyx, (nz, ny, nx)))

    volume = math.prod(kernel_size)
    everyone = torch.arange(len(keys), device=keys.device)
    pairs: list[Pairs] = [(everyone, everyone)] * volume
    taps = product(*(range(k) for k in kernel_size))
    position = everyone
    for k, (tz, ty, tx) in zip(range(volume // 2), taps):
        oz, oy, ox = (t * d - r for t, d, r in zip((tz, ty, tx), dilation, reach))
        sought = keys + ((oz * ny + oy) * nx + ox)
        if tx == 0 or dilation[2] != 1:
            position = torch.searchsorted(keys, sought)
        hit = keys[position] == sought  # in bounds: the key sought is less than the row's own
        i = hit.nonzero().squeeze(1)
        j = position[i]
        pairs[k] = _by_out_row(i, j, rows)
        pairs[volume - 1 - k] = _by_out_row(j, i, rows)
        position = position + hit  # where the next tap along x would be: keys are unique
    return _pack(
        pairs,
        in_coords_bzyx=coords_bzyx,
        out_coords_bzyx=coords_bzyx,
        in_shape_zyx=shape_zyx,
        out_shape_zyx=shape_zyx,
        kernel_size=kernel_size,
        identity_offset=volume // 2,
    )


def strided_map(
    coords_bzyx: torch.Tensor,
    shape_zyx: Triple,
    kernel_size: Triple,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
) -> CoordMap:
    """Build the map of a regular convolution: every tap of every input names its output cell."""
    keys, rows = _sort_cells(cell_keys(coords_bzyx, shape_zyx))
    coords = coords_bzyx if rows is None else coords_bzyx[rows]
    out_shape = _out_shape(shape_zyx, kernel_size, stride, padding, dilation)
    prove_key_range(coords, out_shape)

    nz, ny, nx = out_shape
    batch, *axes = coords.long().unbind(1)
    steps = (ny * nx, nx, 1)
    # Per axis and tap: the part of the output key, and whether there is an output.
    parts = [
        [
            _coarse(axes[a] + padding[a] - t * dilation[a], stride[a], out_shape[a], steps[a])
            for t in range(kernel_size[a])
        ]
        for a in range(3)
    ]
    batch_part = batch * (nz * ny * nx)
    found, targets = [], []
    for (kz, at_z), (ky, at_y), (kx, at_x) in product(*parts):
        i = (at_z & at_y & at_x).nonzero().squeeze(1)
        found.append(i)
        targets.append((batch_part + kz + ky + kx)[i])
    out_keys, out_rows = torch.unique(torch.cat(targets), return_inverse=True)
    per_tap = out_rows.split([len(i) for i in found])
    return _pack(
        # Inputs in key order reach the outputs of one tap in key order: nothing left to sort.
        [(o, i if rows is None else rows[i]) for o, i in zip(per_tap, found)],
        in_coords_bzyx=coords_bzyx,
        out_coords_bzyx=cells_of_keys(out_keys, out_shape),
        in_shape_zyx=shape_zyx,
        out_shape_zyx=out_shape,
        kernel_size=kernel_size,
    )


def inverse_map(forward: CoordMap) -> CoordMap:
    """Swap inputs and outputs; the taps stay."""
    pairs = []
    for k in range(len(forward.counts)):
        fine, coarse = forward.pairs(k)
        fine, order = fine.sort()
        pairs.append((fine, coarse[order]))
    return _pack(
        pairs,
        in_coords_bzyx=forward.out_coords_bzyx,
        out_coords_bzyx=forward.in_coords_bzyx,
        in_shape_zyx=forward.out_shape_zyx,
        out_shape_zyx=forward.in_shape_zyx,
        kernel_size=forward.kernel_size,
        identity_offset=forward.identity_offset,
    )


def _sort_cells(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the keys ascending and the row of each, or None where they already ascended."""
    if bool((keys[1:] > keys[:-1]).all()):
        return keys, None
    keys, rows = keys.sort()
    repeated = int((keys[1:] == keys[:-1]).sum())
    if repeated:
        raise InvalidFrame(
            "Coordinates repeat, so a neighbour would be ambiguous; merge those rows first.",
            "coords_bzyx",
            f"{repeated} repeated rows",
            "unique rows",
            code="coords_repeated",
        )
    return keys, rows


def _by_out_row(out: torch.Tensor, found: torch.Tensor, rows: torch.Tensor | None) -> Pairs:
    """Turn positions in the sorted keys into rows, in ascending order of the output row."""
    if rows is None:
        return out, found
    # Each output occurs once, so a table sorts in linear time.
    in_of_out = torch.full_like(rows, -1)
    in_of_out[rows[out]] = rows[found]
    out_rows = (in_of_out >= 0).nonzero().squeeze(1)
    return out_rows, in_of_out[out_rows]


def _out_shape(
    shape: Triple, kernel: Triple, stride: Triple, padding: Triple, dilation: Triple
) -> Triple:
    z, y, x = (
        (s + 2 * p - d * (k - 1) - 1) // step + 1
        for s, k, step, p, d in zip(shape, kernel, stride, padding, dilation)
    )
    return z, y, x


def _coarse(shifted: torch.Tensor, stride: int, size: int, step: int) -> Pairs:
    """Return the key part of the output cell on one axis, and whether there is one."""
    cell = torch.div(shifted, stride, rounding_mode="floor")
    return cell * step, (cell * stride == shifted) & (cell >= 0) & (cell < size)


def _pack(
    pairs: Sequence[Pairs],
    *,
    in_coords_bzyx: torch.Tensor,
    out_coords_bzyx: torch.Tensor,
    in_shape_zyx: Triple,
    out_shape_zyx: Triple,
    kernel_size: Triple,
    identity_offset: int | None = None,
) -> CoordMap:
    starts = [0]
    for out, _ in pairs:
        starts.append(starts[-1] + len(out))
    return CoordMap(
        in_rows=torch.cat([found for _, found in pairs]),
        out_rows=torch.cat([out for out, _ in pairs]),
        offset_starts=tuple(starts),
        in_coords_bzyx=in_coords_bzyx,
        out_coords_bzyx=out_coords_bzyx,
        in_shape_zyx=in_shape_zyx,
        out_shape_zyx=out_shape_zyx,
        kernel_size=kernel_size,
        identity_offset=identity_offset,
    )
