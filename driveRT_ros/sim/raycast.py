"""Exact first hits of many rays on many convex bodies, vectorised over ray-body pairs.

Rays come in columns (all beams fired at one azimuth from one point). Only the pairs that may meet
(:mod:`driveRT_ros.sim.pairs`) are intersected, in the body's own frame where it is a unit box,
cylinder or sphere; near bodies come first, and hide others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.pairs import Groups, Rays, Shapes, candidates, ragged
from driveRT_ros.sim.solids import BOX, CYLINDER, ELLIPSOID, FOLIAGE, WEDGE

_TINY = 1e-12
_SHELLS_M = (14.0, 32.0)
"""Distances between which bodies are met together; what lies nearer hides what lies farther."""


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
        rng: Decides which rays pass through fences and how deep they enter leaves; it draws once
            for every pair that may meet, hidden or not.
    """
    columns, beams = rays.shape
    range_m = np.full(columns * beams, np.inf)
    shapes = Shapes.of(bodies)
    groups, total = candidates(rays, shapes, max_range_m)
    luck = rng.random(total)
    shell = np.searchsorted(_SHELLS_M, groups.near, "right")
    groups = groups.take(
        np.argsort(shell * len(_INTERVALS) + shapes.kind[groups.which], kind="stable")
    )
    ends = np.searchsorted(np.sort(shell), np.arange(len(_SHELLS_M) + 2)).tolist()
    found = []
    for begin, end in zip(ends, ends[1:]):
        if begin < end:
            some = groups.take(slice(begin, end))
            ray, pair, which, enter = _enter(rays, shapes, some, luck, range_m)
            met = np.nonzero(enter < max_range_m)[0]
            ray, enter = ray[met], enter[met]
            np.minimum.at(range_m, ray, enter)
            found.append((ray, pair[met], which[met], enter))
    body = np.full(columns * beams, -1, np.int64)
    if found:
        ray, pair, which, enter = (np.concatenate(part) for part in zip(*found))
        # Of several bodies at the same range the last pair's counts.
        first = np.nonzero(enter == range_m[ray])[0]
        first = first[np.argsort(pair[first])]
        body[ray[first]] = which[first]
    return Hits(range_m, body)


def _enter(rays: Rays, shapes: Shapes, groups: Groups, luck, range_m):
    """Intersect groups with their bodies.

    Args:
        rays: The rays.
        shapes: The bodies.
        groups: Pairs, by kind of body.
        luck: Random number of each pair.
        range_m: (R,) metres beyond which nothing is seen of a body.

    Returns:
        Ray, number and body of each pair (P,), and the range at which it meets, inf where it does
        not.
    """
    group, step = ragged(groups.count)
    ray = (groups.column * rays.shape[1] + groups.begin).take(group) + step
    open_ = np.nonzero(range_m.take(ray) >= groups.near.take(group))[0]
    group, ray, step = group[open_], ray[open_], step[open_]
    pair = groups.pair.take(group) + step
    origin, direction = _own_frame(rays, shapes, groups.column, groups.which, ray, group)
    kinds = shapes.kind[groups.which]
    ends = np.searchsorted(group, np.searchsorted(kinds, np.arange(len(_INTERVALS) + 1)))
    enter = np.empty(len(ray))
    for code, (begin, end) in enumerate(zip(ends.tolist(), ends[1:].tolist())):
        if begin < end:
            part = slice(begin, end)
            which = groups.which.take(group[part])
            t0, t1 = _INTERVALS[code](origin[:, part], direction[:, part], shapes.taper, which)
            enter[part] = _stopped(code, t0, t1, shapes.fill.take(which), luck.take(pair[part]))
    return ray, pair, groups.which.take(group), enter


def _stopped(code: int, t0, t1, fill, luck) -> np.ndarray:
    """Return where rays (P,) that are inside a body from t0 to t1 are stopped, inf where not."""
    if code == FOLIAGE:
        t = np.maximum(t0, 0.0) - np.log1p(-luck) / np.maximum(fill, 1e-9)
        return np.where((t1 > t) & (t1 > t0), t, np.inf)
    return np.where((t1 > t0) & (t0 > 0.0) & (luck < fill), t0, np.inf)


def _own_frame(rays, shapes, column, which, ray, group):
    """Return origins and directions (3, P) of pairs where the body spans [-1, 1].

    Args:
        rays: The rays.
        shapes: The bodies.
        column, which: (G,) column and body of each group.
        ray, group: (P,) ray and group of each pair.
    """
    ox, oy, oz = rays.origins[column].T - shapes.centre.take(which, axis=1)
    dx, dy, dz = rays.axes.take(ray, axis=1)
    cos, sin, half = shapes.cos.take(which), shapes.sin.take(which), shapes.half.take(which, axis=1)
    origin = np.stack([cos * ox + sin * oy, cos * oy - sin * ox, oz]) / half
    cos, sin, half = cos.take(group), sin.take(group), half.take(group, axis=1)
    direction = np.stack([cos * dx + sin * dy, cos * dy - sin * dx, dz]) / half
    return origin.take(group, axis=1), direction


def _slab(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inverse = 1.0 / np.where(np.abs(d) < _TINY, _TINY, d)
    a, b = (-1.0 - o) * inverse, (1.0 - o) * inverse
    return np.minimum(a, b), np.maximum(a, b)


def _box(o, d, taper, which):
    t0, t1 = _slab(o, d)
    return t0.max(0), t1.min(0)


def _wedge(o, d, taper, which):
    t0, t1 = _slab(o[2], d[2])
    for axis in (0, 1):
        lean = taper[axis].take(which) / 2.0  # |x| <= 1 - lean (z + 1)
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


def _cylinder(o, d, taper, which):
    t0, t1 = _quadratic(o[:2], d[:2])
    z0, z1 = _slab(o[2], d[2])
    return np.maximum(t0, z0), np.minimum(t1, z1)


def _ellipsoid(o, d, taper, which):
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
    shapes = Shapes.of(bodies)
    own = np.arange(len(ray))
    o, d = _own_frame(rays, shapes, ray // rays.shape[1], which, ray, own)
    at = o + range_m * d
    kind, half = shapes.kind[which], shapes.half.take(which, axis=1)
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
