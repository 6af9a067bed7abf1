"""Exact first hits of many rays on many convex bodies, vectorised over ray-body pairs.

Rays come in columns (all beams fired at one azimuth from one point). A body meets few columns
and few beams of each, so pairs are found first, by a circle around the body in plan and by its
height in elevation; only the pairs are intersected, in the body's own frame where it is a unit
box, cylinder or sphere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.solids import BOX, CYLINDER, ELLIPSOID, FOLIAGE, WEDGE

_TINY = 1e-12


@dataclass(frozen=True)
class Rays:
    """Rays by column and beam.

    Args:
        origins: (W, 3) float64 world position of the sensor at each column.
        directions: (W, B, 3) float64 world unit vectors; beams from low to high.
    """

    origins: np.ndarray
    directions: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Columns and beams."""
        return self.directions.shape[:2]


@dataclass(frozen=True)
class Hits:
    """First hit of every ray, rays flattened as column * beams + beam.

    Args:
        range_m: (R,) float64 metres, inf where nothing was hit.
        body: (R,) int64 row of the body, -1 where nothing was hit.
    """

    range_m: np.ndarray
    body: np.ndarray


def cast(rays: Rays, bodies: np.ndarray, max_range_m: float, rng: np.random.Generator) -> Hits:
    """Return the first body that each ray hits.

    Args:
        rays: The rays.
        bodies: (N,) ``SOLID`` in world coordinates.
        max_range_m: Hits beyond are none.
        rng: Decides which rays pass through fences and how deep they enter leaves.
    """
    columns, beams = rays.shape
    range_m = np.full(columns * beams, np.inf)
    body = np.full(columns * beams, -1, np.int64)
    ray, which = candidate_pairs(rays, bodies, max_range_m)
    if len(ray):
        enter = _enter(rays, bodies, ray, which, rng)
        keep = np.nonzero(enter < max_range_m)[0]
        keep = keep[np.argsort(-enter[keep], kind="stable")]  # nearest last: it is what stays
        range_m[ray[keep]], body[ray[keep]] = enter[keep], which[keep]
    return Hits(range_m, body)


