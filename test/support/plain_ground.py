"""First hits on the ground in the plain way: every ray is followed, and marched at every sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from driveRT_ros.sim.ground import GroundHits
from driveRT_ros.sim.materials import INDEX
from driveRT_ros.sim.pairs import Rays
from driveRT_ros.sim.road import Road

_FLAT = 0.09
_SAMPLES = 30


def plain_ground(
    rays: Rays,
    road: Road,
    s_ego: float,
    surface: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    max_range_m: float,
    nearest_m: np.ndarray | None = None,
) -> GroundHits:
    """Return where each ray meets the ground.

    The pavement is the same terrain lifted by the kerb. A ray is followed to both heights: if it
    is above pavement where it meets the lifted one it ends there; if it meets the lifted one over
    the road and the low one inside the pavement, it has met the face of the kerb.

    Args:
        rays: The rays.
        road: Terrain and cross-section.
        s_ego: Road coordinate near which everything lies.
        surface: (s, d) -> lift in metres and material index of the ground at road coordinates.
        max_range_m: Hits beyond are none.
        nearest_m: Not asked for.
    """
    columns, beams = rays.shape
    origin = np.repeat(rays.origins, beams, axis=0)
    direction = rays.directions.reshape(-1, 3)
    range_m = np.full(columns * beams, np.inf)
    material = np.zeros(columns * beams, np.int8)
    cosine = np.ones(columns * beams)
    low = _meet(road, origin, direction, max_range_m)
    rows = np.nonzero(low < max_range_m)[0]
    origin, direction, low = origin[rows], direction[rows], low[rows]
    t, kind, kerb = _with_kerb(road, s_ego, surface, origin, direction, low)
    at = origin + t[:, None] * direction
    gx, gy = road.gradient(at[:, 0], at[:, 1])
    steep = gx * direction[:, 0] + gy * direction[:, 1] - direction[:, 2]
    range_m[rows], material[rows] = t, kind
    cosine[rows] = np.where(kerb, 0.7, np.clip(np.abs(steep), 0.0, 1.0))
    return GroundHits(range_m, material, cosine)


def _with_kerb(road, s_ego, surface, origin, direction, low):
    lift = road.config.kerb_height_m
    high = _newton(road, origin, direction, low, lift, 2)
    high = np.clip(np.where(np.isfinite(high), high, low), 0.0, low)
    s_low, d_low = _road_coordinates(road, s_ego, origin + low[:, None] * direction)
    s_high, d_high = _road_coordinates(road, s_ego, origin + high[:, None] * direction)
    lift_low, kind_low = surface(s_low, d_low)
    lift_high, kind_high = surface(s_high, d_high)
    on_top = lift_high > 0.0
    kerb = ~on_top & (lift_low > 0.0)
    edge = np.sign(d_low) * road.kerb_m
    span = np.where(np.abs(d_low - d_high) < 1e-9, 1.0, d_low - d_high)
    at_kerb = high + np.clip((edge - d_high) / span, 0.0, 1.0) * (low - high)
    t = np.where(on_top, high, np.where(kerb, at_kerb, low))
    kind = np.where(on_top, kind_high, np.where(kerb, INDEX["concrete"], kind_low))
    return t, kind, kerb


def _road_coordinates(road: Road, s_ego: float, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return road.locate(at[:, 0], at[:, 1], s_ego)


def _newton(road, origin, direction, t, lift, steps):
    """Refine ranges at which rays meet the terrain raised by ``lift``."""
    for _ in range(steps):
        at = origin + t[:, None] * direction
        gx, gy = road.gradient(at[:, 0], at[:, 1])
        above = at[:, 2] - road.height(at[:, 0], at[:, 1]) - lift
        closing = gx * direction[:, 0] + gy * direction[:, 1] - direction[:, 2]
        t = t + above / np.where(closing < 1e-3, np.inf, closing)
    return t


def _meet(road: Road, origin: np.ndarray, direction: np.ndarray, max_range_m: float) -> np.ndarray:
    """Return ranges (R,) to the terrain: Newton for steep rays, marching first for flat ones."""
    range_m = np.full(len(origin), np.inf)
    slope = direction[:, 2] / np.linalg.norm(direction[:, :2], axis=1)
    steep = np.nonzero(slope <= -_FLAT)[0]
    o, d = origin[steep], direction[steep]
    start = (o[:, 2] - road.height(o[:, 0], o[:, 1])) / -d[:, 2]
    range_m[steep] = _newton(road, o, d, start, 0.0, 4)
    flat = np.nonzero((slope > -_FLAT) & (slope < road.config.max_slope))[0]
    if len(flat) and max_range_m > 8.0:
        range_m[flat] = _march(road, origin[flat], direction[flat], max_range_m)
    return np.where(range_m < max_range_m, range_m, np.inf)


def _march(road: Road, o: np.ndarray, d: np.ndarray, max_range_m: float) -> np.ndarray:
    t = np.geomspace(8.0, max_range_m, _SAMPLES)
    at = o[:, None, :] + t[None, :, None] * d[:, None, :]
    above = at[..., 2] - road.height(at[..., 0], at[..., 1])
    below = above <= 0.0
    first = below.argmax(1)
    met = below.any(1) & (first > 0)
    rows = np.nonzero(met)[0]
    k = first[rows]
    before, after = above[rows, k - 1], above[rows, k]
    start = t[k - 1] + (t[k] - t[k - 1]) * before / (before - after)
    out = np.full(len(o), np.inf)
    refined = _newton(road, o[rows], d[rows], start, 0.0, 2)
    out[rows] = np.clip(refined, t[k - 1], t[k])
    return out
