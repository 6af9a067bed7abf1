"""What is in a NanoVDB grid: active voxels, active tiles, channels, and where the voxels lie.

NanoVDB counts cells along x, y, z and keeps z fastest; this package orders z, y, x. The functions
here turn one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.nanovdb_layout import BLIND, GRID, HEAD, ON_INDEX, TREE
from driveRT_ros.core.reference.grid_ops import bits_of, nodes_of, origins_of_keys, tiles_of
from driveRT_ros.io.nvdb_checksum import protection

CHANNEL_TYPES = {1: np.dtype("<f4"), 4: np.dtype("<i4")}
"""Types of blind data that are read as channels, by number."""


@dataclass(frozen=True, eq=False)
class NanoGrid:
    """One grid as its bytes.

    Args:
        data: (bytes,) uint8, checked by :func:`driveRT_ros.io.nvdb_checksum.verify`.
        header: What its first bytes say.
        name: Name of the grid.
    """

    data: npt.NDArray[np.uint8] = field(repr=False)
    header: layout.GridHeader
    name: str

    @property
    def kind(self) -> str:
        """Type of the values: ``float``, ``int32`` or ``OnIndex``."""
        return self.header.layout.name

    @property
    def protected(self) -> str:
        """What the checksums cover: ``all``, ``header`` or ``nothing``."""
        return protection(self.data)

    @cached_property
    def record(self) -> np.void:
        """The grid data, a record of :data:`driveRT_ros.core.nanovdb_layout.GRID`."""
        return self.data[: GRID.itemsize].view(GRID)[0]

    @cached_property
    def tree(self) -> np.void:
        """The tree data."""
        return self.data[GRID.itemsize : HEAD].view(TREE)[0]

    @cached_property
    def root(self) -> np.void:
        """The root without its tiles."""
        return nodes_of(self.data, self.header, 3)[0]

    @property
    def voxel_count(self) -> int:
        """Active voxels, those of active tiles included."""
        return int(self.tree["voxel_count"])

    @property
    def T_lidar_voxel(self) -> npt.NDArray[np.float64]:
        """(4, 4) float64 from x, y, z indices to metres; a whole index is the centre of a cell."""
        out = np.eye(4)
        out[:3, :3], out[:3, 3] = self.record["map"]["matrix"], self.record["map"]["translation"]
        return out

    def nodes(self, level: int) -> np.ndarray:
        """Return all leaves (0), lower nodes (1) or upper nodes (2) as records.

        Raises:
            ConfigError: If they are not stored one behind the other.
        """
        if not self.header.flags & layout.IS_BREADTH_FIRST:
            raise ConfigError(
                f"The nodes of grid '{self.name}' are not stored level by level, so it cannot be "
                "read; write it again with nanovdb_convert."
            )
        return nodes_of(self.data, self.header, level)

    def tiles(self) -> np.ndarray:
        """Return the tiles of the root as records."""
        return tiles_of(self.data, self.header)


@dataclass(frozen=True, eq=False)
class GridVoxels:
    """The active voxels of a grid in the order in which it stores them.

    Args:
        coords_zyx: (V, 3) int32.
        values: (V,) float32 or int32; of an OnIndex grid int64, the row of each channel.
    """

    coords_zyx: npt.NDArray[np.int32]
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.coords_zyx)


@dataclass(frozen=True, eq=False)
class GridTiles:
    """Cubes of active voxels that share one value.

    Args:
        first_zyx: (T, 3) int32 least coordinates.
        edge: (T,) int32 voxels along each axis: 8, 128 or 4096.
        values: (T,) as in :class:`GridVoxels`.
    """

    first_zyx: npt.NDArray[np.int32]
    edge: npt.NDArray[np.int32]
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.edge)


def slot_xyz(slots: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return (N, 3) x, y, z inside a node of 2**bits entries along each axis."""
    low = (1 << bits) - 1
    return np.stack((slots >> 2 * bits, slots >> bits & low, slots & low), axis=-1)


