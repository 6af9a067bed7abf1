"""Where NanoVDB keeps what: the byte layout of its grids, ABI 32.

A grid is one run of bytes: grid data, tree data, root with its tiles, then all upper nodes, all
lower nodes, all leaves, then blind data. Everything is little-endian. Offsets between parts are
bytes: those of the tree count from the tree data, those of a child from the node that names it.

Sizes and offsets are facts of the format (NanoVDB.h of OpenVDB 10 to 13, ABI 32.3 and later).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from driveRT_ros.core.errors import ConfigError

MAJOR = 32
"""The only major version of the ABI that these offsets hold for."""
FIRST_MINOR = 3
"""Before it the grid data had other fields."""
BLOCKS_SINCE = (32, 6, 1)
"""From this version on, checksums are those of blocks; before, those of nodes."""
MAGIC_ANY, MAGIC_GRID, MAGIC_FILE = b"NanoVDB0", b"NanoVDB1", b"NanoVDB2"
"""Magic of grids and files before 32.6; of grids; of files."""
EMPTY_CHECKSUM = 0xFFFFFFFF
"""In either half of a checksum: nothing was computed."""

HAS_BBOX, HAS_MIN_MAX, HAS_AVERAGE, HAS_STDDEV, IS_BREADTH_FIRST = 2, 4, 8, 16, 32
"""Bits of the flags of a grid."""
FLOAT_BACKGROUND = 28
"""Byte of the background in a root of values of 4 bytes."""
NODE_HAS_BBOX = 2
"""Bit of the flags of a leaf or an internal node."""
UNKNOWN_CLASS, LEVEL_SET, FOG_VOLUME, VOXEL_VOLUME, INDEX_GRID = 0, 1, 2, 7, 8
"""Values of the class of a grid."""

LEAF_EDGE, LOWER_EDGE, UPPER_EDGE = 8, 128, 4096
"""Voxels along each axis of a node."""
LEAF_SLOTS, LOWER_SLOTS, UPPER_SLOTS = 512, 4096, 32768
"""Entries of a node; each is numbered (x, y, z) with z fastest."""


def _struct(size: int, *fields: tuple) -> np.dtype:
    """Return a structured type of ``size`` bytes from (name, type, offset)."""
    names, formats, offsets = zip(*fields)
    spec: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return np.dtype(spec)


MAP = _struct(
    264,
    ("matrix_f32", ("<f4", (3, 3)), 0),
    ("inverse_f32", ("<f4", (3, 3)), 36),
    ("translation_f32", ("<f4", 3), 72),
    ("taper_f32", "<f4", 84),
    ("matrix", ("<f8", (3, 3)), 88),
    ("inverse", ("<f8", (3, 3)), 160),
    ("translation", ("<f8", 3), 232),
    ("taper", "<f8", 256),
)
"""Index to world: world = matrix x index + translation."""

GRID = _struct(
    672,
    ("magic", "S8", 0),
    ("checksum_head", "<u4", 8),
    ("checksum_tail", "<u4", 12),
    ("version", "<u4", 16),
    ("flags", "<u4", 20),
    ("grid_index", "<u4", 24),
    ("grid_count", "<u4", 28),
    ("grid_size", "<u8", 32),
    ("name", "S256", 40),
    ("map", MAP, 296),
    ("world_bbox", ("<f8", (2, 3)), 560),
    ("voxel_size", ("<f8", 3), 608),
    ("grid_class", "<u4", 632),
    ("grid_type", "<u4", 636),
    ("blind_offset", "<i8", 640),
    ("blind_count", "<u4", 648),
    ("data0", "<u4", 652),
    ("data1", "<u8", 656),
    ("data2", "<u8", 664),
)
"""First in a grid. ``data1`` of an index grid: how many values it indexes, the background's too."""

