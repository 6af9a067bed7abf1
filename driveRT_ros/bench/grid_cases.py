"""NanoVDB grids of a wanted size for benchmarks: a ball of fog, and what a simulated LiDAR sees."""

from __future__ import annotations

import functools

import numpy as np

from driveRT_ros.bench.frames import SIMULATED, simulated, voxels_of
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.nanovdb_layout import (
    EMPTY_CHECKSUM,
    FLOAT,
    GRID,
    HEAD,
    INDEX_GRID,
    MAGIC_ANY,
    ON_INDEX,
    TREE,
    pack_version,
    sequential,
)

VERSION = (32, 6, 1)
"""The first whose checksum is that of blocks."""
_BYTE_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1).astype(np.uint8)
_EDGE = 8
_CHUNK = 1 << 14  # leaves whose voxels are looked at together


def fog_sphere(mb: float) -> np.ndarray:
    """Return the index grid of a ball whose grid of floats has about ``mb`` million bytes."""
    count = max(1.0, (mb * 1e6 - FLOAT.upper.itemsize) / (FLOAT.leaf.itemsize + 16))
    radius = _EDGE * (count * 3 / (4 * np.pi)) ** (1 / 3)
    reach, centre = int(radius // _EDGE) + 1, 2048 + 64
    line = np.arange(-reach, reach) * _EDGE
    corners = np.stack(np.meshgrid(line, line, line, indexing="ij"), -1).reshape(-1, 3)
    # Nearest and farthest voxel of a leaf along each axis.
    near = np.clip(0, corners, corners + _EDGE - 1)
    far = np.maximum(np.abs(corners), np.abs(corners + _EDGE - 1))
    some, whole = ((each.astype(float) ** 2).sum(1) <= radius**2 for each in (near, far))
    corners, whole = corners[some], whole[some]
    masks = np.full((len(corners), 8), 2**64 - 1, np.uint64)
    steps = np.stack(np.meshgrid(*[np.arange(_EDGE)] * 3, indexing="ij"), -1).reshape(-1, 3)
    edge = np.flatnonzero(~whole)
    for part in np.split(edge, range(_CHUNK, len(edge), _CHUNK)):
        away = (corners[part, None] + steps).astype(np.float32)
        inside = (away * away).sum(2) <= radius**2
        masks[part] = np.packbits(inside, axis=1, bitorder="little").view(np.uint64)
    used = masks.any(1)
    return index_grid(corners[used] + centre, masks[used])


def occupancy(mb: float) -> np.ndarray:
    """Return the index grid of a simulated scan; its grid of floats has about ``mb`` million bytes.

    A smaller one is the neighbourhood of the sensor, a larger one the scan many times side by side.
    """
    corners, masks = _scan()
    per_leaf = FLOAT.leaf.itemsize + FLOAT.lower.itemsize / 50  # that many leaves a lower node
    count = max(1, round((mb * 1e6 - FLOAT.upper.itemsize) / per_leaf))
    nearest = np.argsort(np.abs(corners - corners.mean(0)).max(1), kind="stable")[:count]
    corners, masks = corners[nearest], masks[nearest]
    copies = -(-count // len(corners))
    side, apart = int(np.ceil(np.sqrt(copies))), 1536
    places = np.array([(i % side * apart, i // side * apart, 0) for i in range(copies)])
    everywhere = (places[:, None] + corners[None]).reshape(-1, 3)
    return index_grid(everywhere, np.tile(masks, (copies, 1)))


@functools.cache
def _scan() -> tuple[np.ndarray, np.ndarray]:
    """Return the leaves that one simulated sweep touches, and their masks."""
    config = LidarConfig()
    _, coords = voxels_of(simulated(*SIMULATED["S1"], config).points, config, "cpu")
    ijk = coords[:, [3, 2, 1]].numpy().astype(np.int64)
    leaves, of_voxel = np.unique(ijk // _EDGE, axis=0, return_inverse=True)
    masks = np.zeros((len(leaves), 8), np.uint64)
    x, y, z = (ijk % _EDGE).T
    bits = np.uint64(1) << (y * _EDGE + z).astype(np.uint64)
    np.bitwise_or.at(masks, (of_voxel.ravel(), x), bits)
    return leaves * _EDGE, masks


CASES = {"fog sphere": fog_sphere, "occupancy": occupancy}
"""Index grids by name, from the wanted million bytes of the grid of floats."""


def index_grid(corners_ijk: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the index grid of some leaves; the boxes of nodes are those of all their voxels.

    Args:
        corners_ijk: (N, 3) first voxel of each leaf, a multiple of 8; none negative, each once.
        masks: (N, 8) uint64, active voxels.
    """
    corners = corners_ijk.astype(np.int64)
    slots = [_slots(corners, edge, side) for edge, side in ((8, 16), (128, 32))]
    order = np.lexsort((*slots, *(corners >> 12).T[::-1]))
    corners, masks = corners[order], masks[order]
    lower_slot, upper_slot = (slot[order] for slot in slots)
    new_upper = _differs(corners >> 12)
    new_lower = new_upper | _differs(upper_slot[:, None])
    of_lower, of_upper = np.cumsum(new_lower) - 1, np.cumsum(new_upper) - 1
    counts = (len(corners), int(new_lower.sum()), int(new_upper.sum()))
    header = sequential(ON_INDEX, counts, counts[2], VERSION)
    out = np.zeros(header.size, np.uint8)
    leaf, lower, upper = (
        out[begin : begin + count * dtype.itemsize].view(dtype)
        for begin, count, dtype in zip(header.node_offsets, counts, ON_INDEX.nodes)
    )
    active = _write_leaves(leaf, corners, masks)
    firsts = np.flatnonzero(new_lower)
    for nodes, level, parents, slot, inside in (
        (lower, 1, of_lower, lower_slot, corners),
        (upper, 2, of_upper[firsts], upper_slot[firsts], corners[firsts]),
    ):
        child = np.arange(len(inside))
        np.bitwise_or.at(
            nodes["child_mask"],
            (parents, slot // 64),
            np.uint64(1) << (slot % 64).astype(np.uint64),
        )
        begins = header.node_offsets[level] + parents * ON_INDEX.nodes[level].itemsize
        size = ON_INDEX.nodes[level - 1].itemsize
        nodes["table"][parents, slot] = header.node_offsets[level - 1] + child * size - begins
        edge = (128, 4096)[level - 1]
        nodes["bbox"][parents, 0] = inside // edge * edge
        nodes["bbox"][:, 1] = nodes["bbox"][:, 0] + edge - 1
    root, tiles = HEAD, HEAD + ON_INDEX.root.itemsize
    made = out[tiles : tiles + counts[2] * 32].view(ON_INDEX.tile)
    x, y, z = (upper["bbox"][:, 0] >> 12).T.astype(np.uint64)
    made["key"] = x << np.uint64(42) | y << np.uint64(21) | z
    made["child"] = header.node_offsets[2] + np.arange(counts[2]) * ON_INDEX.upper.itemsize - root
    _write_head(out, header.node_offsets, counts, active)
    return out


def _slots(corners: np.ndarray, edge: int, side: int) -> np.ndarray:
    x, y, z = (corners // edge % side).T
    return (x * side + y) * side + z


def _differs(rows: np.ndarray) -> np.ndarray:
    """Tell where a row is not the one before."""
    return np.concatenate([[True], (rows[1:] != rows[:-1]).any(1)])


def _write_leaves(leaves: np.ndarray, corners: np.ndarray, masks: np.ndarray) -> int:
    """Fill the leaves of an index grid; return how many voxels are active."""
    leaves["bbox_min"], leaves["bbox_extent"], leaves["flags"] = corners, _EDGE - 1, 2
    leaves["value_mask"] = masks
    by_word = _BYTE_BITS[masks.view(np.uint8)].reshape(-1, 8, 8).sum(2, dtype=np.uint64)
    before = np.cumsum(by_word, axis=1)
    shifts = 9 * np.arange(7, dtype=np.uint64)
    leaves["prefix_sum"] = (before[:, :7] << shifts).sum(1, dtype=np.uint64)
    ends = np.cumsum(before[:, 7])
    leaves["offset"] = 1 + ends - before[:, 7]
    return int(ends[-1])


def _write_head(
    out: np.ndarray, offsets: tuple[int, ...], counts: tuple[int, ...], active: int
) -> None:
    head, tree = out[: GRID.itemsize].view(GRID)[0], out[GRID.itemsize : HEAD].view(TREE)[0]
    head["magic"], head["version"] = MAGIC_ANY, pack_version(VERSION)
    head["checksum_head"] = head["checksum_tail"] = EMPTY_CHECKSUM
    head["flags"], head["grid_count"], head["grid_size"] = 2 | 32, 1, len(out)
    head["map"]["matrix"] = head["map"]["inverse"] = np.eye(3)
    head["map"]["matrix_f32"] = head["map"]["inverse_f32"] = np.eye(3)
    head["map"]["taper"] = head["map"]["taper_f32"] = head["voxel_size"] = 1
    head["grid_class"], head["grid_type"] = INDEX_GRID, ON_INDEX.grid_type
    head["blind_offset"], head["data1"] = len(out), 1 + active
    tree["node_offset"] = np.array(offsets) - GRID.itemsize
    tree["node_count"], tree["voxel_count"] = counts, active
    root = out[HEAD : HEAD + ON_INDEX.root.itemsize].view(ON_INDEX.root)[0]
    root["table_size"] = counts[2]
