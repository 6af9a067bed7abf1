"""The layers of a bird's-eye-view picture: points, cells, boxes, rings and the vehicle.

Every function draws onto an (H, W, 3) uint8 RGB canvas in place. Shapes are antialiased and placed
to a sixteenth of a pixel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.core.bev_grid import OCCUPIED
from driveRT_ros.io.bev_view import BevView
from driveRT_ros.io.palette import Rgb, height_ramp

Canvas = npt.NDArray[np.uint8]

BACKGROUND: Rgb = (11, 14, 20)
RING: Rgb = (38, 46, 60)
CELL_SEEN: Rgb = (22, 29, 42)
CELL_OCCUPIED: Rgb = (56, 60, 104)
VEHICLE: Rgb = (236, 240, 246)
TRUTH: Rgb = (240, 243, 248)
UNSEEN_TRUTH: Rgb = (112, 120, 134)

SHIFT = 4  # binary digits of a pixel that OpenCV draws with
MIN_ARROW_MPS = 0.5
SMALL_BOX_PX = 9  # a thick outline would fill a smaller box

# Half of the outline of a car of 4.6 m by 1.9 m, nose ahead: metres ahead, metres to the side.
_HULL = ((2.3, 0.45), (2.05, 0.8), (1.4, 0.95), (-1.7, 0.95), (-2.15, 0.85), (-2.3, 0.5))
_SCREEN = ((0.95, 0.72), (0.35, 0.62))
_REAR_SCREEN = ((-1.35, 0.6), (-1.75, 0.68))


def fixed_point(pixels: npt.NDArray[np.floating]) -> npt.NDArray[np.int32]:
    """Return pixel coordinates in the sixteenths that OpenCV's ``shift`` expects.

    Coordinates far outside are clipped: a huge box still draws, and no integer overflows.
    """
    return np.rint(np.clip(pixels, -1e5, 1e5) * (1 << SHIFT)).astype(np.int32)


def ring_radii(reach_m: float) -> list[float]:
    """Return the radii of the range rings: round numbers, at most eight to the sides."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1e9) if reach_m / s <= 8)
    return [step * i for i in range(1, int(1.5 * reach_m / step) + 1)]


@functools.lru_cache(maxsize=8)
def _backdrop(view: BevView) -> Canvas:
    canvas = np.full((view.height_px, view.width_px, 3), BACKGROUND, np.uint8)
    centre = view.to_pixels(np.zeros(2))
    turn = np.linspace(0, 2 * np.pi, 361)[:-1]  # OpenCV's own circles show corners at this size
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    for radius in ring_radii(view.reach_m):
        ring = fixed_point(centre + circle * radius * view.pixels_per_m)
        cv2.polylines(canvas, [ring], True, RING, 1, cv2.LINE_AA, SHIFT)
    col, row = (int(v) for v in np.rint(centre))
    for start, end in (((0, row), (view.width_px, row)), ((col, 0), (col, view.height_px))):
        cv2.line(canvas, start, end, RING, 1)
    canvas.setflags(write=False)
    return canvas


def backdrop(view: BevView) -> Canvas:
    """Return a fresh dark canvas with range rings and the two axes through the sensor."""
    return _backdrop(view).copy()


def draw_cells(
    canvas: Canvas,
    view: BevView,
    occupancy: npt.NDArray[np.int8],
    resolution_m: float,
    origin_xy: tuple[float, float],
) -> None:
    """Draw seen cells faintly and occupied cells a little brighter, each with a thin gap.

    Args:
        canvas: Picture.
        view: Its window.
        occupancy: (rows, cols) int8 of :func:`driveRT_ros.core.bev_grid.occupancy`.
        resolution_m: Cell size.
        origin_xy: Lower-left corner in metres.
    """
    if not occupancy.size:
        return
    scale = 5  # texture pixels per cell, one of which is the gap
    state = np.array([0, 100, 200], np.uint8)[(occupancy >= 0) + (occupancy >= OCCUPIED) * 1]
    rows, cols = state.shape
    size = (cols * scale, rows * scale)
    texture = cv2.resize(state, size, interpolation=cv2.INTER_NEAREST)
    texture[::scale] = 0
    texture[:, ::scale] = 0
    # Three texture points and where they land fix the map from cells to pixels.
    corner = np.array([[0, 0], [scale, 0], [0, scale]], np.float32) - np.float32(0.5)
    ground = np.array([[0, 0], [resolution_m, 0], [0, resolution_m]]) + origin_xy
    warp = cv2.getAffineTransform(corner, view.to_pixels(ground).astype(np.float32))
    shade = cv2.warpAffine(texture, warp, (view.width_px, view.height_px), flags=cv2.INTER_LINEAR)
    cv2.max(canvas, cv2.applyColorMap(shade, _cell_ramp()), dst=canvas)


