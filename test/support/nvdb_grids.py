"""Small NanoVDB grids made voxel by voxel from dictionaries, and what must be known of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from driveRT_ros.core.nanovdb_layout import (
    FLOAT,
    GRID,
    HAS_BBOX,
    HEAD,
    INDEX_GRID,
    INT32,
    IS_BREADTH_FIRST,
    NODE_HAS_BBOX,
    ON_INDEX,
    TREE,
    VOXEL_VOLUME,
    Layout,
    pack_version,
    sequential,
)

EDGES = (1, 8, 128, 4096)


def parent(ijk, level):
    """Return the first voxel of the node of a level (0 leaf, 1 lower, 2 upper) around a voxel."""
    return tuple(v & ~(EDGES[level + 1] - 1) for v in ijk)


def slot(ijk, level):
    """Return the entry of a voxel in its node of a level."""
    side = EDGES[level + 1] // EDGES[level]
    x, y, z = (v // EDGES[level] % side for v in ijk)
    return (x * side + y) * side + z


def root_key(ijk):
    """Return the key of a tile of the root."""
    x, y, z = ((v & 0xFFFFFFFF) >> 12 for v in ijk)
    return x << 42 | y << 21 | z


@dataclass
class Sketch:
    """What a grid shall hold.

    Args:
        voxels: Active voxels, by (i, j, k).
        tiles: Active tiles (level, first voxel, value): level 1 of 8, 2 of 128, 3 of 4096 voxels.
        bare: Nodes (level, first voxel) that exist although nothing in them is active.
        background: Value of everything else.
    """

    voxels: dict = field(default_factory=dict)
    tiles: list = field(default_factory=list)
    bare: list = field(default_factory=list)
    background: float = 0.0

    def nodes(self):
        """Return the first voxels of all nodes of each level, sorted, and of the root's tiles."""
        levels = [set(), set(), set()]
        inner = [(0, ijk) for ijk in self.voxels]
        inner += [(level, ijk) for level, ijk, _ in self.tiles]
        inner += [(level + 1, ijk) for level, ijk in self.bare]  # as if it held a tile below
        for level, ijk in inner:
            for above in range(level, 3):
                levels[above].add(parent(ijk, above))
        for level, ijk in self.bare:
            levels[level].add(ijk)
        roots = {ijk for level, ijk, _ in self.tiles if level == 3} | levels[2]
        return [sorted(each) for each in levels], sorted(roots)

    def indices(self):
        """Return what an index grid numbers, from 1: voxels leaf by leaf, then tiles."""
        (leaves, _, _), _ = self.nodes()
        found = {}
        for leaf in leaves:
            inside = [ijk for ijk in self.voxels if parent(ijk, 0) == leaf]
            for ijk in sorted(inside, key=lambda ijk: slot(ijk, 0)):
                found[ijk] = len(found) + 1
        for level, ijk, _ in self.tiles:
            found[level, ijk] = len(found) + 1
        return found

    def values(self, dtype=np.float32):
        """Return the values that belong to the index grid."""
        tiles = {(level, ijk): value for level, ijk, value in self.tiles}
        known = [{**self.voxels, **tiles}[key] for key in self.indices()]
        return np.array([self.background, *known], dtype)

    def grid(self, layout: Layout = FLOAT, version=(32, 6, 1)):
        """Return the bytes of the grid; an index grid for ``ON_INDEX``."""
        levels, roots = self.nodes()
        header = sequential(layout, tuple(map(len, levels)), len(roots), version)
        out = np.zeros(header.size, np.uint8)
        self._write_head(out, header)
        indexed = layout is ON_INDEX
        numbers = self.indices() if indexed else None
        shown = {key: numbers[key] for key in numbers} if indexed else None
        rest = 0 if indexed else self.background

        def value_of(key, value):
            return shown[key] if indexed else value

        def view(level):
            begin, dtype = header.node_offsets[level], layout.nodes[level]
            return out[begin : begin + len(levels[level]) * dtype.itemsize].view(dtype)

        leaf, lower, upper = view(0), view(1), view(2)
        self._write_leaves(leaf, levels[0], layout, numbers, rest)
        for nodes, level in ((lower, 1), (upper, 2)):
            for i, origin in enumerate(levels[level]):
                self._write_node(nodes, i, origin, level, levels, header, rest, value_of)
        begin = HEAD + layout.root.itemsize
        tiles = out[begin : begin + 32 * len(roots)].view(layout.tile)
        for i, ijk in enumerate(roots):
            tiles[i]["key"] = root_key(ijk)
            if ijk in levels[2]:
                child = header.node_offsets[2] + levels[2].index(ijk) * layout.upper.itemsize
                tiles[i]["child"], tiles[i]["value"] = child - HEAD, rest
        for level, ijk, value in self.tiles:
            if level == 3:
                i = roots.index(ijk)
                tiles[i]["state"], tiles[i]["value"] = 1, value_of((3, ijk), value)
        return out

    def _write_head(self, out, header):
        head, tree = out[: GRID.itemsize].view(GRID)[0], out[GRID.itemsize : HEAD].view(TREE)[0]
        head["magic"] = b"NanoVDB0"
        head["checksum_head"] = head["checksum_tail"] = 0xFFFFFFFF
        head["version"] = pack_version(header.version)
        head["flags"] = HAS_BBOX | IS_BREADTH_FIRST
        head["grid_count"], head["grid_size"] = 1, header.size
        head["name"] = b"a sketch"
        head["map"]["matrix"] = np.diag([0.5, 0.25, 2.0])
        head["map"]["translation"] = (10.0, -20.0, 0.125)
        indexed = header.layout is ON_INDEX
        head["grid_class"] = INDEX_GRID if indexed else VOXEL_VOLUME
        head["grid_type"], head["blind_offset"] = header.layout.grid_type, header.size
        head["data1"] = 1 + len(self.voxels) + len(self.tiles) if indexed else 0
        tree["node_offset"] = np.array(header.node_offsets) - GRID.itemsize
        tree["node_count"] = header.node_counts
        root = out[HEAD : HEAD + header.layout.root.itemsize].view(header.layout.root)[0]
        root["table_size"] = header.table_size
        root["background"] = 0 if indexed else self.background
        root["bbox"] = self.bbox() or ((2**31 - 1,) * 3, (-(2**31),) * 3)

    def _write_leaves(self, nodes, origins, layout, numbers, rest):
        before = 0
        for node, origin in zip(nodes, origins):
            inside = {slot(k, 0): (k, v) for k, v in self.voxels.items() if parent(k, 0) == origin}
            node["bbox_min"] = origin
            if inside:
                low, high = box([ijk for ijk, _ in inside.values()])
                node["bbox_min"], node["flags"] = low, NODE_HAS_BBOX
                node["bbox_extent"] = np.subtract(high, low)
            mask = node["value_mask"]
            for i in inside:
                mask[i // 64] |= np.uint64(1 << i % 64)
            if numbers is None:
                node["values"] = rest
                for i, (_, value) in inside.items():
                    node["values"][i] = value
            else:
                node["offset"] = before + 1
                counts = [sum(i < 64 * (w + 1) for i in inside) for w in range(7)]
                node["prefix_sum"] = sum(count << 9 * w for w, count in enumerate(counts))
                before += len(inside)

    def _write_node(self, nodes, i, origin, level, levels, header, rest, value_of):
        node, layout = nodes[i], header.layout
        node["bbox"][0], node["bbox"][1] = origin, origin
        table = node["table"].view(layout.value)
        step = 8 // layout.value.itemsize
        table[::step] = rest
        begin = header.node_offsets[level] + i * layout.nodes[level].itemsize
        for j, child in enumerate(levels[level - 1]):
            if parent(child, level) == origin:
                k = slot(child, level)
                node["child_mask"][k // 64] |= np.uint64(1 << k % 64)
                size = layout.nodes[level - 1].itemsize
                node["table"][k] = header.node_offsets[level - 1] + j * size - begin
        for at, ijk, value in self.tiles:
            if at == level and parent(ijk, level) == origin:
                k = slot(ijk, level)
                node["value_mask"][k // 64] |= np.uint64(1 << k % 64)
                table[step * k] = value_of((at, ijk), value)

    # ---- what must be known of it -----------------------------------------------------------

    def bbox(self):
        """Return the first and last active voxel along each axis, or None."""
        corners = list(self.voxels)
        for level, ijk, _ in self.tiles:
            corners += [ijk, tuple(v + EDGES[level] - 1 for v in ijk)]
        return box(corners) if corners else None

    def weighted(self):
        """Return (value, voxels) of everything active."""
        found = [(value, 1) for value in self.voxels.values()]
        return found + [(value, EDGES[level] ** 3) for level, _, value in self.tiles]

    def moments(self):
        """Return count, values that are no number, mean and deviation, by exact sums."""
        known = [(float(v), n) for v, n in self.weighted() if not math.isnan(v)]
        count = sum(n for _, n in known)
        nans = sum(n for v, n in self.weighted() if math.isnan(v))
        mean = math.fsum(v * n for v, n in known) / max(count, 1)
        variance = math.fsum((v - mean) ** 2 * n for v, n in known) / max(count, 1)
        return count, nans, mean, math.sqrt(variance)


def box(points):
    """Return the least and the largest coordinate of points."""
    return tuple(map(min, zip(*points))), tuple(map(max, zip(*points)))


def blob(count=300, seed=0, spread=40, value=lambda rng: float(np.float32(rng.normal() * 5))):
    """Return voxels scattered around the origin: several leaves, lower and upper nodes."""
    rng = np.random.default_rng(seed)
    cells = np.unique(rng.normal(0, spread, (count, 3)).astype(int), axis=0)
    return {tuple(int(v) for v in cell): value(rng) for cell in cells}


def mixed(background=0.5, whole=False):
    """Return a sketch with everything that a grid can hold: tiles of all sizes, bare nodes."""
    number = (lambda rng: int(rng.integers(-1000, 1000))) if whole else None
    voxels = blob(value=number) if whole else blob()
    return Sketch(
        voxels={**voxels, (8191, -4096, 77): 3 if whole else 2.5},
        tiles=[
            (1, (1000, 1000, 1000), 7),
            (1, (-8, 2000, -16), -3),
            (2, (256, -512, 128), 11),
            (3, (4096, 4096, -8192), 1),
            (3, (0, 8192, 0), -2),
        ],
        bare=[(0, (3000, 0, 0)), (1, (-3968, -128, 0)), (2, (-16384, 4096, 0))],
        background=int(background) if whole else background,
    )


def dense_leaf(values, origin=(8, -16, 24)):
    """Return a sketch of one leaf that is active throughout."""
    x, y, z = origin
    cells = [(x + i, y + j, z + k) for i in range(8) for j in range(8) for k in range(8)]
    return Sketch(voxels=dict(zip(cells, values)))


KINDS = {"float": (FLOAT, np.float32), "int32": (INT32, np.int32)}

TAILS = (64, 4095, 4096, 4097, 8188, 8191, 8192, 8193, 12288, 12289, 40961)


def padded(tail, version=(32, 6, 1), seed=0):
    """Return a grid without nodes whose tail has this many bytes, all behind the root random."""
    bare = Sketch().grid(version=version)
    noise = np.random.default_rng(seed).integers(0, 256, 736 + tail - len(bare), np.uint8)
    grid = np.concatenate([bare, noise])
    grid[: GRID.itemsize].view(GRID)["grid_size"] = len(grid)
    return grid