def active_voxels(grid: NanoGrid) -> GridVoxels:
    """Return the voxels that are active in leaves; see :func:`active_tiles` for the others.

    Raises:
        ConfigError: If the nodes are not stored level by level.
    """
    leaves = grid.nodes(0)
    leaf, slot = np.nonzero(bits_of(leaves["value_mask"]))
    first = leaves["bbox_min"].astype(np.int64) & -layout.LEAF_EDGE
    coords = (first[leaf] + slot_xyz(slot, 3)).astype(np.int32)[:, ::-1]
    if grid.header.layout is ON_INDEX:
        # The rows of a leaf follow each other in the order of its voxels.
        starts = np.searchsorted(leaf, leaf)
        values = leaves["offset"].astype(np.int64)[leaf] + np.arange(len(leaf)) - starts
    else:
        values = leaves["values"][leaf, slot]
    return GridVoxels(np.ascontiguousarray(coords), values)


def active_tiles(grid: NanoGrid) -> GridTiles:
    """Return the active tiles of lower nodes, upper nodes and the root, in this order."""
    found = [_node_tiles(grid, level, edge, bits) for level, edge, bits in ((1, 8, 4), (2, 128, 5))]
    tiles = grid.tiles()
    tiles = tiles[(tiles["child"] == 0) & (tiles["state"] != 0)]
    edge = np.full(len(tiles), layout.UPPER_EDGE, np.int32)
    found.append(GridTiles(origins_of_keys(tiles["key"])[:, ::-1], edge, tiles["value"]))
    return GridTiles(
        np.concatenate([t.first_zyx for t in found]),
        np.concatenate([t.edge for t in found]),
        np.concatenate([t.values for t in found]),
    )


def _node_tiles(grid: NanoGrid, level: int, edge: int, bits: int) -> GridTiles:
    """Return the active tiles of all nodes of one level."""
    nodes = grid.nodes(level)
    mask = bits_of(nodes["value_mask"]) & ~bits_of(nodes["child_mask"])
    node, slot = np.nonzero(mask)
    first = nodes["bbox"][:, 0].astype(np.int64) & -(edge << bits)
    first_zyx = (first[node] + edge * slot_xyz(slot, bits)).astype(np.int32)[:, ::-1]
    table = np.ascontiguousarray(nodes["table"][node, slot])
    values = table.view(grid.header.layout.value)[:: 8 // grid.header.layout.value.itemsize]
    return GridTiles(first_zyx, np.full(len(node), edge, np.int32), values)


def channels(grid: NanoGrid) -> dict[str, np.ndarray]:
    """Return the float32 and int32 arrays that travel with an OnIndex grid, by name.

    Row 0 of each belongs to the background; the row of a voxel is its value
    (:func:`active_voxels`). Arrays of other types are left out.

    Raises:
        InvalidFrame: If an array does not lie inside the grid.
    """
    begin, count = int(grid.record["blind_offset"]), int(grid.record["blind_count"])
    if count and not 0 <= begin <= len(grid.data) - count * BLIND.itemsize:
        raise _outside(grid, "blind_offset", begin)
    out = {}
    for i in range(count):
        at = begin + i * BLIND.itemsize
        entry = grid.data[at : at + BLIND.itemsize].view(BLIND)[0]
        kind = CHANNEL_TYPES.get(int(entry["data_type"]))
        if kind is None or entry["value_size"] != kind.itemsize:
            continue
        first = at + int(entry["data_offset"])
        last = first + int(entry["value_count"]) * kind.itemsize
        if not 0 <= first <= last <= len(grid.data):
            raise _outside(grid, "data_offset", first)
        out[bytes(entry["name"]).decode(errors="replace")] = grid.data[first:last].view(kind)
    return out


def _outside(grid: NanoGrid, name: str, offset: int) -> InvalidFrame:
    return InvalidFrame(
        f"Grid '{grid.name}' is damaged: it points to data outside of itself.",
        name,
        offset,
        f"0 to {len(grid.data)}",
        code="blind_data",
    )
