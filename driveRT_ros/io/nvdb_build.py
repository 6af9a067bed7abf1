"""Build NanoVDB grids from coordinates and values, without a loop over voxels.

Equal sets of voxels give the same bytes, whatever order they come in; padding is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.nanovdb_layout import BLIND, FLOAT, GRID, HEAD, INT32, ON_INDEX, TREE, Layout
from driveRT_ros.core.reference.grid_ops import BLOCK
from driveRT_ros.core.turn import NO_TURN, Turn
from driveRT_ros.io.nvdb_checksum import sign
from driveRT_ros.io.nvdb_grid import NanoGrid
from driveRT_ros.io.nvdb_topology import Topology, boxes, set_bits, sort_voxels

VALUE_VERSION = (32, 6, 0)
"""Of grids of values: tools since OpenVDB 10 read it and verify the checksum of the head."""
INDEX_VERSION = (32, 9, 0)
"""Of OnIndex grids, which older tools do not know: the checksum covers the channels, too."""
MAX_NAME = 255
_CHANNEL_ARRAY = 4
_ALIGNMENT = 32
_EMPTY_BOX = np.array((np.iinfo(np.int32).max, np.iinfo(np.int32).min), np.int32)
_EMPTY_WORLD = np.array((np.finfo(np.float64).max, np.finfo(np.float64).min))


@dataclass(frozen=True)
class Placement:
    """Where the cells of a grid lie.

    Args:
        voxel_size_xyz: Edge lengths of a cell in metres.
        origin_xyz: Lower corner of cell (0, 0, 0) in metres, along the axes of the cells.
        turn: From the axes of the cells to those of the LiDAR, about its origin.
    """

    voxel_size_xyz: tuple[float, float, float]
    origin_xyz: tuple[float, float, float]
    turn: Turn = NO_TURN

    def __post_init__(self) -> None:
        numbers = (*self.voxel_size_xyz, *self.origin_xyz)
        if not (np.isfinite(numbers).all() and min(self.voxel_size_xyz) > 0):
            raise ConfigError(
                f"A grid needs three positive voxel sizes and a finite origin, got "
                f"{self.voxel_size_xyz} and {self.origin_xyz}."
            )

    @property
    def centre_xyz(self) -> npt.NDArray[np.float64]:
        """(3,) metres: the centre of cell (0, 0, 0), which is what a whole index means."""
        along = np.asarray(self.origin_xyz, float) + 0.5 * np.asarray(self.voxel_size_xyz, float)
        return self.turned(along)

    def turned(self, xyz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return vectors along the axes of the cells, (..., 3), in the frame of the LiDAR."""
        return np.stack((*self.turn.xy(xyz[..., 0], xyz[..., 1]), xyz[..., 2]), axis=-1)