TREE = _struct(
    64,
    ("node_offset", ("<i8", 4), 0),
    ("node_count", ("<u4", 3), 32),
    ("tile_count", ("<u4", 3), 44),
    ("voxel_count", "<u8", 56),
)
"""After the grid data. Offsets and counts of leaves, lower and upper nodes (and the root); active
tiles of lower and upper nodes and of the root; active voxels, those of tiles included."""

HEAD = GRID.itemsize + TREE.itemsize
"""Bytes before the root: where the tail of a checksum begins."""
HEADER_BYTES = HEAD + 96
"""Bytes that hold all that the host must know: up to the end of the longest root."""
HEAD_FROM = 16
"""Where the head of a checksum begins: behind the magic and the checksum itself."""

BLIND = _struct(
    288,
    ("data_offset", "<i8", 0),
    ("value_count", "<u8", 8),
    ("value_size", "<u4", 16),
    ("semantic", "<u4", 20),
    ("data_class", "<u4", 24),
    ("data_type", "<u4", 28),
    ("name", "S256", 32),
)
"""One for each array of blind data; its offset counts from this record."""


@dataclass(frozen=True)
class Layout:
    """The nodes of one kind of grid.

    Args:
        name: For messages.
        grid_type: Number of the value type in the grid data.
        value: Type of a value; indices for an index grid.
        root: Before the tiles.
        tile: An entry of the root; either a child or a value.
        upper: 4096 voxels along each axis; a table of lower nodes and values.
        lower: 128 voxels along each axis; a table of leaves and values.
        leaf: 8 voxels along each axis.
    """

    name: str
    grid_type: int
    value: np.dtype = field(repr=False)
    root: np.dtype = field(repr=False)
    tile: np.dtype = field(repr=False)
    upper: np.dtype = field(repr=False)
    lower: np.dtype = field(repr=False)
    leaf: np.dtype = field(repr=False)

    @property
    def nodes(self) -> tuple[np.dtype, np.dtype, np.dtype]:
        """Leaf, lower and upper node: the order of counts in the tree data."""
        return self.leaf, self.lower, self.upper


def _statistics(value: str, average: str, offset: int) -> tuple[tuple, ...]:
    size = np.dtype(value).itemsize
    names = (("minimum", value), ("maximum", value), ("average", average), ("stddev", average))
    return tuple((name, kind, offset + i * size) for i, (name, kind) in enumerate(names))


