"""Grids out of NanoVDB files, read by the format's few facts alone."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

FOLDER = "nanovdb"
GRID_META_BYTES, NAME_BYTES_AT = 176, 136
NONE, ZIP = 0, 1


def read_grids(path: Path) -> list[np.ndarray]:
    """Return the bytes of every grid in a file of one segment, codec none or ZIP."""
    data = path.read_bytes()
    count, codec = (int(v) for v in np.frombuffer(data, "<u2", 2, 12))
    assert codec in (NONE, ZIP), codec
    at, sizes = 16, []
    for _ in range(count):
        size, _stored = np.frombuffer(data, "<u8", 2, at)
        sizes.append(int(size))
        at += GRID_META_BYTES + int(np.frombuffer(data, "<u4", 1, at + NAME_BYTES_AT)[0])
    grids = []
    for size in sizes:
        stored = size
        if codec == ZIP:
            stored = int(np.frombuffer(data, "<u8", 1, at)[0])
            at += 8
        raw = data[at : at + stored]
        grids.append(np.frombuffer(zlib.decompress(raw) if codec == ZIP else raw, np.uint8).copy())
        assert len(grids[-1]) == size
        at += stored
    return grids


def real_grids(data_dir: Path) -> dict[str, np.ndarray]:
    """Return all grids of the recorded files, by file and number."""
    return {
        f"{path.stem}:{i}": grid
        for path in sorted((data_dir / FOLDER).glob("*.nvdb"))
        for i, grid in enumerate(read_grids(path))
    }
