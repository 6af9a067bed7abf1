"""Small frames for the kernels, and what must come out, by dictionary and by the reference."""

from __future__ import annotations

import numpy as np
import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.voxelize import voxelize
from test.support import oracle
from test.support.launch import SENTINEL, Frame, level_shapes

CONFIG = VoxelizationConfig(
    point_cloud_range=(-3.0, -3.0, -1.0, 3.0, 3.0, 1.0), voxel_size=(0.075, 0.075, 0.2)
)
"""80 x 80 x 10 cells: several leaves along y and x, two along z."""


def random_cloud(n, seed=0, spread=2.2):
    """Points that leave some of the range empty and fall outside it now and then."""
    rng = np.random.default_rng(seed)
    scale = np.array([spread, spread, 0.7, 100.0, 0.5])
    return torch.from_numpy((rng.normal(size=(n, 5)) * scale / 2).astype(np.float32))


def edge_cloud(config=CONFIG):
    """Points on cell edges and one unit in the last place to either side, on every axis."""
    low, size = np.float32(config.point_cloud_range[:3]), np.float32(config.voxel_size)
    points = []
    for axis, cells in enumerate(config.grid_xyz):
        for edge in range(cells + 1):
            on = np.float32(low[axis] + np.float32(edge) * size[axis])
            for value in (np.nextafter(on, np.float32(-9)), on, np.nextafter(on, np.float32(9))):
                point = np.array([0.01, 0.02, 0.03, 1.0, 0.0], np.float32)
                point[axis] = value
                points.append(point)
    high = np.float32(config.point_cloud_range[3:])
    for corner in (low, high, np.float32(-0.0) * low):
        points.append(np.array([*corner, 1.0, 0.0], np.float32))
    return torch.from_numpy(np.stack(points))


def crowded_cloud(counts=(1, 2, 3, 4, 5, 9, 10, 11, 16, 17, 31, 32, 33, 64, 65, 100), seed=3):
    """Voxels with given numbers of points, whose order in the cloud is mixed."""
    rng = np.random.default_rng(seed)
    centers = rng.choice(80 * 80, size=len(counts), replace=False)
    points = []
    for center, count in zip(centers, counts):
        y, x = divmod(int(center), 80)
        offsets = rng.uniform(0.1, 0.9, size=(count, 3)) * (0.075, 0.075, 0.2)
        corner = np.array([-3 + x * 0.075, -3 + y * 0.075, -0.2])
        points.append(np.c_[corner + offsets, rng.normal(size=(count, 2)) * 50])
    mixed = np.concatenate(points)
    return torch.from_numpy(rng.permutation(mixed).astype(np.float32))


def broken_cloud():
    """Non-finite values in every field, far points and negative zero among good points."""
    points = random_cloud(60, seed=5)
    for field in range(5):
        for i, value in enumerate((np.nan, np.inf, -np.inf)):
            points[field * 4 + i, field] = value
    points[30, 0], points[31, 1], points[32, 2] = 3e38, -3e38, 2.0
    points[33, :3] = -0.0
    return points


CLOUDS = {
    "none": lambda: random_cloud(0),
    **{f"{n}-points": lambda n=n: random_cloud(n, seed=n) for n in (1, 31, 32, 33, 255, 257)},
    "random": lambda: random_cloud(1500),
    "edges": edge_cloud,
    "crowded": crowded_cloud,
    "broken": broken_cloud,
}


def reference_cells(points):
    """Return the voxels of the reference, and their cells (z, y, x)."""
    voxels = voxelize(points, CONFIG)
    return voxels, [tuple(row) for row in voxels.coords_bzyx[:, 1:].tolist()]


def run_frame(backend, points, *, average=True, capacity=None, **sizes):
    """Build the levels and, where asked, the voxel features of a cloud."""
    frame = Frame(backend, CONFIG, max(len(points), 1) if capacity is None else capacity, **sizes)
    frame.set_points(points)
    frame.build_levels()
    if average:
        frame.average(CONFIG.max_points_per_voxel)
    return frame


