"""Numbers that identify a frame, stage by stage: equal numbers, equal bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import torch

from driveRT_ros.core.frame import BevGrid
from driveRT_ros.core.front_end import FrontResult
from driveRT_ros.core.grid_ops import crc32_bits
from driveRT_ros.core.stages import crc32

Triple = tuple[int, int, int]

CLOUD_MSG, DETECTIONS_MSG = "cloud_msg", "detections_msg"
"""Stages of the border: serialized messages, which ``io.fingerprint`` takes the numbers of."""

STAGES: Mapping[str, str] = {
    CLOUD_MSG: "cloud message",
    "images": "images",
    "points": "points",
    "coords": "coordinates",
    "features": "features",
    "bev": "bird's-eye view",
    "grid": "bird's-eye-view grid",
    "detections": "detections",
    DETECTIONS_MSG: "detections message",
}
"""What each number is of, in the order of computing; a fingerprint holds those that were made."""


ROWS = ("points", "coords", "features", "bev")
"""Those of the rows of a frame, which an engine may take on its way."""


def frame_fingerprint(
    rows: Mapping[str, int], grid: BevGrid | None, *detections: torch.Tensor
) -> dict[str, int]:
    """Return the CRC-32 of the bytes of each stage.

    ``bev``, ``grid`` and ``detections`` are the same wherever the additions have the same order: on
    one device, with one Plan.

    Args:
        rows: Those of :func:`row_crcs`, whoever took them.
        grid: Bird's-eye-view layers, where they were made.
        detections: Boxes, scores and labels, as published.
    """
    grids = {} if grid is None else {"grid": grid_crc32(grid)}
    return {**rows, **grids, "detections": crc32(*detections)}


def row_crcs(points: torch.Tensor, front: FrontResult, voxel_shape_zyx: Triple) -> dict[str, int]:
    """Return the CRC-32 of the bytes of :data:`ROWS`; on a CUDA device this waits for them.

    Rows are taken in the order of their cells, whatever order they were computed in: cubes of
    8 x 8 x 8 cells in ascending (z, y, x) order, and the cells of a cube alike, as the engine has
    them anyway. ``coords`` (int32 z, y, x) and ``features`` of the voxels are then the same on
    every device in float32.

    Args:
        points: (N, 5) what the front end was given.
        front: What the heads were given.
        voxel_shape_zyx: Cells of the voxel grid.
    """
    coords, features, bev = front.voxel_coords_zyx, front.voxel_features, front.bev.features
    if not front.in_cell_order:
        voxels = cell_order(coords, voxel_shape_zyx)
        coords, features = coords[voxels], features[voxels]
        bev = bev[cell_order(front.bev.coords_bzyx[:, 1:], front.bev.spatial_shape_zyx)]
    # Taken where the rows lie: of each four bytes travel to the host, all at once.
    bits = crc32_bits(points, coords, features, bev)
    return {stage: value & 0xFFFFFFFF for stage, value in zip(ROWS, bits.tolist())}


def grid_crc32(grid: BevGrid) -> int:
    """Return the CRC-32 of the names and the bytes of the layers, in ascending order of names."""
    crc = 0
    for name in sorted(grid.layers):
        crc = zlib.crc32(name.encode(), crc)
        crc = crc32(torch.from_numpy(grid.layers[name]), start=crc)
    return crc


def stage_words(stage: str) -> str:
    """Return what a person calls a stage."""
    return STAGES.get(stage, stage)


def in_order(stages: Iterable[str]) -> list[str]:
    """Return stages in the order of :data:`STAGES`; those that it does not know come last."""
    names = list(dict.fromkeys(stages))
    return [s for s in STAGES if s in names] + [s for s in names if s not in STAGES]


def first_difference(a: Mapping[str, int], b: Mapping[str, int]) -> str | None:
    """Return the first stage, of those that both fingerprints hold, in which two frames differ."""
    return next((s for s in in_order(a) if s in b and a[s] != b[s]), None)


def cell_order(coords_zyx: torch.Tensor, shape_zyx: Triple) -> torch.Tensor:
    """Return the order of rows by their cells, without waiting for the device.

    Args:
        coords_zyx: (N, 3) integer cells of one frame, each once.
        shape_zyx: Cells of the grid.

    Returns:
        (N,) int64 rows, cube by cube.
    """
    cubes_z, cubes_y, cubes_x = (-(-size // 8) for size in shape_zyx)
    small = cubes_z * cubes_y * cubes_x * 512 < 2**31
    z, y, x = (coords_zyx if small else coords_zyx.long()).unbind(1)
    cube = ((z >> 3) * cubes_y + (y >> 3)) * cubes_x + (x >> 3)
    return (cube * 512 + (z & 7) * 64 + (y & 7) * 8 + (x & 7)).argsort()