def candidate_pairs(
    rays: Rays, bodies: np.ndarray, max_range_m: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return flat ray and body indices of all pairs that may meet; none that meet is left out."""
    columns, beams = rays.shape
    middle = rays.directions[:, beams // 2, :2]
    ux, uy = (middle / np.linalg.norm(middle, axis=1, keepdims=True)).T
    radius = np.hypot(bodies["half"][:, 0], bodies["half"][:, 1])
    near = np.linalg.norm(bodies["centre"][:, :2] - rays.origins[:, :2].mean(0), axis=1)
    rows = np.nonzero(near - radius < max_range_m)[0]
    centre, radius = bodies["centre"][rows], radius[rows]
    dx = centre[:, 0, None] - rays.origins[None, :, 0]
    dy = centre[:, 1, None] - rays.origins[None, :, 1]
    along = dx * ux + dy * uy
    # A tilted sensor bends a column by a little: the worst beam's turn from the middle one.
    bend = _largest_turn(rays, ux, uy)
    reach = radius[:, None] + bend * np.hypot(dx, dy)
    which, column = np.nonzero((np.abs(dx * uy - dy * ux) <= reach) & (along >= -reach))
    # Elevation: the body's top and floor against the slope of the beams of that column.
    rise = rays.directions[..., 2] / np.linalg.norm(rays.directions[..., :2], axis=2)
    distance = np.hypot(dx[which, column], dy[which, column])
    first = np.maximum(distance - radius[which], 1e-2)
    last = distance + radius[which]
    up = centre[which, 2] + bodies["half"][rows[which], 2] - rays.origins[column, 2]
    low = centre[which, 2] - bodies["half"][rows[which], 2] - rays.origins[column, 2]
    slope_high = np.maximum(up / first, up / last)
    slope_low = np.minimum(low / first, low / last)
    begin = (rise[column] < slope_low[:, None]).sum(1)
    count = np.maximum((rise[column] <= slope_high[:, None]).sum(1) - begin, 0)
    pair = np.repeat(np.arange(len(which)), count)
    beam = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count) + begin[pair]
    return column[pair] * beams + beam, rows[which[pair]]


def _largest_turn(rays: Rays, ux: np.ndarray, uy: np.ndarray) -> float:
    flat = rays.directions[..., :2]
    across = flat[..., 0] * uy[:, None] - flat[..., 1] * ux[:, None]
    return float(np.max(np.abs(across) / np.linalg.norm(flat, axis=2))) + 1e-9


def _own_frame(rays: Rays, bodies: np.ndarray, ray: np.ndarray, which: np.ndarray):
    """Return origins and directions (3, P) of the pairs where the body spans [-1, 1]."""
    part = bodies[which]
    origin = rays.origins[ray // rays.shape[1]] - part["centre"]
    direction = rays.directions.reshape(-1, 3)[ray]
    cos, sin, half = part["cos"], part["sin"], part["half"].T

    def turn(v: np.ndarray) -> np.ndarray:
        return np.stack([cos * v[:, 0] + sin * v[:, 1], cos * v[:, 1] - sin * v[:, 0], v[:, 2]])

    return turn(origin) / half, turn(direction) / half


def _enter(rays, bodies, ray, which, rng) -> np.ndarray:
    """Return the range (P,) at which each pair meets, inf where it does not."""
    enter = np.full(len(ray), np.inf)
    kind = bodies["kind"][which]
    luck = rng.random(len(ray))
    for code, interval in _INTERVALS.items():
        rows = np.nonzero(kind == code)[0]
        if len(rows) == 0:
            continue
        o, d = _own_frame(rays, bodies, ray[rows], which[rows])
        t0, t1 = interval(o, d, bodies["taper"][which[rows]].T)
        fill = bodies["fill"][which[rows]]
        if code == FOLIAGE:
            t = np.maximum(t0, 0.0) - np.log1p(-luck[rows]) / np.maximum(fill, 1e-9)
            hit = (t1 > t) & (t1 > t0)
        else:
            t, hit = t0, (t1 > t0) & (t0 > 0.0) & (luck[rows] < fill)
        enter[rows] = np.where(hit, t, np.inf)
    return enter


def _slab(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inverse = 1.0 / np.where(np.abs(d) < _TINY, _TINY, d)
    a, b = (-1.0 - o) * inverse, (1.0 - o) * inverse
    return np.minimum(a, b), np.maximum(a, b)


def _box(o, d, taper):
    t0, t1 = _slab(o, d)
    return t0.max(0), t1.min(0)


def _wedge(o, d, taper):
    t0, t1 = _slab(o[2], d[2])
    for axis in (0, 1):
        lean = taper[axis] / 2.0  # |x| <= 1 - lean (z + 1)
        for sign in (-1.0, 1.0):
            speed = sign * d[axis] + lean * d[2]
            room = 1.0 - lean - (sign * o[axis] + lean * o[2])
            t = room / np.where(np.abs(speed) < _TINY, _TINY, speed)
            t0 = np.where(speed < 0, np.maximum(t0, t), t0)
            t1 = np.where(speed >= 0, np.minimum(t1, t), t1)
    return t0, t1


def _quadratic(o, d) -> tuple[np.ndarray, np.ndarray]:
    """Return where rays enter and leave the unit ball of as many dimensions as there are rows."""
    a = np.maximum((d * d).sum(0), _TINY)
    b = (o * d).sum(0)
    discriminant = b * b - a * ((o * o).sum(0) - 1.0)
    root = np.sqrt(np.maximum(discriminant, 0.0))
    missed = discriminant <= 0.0
    return np.where(missed, np.inf, (-b - root) / a), np.where(missed, -np.inf, (-b + root) / a)


def _cylinder(o, d, taper):
    t0, t1 = _quadratic(o[:2], d[:2])
    z0, z1 = _slab(o[2], d[2])
    return np.maximum(t0, z0), np.minimum(t1, z1)


def _ellipsoid(o, d, taper):
    return _quadratic(o, d)


_INTERVALS = {
    BOX: _box,
    WEDGE: _wedge,
    CYLINDER: _cylinder,
    ELLIPSOID: _ellipsoid,
    FOLIAGE: _ellipsoid,
}


def cosines(
    rays: Rays, bodies: np.ndarray, ray: np.ndarray, which: np.ndarray, range_m: np.ndarray
) -> np.ndarray:
    """Return |cos| of the angle between each ray and the surface it hit, (P,) in 0..1.

    Args:
        rays: The rays.
        bodies: (N,) ``SOLID``.
        ray: (P,) flat ray index.
        which: (P,) body hit.
        range_m: (P,) range of the hit.
    """
    o, d = _own_frame(rays, bodies, ray, which)
    at = o + range_m * d
    kind, half = bodies["kind"][which], bodies["half"][which].T
    flat = np.abs(at) == np.abs(at).max(0)
    flat = np.where(kind == CYLINDER, np.abs(at[2]) > 0.999, flat)
    normal = np.where(flat, np.sign(at), 0.0)
    side = (kind == CYLINDER) & ~flat[2]
    normal[:2] = np.where(side, at[:2], normal[:2])
    normal[2] = np.where(side, 0.0, normal[2])
    normal = np.where((kind == ELLIPSOID) | (kind == FOLIAGE), at, normal) / half
    length = np.linalg.norm(normal, axis=0) * np.linalg.norm(d * half, axis=0)
    cosine = np.abs((normal * (d * half)).sum(0)) / np.maximum(length, _TINY)
    return np.where(kind == FOLIAGE, 0.7, np.minimum(cosine, 1.0))