@functools.lru_cache(maxsize=1)
def _cell_ramp() -> npt.NDArray[np.uint8]:
    """Return (256, 1, 3) colours: 0 nothing, 100 a seen cell, 200 an occupied one."""
    ends = np.array([(0, 0, 0), CELL_SEEN, CELL_OCCUPIED])
    channels = [np.interp(np.arange(256), [0, 100, 200], channel) for channel in ends.T]
    return np.rint(np.stack(channels, axis=-1)[:, None]).astype(np.uint8)


def draw_points(
    canvas: Canvas,
    view: BevView,
    xy: npt.NDArray[np.floating],
    level: npt.NDArray[np.floating],
    weight: npt.NDArray[np.floating],
    *,
    soft: bool = True,
) -> None:
    """Draw points; where several share a pixel, it shows their mean colour.

    Args:
        canvas: Picture.
        view: Its window.
        xy: (N, 2) metres; points that are not finite are left out.
        level: (N,) position in the colour ramp, 0..1.
        weight: (N,) opacity of a lone point, 0..1.
        soft: Share each point out over its four nearest pixels; else it takes the nearest one,
            which is three times as quick.
    """
    height, width = view.height_px, view.width_px
    with np.errstate(invalid="ignore"):  # infinity less infinity; left out below
        col, row = view.to_pixels(xy).T
    if not soft:
        col, row = np.rint(col), np.rint(row)
    edge = 1 if soft else 0
    inside = (col >= 0) & (col < width - edge) & (row >= 0) & (row < height - edge)
    inside &= np.isfinite(level)
    col, row, level, weight = col[inside], row[inside], level[inside], weight[inside]
    first_col, first_row = col.astype(np.int64), row.astype(np.int64)
    first = first_row * width + first_col
    shares: list[tuple[int, npt.NDArray[np.floating]]] = [(0, weight)]
    if soft:
        right, down = col - first_col, row - first_row
        shares = [
            (0, weight * (1 - right) * (1 - down)),
            (1, weight * right * (1 - down)),
            (width, weight * (1 - right) * down),
            (width + 1, weight * right * down),
        ]
    total: npt.NDArray[np.float64] = np.zeros(height * width)
    mean = np.zeros_like(total)
    for offset, share in shares:
        total += np.bincount(first + offset, share, minlength=height * width)
        mean += np.bincount(first + offset, share * level, minlength=height * width)
    hit = np.flatnonzero(total > 1e-3)
    total, mean = total[hit], mean[hit]
    color = height_ramp()[np.rint(mean / total * 255).astype(np.int64)].astype(np.float32)
    alpha = np.minimum(1.0, (1.7 if soft else 0.9) * total).astype(np.float32)[:, None]
    flat = canvas.reshape(-1, 3)
    below = flat[hit].astype(np.float32)
    flat[hit] = np.rint(below + alpha * (color - below)).astype(np.uint8)


def fill_boxes(
    canvas: Canvas, corners_px: npt.NDArray[np.floating], colors: Sequence[Rgb], alpha: float
) -> None:
    """Fill boxes with translucent colour; later boxes cover earlier ones.

    Args:
        canvas: Picture.
        corners_px: (M, 4, 2).
        colors: M colours.
        alpha: Opacity, 0..1.
    """
    if not len(corners_px):
        return
    overlay = canvas.copy()
    for polygon, color in zip(fixed_point(corners_px), colors):
        cv2.fillConvexPoly(overlay, polygon, color, cv2.LINE_AA, SHIFT)
    cv2.addWeighted(overlay, alpha, canvas, 1 - alpha, 0, dst=canvas)


