"""First hits on the ground: road, kerb, pavement and verge on gentle terrain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.materials import INDEX
from driveRT_ros.sim.pairs import Rays
from driveRT_ros.sim.road import Road

_FLAT = 0.09  # slopes of rays between which terrain may be met twice, or not at all
_SAMPLES = 30
_SURE_M = 0.02  # more than Newton's method is off by for steep rays
_TINY_M = 1e-6


@dataclass(frozen=True)
class GroundHits:
    """Hits of all rays on the ground, rays flattened as column * beams + beam.

    Args:
        range_m: (R,) float64, inf where the ground is not met.
        material: (R,) int8 index into the materials; meaningless without a hit.
        cosine: (R,) |cos| of incidence.
    """

    range_m: np.ndarray
    material: np.ndarray
    cosine: np.ndarray


@dataclass(frozen=True)
class _Beams:
    """Some rays: origins and directions (3, N) by axis, and horizontal lengths (N,) of these."""

    origin: np.ndarray
    direction: np.ndarray
    length: np.ndarray

    @staticmethod
    def of(rays: Rays) -> _Beams:
        dx, dy, _ = rays.axes
        origin = np.repeat(rays.origins.T, rays.shape[1], axis=1)
        return _Beams(origin, rays.axes, np.sqrt(dx * dx + dy * dy))

    def take(self, rows: np.ndarray) -> _Beams:
        """Return the beams in these rows."""
        origin, direction = self.origin.take(rows, axis=1), self.direction.take(rows, axis=1)
        return _Beams(origin, direction, self.length[rows])

    def at(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return x, y and z at ranges (N,)."""
        x, y, z = (o + t * d for o, d in zip(self.origin, self.direction))
        return x, y, z

    def closing(self, gx: np.ndarray, gy: np.ndarray) -> np.ndarray:
        """Return how much closer to ground of this gradient a metre of range brings (N,)."""
        dx, dy, dz = self.direction
        return gx * dx + gy * dy - dz


