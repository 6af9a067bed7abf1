"""A frame's voxels as NanoVDB files that other tools open, and such files back.

What a frame holds is written twice. ``NAME.nvdb`` has a float grid for each channel, which NanoVDB
tools since 2022 (OpenVDB 10) read, show and validate. ``NAME.index.nvdb`` has one OnIndex grid with
all channels as arrays beside it: a fraction of the memory, but only for tools since NanoVDB 32.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.nanovdb_layout import FOG_VOLUME
from driveRT_ros.core.turn import NO_TURN, Turn
from driveRT_ros.io.nvdb_build import Placement, build_index_grid, build_value_grid
from driveRT_ros.io.nvdb_file import read_nvdb, write_nvdb
from driveRT_ros.io.nvdb_grid import (
    GridTiles,
    GridVoxels,
    NanoGrid,
    active_tiles,
    active_voxels,
    channels,
)

__all__ = [
    "GridTiles",
    "GridVoxels",
    "NanoGrid",
    "Placement",
    "active_tiles",
    "active_voxels",
    "build_index_grid",
    "build_value_grid",
    "channels",
    "read_nvdb",
    "write_frame_grid",
    "write_nvdb",
]

OCCUPANCY, INDEX = "occupancy", "voxels"
"""Names of the float grid that is 1 in every voxel, and of the OnIndex grid."""
SUFFIX, INDEX_SUFFIX = ".nvdb", ".index.nvdb"


def write_frame_grid(
    path: str | Path,
    coords_zyx: npt.NDArray[np.integer],
    channel_values: Mapping[str, np.ndarray],
    voxel_size_xyz: tuple[float, float, float],
    origin_xyz: tuple[float, float, float],
    *,
    turn: Turn = NO_TURN,
    codec: str = "zip",
) -> tuple[Path, Path]:
    """Write the voxels of one frame as two NanoVDB files.

    Args:
        path: The file of float grids, ending in ``.nvdb``; the other one gets ``.index.nvdb``.
        coords_zyx: (V, 3) cells, none twice, in any order. V = 0 is an ordinary frame.
        channel_values: By name (V,) numbers, or (V, C) features. Integers are kept as int32 and
            all else as float32. As float grids, features become their Euclidean norm,
            ``NAME_norm``; as channels, one column each, ``NAME_0`` and so on.
        voxel_size_xyz: Edge lengths of a cell in metres.
        origin_xyz: Lower corner of cell (0, 0, 0) in metres, along the axes of the cells.
        turn: From the axes of the cells to those of the LiDAR, in which the grids lie.
        codec: ``zip`` or ``none``.

    Returns:
        The file of float grids, and that of the OnIndex grid.

    Raises:
        InvalidFrame: If coordinates or channels cannot be stored.
        ConfigError: If a name, a size, the codec or the path cannot be used.
    """
    path = Path(path)
    if path.suffix != SUFFIX or path.name.endswith(INDEX_SUFFIX):
        raise ConfigError(f"A frame is written to a file named *{SUFFIX}, got '{path}'.")
    place = Placement(voxel_size_xyz, origin_xyz, turn)
    coords = np.asarray(coords_zyx)
    ones = np.ones(len(coords), np.float32)
    grids = [build_value_grid(coords, ones, place, name=OCCUPANCY, grid_class=FOG_VOLUME)]
    columns: dict[str, np.ndarray] = {}
    for name, given in channel_values.items():
        values = _numbers(name, np.asarray(given), len(coords))
        shown, label = values, name
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{i}": column for i, column in enumerate(values.T)}
            norm = np.linalg.norm(values.astype(np.float64), axis=1)
            shown, label = norm.astype(np.float32), f"{name}_norm"
        grids.append(build_value_grid(coords, shown.astype(np.float32), place, name=label))
    index_path = path.with_name(path.name.removesuffix(SUFFIX) + INDEX_SUFFIX)
    index = build_index_grid(coords, columns, place, name=INDEX)
    write_nvdb(path, grids, codec)
    write_nvdb(index_path, [index], codec)
    return path, index_path


def _numbers(name: str, values: np.ndarray, count: int) -> np.ndarray:
    """Return (V,) int32 or float32, or (V, C) float32.

    Raises:
        InvalidFrame: If there is not one row a voxel, or an integer is too large.
    """
    if values.ndim not in (1, 2) or len(values) != count or values.dtype.kind not in "fiub":
        raise InvalidFrame(
            f"Channel '{name}' does not fit its voxels.",
            name,
            f"{values.dtype} {values.shape}",
            f"({count},) or ({count}, C) numbers",
        )
    if values.ndim == 2 or values.dtype.kind == "f":
        return values.astype(np.float32)
    out = values.astype(np.int32)
    if not np.array_equal(out, values):
        raise InvalidFrame(
            f"Channel '{name}' does not fit into 32 bits.", name, int(values.max()), "int32"
        )
    return out