def outline_boxes(
    canvas: Canvas,
    corners_px: npt.NDArray[np.floating],
    colors: Sequence[Rgb],
    thickness: Sequence[int],
) -> None:
    """Outline boxes; a tick from the centre through the front edge shows the heading.

    Args:
        canvas: Picture.
        corners_px: (M, 4, 2) in the order of :func:`driveRT_ros.core.boxes.bev_corners`.
        colors: M colours.
        thickness: M widths in pixels; small boxes get 1.
    """
    centre, front = corners_px.mean(axis=1), corners_px[:, [0, 3]].mean(axis=1)
    ahead = front - centre
    tip = front + ahead * (4 / np.linalg.norm(ahead, axis=1, keepdims=True).clip(1e-6))
    sides = np.linalg.norm(np.diff(corners_px[:, :3], axis=1), axis=2)
    small = sides.min(axis=1, initial=np.inf) < SMALL_BOX_PX
    outlines = fixed_point(corners_px)
    ticks = fixed_point(np.stack([centre, tip], axis=1))
    for outline, tick, color, wanted, is_small in zip(outlines, ticks, colors, thickness, small):
        width = 1 if is_small else wanted
        cv2.polylines(canvas, [outline], True, color, width, cv2.LINE_AA, SHIFT)
        cv2.polylines(canvas, [tick], False, color, width, cv2.LINE_AA, SHIFT)


def dash_boxes(
    canvas: Canvas, corners_px: npt.NDArray[np.floating], color: Rgb, dash_px: float = 5.0
) -> None:
    """Outline boxes with thin dashes, and a dashed heading line from the centre to the front.

    Args:
        canvas: Picture.
        corners_px: (M, 4, 2) in the order of :func:`driveRT_ros.core.boxes.bev_corners`.
        color: One colour for all.
        dash_px: Length of a dash, and of the gap after it.
    """
    dashes: list[npt.NDArray[np.float64]] = []
    for corners in np.clip(corners_px, -1e4, 1e4):
        front = (corners[0] + corners[3]) / 2
        edges = [(corners[i], corners[(i + 1) % 4]) for i in range(4)]
        for start, end in [*edges, (corners.mean(axis=0), front)]:
            length = float(np.linalg.norm(end - start))
            # An odd number of equal parts: a dash at both ends, so that corners are closed.
            parts = 2 * max(0, round((length / dash_px - 1) / 2)) + 1
            at = start + np.linspace(0, 1, parts + 1)[:, None] * (end - start)
            dashes += [at[i : i + 2] for i in range(0, parts, 2)]
    if dashes:
        cv2.polylines(
            canvas, list(fixed_point(np.stack(dashes))), False, color, 1, cv2.LINE_AA, SHIFT
        )


def draw_arrows(
    canvas: Canvas,
    start_px: npt.NDArray[np.floating],
    end_px: npt.NDArray[np.floating],
    colors: Sequence[Rgb],
    thickness: int,
) -> None:
    """Draw arrows with heads of one size.

    Args:
        canvas: Picture.
        start_px: (M, 2).
        end_px: (M, 2).
        colors: M colours.
        thickness: Pixels; the head grows with it.
    """
    reach, spread = 4.0 + 2 * thickness, 1.5 + thickness
    length = np.linalg.norm(end_px - start_px, axis=1, keepdims=True)
    along = (end_px - start_px) / length.clip(1e-6)
    across = along[:, ::-1] * (-1, 1)
    back = end_px - along * reach
    heads = fixed_point(np.stack([end_px, back + across * spread, back - across * spread], axis=1))
    shafts = fixed_point(np.stack([start_px, back], axis=1))
    for head, shaft, color, pixels in zip(heads, shafts, colors, length[:, 0]):
        if pixels > reach:
            cv2.polylines(canvas, [shaft], False, color, thickness, cv2.LINE_AA, SHIFT)
        cv2.fillConvexPoly(canvas, head, color, cv2.LINE_AA, SHIFT)


def draw_vehicle(canvas: Canvas, view: BevView) -> None:
    """Draw the vehicle at the sensor, nose up, at the scale of the picture but never tiny."""
    scale = max(view.pixels_per_m, 6.0)
    centre = view.to_pixels(np.zeros(2))

    def polygon(half: Sequence[tuple[float, float]]) -> npt.NDArray[np.int32]:
        right = [(side, -ahead) for ahead, side in half]
        left = [(-col, row) for col, row in reversed(right)]
        return fixed_point(centre + np.array(right + left) * scale)

    hull = polygon(_HULL)
    cv2.fillConvexPoly(canvas, hull, VEHICLE, cv2.LINE_AA, SHIFT)
    for screen in (_SCREEN, _REAR_SCREEN):
        cv2.fillConvexPoly(canvas, polygon(screen), (58, 68, 84), cv2.LINE_AA, SHIFT)
    nose = centre + np.array([[0, -3.9], [0.75, -2.8], [-0.75, -2.8]]) * scale
    cv2.fillConvexPoly(canvas, fixed_point(nose), VEHICLE, cv2.LINE_AA, SHIFT)