def _layout(name: str, grid_type: int, value: str, average: str, leaf: np.dtype) -> Layout:
    """Return the layout of values of 4 or 8 bytes; ``average`` is as wide."""
    wide = np.dtype(value).itemsize == 8
    background = 32 if wide else FLOAT_BACKGROUND

    def internal(size: int, slots: int) -> np.dtype:
        mask = slots // 8
        table = -(-(32 + 2 * mask + (32 if wide else 16)) // 32) * 32
        return _struct(
            size,
            ("bbox", ("<i4", (2, 3)), 0),
            ("flags", "<u8", 24),
            ("value_mask", ("<u8", mask // 8), 32),
            ("child_mask", ("<u8", mask // 8), 32 + mask),
            *_statistics(value, average, 32 + 2 * mask),
            ("table", ("<i8", slots), table),
        )

    root = _struct(
        96 if wide else 64,
        ("bbox", ("<i4", (2, 3)), 0),
        ("table_size", "<u4", 24),
        ("background", value, background),
        *_statistics(value, average, background + np.dtype(value).itemsize),
    )
    tile = _struct(
        32,
        ("key", "<u8", 0),
        ("child", "<i8", 8),
        ("state", "<u4", 16),
        ("value", value, 24 if wide else 20),
    )
    upper, lower = internal(270_400, UPPER_SLOTS), internal(33_856, LOWER_SLOTS)
    return Layout(name, grid_type, np.dtype(value), root, tile, upper, lower, leaf)


_LEAF_HEAD = (
    ("bbox_min", ("<i4", 3), 0),
    ("bbox_extent", ("u1", 3), 12),  # largest minus least
    ("flags", "u1", 15),
    ("value_mask", ("<u8", 8), 16),
)


def _dense_leaf(value: str, average: str) -> np.dtype:
    statistics = _statistics(value, average, 80)
    return _struct(2144, *_LEAF_HEAD, *statistics, ("values", (value, LEAF_SLOTS), 96))


FLOAT = _layout("float", 1, "<f4", "<f4", _dense_leaf("<f4", "<f4"))
INT32 = _layout("int32", 4, "<i4", "<f4", _dense_leaf("<i4", "<f4"))
ON_INDEX = _layout(
    "OnIndex",
    20,
    "<u8",
    "<u8",
    # The value of an active voxel is offset + the active voxels before it, those of whole words
    # from ``prefix_sum``: seven counts of 9 bits, up to words 1 to 7. An inactive one has 0.
    _struct(96, *_LEAF_HEAD, ("offset", "<u8", 80), ("prefix_sum", "<u8", 88)),
)
LAYOUTS = {layout.grid_type: layout for layout in (FLOAT, INT32, ON_INDEX)}
"""By type of the grid data."""

# ---- versions -----------------------------------------------------------------------------------


def pack_version(version: tuple[int, int, int]) -> int:
    """Return a version as grids and files store it: 11, 11 and 10 bits."""
    major, minor, patch = version
    return major << 21 | minor << 10 | patch


def unpack_version(word: int) -> tuple[int, int, int]:
    """Return (major, minor, patch) of a stored version.

    Raises:
        ConfigError: If the layout of this module does not hold for it.
    """
    version = word >> 21, word >> 10 & 0x7FF, word & 0x3FF
    if version[0] != MAJOR or version[1] < FIRST_MINOR:
        raise ConfigError(
            f"This NanoVDB grid has ABI version {'.'.join(map(str, version))}; only {MAJOR}.x from "
            f"{MAJOR}.{FIRST_MINOR} on can be read. Convert it with a newer OpenVDB."
        )
    return version


# ---- one grid -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridHeader:
    """What the host must know of a grid: read once, passed to every operator.

    Args:
        version: Of the ABI.
        layout: Of its nodes.
        size: Bytes.
        flags: See the bits above.
        node_offsets: Where leaves, lower nodes, upper nodes and the root begin, from the grid's
            first byte.
        node_counts: Leaves, lower and upper nodes.
        table_size: Tiles of the root.
        value_count: Values that an index grid indexes, the background's included; 0 for others.
        checksum: The stored (head, tail).
    """

    version: tuple[int, int, int]
    layout: Layout
    size: int
    flags: int
    node_offsets: tuple[int, int, int, int]
    node_counts: tuple[int, int, int]
    table_size: int
    value_count: int
    checksum: tuple[int, int]

    @property
    def checksum_of_blocks(self) -> bool:
        """Whether the checksum of this version is that of 4 KB blocks, not of nodes."""
        return self.version >= BLOCKS_SINCE

    @property
    def background_at(self) -> int:
        """Byte of the background of a grid of values; it has 4."""
        return self.node_offsets[3] + FLOAT_BACKGROUND

    @property
    def nodes_end(self) -> int:
        """Where tiles and nodes end and blind data may begin."""
        ends = [
            offset + count * node.itemsize
            for offset, count, node in zip(self.node_offsets, self.node_counts, self.layout.nodes)
            if count
        ]
        tiles = self.node_offsets[3] + self.layout.root.itemsize
        return max([tiles + self.table_size * self.layout.tile.itemsize, *ends])


def read_header(grid: np.ndarray, size: int | None = None) -> GridHeader:
    """Read and check what the first bytes of a grid say.

    Args:
        grid: (bytes,) uint8, the grid or its first ``HEADER_BYTES``; more may follow it.
        size: Bytes that are there, where ``grid`` holds only the first of them.

    Raises:
        ConfigError: If it is no grid, of another version or value type, or its parts do not lie
            inside it.
    """
    size = len(grid) if size is None else size
    least = HEAD + FLOAT.root.itemsize
    if size < least:
        raise ConfigError(f"A NanoVDB grid has at least {least} bytes, got {size}.")
    data = np.ascontiguousarray(grid[:HEADER_BYTES])
    head, tree = data[: GRID.itemsize].view(GRID)[0], data[GRID.itemsize : HEAD].view(TREE)[0]
    if bytes(head["magic"]) not in (MAGIC_ANY, MAGIC_GRID):
        raise ConfigError(f"A NanoVDB grid begins with {MAGIC_GRID!r}, got {head['magic']!r}.")
    version = unpack_version(int(head["version"]))
    layout = LAYOUTS.get(int(head["grid_type"]))
    if layout is None:
        known = ", ".join(f"{i} ({each.name})" for i, each in LAYOUTS.items())
        raise ConfigError(f"This grid has values of type {head['grid_type']}; known are {known}.")
    offsets = tuple(GRID.itemsize + int(offset) for offset in tree["node_offset"])
    counts = tuple(int(count) for count in tree["node_count"])
    if int(head["grid_size"]) > size or offsets[3] != HEAD:
        raise ConfigError(
            f"This grid should have {head['grid_size']} bytes and its root at byte {HEAD}; "
            f"{size} bytes are there and the root lies at byte {offsets[3]}. It is damaged."
        )
    found = GridHeader(
        version=version,
        layout=layout,
        size=int(head["grid_size"]),
        flags=int(head["flags"]),
        node_offsets=(offsets[0], offsets[1], offsets[2], offsets[3]),
        node_counts=(counts[0], counts[1], counts[2]),
        table_size=int(data[HEAD + 24 : HEAD + 28].view("<u4")[0]),
        value_count=int(head["data1"]) if layout is ON_INDEX else 0,
        checksum=(int(head["checksum_head"]), int(head["checksum_tail"])),
    )
    _check_nodes(found)
    return found


def _check_nodes(header: GridHeader) -> None:
    root_end = header.node_offsets[3] + header.layout.root.itemsize
    names = ("leaves", "lower nodes", "upper nodes")
    for name, offset, count in zip(names, header.node_offsets, header.node_counts):
        if count and (offset < root_end or offset % 32):
            raise ConfigError(f"The {name} of this grid begin at byte {offset}; it is damaged.")
    if header.nodes_end > header.size:
        raise ConfigError(
            f"The nodes of this grid end at byte {header.nodes_end}, the grid at byte "
            f"{header.size}; it is damaged."
        )


def sequential(
    layout: Layout,
    node_counts: tuple[int, int, int],
    table_size: int,
    version: tuple[int, int, int],
) -> GridHeader:
    """Return where the parts of a new grid lie: one behind the other, without blind data.

    Args:
        layout: Of its nodes.
        node_counts: Leaves, lower and upper nodes.
        table_size: Tiles of the root.
        version: Of the ABI.
    """
    upper = HEAD + layout.root.itemsize + table_size * layout.tile.itemsize
    lower = upper + node_counts[2] * layout.upper.itemsize
    leaf = lower + node_counts[1] * layout.lower.itemsize
    return GridHeader(
        version=version,
        layout=layout,
        size=leaf + node_counts[0] * layout.leaf.itemsize,
        flags=HAS_BBOX | IS_BREADTH_FIRST,
        node_offsets=(leaf, lower, upper, HEAD),
        node_counts=node_counts,
        table_size=table_size,
        value_count=0,
        checksum=(EMPTY_CHECKSUM, EMPTY_CHECKSUM),
    )


def converted(header: GridHeader, value: np.dtype) -> GridHeader:
    """Return the header of the grid of values that an index grid becomes.

    Args:
        header: Of the index grid.
        value: float32 or int32.
    """
    layout = FLOAT if value == FLOAT.value else INT32
    made = sequential(layout, header.node_counts, header.table_size, header.version)
    return replace(made, flags=header.flags & made.flags)
