"""Voxels, and grids of them, that exercise every level of a NanoVDB tree."""

from __future__ import annotations

import numpy as np

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.io import nvdb_checksum
from driveRT_ros.io.nvdb import NanoGrid, Placement

PLACE = Placement((0.075, 0.1, 0.2), (-54.0, -40.0, -5.0))


def random_cells(seed: int, count: int = 400) -> np.ndarray:
    """Return distinct cells around the corner where eight upper nodes meet, and far away ones."""
    rng = np.random.default_rng(seed)
    near = rng.integers(-40, 40, (count, 3))
    far = rng.integers(-(2**31), 2**31 - 1, (5, 3))
    return rng.permutation(np.unique(np.concatenate((near, far)), axis=0))


def frame(count: int = 400) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return cells of a street-sized grid with channels of all kinds."""
    rng = np.random.default_rng(5)
    cells = np.unique(rng.integers(0, (40, 600, 600), (count, 3)), axis=0)
    return cells, {
        "intensity": rng.uniform(0, 255, len(cells)).astype(np.float32),
        "height": rng.normal(size=len(cells)),
        "point_count": rng.integers(1, 10, len(cells)),
        "feature": rng.normal(size=(len(cells), 3)).astype(np.float32),
    }


def signed(grid: NanoGrid, **fields: int | bytes) -> NanoGrid:
    """Return a grid with other words in its grid data, and the head checksum they need."""
    data = grid.data.copy()
    for name, value in fields.items():
        data[: layout.GRID.itemsize].view(layout.GRID)[name] = value
    head = nvdb_checksum.head_checksum(data)
    data[: layout.GRID.itemsize].view(layout.GRID)["checksum_head"] = head
    return NanoGrid(data, layout.read_header(data), grid.name)