class _Buffer:
    """The bytes of a grid in the making, with views of its parts.

    Args:
        kind: What its nodes look like.
        topology: What goes in.
        extra: Bytes of blind data at the end.
    """

    def __init__(self, kind: Layout, topology: Topology, extra: int = 0) -> None:
        self.kind, self.topology = kind, topology
        counts = [len(level) for level in topology.levels]
        root_end = HEAD + kind.root.itemsize + counts[2] * kind.tile.itemsize
        offsets, end = [0, 0, 0], root_end
        for level in (2, 1, 0):
            offsets[level] = end
            end += counts[level] * kind.nodes[level].itemsize
        self.offsets, self.counts, self.blind_offset = offsets, counts, end
        # A tail below one block has no checksum that means anything.
        self.data = np.zeros(max(end + extra, HEAD + BLOCK if extra else 0), np.uint8)
        self.grid = self._view(GRID, 0, 1)
        self.tree = self._view(TREE, GRID.itemsize, 1)
        self.root = self._view(kind.root, HEAD, 1)
        self.tiles = self._view(kind.tile, HEAD + kind.root.itemsize, counts[2])
        self.leaves, self.lower, self.upper = (
            self._view(node, offset, count)
            for node, offset, count in zip(kind.nodes, offsets, counts)
        )

    def _view(self, kind: np.dtype, begin: int, count: int) -> np.ndarray:
        return self.data[begin : begin + count * kind.itemsize].view(kind)

    def fill_grid(self, name: str, place: Placement, version: tuple[int, int, int]) -> None:
        """Write grid data, but for class, flags and checksum."""
        grid, size = self.grid, np.asarray(place.voxel_size_xyz, float)
        grid["magic"] = layout.MAGIC_ANY
        grid["version"] = layout.pack_version(version)
        grid["grid_count"] = 1
        grid["grid_size"] = len(self.data)
        grid["name"] = name.encode()
        grid["grid_type"] = self.kind.grid_type
        grid["blind_offset"] = len(self.data)
        grid["data2"] = int.from_bytes(layout.MAGIC_GRID, "little")
        grid["voxel_size"] = size
        axes = place.turned(np.eye(3)).T  # columns: the axes of the cells
        for suffix in ("", "_f32"):
            grid["map"]["matrix" + suffix] = axes * size
            grid["map"]["inverse" + suffix] = (axes / size).T
            grid["map"]["translation" + suffix] = place.centre_xyz
            grid["map"]["taper" + suffix] = 1
        xyz = self.topology.xyz
        if not len(xyz):
            grid["world_bbox"] = _EMPTY_WORLD[:, None]
            return
        # The convention of NanoVDB: the map of the least index and of one past the largest.
        box = np.stack((xyz.min(axis=0), xyz.max(axis=0).astype(np.int64) + 1))
        ends = np.stack(np.meshgrid(*(box * size).T), axis=-1).reshape(-1, 3)
        world = place.centre_xyz + place.turned(ends)
        grid["world_bbox"] = world.min(axis=0), world.max(axis=0)

    def fill_tree(self) -> None:
        """Write tree data, root tiles, masks, boxes and the links between nodes."""
        self.tree["node_offset"] = [o - GRID.itemsize for o in (*self.offsets, HEAD)]
        self.tree["node_count"] = self.counts
        self.tree["voxel_count"] = len(self.topology)
        self.root["table_size"] = self.counts[2]
        xyz, (leaves, lower, upper) = self.topology.xyz, self.topology.levels
        self.root["bbox"] = boxes(xyz, np.zeros(1, np.int64)) if len(xyz) else _EMPTY_BOX[:, None]
        x, y, z = (xyz[upper.starts].astype(np.int64) >> 12 & 0xFFFFF).T
        self.tiles["key"] = x << 42 | y << 21 | z
        origin = self.offsets
        steps = [node.itemsize for node in self.kind.nodes]
        self.tiles["child"] = origin[2] + np.arange(len(upper)) * steps[2] - HEAD
        for level, nodes, child in ((2, self.upper, lower), (1, self.lower, leaves)):
            nodes["bbox"] = boxes(xyz, self.topology.levels[level].starts)
            nodes["flags"] = layout.NODE_HAS_BBOX
            set_bits(nodes["child_mask"], child.parent, child.slot)
            to = origin[level - 1] + np.arange(len(child)) * steps[level - 1]
            nodes["table"][child.parent, child.slot] = (
                to - origin[level] - child.parent * steps[level]
            )
        spans = boxes(xyz, leaves.starts)
        self.leaves["bbox_min"] = spans[:, 0]
        self.leaves["bbox_extent"] = spans[:, 1] - spans[:, 0]
        self.leaves["flags"] = layout.NODE_HAS_BBOX
        set_bits(self.leaves["value_mask"], self.topology.leaf, self.topology.slot)

    def finish(self, flags: int, grid_class: int) -> NanoGrid:
        """Write what is left and the checksum, and return the grid."""
        self.grid["flags"] = (
            flags | layout.IS_BREADTH_FIRST | (layout.HAS_BBOX if len(self.topology) else 0)
        )
        self.grid["grid_class"] = grid_class
        sign(self.data)
        self.data.flags.writeable = False
        name = bytes(self.grid["name"][0]).decode()
        return NanoGrid(self.data, layout.read_header(self.data), name)


def build_value_grid(
    coords_zyx: npt.NDArray[np.integer],
    values: np.ndarray,
    place: Placement,
    *,
    name: str,
    background: float = 0.0,
    grid_class: int = layout.UNKNOWN_CLASS,
) -> NanoGrid:
    """Build a float or int32 grid with statistics in every node.

    Args:
        coords_zyx: (V, 3) cells, none twice, in any order.
        values: (V,) float32 or int32, finite.
        place: Where the cells lie.
        name: Of at most 255 bytes.
        background: Value of every other cell.
        grid_class: Such as :data:`driveRT_ros.core.nanovdb_layout.FOG_VOLUME`.

    Raises:
        InvalidFrame: If coordinates or values cannot be stored.
        ConfigError: If the name is too long.
    """
    topology = sort_voxels(coords_zyx)
    values = _checked_column(name, values, len(topology))[topology.order]
    out = _Buffer(INT32 if values.dtype.kind == "i" else FLOAT, topology)
    out.fill_grid(_checked_name(name), place, VALUE_VERSION)
    filling = np.zeros(2, out.kind.value)
    filling[0] = background
    for nodes in (out.upper, out.lower):  # before the links: what is no child is background
        nodes["table"] = filling.view("<i8")
    out.fill_tree()
    out.leaves["values"] = background
    out.leaves["values"][topology.leaf, topology.slot] = values
    for level, nodes in zip(topology.levels, (out.leaves, out.lower, out.upper)):
        _statistics(nodes, values, level.starts)
    out.root["background"] = background
    if len(values):
        _statistics(out.root, values, np.zeros(1, np.int64))
    else:
        out.root["minimum"] = out.root["maximum"] = background
    return out.finish(layout.HAS_MIN_MAX | layout.HAS_AVERAGE | layout.HAS_STDDEV, grid_class)


