"""Statistics of NanoVDB grids in numpy: the CPU path, and the oracle of the kernels.

They are those of active values; tiles count as the voxels that they stand for. Every sum has a
fixed order, so the kernels give the same bits:

- a leaf: 32 lanes, lane l adds the values l, l + 32, ... in this order; then lanes are added in
  pairs 16, 8, 4, 2, 1 apart. First the mean, then the squares of the distances from it.
- a lower node: its children and active tiles are numbered in the order of their slots; of 128
  lanes, lane l merges the numbers l, l + 128, ... in this order; then lanes are merged in pairs 64,
  32, ..., 1 apart, the lower one first (Chan, Golub and LeVeque 1979).
- an upper node: the same with 512 lanes; the root, too, but there all tiles are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.grid_types import NO_MAXIMUM, NO_MINIMUM, empty_stats, keys_of, values_of
from driveRT_ros.core.nanovdb_layout import GRID, GridHeader
from driveRT_ros.core.reference.grid_ops import (
    bits_of,
    children_of,
    nodes_of,
    origins_of_keys,
    tiles_of,
)

LEAF_LANES, LOWER_LANES, TOP_LANES = 32, 128, 512
_NODES_AT_ONCE = 256
_EDGES = (nvdb.LEAF_EDGE, nvdb.LOWER_EDGE, nvdb.UPPER_EDGE)


def grid_stats(grid: np.ndarray, header: GridHeader, *, moments: bool = True) -> np.ndarray:
    """Return statistics of every node.

    Args:
        grid: (bytes,) uint8, of float or int32 values.
        header: Of the grid.
        moments: Whether means and squares of distances are wanted; without they are 0.

    Returns:
        (leaves + lower + upper + 1,) ``STATS``; the last is that of the grid.
    """
    leaves = nodes_of(grid, header, 0)
    below = [_leaf_stats(part) for part in _parts(leaves)]
    found = [np.concatenate([empty_stats(0), *below])]
    for level in (1, 2):
        nodes = nodes_of(grid, header, level)
        done = [
            _node_stats(part, at, found[-1], header, level)
            for at, part in zip(range(0, len(nodes), _NODES_AT_ONCE), _parts(nodes))
        ]
        found.append(np.concatenate([empty_stats(0), *done]))
    found.append(_root_stats(tiles_of(grid, header), found[-1], header))
    stats = np.concatenate(found)
    if not moments:
        stats["mean"] = stats["m2"] = 0
    return stats


def _parts(nodes: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(0, len(nodes), _NODES_AT_ONCE):
        yield nodes[at : at + _NODES_AT_ONCE]


def _leaf_stats(leaves: np.ndarray) -> np.ndarray:
    found, values = empty_stats(len(leaves)), leaves["values"]
    active = bits_of(leaves["value_mask"])
    number = active & ~np.isnan(values)
    found["count"] = number.sum(1)
    found["nans"] = active.sum(1) - number.sum(1)
    keys = keys_of(np.where(number, values, values.dtype.type(0)))
    found["minimum"] = np.where(number, keys, NO_MINIMUM).min(1)
    found["maximum"] = np.where(number, keys, NO_MAXIMUM).max(1)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = values.astype(np.float64)
        some = found["count"] > 0
        mean = np.divide(
            _lane_sums(wide, number), found["count"], where=some, out=np.zeros(len(some))
        )
        distance = wide - mean[:, None]
        found["mean"] = _one_nan(mean)
        found["m2"] = _one_nan(_lane_sums(distance * distance, number))
    _leaf_boxes(active.reshape(-1, 8, 8, 8), leaves["bbox_min"] & ~7, found)
    return found


def _leaf_boxes(active: np.ndarray, origin: np.ndarray, found: np.ndarray) -> None:
    for axis, others in enumerate(((2, 3), (1, 3), (1, 2))):
        line = np.asarray(active.any(axis=others))
        first, last = line.argmax(1), 7 - line[:, ::-1].argmax(1)
        some = line.any(1)
        found["bbox"][some, 0, axis] = (origin[:, axis] + first)[some]
        found["bbox"][some, 1, axis] = (origin[:, axis] + last)[some]


def _lane_sums(values: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Add up rows of 512 in the order of the module's description."""
    sums: np.ndarray = np.zeros((len(values), LEAF_LANES))
    for at in range(0, values.shape[1], LEAF_LANES):
        lanes = slice(at, at + LEAF_LANES)
        np.add(sums, values[:, lanes], out=sums, where=used[:, lanes])
    width = LEAF_LANES
    while width > 1:
        width //= 2
        sums = sums[:, :width] + sums[:, width : 2 * width]
    return sums[:, 0]


