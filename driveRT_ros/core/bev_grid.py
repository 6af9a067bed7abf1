"""Bird's-eye-view layers of a point cloud, and the occupancy that follows from them.

Rows grow with +y and columns with +x, so that ``layer.ravel()[row * cols + col]`` is already the
order of nav_msgs/OccupancyGrid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import BevGrid
from driveRT_ros.core.turn import Turn, sensor_range

HEAD_STRIDE = 8
"""Voxels along one edge of a cell of the detection head."""

UNKNOWN, FREE, OCCUPIED = -1, 0, 100
"""The three values of nav_msgs/OccupancyGrid that :func:`occupancy` uses."""

FloatArray = npt.NDArray[np.float32]


def grid_shape(config: LidarConfig) -> tuple[int, int]:
    """Return rows and columns of the grid that covers ``config``'s range.

    Where the range is not a multiple of the resolution, the last row or column reaches beyond it.
    """
    x0, y0, _, x1, y1, _ = sensor_range(config)
    step = config.bev.resolution_m
    # A quotient such as 108 / 0.6 = 180.00000000000003 must not open a 181st column.
    rows, cols = (max(1, math.ceil(round(d / step, 6))) for d in (y1 - y0, x1 - x0))
    return rows, cols


def build_bev_grid(
    points: torch.Tensor | npt.NDArray[np.floating],
    config: LidarConfig,
    heat: Mapping[str, npt.NDArray[np.floating]] | None = None,
) -> BevGrid:
    """Gather points into layers over the x-y range of ``config.voxelization``.

    The grid lies along the axes of the points, whatever frame the network has: where that is turned
    by other than quarter turns, the grid is as large as to hold the turned range.

    Every given point counts, whatever its time lag: give the current sweep alone for a snapshot,
    or the densified cloud to fill the gaps between beams (moving objects then leave a trail).
    Points that are not finite or lie outside the range ``[minimum, maximum)`` of the network on x,
    y or z are left out.

    Args:
        points: (N, >= 4) x, y, z in metres in the frame of the cloud, intensity; further columns
            are ignored.
        config: Range (``voxelization.point_cloud_range``), how the network's frame is turned
            (``input.forward_yaw_deg``), and cell size (``bev.resolution_m``).
        heat: Class name -> score of the detection head, either on this grid or on the head's own
            (cells of 8 voxels along the axes of the network; each cell then takes the head cell
            that its centre lies in, NaN where it lies in none); a shape that both have means the
            head's. Values are passed on unchanged.

    Returns:
        Layers, float32, NaN where no point says anything: ``max_height`` and ``min_height`` in
        metres (z of the highest and lowest point), ``mean_intensity`` in the unit of the input,
        ``density`` in points per square metre (0, not NaN, where there is none), and one
        ``heat_<class>`` for each entry of ``heat``.

    Raises:
        ConfigError: If ``points`` has fewer than four columns or a heat layer fits neither grid.
    """
    cloud = _as_array(points)
    rows, cols = grid_shape(config)
    step = config.bev.resolution_m
    x0, y0 = sensor_range(config)[:2]
    cell, kept = _cells_of(cloud[:, :3], config, (rows, cols))
    z, intensity = cloud[kept, 2], cloud[kept, 3]

    count = np.bincount(cell, minlength=rows * cols)
    highest = np.full(rows * cols, -np.inf, np.float32)
    lowest = np.full(rows * cols, np.inf, np.float32)
    np.maximum.at(highest, cell, z)
    np.minimum.at(lowest, cell, z)
    # Float64 sums in input order: the same cloud gives the same bytes.
    total = np.bincount(cell, weights=intensity, minlength=rows * cols)
    seen = count > 0
    layers = {
        "max_height": np.where(seen, highest, np.nan),
        "min_height": np.where(seen, lowest, np.nan),
        "density": count / step**2,
        "mean_intensity": np.where(seen, total / np.maximum(count, 1), np.nan),
    }
    grid = {
        name: np.ascontiguousarray(layer.reshape(rows, cols), np.float32)
        for name, layer in layers.items()
    }
    for name, layer in (heat or {}).items():
        grid[f"heat_{name}"] = _on_grid(name, layer, config, (rows, cols))
    return BevGrid(layers=grid, resolution_m=step, origin_xy=(x0, y0))


def occupancy(grid: BevGrid, config: LidarConfig) -> npt.NDArray[np.int8]:
    """Return which cells an upright obstacle stands in.

    A cell without points is unknown (-1). A cell is occupied (100) where its highest point lies
    more than ``bev.ground_clearance_m`` above the lowest point of itself and its eight
    neighbours, else free (0). Looking at the neighbours finds the roof of a car, whose own cell
    never sees the ground; a slope of 10 % adds no more than two cells' worth of height.
    An overhang above seen ground counts as occupied.

    Args:
        grid: Layers ``max_height`` and ``min_height`` of :func:`build_bev_grid`.
        config: ``bev.ground_clearance_m`` in metres.

    Returns:
        (rows, cols) int8; ``ravel()`` is the ``data`` of nav_msgs/OccupancyGrid.
    """
    highest, lowest = grid.layers["max_height"], grid.layers["min_height"]
    rows, cols = highest.shape
    padded = np.pad(np.where(np.isnan(lowest), np.inf, lowest), 1, constant_values=np.inf)
    ground = np.full((rows, cols), np.inf, np.float32)
    for i in range(3):
        for j in range(3):
            np.minimum(ground, padded[i : i + rows, j : j + cols], out=ground)
    seen = ~np.isnan(highest)
    out = np.full((rows, cols), UNKNOWN, np.int8)
    out[seen] = FREE
    out[seen & (highest - ground > config.bev.ground_clearance_m)] = OCCUPIED
    return out


def _as_array(points: torch.Tensor | npt.NDArray[np.floating]) -> FloatArray:
    if isinstance(points, torch.Tensor):
        points = points.detach().cpu().numpy()
    if points.ndim != 2 or points.shape[1] < 4:
        raise ConfigError(
            f"Points must be an (N, >= 4) array of x, y, z, intensity, got shape {points.shape}."
        )
    return points.astype(np.float32, copy=False)


def _cells_of(
    xyz: FloatArray, config: LidarConfig, shape: tuple[int, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the flat cell of every kept point, and which points are kept."""
    bounds, turn = config.voxelization.point_cloud_range, Turn.to_network(config)
    low, step = sensor_range(config), config.bev.resolution_m
    wide = xyz.T.astype(np.float64, order="C")
    kept = np.ones(len(xyz), bool)
    for axis, values in enumerate((*turn.xy(wide[0], wide[1]), wide[2])):
        # NaN compares false, so it is left out as well
        kept &= (values >= bounds[axis]) & (values < bounds[axis + 3])
    # The division may round a point just inside the far edge up to the next cell.
    col, row = (
        np.minimum(((wide[axis][kept] - low[axis]) / step).astype(np.int64), shape[1 - axis] - 1)
        for axis in (0, 1)
    )
    return row * shape[1] + col, kept


