"""What a person looks at: what the cameras see around the vehicle, from above, nose up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_images import ImageFit
from driveRT_ros.core.camera_pipeline import CAMERAS_LAYER
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import BevGrid, CameraFrame, Detections
from driveRT_ros.io import bev_shapes as shapes
from driveRT_ros.io.bev_boxes import drawable
from driveRT_ros.io.bev_view import BevView
from driveRT_ros.io.palette import AMBER, Rgb, class_color, oklab_to_srgb

Image = npt.NDArray[np.uint8]

SEEN_ONCE: Rgb = (26, 35, 52)
SEEN_TWICE: Rgb = (40, 54, 80)
LAYER_COLORS: dict[str, Rgb] = {
    "vehicle": class_color("car"),
    "pedestrian": class_color("pedestrian"),
    "drivable_area": (108, 126, 150),
}
"""Colour of a segmentation layer; others take that of a class of the same name."""
GROUND_LAYERS = ("drivable_area",)
"""What lies under the others, and is drawn first wherever the network has it."""
UNTRAINED = "untrained_weights"
LEAST_PROBABILITY = 0.15  # less is drawn as nothing, or noise would cover the coverage
LABEL_SCALE = 0.38


def camera_color(index: int, count: int) -> Rgb:
    """Return the colour of one of ``count`` cameras: equal lightness, hues evenly apart."""
    hue = 2 * math.pi * index / max(count, 1) + 0.6
    lab = np.array([[0.78, 0.13 * math.cos(hue), 0.13 * math.sin(hue)]])
    r, g, b = np.rint(oklab_to_srgb(lab)[0] * 255).astype(int).tolist()
    return r, g, b


def render_camera_map(
    found: Detections, frames: Sequence[CameraFrame], config: CameraConfig
) -> Image:
    """Draw one camera frame: coverage, layers of probability, frusta, boxes.

    Cells that one camera sees are a little brighter than the ground, cells that several see more
    so. The outline of a camera reaches from the least to the greatest depth of the network, within
    the columns that the network is given. An amber frame marks untrained weights.

    Args:
        found: Result of the camera pipeline, with its layers.
        frames: Images that it saw; their pixels are not read.
        config: Of the pipeline.

    Returns:
        (height, width, 3) uint8 RGB with ``bev.image_pixels_per_cell`` pixels a cell.

    Raises:
        ConfigError: If the result has no layers.
    """
    bev = found.bev
    if bev is None or CAMERAS_LAYER not in bev.layers:
        raise ConfigError(f"The picture needs the layer '{CAMERAS_LAYER}' of the camera pipeline.")
    view = camera_map_view(config)
    canvas = shapes.backdrop(view)
    cv2.max(canvas, _to_picture(_cells(bev), bev, view), dst=canvas)
    for frame in frames:
        index = config.cameras.index(frame.name) if frame.name in config.cameras else 0
        color = camera_color(index, len(config.cameras))
        _draw_frustum(canvas, view, frame, config, color)
    boxes = drawable(found)
    corners, colors = boxes.corners_px(view), boxes.colors
    shapes.fill_boxes(canvas, corners, colors, alpha=0.28)
    shapes.outline_boxes(canvas, corners, colors, [1] * len(boxes))
    shapes.draw_vehicle(canvas, view)
    if UNTRAINED in found.report.notes:
        canvas[:4], canvas[-4:], canvas[:, :4], canvas[:, -4:] = [AMBER] * 4
    return canvas


def camera_map_view(config: CameraConfig) -> BevView:
    """Return the view of the whole grid, in the ego frame, +x up."""
    grid = config.model.grid
    (x0, x1), (y0, y1) = grid.x_range_m, grid.y_range_m
    scale = config.bev.image_pixels_per_cell / grid.resolution_m
    return BevView.of_range((x0, y0, 0.0, x1, y1, 0.0), pixels_per_m=scale)


def footprint(frame: CameraFrame, config: CameraConfig) -> npt.NDArray[np.float64]:
    """Return where one camera looks, seen from above.

    Args:
        frame: Its calibration.
        config: Depths, and how images are fitted to the network.

    Returns:
        (4, 2) x, y in the ego frame: near left, far left, far right, near right.
    """
    image, depth = config.model.image, config.model.depth
    fit = ImageFit.of(frame.size_wh, image)
    borders = (np.array([0.0, fit.size_hw[1]]) + fit.left) / fit.scale_xy[0]
    left, right = borders.clip(0, frame.size_wh[0])
    # The row of the horizon: rays that neither rise nor fall span the widest footprint.
    pixels = np.array([[left, frame.K[1, 2], 1.0], [right, frame.K[1, 2], 1.0]])
    rays = pixels @ np.linalg.inv(frame.K).T @ frame.T_ego_camera[:3, :3].T
    centre = frame.T_ego_camera[:3, 3]
    near, far = (centre + rays * d for d in (depth.min_m, depth.max_m))
    return np.stack([near[0], far[0], far[1], near[1]])[:, :2]


def _draw_frustum(
    canvas: Image, view: BevView, frame: CameraFrame, config: CameraConfig, color: Rgb
) -> None:
    outline = view.to_pixels(footprint(frame, config))
    cv2.polylines(canvas, [shapes.fixed_point(outline)], True, color, 1, cv2.LINE_AA, shapes.SHIFT)
    # Where the axis of the camera leaves the picture, or ends in it, less a margin for the text.
    start, end = outline[[0, 3]].mean(axis=0), outline[[1, 2]].mean(axis=0)
    (width, height), _ = cv2.getTextSize(frame.name, cv2.FONT_HERSHEY_SIMPLEX, LABEL_SCALE, 1)
    room = np.array([view.width_px - width - 16, view.height_px - height - 16]) / 2
    middle = np.array([view.width_px, view.height_px]) / 2
    along = end - start
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = np.where(along > 0, middle + room - start, start - middle + room) / np.abs(along)
    place = start + along * min(0.95, float(np.nanmin(reach)))
    corner = np.rint(place - (width / 2, -height / 2)).astype(int)
    cv2.putText(
        canvas, frame.name, (int(corner[0]), int(corner[1])), cv2.FONT_HERSHEY_SIMPLEX,
        LABEL_SCALE, color, 1, cv2.LINE_AA,
    )  # fmt: skip


def _cells(bev: BevGrid) -> Image:
    """Return the colour of every cell, (rows, cols, 3)."""
    seen = bev.layers[CAMERAS_LAYER]
    colors = np.zeros((*seen.shape, 3), np.float32)
    colors[seen >= 1], colors[seen >= 2] = SEEN_ONCE, SEEN_TWICE
    for name in sorted(bev.layers, key=lambda name: name not in GROUND_LAYERS):
        if name == CAMERAS_LAYER or name.startswith("heat_"):
            continue
        layer = bev.layers[name]
        probability = np.nan_to_num(layer, nan=0.0)
        weight = np.where(probability >= LEAST_PROBABILITY, probability, 0.0)[..., None]
        color = np.array(LAYER_COLORS.get(name, class_color(name)), np.float32)
        colors += weight.astype(np.float32) * (color - colors)
    return np.rint(colors).astype(np.uint8)


def _to_picture(cells: Image, bev: BevGrid, view: BevView) -> Image:
    """Draw one colour a cell, with sharp edges."""
    # Three cell corners and where they land fix the map from cells to pixels.
    corner = np.array([[0, 0], [1, 0], [0, 1]], np.float32) - np.float32(0.5)
    step = bev.resolution_m
    ground = np.array([[0, 0], [step, 0], [0, step]]) + bev.origin_xy
    warp = cv2.getAffineTransform(corner, view.to_pixels(ground).astype(np.float32))
    size = (view.width_px, view.height_px)
    picture: Image = cv2.warpAffine(cells, warp, size, flags=cv2.INTER_NEAREST)
    return picture