def _one_nan(values: np.ndarray) -> np.ndarray:
    """Give results that are not a number the same bits everywhere."""
    return np.where(np.isnan(values), np.nan, values)


def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the statistics of the values of both, elementwise."""
    found = np.empty(a.shape, a.dtype)
    found["count"], found["nans"] = a["count"] + b["count"], a["nans"] + b["nans"]
    with np.errstate(invalid="ignore", over="ignore"):
        share = b["count"] / np.maximum(found["count"], 1)
        delta = b["mean"] - a["mean"]
        mean = a["mean"] + delta * share
        m2 = (a["m2"] + b["m2"]) + delta * delta * (a["count"] * share)
    for name, both in (("mean", mean), ("m2", m2)):
        one = np.where(b["count"] > 0, b[name], a[name])
        found[name] = np.where((a["count"] > 0) & (b["count"] > 0), _one_nan(both), one)
    found["minimum"] = np.minimum(a["minimum"], b["minimum"])
    found["maximum"] = np.maximum(a["maximum"], b["maximum"])
    found["bbox"][..., 0, :] = np.minimum(a["bbox"][..., 0, :], b["bbox"][..., 0, :])
    found["bbox"][..., 1, :] = np.maximum(a["bbox"][..., 1, :], b["bbox"][..., 1, :])
    return found


def _tree(lanes: np.ndarray) -> np.ndarray:
    """Merge (N, lanes) in pairs."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = merge(lanes[:, :half], lanes[:, half:])
    return lanes[:, 0]


