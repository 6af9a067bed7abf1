"""Build the scatter map of a camera rig on a GPU, without waiting for it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from driveRT_ros.core.cuda import kernel_on
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.pool_types import (
    MAP_ARRAYS,
    CameraGeometry,
    FrustumShape,
    PoolGrid,
    ScatterMap,
    calibration_hash,
)

THREADS, CHUNK = 256, 2048
"""Threads of a block, and keys that one sorts: as in kernels/scatter_map.cu."""

MOST_POINTS = 2**30
"""Threads step over points by as many as there are, in 32 bits."""

Run = Callable[..., None]
"""Launches ``(kernel, blocks, threads, *arguments)``."""


def build_scatter_map(
    geometry: CameraGeometry,
    frustum: FrustumShape,
    grid: PoolGrid,
    rounding: str,
    device: torch.device,
    run: Run | None = None,
) -> ScatterMap:
    """Enqueue everything that builds a map; the arrays are as long as they could ever be.

    Args:
        geometry: Where the cameras are.
        frustum: Their points.
        grid: The cells.
        rounding: ``trunc`` or ``floor``.
        device: Where the map is built and lies.
        run: Launches a kernel; by default on ``device``.

    Raises:
        ConfigError: If there are more points than :data:`MOST_POINTS`.
    """
    run = run or _launcher(device)
    rows, cols = frustum.feature_size_hw
    shape = (geometry.cameras, frustum.depth_bins, rows, cols)
    points, cells = math.prod(shape), math.prod(grid.shape_zyx)
    if points > MOST_POINTS:
        raise ConfigError(
            f"A frustum of {shape} has {points} points; on a GPU at most {MOST_POINTS} can be."
        )
    passes, blocks = -(-cells.bit_length() // 8), -(-points // CHUNK)
    new = {"dtype": torch.int32, "device": device}
    keys, other_keys, ids, other_ids = torch.empty(4, max(points, 1), **new).unbind()
    words = (passes + CHUNK // THREADS) * blocks
    zeroed = torch.zeros(2 * words + passes + 3, **new)
    counts, tickets = zeroed[2 * words : 2 * words + 2], zeroed[2 * words + 2 :]
    arrays = dict(zip(MAP_ARRAYS, torch.empty(5, points, **new).unbind()))
    nz, ny, nx = grid.shape_zyx
    constants = _to_device(
        [geometry.coefficients(), np.concatenate(frustum.axes()), [*grid.lower, *grid.steps]],
        device,
    )
    fields = {
        **dict(zip(("cameras", "axes", "grid"), constants)),
        **{"bins": frustum.depth_bins, "rows": rows, "cols": cols, "nx": nx, "ny": ny, "nz": nz},
        **{"round_down": int(rounding == "floor"), "points": points, "blocks": blocks},
        **{"keys": keys, "other_keys": other_keys, "ids": ids, "other_ids": other_ids},
        **{"digits": torch.empty(max(256 * blocks, 1), **new), "status": zeroed},
        **{"tickets": tickets, "counts": counts, "starts": arrays["interval_starts"]},
        **{"lengths": arrays["interval_lengths"]},
        **{name: array for name, array in arrays.items() if name.startswith("ranks")},
    }
    value = struct_value("scatter_map.cu", "ScatterMap", fields)
    per_point = -(-points // THREADS)
    run("project_points", per_point, THREADS, value)
    for i in range(passes):
        for name in ("count_digits", "scan_digits", "scatter_digits"):
            run(name, blocks, THREADS, value, i)
    run("write_map", per_point, THREADS, value, passes)
    run("write_lengths", per_point, THREADS, value)
    digest = calibration_hash(geometry, frustum, grid, rounding)
    return ScatterMap(
        **arrays,
        counts=counts,
        grid_shape_zyx=grid.shape_zyx,
        frustum_shape=shape,
        calibration_hash=digest,
    )


def _to_device(parts: list, device: torch.device) -> list[torch.Tensor]:
    """Copy float64 arrays in one transfer."""
    arrays = [np.asarray(part, np.float64).ravel() for part in parts]
    host = torch.from_numpy(np.concatenate(arrays))
    if device.type == "cuda":
        host = host.pin_memory()  # from pageable memory the copy would wait
    return list(host.to(device, non_blocking=True).split([len(a) for a in arrays]))


def _launcher(device: torch.device) -> Run:
    def run(name: str, grid: int, block: int, *args: object) -> None:
        kernel = kernel_on(device, "scatter_map", name)
        # What torch launched before the first kernel is no kernel that lets others begin early.
        kernel.bind(grid, block, *args, dependent=name != "project_points")()

    return run
