"""What a person looks at: a cloud and its boxes seen from above, the vehicle's nose up.

:func:`render_bev` makes the full picture with legend, counts and times; :func:`render_bev_map` is
the quick map alone that the node publishes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.bev_grid import occupancy
from driveRT_ros.core.boxes import VELOCITY
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import BevGrid, Detections, FrameReport
from driveRT_ros.core.turn import sensor_range
from driveRT_ros.io import bev_shapes as shapes
from driveRT_ros.io.bev_boxes import Drawable, drawable
from driveRT_ros.io.bev_panel import (
    LEFT_MIDDLE,
    Facts,
    Word,
    compose,
    draw_banner,
    draw_panel,
    map_words,
)
from driveRT_ros.io.bev_view import BevView, forward_yaw
from driveRT_ros.io.palette import AMBER, Rgb, class_color

Image = npt.NDArray[np.uint8]
Points: TypeAlias = torch.Tensor | npt.NDArray[np.floating]

FADED_WEIGHT, FADED_LAG_S = 0.25, 0.45
MAX_ARROW_MPS = 200.0
UNTRAINED = "untrained_weights"  # note of a frame report
BOLD_SCORE = 0.3
MAX_SCORE_LABELS = 60
QUICK_MAX_POINTS = 100_000


def render_bev(
    points: Points,
    view: BevView | None = None,
    *,
    T_ego_lidar: npt.NDArray[np.floating] | None = None,
    detections: Detections | None = None,
    ground_truth: Detections | None = None,
    grid: BevGrid | None = None,
    config: LidarConfig | None = None,
    title: str = "",
    stamp_ns: int | None = None,
    latency_ms: Mapping[str, float] | None = None,
    untrained: bool = False,
    color_by: str = "height",
    value_range: tuple[float, float] | None = None,
    min_score: float = 0.0,
) -> Image:
    """Draw one frame with everything a person needs to judge it.

    Args:
        points: (N, >= 3) x, y, z[, intensity[, time lag in s]]; points fade with their age.
        view: Window; by default the range of ``config``, 960 pixels at the longer side.
        T_ego_lidar: (4, 4) points to ego frame; turns the default view. None: +x is forward.
        detections: Boxes in the frame of the points, filled, in the colour of their class.
        ground_truth: Boxes in the same frame, dashed white; grey where they hold no point.
        grid: Cells drawn under the points; by default ``detections.bev``.
        config: Range and ground clearance; defaults as everywhere.
        title: First line of the panel.
        stamp_ns: Time of the frame.
        latency_ms: Milliseconds by stage; by default those of the report of ``detections``.
        untrained: Show the warning banner even if the report of ``detections`` does not ask for it.
        color_by: ``height`` or ``intensity``.
        value_range: Metres or intensity at both ends of the colour scale; by default 4 m from the
            ground up, or 0 to 100. Give it for a sequence, so that colours keep their meaning.
        min_score: Detections with a lower score are not drawn.

    Returns:
        (height, width + 260, 3) uint8 RGB: the map, and the panel at its right.

    Raises:
        ConfigError: If ``color_by`` is unknown or the points lack the column it needs.
    """
    config = config or _default_config()
    view = view or default_view(config, T_ego_lidar, size_px=960)
    cloud = _cloud(points)
    level, ends = _levels(cloud, color_by, value_range)
    found, truth = drawable(detections, min_score), drawable(ground_truth)
    report = detections.report if detections is not None else FrameReport()
    canvas = _draw_map(cloud, level, view, found, truth, _grid(grid, detections), config)
    words = _map_words(canvas, view, found, untrained or UNTRAINED in report.notes)
    facts = Facts(
        title=title,
        stamp_ns=stamp_ns,
        num_points=len(cloud),
        num_voxels=report.num_voxels,
        found=found.names if detections is not None else None,
        truth=truth.names if ground_truth is not None else None,
        skipped=found.skipped + truth.skipped,
        latency_ms=report.stage_ms if latency_ms is None else latency_ms,
        color_by=color_by,
        value_range=ends,
    )
    return compose(canvas, words, draw_panel(facts, view.height_px))


def default_view(
    config: LidarConfig,
    T_ego_lidar: npt.NDArray[np.floating] | None = None,
    *,
    pixels_per_m: float | None = None,
    size_px: int | None = None,
) -> BevView:
    """Return the view of the whole range of ``config``, the nose of the vehicle up."""
    return BevView.of_range(
        sensor_range(config),
        pixels_per_m=pixels_per_m,
        size_px=size_px,
        forward_yaw=0.0 if T_ego_lidar is None else forward_yaw(T_ego_lidar),
    )


def render_bev_map(
    points: Points,
    view: BevView | None = None,
    *,
    T_ego_lidar: npt.NDArray[np.floating] | None = None,
    detections: Detections | None = None,
    grid: BevGrid | None = None,
    config: LidarConfig | None = None,
    min_score: float = 0.0,
) -> Image:
    """Draw the map alone: no text, no panel. Quick enough for every frame of a live node.

    The arguments are those of :func:`render_bev`; by default the picture has
    ``bev.image_pixels_per_cell`` pixels a cell. An amber frame marks untrained weights. A cloud of
    more than 100,000 points is thinned evenly.

    Returns:
        (height, width, 3) uint8 RGB, C-contiguous.
    """
    config = config or _default_config()
    if view is None:
        scale = config.bev.image_pixels_per_cell / config.bev.resolution_m
        view = default_view(config, T_ego_lidar, pixels_per_m=scale)
    cloud = _cloud(points)
    cloud = cloud[:: max(1, math.ceil(len(cloud) / QUICK_MAX_POINTS))]
    level, _ = _levels(cloud, "height", None)
    found, nothing = drawable(detections, min_score), drawable(None)
    cells = _grid(grid, detections)
    canvas = _draw_map(cloud, level, view, found, nothing, cells, config, quick=True)
    if detections is not None and UNTRAINED in detections.report.notes:
        canvas[:4], canvas[-4:], canvas[:, :4], canvas[:, -4:] = [AMBER] * 4
    return canvas


def _draw_map(
    cloud: npt.NDArray[np.float32],
    level: npt.NDArray[np.float32],
    view: BevView,
    found: Drawable,
    truth: Drawable,
    grid: BevGrid | None,
    config: LidarConfig,
    *,
    quick: bool = False,
) -> Image:
    canvas = shapes.backdrop(view)
    if grid is not None:
        cells = occupancy(grid, config)
        shapes.draw_cells(canvas, view, cells, grid.resolution_m, grid.origin_xy)

    weight = np.ones(len(cloud), np.float32)
    if cloud.shape[1] >= 5:
        age = np.nan_to_num(cloud[:, 4]).clip(0, FADED_LAG_S) / FADED_LAG_S
        weight -= (1 - FADED_WEIGHT) * age
    shapes.draw_points(canvas, view, cloud[:, :2], level, weight, soft=not quick)

    corners, colors = found.corners_px(view), found.colors
    shapes.fill_boxes(canvas, corners, colors, alpha=0.28)
    seen = truth.num_points != 0
    outlines = truth.corners_px(view)
    shapes.dash_boxes(canvas, outlines[~seen], shapes.UNSEEN_TRUTH)
    bold = [2 if score >= BOLD_SCORE and not quick else 1 for score in found.scores]
    shapes.outline_boxes(canvas, corners, colors, bold)
    shapes.dash_boxes(canvas, outlines[seen], shapes.TRUTH)
    _draw_velocities(canvas, view, truth, [shapes.TRUTH] * len(truth), 1)
    _draw_velocities(canvas, view, found, colors, 2)
    shapes.draw_vehicle(canvas, view)
    return canvas


def _draw_velocities(
    canvas: Image, view: BevView, boxes: Drawable, colors: list[Rgb], thickness: int
) -> None:
    """Draw where each moving box will be in one second."""
    centre = boxes.boxes[:, :2].double().numpy()
    velocity = boxes.boxes[:, VELOCITY].double().numpy()
    speed = np.hypot(velocity[:, 0], velocity[:, 1])
    moving = (speed >= shapes.MIN_ARROW_MPS) & (speed <= MAX_ARROW_MPS)  # NaN and inf are neither
    shapes.draw_arrows(
        canvas,
        view.to_pixels(centre[moving]),
        view.to_pixels(centre[moving] + velocity[moving]),
        [color for color, is_moving in zip(colors, moving) if is_moving],
        thickness,
    )


def _map_words(canvas: Image, view: BevView, found: Drawable, warn: bool) -> list[Word]:
    """Draw the banner where it is due, and return all words of the map.

    The 60 surest boxes have their score at their right; where two collide the surer one stays.
    """
    corners = found.corners_px(view)
    scores = [
        Word(
            float(corners[i, :, 0].max()) + 5,
            float(corners[i, :, 1].mean()),
            f"{found.scores[i]:.2f}",
            11,
            class_color(found.names[i]),
            LEFT_MIDDLE,
            halo=True,
        )
        for i in reversed(range(max(0, len(found) - MAX_SCORE_LABELS), len(found)))
    ]
    if not warn:
        return map_words(view, scores)
    banner, covered = draw_banner(canvas, "UNTRAINED WEIGHTS", "detections mean nothing")
    return map_words(view, scores, covered) + banner


def _grid(grid: BevGrid | None, detections: Detections | None) -> BevGrid | None:
    return grid if grid is not None or detections is None else detections.bev


@functools.lru_cache(maxsize=1)
def _default_config() -> LidarConfig:
    return LidarConfig()  # checking every parameter takes milliseconds


def _cloud(points: Points) -> npt.NDArray[np.float32]:
    if isinstance(points, torch.Tensor):
        points = points.detach().cpu().numpy()
    if points.ndim != 2 or points.shape[1] < 3:
        raise ConfigError(f"Points must be an (N, >= 3) array, got shape {points.shape}.")
    return points.astype(np.float32, copy=False)


def _levels(
    cloud: npt.NDArray[np.float32], color_by: str, value_range: tuple[float, float] | None
) -> tuple[npt.NDArray[np.float32], tuple[float, float]]:
    """Return the place of every point in the colour scale, 0..1, and the values at its ends."""
    columns = {"height": 2, "intensity": 3}
    if color_by not in columns:
        raise ConfigError(f"color_by must be 'height' or 'intensity', got {color_by!r}.")
    if cloud.shape[1] <= columns[color_by]:
        raise ConfigError(
            f"Points coloured by {color_by} need column {columns[color_by]}, got shape "
            f"{cloud.shape}."
        )
    values = cloud[:, columns[color_by]]
    if value_range is None:
        value_range = (0.0, 100.0) if color_by == "intensity" else _height_range(values)
    low, high = value_range
    level = (values - np.float32(low)) / np.float32(max(high - low, 1e-6))
    return level.clip(0, 1), (low, high)


def _height_range(heights: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Return 4 m from the ground up, rounded to half metres against flicker."""
    some = heights[:: 1 + len(heights) // 20_000]  # enough to find the ground
    finite = some[np.isfinite(some)]
    if not len(finite):
        return -2.0, 2.0
    # A low percentile is on the ground, and below it lie only reflections.
    ground = round(2 * float(np.percentile(finite, 5))) / 2
    return ground, ground + 4.0
