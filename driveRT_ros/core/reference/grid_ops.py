"""Operators on NanoVDB grids in numpy: the CPU path, and the oracle of the kernels.

A grid is (bytes,) uint8 on the host. ``grid_stats.py`` beside has the statistics.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from driveRT_ros.core import nanovdb_layout as nvdb
from driveRT_ros.core.nanovdb_layout import GRID, HEAD, TREE, GridHeader

BLOCK = 4096
"""Bytes of a block of a checksum; the last one takes the remainder too."""

# ---- checksum -----------------------------------------------------------------------------------


def head_end(header: GridHeader) -> int:
    """Return where the head of a checksum ends: before the root, or before the upper nodes."""
    if header.checksum_of_blocks:
        return HEAD
    tiles = header.node_offsets[3] + header.layout.root.itemsize
    tiles += header.table_size * header.layout.tile.itemsize
    return header.node_offsets[2] if header.node_counts[2] else tiles


def chunks(header: GridHeader) -> list[tuple[int, int, int]]:
    """Return the runs of chunks whose CRCs the tail of a checksum is the CRC of.

    Returns:
        (first byte, bytes of a chunk, chunks) of each run. Those of blocks: the last chunk goes on
        to the end of the grid.
    """
    if header.checksum_of_blocks:
        return [(HEAD, BLOCK, (header.size - HEAD) // BLOCK)]
    levels = zip(header.node_offsets, (n.itemsize for n in header.layout.nodes), header.node_counts)
    return list(levels)[::-1]


def checksum(grid: np.ndarray, header: GridHeader) -> tuple[int, int]:
    """Return the CRC-32 of head and tail, as NanoVDB defines them for the grid's version.

    The tail is the CRC of the CRCs of its chunks: blocks of 4 KB from the root on since 32.6.1, the
    upper, lower and leaf nodes before. Of no chunk at all it is 0.

    Args:
        grid: (bytes,) uint8.
        header: Of the grid.
    """
    head = zlib.crc32(grid[nvdb.HEAD_FROM : head_end(header)].data)
    if header.checksum_of_blocks:
        return head, crc_of_crcs(blocks(grid[HEAD : header.size]))
    return head, crc_of_crcs(nodes_one_by_one(grid, header))


def crc_of_crcs(parts: Iterable[np.ndarray], kind: str = "<u4") -> int:
    """Return the CRC-32 of the CRC-32 of every part, stored as integers of a kind; 0 for none."""
    return zlib.crc32(np.array([zlib.crc32(part.data) for part in parts], kind).tobytes())


def blocks(tail: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the blocks of a tail: the last one goes on to its end; none in less than a block."""
    count = len(tail) // BLOCK
    for i in range(count):
        yield tail[i * BLOCK : (i + 1) * BLOCK if i + 1 < count else len(tail)]


def nodes_one_by_one(grid: np.ndarray, header: GridHeader) -> Iterator[np.ndarray]:
    """Yield every node, as tails before 32.6.1 take them: upper, lower, leaf."""
    for offset, size, count in chunks(header):
        for begin in range(offset, offset + count * size, size):
            yield grid[begin : begin + size]


# ---- statistics ---------------------------------------------------------------------------------


def nodes_of(grid: np.ndarray, header: GridHeader, level: int) -> np.ndarray:
    """Return a view of all nodes of a level: 0 leaves, 1 lower, 2 upper, 3 the root."""
    begin = header.node_offsets[level]
    dtype = header.layout.root if level == 3 else header.layout.nodes[level]
    count = 1 if level == 3 else header.node_counts[level]
    return grid[begin : begin + count * dtype.itemsize].view(dtype)


def tiles_of(grid: np.ndarray, header: GridHeader) -> np.ndarray:
    """Return a view of the tiles of the root."""
    begin = header.node_offsets[3] + header.layout.root.itemsize
    size = header.table_size * header.layout.tile.itemsize
    return grid[begin : begin + size].view(header.layout.tile)


def bits_of(mask: np.ndarray) -> np.ndarray:
    """Return the bits of (N, words) masks as (N, 64 * words) booleans."""
    raw = np.ascontiguousarray(mask).view(np.uint8).reshape(len(mask), mask.shape[1] * 8)
    return np.unpackbits(raw, axis=1, bitorder="little").astype(bool)


def children_of(
    nodes: np.ndarray, entries: np.ndarray, header: GridHeader, level: int
) -> np.ndarray:
    """Return the numbers of child nodes from byte offsets in tables.

    Args:
        nodes: Numbers of the nodes (those of the level) that the tables belong to.
        entries: Table entries that hold a child, any shape that ``nodes`` broadcasts to.
        header: Of the grid.
        level: Of the nodes, 1 to 3; 3 is the root.
    """
    own = 0 if level == 3 else header.layout.nodes[level].itemsize
    begin = header.node_offsets[level] + nodes * own
    return (begin + entries - header.node_offsets[level - 1]) // header.layout.nodes[
        level - 1
    ].itemsize