def _statistics(nodes: np.ndarray, values: np.ndarray, starts: npt.NDArray[np.int64]) -> None:
    """Write minimum, maximum, mean and standard deviation of each run of values, in place."""
    if not len(starts):
        return
    counts = np.diff(starts, append=len(values))
    nodes["minimum"] = np.minimum.reduceat(values, starts)
    nodes["maximum"] = np.maximum.reduceat(values, starts)
    mean = np.add.reduceat(values.astype(np.float64), starts) / counts
    square = (values - np.repeat(mean, counts)) ** 2
    nodes["average"] = mean
    nodes["stddev"] = np.sqrt(np.add.reduceat(square, starts) / counts)


def build_index_grid(
    coords_zyx: npt.NDArray[np.integer],
    channels: Mapping[str, np.ndarray],
    place: Placement,
    *,
    name: str,
) -> NanoGrid:
    """Build an OnIndex grid whose voxels number the rows of its channels.

    Row 0 of a channel belongs to the background and is 0; the rows of voxels follow in the order
    of the grid. Channels are blind data of the class "channel array".

    Args:
        coords_zyx: (V, 3) cells, none twice, in any order.
        channels: Name of at most 255 bytes to (V,) float32 or int32, finite.
        place: Where the cells lie.
        name: Of at most 255 bytes.

    Raises:
        InvalidFrame: If coordinates or values cannot be stored.
        ConfigError: If a name is too long.
    """
    topology = sort_voxels(coords_zyx)
    columns = {
        _checked_name(key): _checked_column(key, column, len(topology))[topology.order]
        for key, column in channels.items()
    }
    rows = len(topology) + 1
    room = -(-rows * 4 // _ALIGNMENT) * _ALIGNMENT
    out = _Buffer(ON_INDEX, topology, len(columns) * (BLIND.itemsize + room) or 1)
    out.fill_grid(_checked_name(name), place, INDEX_VERSION)
    out.fill_tree()
    out.grid["data1"] = rows
    leaves = topology.levels[0]
    out.leaves["offset"] = 1 + leaves.starts
    words = np.bincount(topology.leaf * 8 + (topology.slot >> 6), minlength=8 * len(leaves))
    before = np.cumsum(words.reshape(-1, 8)[:, :7], axis=1).astype(np.uint64)
    packed = before << np.arange(0, 63, 9).astype(np.uint64)
    out.leaves["prefix_sum"] = np.bitwise_or.reduce(packed, axis=1)
    _fill_channels(out, columns, rows, room)
    return out.finish(0, layout.INDEX_GRID)


def _fill_channels(out: _Buffer, columns: Mapping[str, np.ndarray], rows: int, room: int) -> None:
    """Write the records of all channels, then their rows, each in ``room`` bytes."""
    begin, count = out.blind_offset, len(columns)
    if not count:
        return
    out.grid["blind_offset"], out.grid["blind_count"] = begin, count
    entries = out._view(BLIND, begin, count)
    for i, (key, column) in enumerate(columns.items()):
        first = begin + count * BLIND.itemsize + i * room
        entries["data_offset"][i] = first - begin - i * BLIND.itemsize
        entries["name"][i] = key.encode()
        entries["data_type"][i] = INT32.grid_type if column.dtype.kind == "i" else FLOAT.grid_type
        out._view(column.dtype, first, rows)[1:] = column
    entries["value_count"], entries["value_size"] = rows, 4
    entries["data_class"] = _CHANNEL_ARRAY


def _checked_name(name: str) -> str:
    size = len(name.encode())
    if size > MAX_NAME or "\0" in name:
        raise ConfigError(f"A grid or channel name has at most {MAX_NAME} bytes, got {size}.")
    return name


def _checked_column(name: str, values: np.ndarray, count: int) -> np.ndarray:
    """Return (V,) little-endian float32 or int32."""
    values = np.asarray(values)
    if values.shape != (count,) or values.dtype not in (np.dtype("f4"), np.dtype("i4")):
        got = f"{values.dtype} {values.shape}"
        raise InvalidFrame(
            f"Channel '{name}' cannot be stored.", name, got, f"({count},) float32 or int32"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise InvalidFrame(
            f"Channel '{name}' holds NaN or infinity, which would spoil every statistic above it.",
            name,
            f"{bad} of {count}",
            "finite values",
        )
    return values.astype(values.dtype.newbyteorder("<"), copy=False)
