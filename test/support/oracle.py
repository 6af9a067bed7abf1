"""Sparse operators by dictionary and scalar loops in float64: slow, obvious, independent.

Imports nothing of the package. It defends one relation, on each of z, y, x::

    fine = stride * coarse + tap * dilation - padding

Cells are tuples (b, z, y, x) of Python integers, so no range ever overflows.
"""

from __future__ import annotations

from itertools import product

import numpy as np


def cells(coords):
    """Return coordinates (N, 4) as a list of tuples."""
    return [tuple(int(v) for v in row) for row in coords]


def taps(kernel):
    """Return (k, (kz, ky, kx)) with x fastest."""
    return list(enumerate(product(*(range(size) for size in kernel))))


def fine_cell(coarse, tap, stride, padding, dilation):
    """Apply the relation to the coarse cell (b, z, y, x)."""
    b, *zyx = coarse
    moved = (s * c + t * d - p for s, c, t, d, p in zip(stride, zyx, tap, dilation, padding))
    return (b, *moved)


def out_shape(shape, kernel, stride, padding, dilation):
    """Count the output cells: positions at which the whole kernel fits the padded grid."""
    return tuple(
        len(range(0, s + 2 * p - d * (k - 1), step))
        for s, k, step, p, d in zip(shape, kernel, stride, padding, dilation)
    )


def active_outputs(coords, shape, kernel, stride, padding, dilation=(1, 1, 1)):
    """Return every output cell that sees an active input, in ascending (b, z, y, x) order."""
    size = out_shape(shape, kernel, stride, padding, dilation)
    found = set()
    for b, *zyx in cells(coords):
        for _, tap in taps(kernel):
            shifted = [c + p - t * d for c, p, t, d in zip(zyx, padding, tap, dilation)]
            if any(v % s for v, s in zip(shifted, stride)):
                continue
            coarse = [v // s for v, s in zip(shifted, stride)]
            if all(0 <= v < n for v, n in zip(coarse, size)):
                found.add((b, *coarse))
    return sorted(found)


def map_entries(coords, out_cells, kernel, stride, padding, dilation=(1, 1, 1)):
    """Return the set of (tap k, input row, output row)."""
    row_of = {cell: row for row, cell in enumerate(cells(coords))}
    entries = set()
    for out_row, coarse in enumerate(out_cells):
        for k, tap in taps(kernel):
            in_row = row_of.get(fine_cell(coarse, tap, stride, padding, dilation))
            if in_row is not None:
                entries.add((k, in_row, out_row))
    return entries


def convolve(features, weight, entries, num_out, bias=None):
    """Add up feature row times weight slice over map entries, in float64."""
    features, weight = np.asarray(features, np.float64), np.asarray(weight, np.float64)
    out = np.zeros((num_out, weight.shape[2]))
    if bias is not None:
        out += np.asarray(bias, np.float64)
    for k, in_row, out_row in sorted(entries):
        out[out_row] += features[in_row] @ weight[k]
    return out


def voxelize(points, low, high, size, grid, max_points, max_voxels):
    """Voxelize point by point; cells in the dtype of the points, sums in float64.

    Returns:
        Voxel cells (z, y, x) in order of first appearance, (V, 5) float64 means, point counts.
    """
    dtype = points.dtype.type
    stored: dict[tuple[int, int, int], list[np.ndarray]] = {}
    for point in points[:, :5]:
        if not np.isfinite(point).all():
            continue
        if any(not dtype(low[a]) <= point[a] <= dtype(high[a]) for a in (0, 1)):
            continue
        cell = [np.floor((point[a] - dtype(low[a])) / dtype(size[a])) for a in range(3)]
        if any(not 0 <= c < n for c, n in zip(cell, grid)):
            continue
        x, y, z = (int(c) for c in cell)
        if (z, y, x) not in stored and len(stored) == max_voxels:
            continue
        stored.setdefault((z, y, x), []).append(point.astype(np.float64))
    used = [rows[:max_points] for rows in stored.values()]
    means = np.array([sum(rows) / len(rows) for rows in used]).reshape(-1, 5)
    return list(stored), means, [len(rows) for rows in used]


def bev_merge(levels, scales):
    """Sum rows by (b, y, x) over levels [(coords, features)]; returns sorted cells and sums."""
    total: dict[tuple[int, int, int], np.ndarray] = {}
    for (coords, features), scale in zip(levels, scales):
        for (b, _, y, x), row in zip(cells(coords), np.asarray(features, np.float64)):
            cell = (b, y * scale, x * scale)
            total[cell] = total.get(cell, 0) + row
    order = sorted(total)
    return order, np.array([total[cell] for cell in order])