def leaf_order(cells, shape_zyx):
    """Sort cells (z, y, x) by leaf of 8 x 8 x 8, then inside the leaf: the order of the rows."""
    ly, lx = -(-shape_zyx[1] // 8), -(-shape_zyx[2] // 8)

    def key(cell):
        z, y, x = cell
        return ((z >> 3) * ly + (y >> 3)) * lx + (x >> 3), z & 7, y & 7, x & 7

    return sorted(cells, key=key)


def leaves_of(cells):
    """Count the leaves that hold a cell."""
    return len({tuple(v >> 3 for v in cell) for cell in cells})


def expected_levels(cells):
    """Return the cells (z, y, x) of all eight levels in row order, from those of the first.

    By dictionary: each level is what a kernel of 3, stride 2 and padding 1 makes active.
    """
    shapes = level_shapes(CONFIG.grid_xyz)
    levels = [sorted((0, *cell) for cell in cells)]
    for shape in shapes[:5]:
        grid = (shape, (3, 3, 3), (2, 2, 2), (1, 1, 1))
        levels.append(oracle.active_outputs(np.array(levels[-1]).reshape(-1, 4), *grid))
    flat = {(0, 0, y * s, x * s) for s, i in ((1, 3), (2, 4), (4, 5)) for _, _, y, x in levels[i]}
    levels.append(sorted(flat))
    grid = (shapes[6], (1, 3, 3), (1, 1, 1), (0, 1, 1))
    levels.append(oracle.active_outputs(np.array(levels[6]).reshape(-1, 4), *grid))
    return [leaf_order([cell[1:] for cell in level], shape) for level, shape in zip(levels, shapes)]


def cells_of(frame, level):
    """Return the rows of a level as tuples (z, y, x)."""
    return [tuple(row) for row in frame.coords(level).tolist()]


def with_batch(cells):
    """Return cells (z, y, x) as (N, 4) coordinates of batch 0."""
    coords = np.zeros((len(cells), 4), np.int32)
    if cells:
        coords[:, 1:] = cells
    return coords


def decode_map(conv_map):
    """Read the tables of a map back.

    Returns:
        A dictionary (tap, output row) -> input row or -1 over everything that the tiles execute,
        and the rows of each group in tile order.
    """
    spec, cap = conv_map.spec, conv_map.row_capacity
    order, table = conv_map.host("order").tolist(), conv_map.host("table").tolist()
    masks = conv_map.host("tile_mask").tolist()
    executed, rows = {}, [[] for _ in range(spec.groups)]
    for tile_order, tile_table, mask in zip(order, table, masks):
        group = tile_order[0] // cap
        taps = [k for k in range(32) if mask >> k & 1]
        assert all(k // spec.group_taps == group for k in taps)
        for place, row in enumerate(tile_order):
            if row < 0:
                continue
            assert row // cap == group
            rows[group].append(row - group * cap)
            for slot, k in enumerate(taps):
                assert (k, row - group * cap) not in executed
                executed[k, row - group * cap] = tile_table[slot][place]
    return executed, rows


def expected_entries(conv_map, levels):
    """Return the map entries {(tap, output row): input row} of the dictionary oracle."""
    spec = conv_map.spec
    entries = oracle.map_entries(
        with_batch(levels[spec.in_level]),
        [(0, *cell) for cell in levels[spec.out_level]],
        spec.kernel,
        spec.strides,
        spec.paddings,
    )
    return {(k, out_row): in_row for k, in_row, out_row in entries}


def is_untouched(tensor):
    """Tell whether every byte is still the sentinel (or NaN, in tensors of floats)."""
    if tensor.dtype.is_floating_point:
        return bool(tensor.isnan().all())
    return bool((tensor.contiguous().view(torch.uint8) == SENTINEL).all())