def origins_of_keys(keys: np.ndarray) -> np.ndarray:
    """Return (N, 3) first voxels of tiles of a root from their keys: 21 bits an axis, x first."""
    parts = np.stack([keys >> np.uint64(shift) for shift in (42, 21, 0)], axis=-1)
    return ((parts & np.uint64(0x1FFFFF)) << np.uint64(12)).astype(np.uint32).view(np.int32)


# ---- index to grid ------------------------------------------------------------------------------


def index_to_grid(
    grid: np.ndarray, header: GridHeader, values: np.ndarray, grid_class: int
) -> np.ndarray:
    """Return the grid of values that an index grid and its values stand for.

    Args:
        grid: (bytes,) uint8, an index grid.
        header: Of the grid.
        values: (value count,) float32 or int32; the first is the background.
        grid_class: Class of the result.

    Returns:
        (bytes,) uint8: every byte that has no meaning is 0, statistics and blind data are left out
        and the checksum says that none was computed.
    """
    made = nvdb.converted(header, values.dtype)
    out = np.zeros(made.size, np.uint8)
    _write_head(grid, made, out, grid_class)
    source, root = nodes_of(grid, header, 3), nodes_of(out, made, 3)
    root["bbox"], root["table_size"] = source["bbox"], header.table_size
    root["background"] = _look_up(values, source["background"])
    tiles, written = tiles_of(grid, header), tiles_of(out, made)
    child = tiles["child"] != 0
    numbers = children_of(np.zeros(len(tiles), np.int64), tiles["child"], header, 3)
    written["key"] = tiles["key"]
    written["child"] = np.where(child, offsets_of(0, numbers, made, 3), 0)
    written["state"] = np.where(child, 0, tiles["state"])
    written["value"] = np.where(child, values[0], _look_up(values, tiles["value"]))
    for level in (2, 1):
        for i in range(header.node_counts[level]):
            node, to = nodes_of(grid, header, level)[i], nodes_of(out, made, level)[i]
            for name in ("bbox", "flags", "value_mask", "child_mask"):
                to[name] = node[name]
            table, child = node["table"], bits_of(node["child_mask"][None])[0]
            shown = to["table"].view(values.dtype)[::2]
            shown[:] = _look_up(values, np.where(child, 0, table))
            numbers = children_of(np.array(i), table[child], header, level)
            to["table"][child] = offsets_of(i, numbers, made, level)
    _write_leaves(nodes_of(grid, header, 0), nodes_of(out, made, 0), values)
    return out


def offsets_of(node: int, children: np.ndarray, header: GridHeader, level: int) -> np.ndarray:
    """Return byte offsets of children from their node; see :func:`children_of`."""
    own = 0 if level == 3 else header.layout.nodes[level].itemsize
    begin = header.node_offsets[level] + node * own
    return (
        header.node_offsets[level - 1] + children * header.layout.nodes[level - 1].itemsize - begin
    )


def _look_up(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return values; that of an index that there is none for is the background."""
    wide = indices.astype(np.uint64)
    return values[np.where(wide < np.uint64(len(values)), wide, 0).astype(np.int64)]


def _write_head(grid: np.ndarray, made: GridHeader, out: np.ndarray, grid_class: int) -> None:
    out[:HEAD] = grid[:HEAD]
    head, tree = out[: GRID.itemsize].view(GRID), out[GRID.itemsize : HEAD].view(TREE)
    head["checksum_head"] = head["checksum_tail"] = nvdb.EMPTY_CHECKSUM
    head["flags"], head["grid_size"] = made.flags, made.size
    head["grid_index"], head["grid_count"] = 0, 1
    head["grid_class"], head["grid_type"] = grid_class, made.layout.grid_type
    head["blind_offset"], head["blind_count"], head["data1"] = made.size, 0, 0
    tree["node_offset"] = np.array(made.node_offsets) - GRID.itemsize


def _write_leaves(leaves: np.ndarray, to: np.ndarray, values: np.ndarray) -> None:
    for name in ("bbox_min", "bbox_extent", "value_mask"):
        to[name] = leaves[name]
    to["flags"] = leaves["flags"] & np.uint8(nvdb.NODE_HAS_BBOX)
    for at in range(0, len(leaves), 1024):
        part = slice(at, at + 1024)
        active = bits_of(leaves["value_mask"][part])
        before = np.cumsum(active, axis=1, dtype=np.uint64) - active
        index = np.where(active, leaves["offset"][part, None] + before, 0)
        to["values"][part] = _look_up(values, index)