def cast_ground(
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
        nearest_m: (R,) range of what each ray meets first beside the ground, inf where nothing:
            many rays that end there need not be followed to the ground, which is given as not met.
    """
    every = _Beams.of(rays)
    count = len(every.length)
    range_m = np.full(count, np.inf)
    material = np.zeros(count, np.int8)
    cosine = np.ones(count)
    above = rays.origins[:, 2] - road.height(rays.origins[:, 0], rays.origins[:, 1])
    above = np.repeat(above, rays.shape[1])
    low = _meet(road, every, above, max_range_m, nearest_m)
    rows = np.nonzero(low < max_range_m)[0]
    beams = every.take(rows)
    t, kind, kerb = _with_kerb(road, s_ego, surface, beams, low[rows])
    x, y, _ = beams.at(t)
    steep = beams.closing(*road.gradient(x, y))
    range_m[rows], material[rows] = t, kind
    cosine[rows] = np.where(kerb, 0.7, np.clip(np.abs(steep), 0.0, 1.0))
    return GroundHits(range_m, material, cosine)


def _with_kerb(road, s_ego, surface, beams: _Beams, low):
    """Return range, material and whether it is the kerb's face of rays that meet the low ground."""
    t, kerb = low.copy(), np.zeros(len(low), bool)
    s_low, d_low = _road_coordinates(road, s_ego, beams, low)
    lift_low, kind = surface(s_low, d_low)
    # Rays that come down steeply and well inside the kerbs meet no pavement on their way.
    rows = np.nonzero(np.abs(d_low) + _reach(road, beams) >= road.kerb_m)[0]
    beams, low, d_low, lift_low = beams.take(rows), low[rows], d_low[rows], lift_low[rows]
    high = _newton(road, beams, low, road.config.kerb_height_m, 2)
    high = np.clip(np.where(np.isfinite(high), high, low), 0.0, low)
    s_high, d_high = _road_coordinates(road, s_ego, beams, high)
    lift_high, kind_high = surface(s_high, d_high)
    on_top = lift_high > 0.0
    on_face = ~on_top & (lift_low > 0.0)
    edge = np.sign(d_low) * road.kerb_m
    span = np.where(np.abs(d_low - d_high) < 1e-9, 1.0, d_low - d_high)
    at_kerb = high + np.clip((edge - d_high) / span, 0.0, 1.0) * (low - high)
    t[rows] = np.where(on_top, high, np.where(on_face, at_kerb, low))
    kind[rows] = np.where(on_top, kind_high, np.where(on_face, INDEX["concrete"], kind[rows]))
    kerb[rows] = on_face
    return t, kind, kerb


def _reach(road: Road, beams: _Beams) -> np.ndarray:
    """Bound (N,) how far to the side a ray meets the lifted terrain before the low one."""
    fall = -beams.direction[2] / beams.length - road.config.max_slope
    reach = 2.0 * road.config.kerb_height_m / np.maximum(fall, 1e-9) + 0.3
    return np.where(fall > 0.03, reach, np.inf)  # else two steps of Newton's method may go anywhere


def _road_coordinates(road, s_ego, beams: _Beams, t) -> tuple[np.ndarray, np.ndarray]:
    x, y, _ = beams.at(t)
    return road.locate(x, y, s_ego)


def _newton(road: Road, beams: _Beams, t: np.ndarray, lift: float, steps: int) -> np.ndarray:
    """Refine ranges at which rays meet the terrain raised by ``lift``."""
    for _ in range(steps):
        x, y, z = beams.at(t)
        height, gx, gy = road.height_and_gradient(x, y)
        closing = beams.closing(gx, gy)
        t = t + (z - height - lift) / np.where(closing < 1e-3, np.inf, closing)
    return t


def _meet(
    road: Road,
    beams: _Beams,
    above: np.ndarray,
    max_range_m: float,
    nearest_m: np.ndarray | None,
) -> np.ndarray:
    """Return ranges (R,) to the terrain: Newton for steep rays, marching first for flat ones.

    Args:
        road: The terrain.
        beams: All rays.
        above: (R,) height of their origins above it.
        max_range_m: Hits beyond are none.
        nearest_m: (R,) range of what is met first beside the ground, or None.
    """
    range_m = np.full(len(above), np.inf)
    slope = beams.direction[2] / beams.length
    steep = np.nonzero(slope <= -_FLAT)[0]
    if nearest_m is not None:
        # The terrain lies below a plane that rises as steeply as it can.
        fall = beams.direction[2, steep] - road.config.max_slope * beams.length[steep]
        open_m = above[steep] + nearest_m[steep] * fall
        steep = steep[open_m <= road.config.kerb_height_m + _SURE_M]
    some = beams.take(steep)
    start = above[steep] / -some.direction[2]
    range_m[steep] = _newton(road, some, start, 0.0, 4)
    flat = np.nonzero((slope > -_FLAT) & (slope < road.config.max_slope))[0]
    if len(flat) and max_range_m > 8.0:
        range_m[flat] = _march(road, beams.take(flat), above[flat], max_range_m)
    return np.where(range_m < max_range_m, range_m, np.inf)


def _march(road: Road, beams: _Beams, above: np.ndarray, max_range_m: float) -> np.ndarray:
    """Return ranges of the first of a few samples that is below the terrain, refined."""
    t = np.geomspace(8.0, max_range_m, _SAMPLES)
    first = _first_below(road, beams, above, t)
    rows = np.nonzero((first > 0) & (first < _SAMPLES))[0]
    some, k = beams.take(rows), first[rows]
    before, after = (_height_above(road, some, t[sample]) for sample in (k - 1, k))
    start = t[k - 1] + (t[k] - t[k - 1]) * before / (before - after)
    out = np.full(len(above), np.inf)
    out[rows] = np.clip(_newton(road, some, start, 0.0, 2), t[k - 1], t[k])
    return out


def _first_below(road: Road, beams: _Beams, above: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return which of the ranges ``t`` is the first below the terrain, their number where none is.

    The terrain rises no more steeply than its parameter says: from a height above it a ray stays
    above it for a while, and the samples on this way are passed over.
    """
    first = np.full(len(above), len(t))
    soon = road.config.max_slope * beams.length - beams.direction[2]  # height lost in a metre
    rows = np.nonzero(soon > 0)[0]
    beams, soon = beams.take(rows), soon[rows]
    sample = np.searchsorted(t, (above[rows] - _TINY_M) / soon)
    while True:
        left = np.nonzero(sample < len(t))[0]
        if len(left) == 0:
            return first
        rows, beams, soon, sample = rows[left], beams.take(left), soon[left], sample[left]
        height = _height_above(road, beams, t[sample])
        first[rows[height <= 0.0]] = sample[height <= 0.0]
        clear = np.searchsorted(t, t[sample] + (height - _TINY_M) / soon)
        sample = np.where(height <= 0.0, len(t), np.maximum(clear, sample + 1))


def _height_above(road: Road, beams: _Beams, t: np.ndarray) -> np.ndarray:
    x, y, z = beams.at(t)
    return z - road.height(x, y)
