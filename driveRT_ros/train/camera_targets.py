"""What the cells of the bird's-eye view show: vehicles, pedestrians and where one can drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.camera_config import CameraModelConfig, GridConfig
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.sim.materials import INDEX
from driveRT_ros.sim.world import World

CLASSES: Mapping[str, tuple[str, ...]] = {
    "vehicle": (
        *("car", "truck", "construction_vehicle", "bus", "trailer"),
        *("motorcycle", "bicycle"),
    ),
    "pedestrian": ("pedestrian",),
}
"""Classes of each layer of objects. Vehicles are all ``vehicle.*`` of nuScenes, as Philion and
Fidler count them in "Lift, Splat, Shoot"."""

_DRIVABLE = ("asphalt", "marking")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth of one frame; bit k belongs to layer k.

    Args:
        covered: (Y, X) uint8, cells that a visible object, or the road, covers.
        hidden: (Y, X) uint8, cells that only objects cover which no camera sees.
    """

    covered: npt.NDArray[np.uint8]
    hidden: npt.NDArray[np.uint8]

    def of(self, layer: int) -> tuple[Mask, Mask]:
        """Return the covered and the hidden cells of one layer."""
        return (self.covered >> layer & 1).astype(bool), (self.hidden >> layer & 1).astype(bool)


def truth_of(
    world: World, time_s: float, pixels: Mapping[int, float], model: CameraModelConfig,
    min_pixels: float,
) -> Truth:  # fmt: skip
    """Return what the cells show at one instant.

    Args:
        world: The scene.
        time_s: Seconds since the first sweep.
        pixels: How many pixels of the network inputs show each object, by track id.
        model: Grid and layers.
        min_pixels: Objects with fewer are hidden.
    """
    grid, layers = model.grid, model.network.segmentation
    _, rows, cols = grid.shape_zyx
    covered, hidden = (np.zeros((rows, cols), np.uint8) for _ in range(2))
    boxes, labels, tracks = ego_boxes(world, time_s)
    seen = np.array([pixels.get(int(t), 0.0) >= min_pixels for t in tracks], bool)
    for bit, layer in enumerate(layers):
        if layer == "drivable_area":
            covered |= drivable(world, time_s, grid).astype(np.uint8) << bit
            continue
        wanted = [NUSCENES_CLASSES.index(name) for name in CLASSES[layer]]
        mine = np.isin(labels, wanted)
        shown = rasterize(boxes[mine & seen], grid)
        covered |= shown.astype(np.uint8) << bit
        hidden |= (rasterize(boxes[mine & ~seen], grid) & ~shown).astype(np.uint8) << bit
    return Truth(covered, hidden)


def ego_boxes(
    world: World, time_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return x, y, length, width, yaw (M, 5) in the ego frame, labels and track ids."""
    actors = world.at(time_s).actors
    T_ego_world = np.linalg.inv(world.T_world_ego(np.array([time_s]))[0])
    place = np.array([(a.x, a.y, a.z) for a in actors]).reshape(-1, 3)
    xy = (place @ T_ego_world[:3, :3].T + T_ego_world[:3, 3])[:, :2]
    size = np.array([a.size_lwh[:2] for a in actors]).reshape(-1, 2)
    yaw = np.array([a.yaw for a in actors]) + np.arctan2(T_ego_world[1, 0], T_ego_world[0, 0])
    labels = np.array([a.label for a in actors], np.int64)
    tracks = np.array([a.track_id for a in actors], np.int64)
    return np.concatenate([xy, size, yaw[:, None]], axis=1), labels, tracks


def rasterize(boxes: npt.NDArray[np.float64] | Sequence[Sequence[float]], grid: GridConfig) -> Mask:
    """Return the cells (Y, X) whose middle lies in a box, and the cell below each box's middle.

    Args:
        boxes: (M, 5) x, y, length, width, yaw in the ego frame.
        grid: The cells.
    """
    _, rows, cols = grid.shape_zyx
    step, (x0, y0) = grid.resolution_m, (grid.x_range_m[0], grid.y_range_m[0])
    mask = np.zeros((rows, cols), bool)
    for x, y, length, width, yaw in np.asarray(boxes, np.float64).reshape(-1, 5):
        reach = np.hypot(length, width) / 2
        first_col, last_col = (int(np.floor((x + r - x0) / step)) for r in (-reach, reach))
        first_row, last_row = (int(np.floor((y + r - y0) / step)) for r in (-reach, reach))
        c = np.arange(max(first_col, 0), min(last_col + 1, cols))
        r = np.arange(max(first_row, 0), min(last_row + 1, rows))
        if not len(c) or not len(r):
            continue
        dx, dy = x0 + (c + 0.5) * step - x, (y0 + (r + 0.5) * step - y)[:, None]
        along = dx * np.cos(yaw) + dy * np.sin(yaw)
        across = dy * np.cos(yaw) - dx * np.sin(yaw)
        inside = (np.abs(along) <= length / 2) & (np.abs(across) <= width / 2)
        mask[r[0] : r[-1] + 1, c[0] : c[-1] + 1] |= inside
        col, row = int(np.floor((x - x0) / step)), int(np.floor((y - y0) / step))
        if 0 <= col < cols and 0 <= row < rows:
            mask[row, col] = True
    return mask


def drivable(world: World, time_s: float, grid: GridConfig) -> Mask:
    """Return the cells (Y, X) whose middle lies on asphalt: the road, side streets, car parks."""
    _, rows, cols = grid.shape_zyx
    T_world_ego = world.T_world_ego(np.array([time_s]))[0]
    x = grid.x_range_m[0] + (np.arange(cols) + 0.5) * grid.resolution_m
    y = grid.y_range_m[0] + (np.arange(rows) + 0.5) * grid.resolution_m
    at = np.stack([*np.meshgrid(x, y), np.zeros((rows, cols))], axis=-1).reshape(-1, 3)
    at = at @ T_world_ego[:3, :3].T + T_world_ego[:3, 3]
    s, d = world.road.locate(at[:, 0], at[:, 1], float(world.ego_s(time_s)))
    _, material = world.surface(s, d)
    return np.isin(material, [INDEX[name] for name in _DRIVABLE]).reshape(rows, cols)