def _merge_numbered(
    entries: np.ndarray, row: np.ndarray, number: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Merge entries, each the ``number``-th of its row, over (rows, lanes)."""
    merged = empty_stats(shape)
    for first in range(0, int(number.max(initial=-1)) + 1, shape[1]):
        turn = (first <= number) & (number < first + shape[1])
        part = empty_stats(shape)
        part[row[turn], number[turn] - first] = entries[turn]
        merged = merge(merged, part)
    return _tree(merged)


def tile_stats(
    values: np.ndarray, active: np.ndarray, origins: np.ndarray, edge: int
) -> np.ndarray:
    """Return the statistics of tiles: ``edge`` cubed voxels of one value each, if active."""
    found, size = empty_stats(values.shape), np.uint64(edge**3)
    number = active & ~np.isnan(values)
    found["count"], found["nans"] = number * size, (active & ~number) * size
    safe = np.where(number, values, values.dtype.type(0))
    found["mean"] = safe
    found["minimum"] = np.where(number, keys_of(safe), NO_MINIMUM)
    found["maximum"] = np.where(number, keys_of(safe), NO_MAXIMUM)
    found["bbox"][active, 0] = origins[active]
    found["bbox"][active, 1] = origins[active] + (edge - 1)
    return found


def _node_stats(
    nodes: np.ndarray, first: int, below: np.ndarray, header: GridHeader, level: int
) -> np.ndarray:
    table, edge, lanes = nodes["table"], _EDGES[level - 1], (LOWER_LANES, TOP_LANES)[level - 1]
    per_axis = round(table.shape[1] ** (1 / 3))
    has_child = bits_of(nodes["child_mask"])
    used = has_child | bits_of(nodes["value_mask"])
    row, slot = used.nonzero()
    child, words = has_child[row, slot], table[row, slot]
    origins = nodes["bbox"][:, 0] & ~(_EDGES[level] - 1)
    ijk = np.stack(np.unravel_index(slot, (per_axis,) * 3), 1) * edge
    values = words.view(header.layout.value)[::2]
    entries = tile_stats(values, ~child, origins[row] + ijk.astype(np.int32), edge)
    parents = first + row[child]
    entries[child] = below[children_of(parents, words[child], header, level)]
    number = (used.cumsum(1) - 1)[row, slot]
    return _merge_numbered(entries, row, number, (len(nodes), lanes))


def _root_stats(tiles: np.ndarray, below: np.ndarray, header: GridHeader) -> np.ndarray:
    child, active = tiles["child"] != 0, tiles["state"] != 0
    origins = origins_of_keys(tiles["key"])
    entries = tile_stats(tiles["value"], active & ~child, origins, nvdb.UPPER_EDGE)
    numbers = children_of(np.zeros(1, np.int64), tiles["child"], header, 3)
    entries[child] = below[numbers[child]]
    row = np.zeros(len(tiles), np.int64)
    return _merge_numbered(entries, row, np.arange(len(tiles)), (1, TOP_LANES))


def write_grid_stats(
    grid: np.ndarray, header: GridHeader, stats: np.ndarray, *, moments: bool = True
) -> None:
    """Write statistics into the nodes of a grid, in place.

    A node without active values gets the background; its box, which also says where it lies, stays.

    Args:
        grid: (bytes,) uint8.
        header: Of the grid.
        stats: What :func:`grid_stats` returned.
        moments: Write means and deviations too.
    """
    root = nodes_of(grid, header, 3)
    starts = np.cumsum([0, *header.node_counts])
    for level in (0, 1, 2, 3):
        nodes = root if level == 3 else nodes_of(grid, header, level)
        found = stats[starts[level] : starts[level] + len(nodes)]
        some, background = found["count"] > 0, root["background"][0]
        count = np.maximum(found["count"], 1)
        for name in ("minimum", "maximum"):
            nodes[name] = np.where(some, values_of(found[name], header.layout), background)
        if moments:
            with np.errstate(over="ignore"):
                nodes["average"] = np.where(some, found["mean"], background)
                nodes["stddev"] = np.where(some, np.sqrt(found["m2"] / count), 0)
        active = found["bbox"][:, 0, 0] <= found["bbox"][:, 1, 0]
        if level == 0:
            extent = found["bbox"][:, 1] - found["bbox"][:, 0]
            nodes["bbox_min"][active] = found["bbox"][active, 0]
            nodes["bbox_extent"][active] = extent[active]
            flags = nodes["flags"] & ~np.uint8(nvdb.NODE_HAS_BBOX)
            nodes["flags"] = flags | active * np.uint8(nvdb.NODE_HAS_BBOX)
        else:
            active |= level == 3
            nodes["bbox"][active] = found["bbox"][active]
    head = grid[: GRID.itemsize].view(GRID)
    head["flags"] |= nvdb.HAS_BBOX | nvdb.HAS_MIN_MAX
    if moments:
        head["flags"] |= nvdb.HAS_AVERAGE | nvdb.HAS_STDDEV
    head["world_bbox"] = _world_bbox(head["map"][0], root["bbox"][0])


def _world_bbox(index_map: np.ndarray, bbox: np.ndarray) -> np.ndarray:
    """Return the box around the eight corners of the voxels in ``bbox``; zeros for none."""
    if bbox[0, 0] > bbox[1, 0]:
        return np.zeros((2, 3))
    edges = np.array([bbox[0], bbox[1] + 1], np.float64)
    x, y, z = (each.ravel() for each in np.meshgrid(*edges.T, indexing="ij"))
    rows = [
        ((m[0] * x + m[1] * y) + m[2] * z) + t
        for m, t in zip(index_map["matrix"], index_map["translation"])
    ]
    return np.array([[r.min() for r in rows], [r.max() for r in rows]])
