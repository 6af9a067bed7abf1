"""Facets to an image: projection, clipping and a depth buffer, one facet after the other.

OpenCV fills the outline of each facet; where it is nearer than what is there already, it is taken.
The inverse depth of a plane is linear in pixels, so this costs three operations a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from driveRT_ros.sim.facets import Facets
from driveRT_ros.sim.solids import NOBODY

NEAR_M = 0.25
"""What is closer than this to the camera is not drawn."""

_MAX_CORNERS = 9  # a quadrilateral, cut by five planes
_GUARD_PX = 3000.0  # facets reaching farther out of the image are clipped first
_SHIFT = 4  # outlines are drawn to a sixteenth of a pixel
_FINEST_PX = 0.35  # smaller facets are left out


@dataclass(frozen=True)
class Pose:
    """Where a camera is and how it projects.

    Args:
        K: (3, 3) float64 intrinsics.
        T_world_camera: (4, 4) float64.
        size_wh: Image size.
    """

    K: np.ndarray
    T_world_camera: np.ndarray
    size_wh: tuple[int, int]


@dataclass(frozen=True)
class Drawing:
    """What each pixel shows.

    Args:
        facet: (H, W) int32 row of the facet, -1 for none.
        inverse_depth: (H, W) float32, 1/m along the optical axis; 0 for none.
    """

    facet: np.ndarray
    inverse_depth: np.ndarray

    @property
    def depth_m(self) -> np.ndarray:
        """(H, W) float32 metres along the optical axis; inf where nothing is."""
        with np.errstate(divide="ignore"):
            return np.float32(1.0) / self.inverse_depth

    def owner(self, facets: Facets) -> np.ndarray:
        """Return (H, W) int64 track ids, NOBODY for scenery and sky."""
        return np.append(facets.owners, NOBODY)[self.facet]


@dataclass(frozen=True)
class _Outlines:
    """Facets of one camera, nearest first.

    Args:
        rows: (P,) which facet each is.
        points: (P, C, 2) int32 corners in 1/16 pixel, the last one repeated.
        boxes: (P, 4) int64 x0, y0, x1, y1 of the part of the image each may cover.
        planes: (P, 3) float64 a, b, c with inverse depth = a u + b v + c.
        nearest: (P,) greatest inverse depth of each.
    """

    rows: np.ndarray
    points: np.ndarray
    boxes: np.ndarray
    planes: np.ndarray
    nearest: np.ndarray


def draw(facets: Facets, pose: Pose, max_range_m: float, grain: np.ndarray) -> Drawing:
    """Draw facets.

    Args:
        facets: In world coordinates.
        pose: The camera.
        max_range_m: Facets whose middle is farther off are left out.
        grain: (H, W) uint8 noise that decides which pixels a leaf or fence covers.
    """
    width, height = pose.size_wh
    outlines = _outlines(facets, pose, max_range_m)
    cover = np.round(255.0 * facets.cover[outlines.rows]).astype(np.int64).tolist()
    facet = np.full((height, width), -1, np.int32)
    inverse = np.zeros((height, width), np.float32)
    inside, nearer = (np.empty((height, width), np.uint8) for _ in range(2))
    plane = np.empty((height, width), np.float32)
    u, v = np.arange(width, dtype=np.float64), np.arange(height, dtype=np.float64)
    columns = (outlines.rows, outlines.boxes, outlines.planes, outlines.nearest)
    tables = (*(column.tolist() for column in columns), cover, outlines.points)
    for row, (x0, y0, x1, y1), (a, b, c), nearest, share, points in zip(*tables):
        rows, cols = slice(y0, y1), slice(x0, x1)
        if inverse[rows, cols].min() > nearest:
            continue  # hidden; half of the facets of a street are
        corner = slice(0, y1 - y0), slice(0, x1 - x0)
        mask, closer, depth = inside[corner], nearer[corner].view(bool), plane[corner]
        mask.fill(0)
        cv2.fillConvexPoly(mask, points, 1, shift=_SHIFT)
        across = (a * u[cols] + c).astype(np.float32)
        np.add(across, (b * v[rows]).astype(np.float32)[:, None], out=depth)
        # Outlines cover half a pixel more than the facet; seen edge-on, its plane runs away there.
        np.minimum(depth, nearest, out=depth)
        np.greater(depth, inverse[rows, cols], out=closer)
        np.logical_and(closer, mask, out=closer)
        if share < 255:
            np.logical_and(closer, grain[rows, cols] < share, out=closer)
        np.copyto(inverse[rows, cols], depth, where=closer)
        np.copyto(facet[rows, cols], row, where=closer)
    return Drawing(facet, inverse)


def _outlines(facets: Facets, pose: Pose, max_range_m: float) -> _Outlines:
    """Project what faces the camera and may be seen."""
    R, eye = pose.T_world_camera[:3, :3], pose.T_world_camera[:3, 3]
    middle = facets.corners.mean(axis=1) - eye
    distance = np.linalg.norm(middle, axis=1)
    front = (middle * facets.normals).sum(axis=1) < 0
    rows = np.nonzero((front | facets.two_sided) & (distance < max_range_m))[0]
    local = (facets.corners[rows] - eye) @ R
    rows, local = _within_view(rows, local, pose)
    normals = facets.normals[rows] @ R
    constant = (normals * local.mean(axis=1)).sum(axis=1)
    flat = np.abs(constant) > 1e-12 * np.linalg.norm(normals, axis=1)
    rows, local, normals, constant = rows[flat], local[flat], normals[flat], constant[flat]
    planes = (normals @ np.linalg.inv(pose.K)) / constant[:, None]
    pixels = _projected(local, pose)
    return _sorted_boxes(rows, pixels, planes, local[..., 2].min(axis=1), pose)


def _within_view(rows: np.ndarray, local: np.ndarray, pose: Pose) -> tuple[np.ndarray, np.ndarray]:
    """Drop facets that are outside of one plane of the view with all of their corners."""
    outside = np.zeros(len(rows), bool)
    for plane in _view_planes(pose, 0.0):
        outside |= (local @ plane[:3] + plane[3] < 0).all(axis=1)
    return rows[~outside], local[~outside]


def _view_planes(pose: Pose, margin_px: float) -> np.ndarray:
    """Return planes (5, 4) of the view in camera axes: inside where n x + d >= 0."""
    K, (width, height) = pose.K, pose.size_wh
    x0, x1 = (-margin_px - K[0, 2]) / K[0, 0], (width + margin_px - K[0, 2]) / K[0, 0]
    y0, y1 = (-margin_px - K[1, 2]) / K[1, 1], (height + margin_px - K[1, 2]) / K[1, 1]
    sides = [(1, 0, -x0, 0), (-1, 0, x1, 0), (0, 1, -y0, 0), (0, -1, y1, 0)]
    return np.array([(0, 0, 1, -NEAR_M), *sides], np.float64)


def _projected(local: np.ndarray, pose: Pose) -> np.ndarray:
    """Return pixels (P, C, 2) of facets in camera axes, those that reach far out clipped."""
    points = np.concatenate([local, np.repeat(local[:, -1:], _MAX_CORNERS - 4, axis=1)], axis=1)
    planes = _view_planes(pose, _GUARD_PX)
    sides = local @ planes[:, :3].T + planes[:, 3]
    for k in np.nonzero((sides < 0).any(axis=(1, 2)))[0]:
        clipped = _clip(local[k], planes)
        points[k] = clipped[np.minimum(np.arange(_MAX_CORNERS), len(clipped) - 1)]
    focal, centre = (pose.K[0, 0], pose.K[1, 1]), pose.K[:2, 2]
    return points[..., :2] / np.maximum(points[..., 2:], NEAR_M) * focal + centre


def _clip(polygon: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Return the part (C, 3) of a convex polygon inside planes; a point where nothing is left.

    Source: I. Sutherland, G. Hodgman, Reentrant Polygon Clipping, 1974.
    """
    for plane in planes:
        side = polygon @ plane[:3] + plane[3]
        if (side >= 0).all():
            continue
        if (side < 0).all():
            return np.array([[0.0, 0.0, -1.0]])
        kept = []
        for k in range(len(polygon)):
            here, before = side[k], side[k - 1]
            if (here >= 0) != (before >= 0):
                share = before / (before - here)
                kept.append(polygon[k - 1] + share * (polygon[k] - polygon[k - 1]))
            if here >= 0:
                kept.append(polygon[k])
        polygon = np.array(kept)
    return polygon


def _sorted_boxes(
    rows: np.ndarray, pixels: np.ndarray, planes: np.ndarray, nearest: np.ndarray, pose: Pose
) -> _Outlines:
    """Return outlines in fixed point with their boxes, the nearest first, without specks."""
    width, height = pose.size_wh
    low, high = pixels.min(axis=1), pixels.max(axis=1)
    first = np.maximum(np.floor(low), 0).astype(np.int64)
    last = np.minimum(np.ceil(high) + 1, (width, height)).astype(np.int64)
    seen = (last > first).all(axis=1) & ((high - low).max(axis=1) > _FINEST_PX)
    order = np.nonzero(seen)[0]
    order = order[np.argsort(nearest[order], kind="stable")]
    first, last = first[order], last[order]
    points = np.round((pixels[order] - first[:, None]) * (1 << _SHIFT)).astype(np.int32)
    boxes = np.concatenate([first, last], axis=1)
    inverse = 1.0 / np.maximum(nearest[order], NEAR_M)
    return _Outlines(rows[order], points, boxes, planes[order], inverse)