def _on_grid(
    name: str,
    layer: npt.NDArray[np.floating],
    config: LidarConfig,
    shape: tuple[int, int],
) -> FloatArray:
    layer = np.asarray(layer, np.float32)
    nx, ny, _ = config.voxelization.grid_xyz
    head_shape = (math.ceil(ny / HEAD_STRIDE), math.ceil(nx / HEAD_STRIDE))
    is_turned = not Turn.to_network(config).is_none
    if layer.shape == shape and not (is_turned and shape == head_shape):
        return np.ascontiguousarray(layer)
    if layer.shape != head_shape:
        raise ConfigError(
            f"Heat layer '{name}' must have shape {shape} (bev.resolution_m) or {head_shape} "
            f"(cells of {HEAD_STRIDE} voxels), got {layer.shape}."
        )
    size_x, size_y = config.voxelization.voxel_size[:2]
    sizes_yx, step = (HEAD_STRIDE * size_y, HEAD_STRIDE * size_x), config.bev.resolution_m
    if is_turned:
        return _turned_heat(layer, config, shape, sizes_yx)
    row, col = (
        np.minimum(((np.arange(n) + 0.5) * step / size).astype(int), head_n - 1)
        for n, head_n, size in zip(shape, head_shape, sizes_yx)
    )
    return np.ascontiguousarray(layer[np.ix_(row, col)])


def _turned_heat(
    layer: FloatArray,
    config: LidarConfig,
    shape: tuple[int, int],
    sizes_yx: tuple[float, float],
) -> FloatArray:
    """Return a layer of the head at the centres of the cells of a grid in another frame."""
    x0, y0 = sensor_range(config)[:2]
    y, x = ((np.arange(n) + 0.5) * config.bev.resolution_m + low for n, low in zip(shape, (y0, x0)))
    network_x, network_y = Turn.to_network(config).xy(*np.meshgrid(x, y))
    low_x, low_y = config.voxelization.point_cloud_range[:2]
    row = np.floor((network_y - low_y) / sizes_yx[0]).astype(int)
    col = np.floor((network_x - low_x) / sizes_yx[1]).astype(int)
    inside = (row >= 0) & (row < layer.shape[0]) & (col >= 0) & (col < layer.shape[1])
    out = np.full(shape, np.nan, np.float32)
    out[inside] = layer[row[inside], col[inside]]
    return out
