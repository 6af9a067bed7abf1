"""Sort voxels into the nodes of a NanoVDB tree, without a loop over voxels.

Upper nodes lie in the order of their coordinates x, y, z; inside a node children lie in the order
of their slots, z fastest. Leaves, and the voxels of a leaf, follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.errors import InvalidFrame


@dataclass(frozen=True, eq=False)
class Level:
    """The nodes of one level, in the order of the grid.

    Args:
        starts: (M,) first voxel of each node.
        parent: (M,) node of the level above; of an upper node its tile of the root.
        slot: (M,) entry of the parent.
    """

    starts: npt.NDArray[np.int64]
    parent: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, eq=False)
class Topology:
    """Sorted voxels and the nodes above them.

    Args:
        order: (V,) row of the input that each voxel comes from.
        xyz: (V, 3) int32.
        leaf: (V,) leaf of each voxel.
        slot: (V,) its entry there.
        levels: Leaves, lower nodes, upper nodes.
    """

    order: npt.NDArray[np.int64]
    xyz: npt.NDArray[np.int32]
    leaf: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]
    levels: tuple[Level, Level, Level]

    def __len__(self) -> int:
        return len(self.order)


def _slots(xyz: npt.NDArray[np.int64], shift: int, bits: int) -> npt.NDArray[np.int64]:
    """Return the entry of a node of 2**bits per axis, whose entries are 2**shift voxels wide."""
    x, y, z = ((xyz >> shift) & ((1 << bits) - 1)).T
    return x << 2 * bits | y << bits | z


def sort_voxels(coords_zyx: npt.NDArray[np.integer]) -> Topology:
    """Sort voxels into nodes.

    Raises:
        InvalidFrame: If the coordinates are not (V, 3) int32 numbers, or one is there twice.
    """
    xyz = _checked_coords(coords_zyx)
    # One number each: the rank of its root tile, then 15, 12 and 9 bits for the slots below.
    top = ((xyz >> 12) + (1 << 19)) @ np.array((1 << 40, 1 << 20, 1))
    _, tile = np.unique(top, return_inverse=True)
    key = tile << 36 | _slots(xyz, 7, 5) << 21 | _slots(xyz, 3, 4) << 9 | _slots(xyz, 0, 3)
    order = np.argsort(key, kind="stable")
    key, xyz = key[order], xyz[order]
    twice = np.flatnonzero(key[1:] == key[:-1])
    if len(twice):
        raise InvalidFrame(
            "A voxel is there twice.", "coords_zyx", xyz[twice[0], ::-1].tolist(), "once"
        )
    ids, starts = [], []
    for shift in (9, 21, 36):
        first = np.ones(len(key), bool)
        first[1:] = key[1:] >> shift != key[:-1] >> shift
        ids.append(np.cumsum(first) - 1)
        starts.append(np.flatnonzero(first))
    leaves = Level(starts[0], ids[1][starts[0]], key[starts[0]] >> 9 & 0xFFF)
    lower = Level(starts[1], ids[2][starts[1]], key[starts[1]] >> 21 & 0x7FFF)
    upper = Level(starts[2], np.arange(len(starts[2])), np.arange(len(starts[2])))
    return Topology(order, xyz.astype(np.int32), ids[0], key & 0x1FF, (leaves, lower, upper))


def _checked_coords(coords_zyx: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return (V, 3) int64 x, y, z."""
    coords = np.asarray(coords_zyx)
    if coords.ndim != 2 or coords.shape[1] != 3 or coords.dtype.kind not in "iu":
        got = f"{coords.dtype} {coords.shape}"
        raise InvalidFrame("Voxels need coordinates.", "coords_zyx", got, "(V, 3) integers")
    low, high = (int(coords.min()), int(coords.max())) if len(coords) else (0, 0)
    if low < -(2**31) or high >= 2**31 - 1:  # boxes end one past the largest
        raise InvalidFrame(
            "A coordinate does not fit into 32 bits.",
            "coords_zyx",
            [low, high],
            "-2**31 to 2**31 - 2",
        )
    return coords.astype(np.int64)[:, ::-1]


def boxes(xyz: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return (M, 2, 3) least and largest coordinates of each run of voxels."""
    if not len(starts):
        return np.zeros((0, 2, 3), np.int32)
    low, high = np.minimum.reduceat(xyz, starts), np.maximum.reduceat(xyz, starts)
    return np.stack((low, high), axis=1)


def set_bits(words: np.ndarray, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int64]) -> None:
    """Set one bit for each (row, bit) in (N, W) uint64 words, in place."""
    np.bitwise_or.at(words, (rows, bits >> 6), np.uint64(1) << (bits & 63).astype(np.uint64))
