"""First hits in the plain way: every pair that may meet is intersected, every ray marched.

:mod:`driveRT_ros.sim` leaves out what cannot be seen and gives the same bytes. These functions
say what those bytes are: one random number belongs to each candidate pair, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.pairs import Rays
from driveRT_ros.sim.raycast import _INTERVALS, Hits
from driveRT_ros.sim.solids import FOLIAGE


def plain_cast(
    rays: Rays, bodies: np.ndarray, max_range_m: float, rng: np.random.Generator
) -> Hits:
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
        enter = enter_all(rays, bodies, ray, which, rng)
        keep = np.nonzero(enter < max_range_m)[0]
        keep = keep[np.argsort(-enter[keep], kind="stable")]  # nearest last: it is what stays
        range_m[ray[keep]], body[ray[keep]] = enter[keep], which[keep]
    return Hits(range_m, body)


def candidate_pairs(
    rays: Rays, bodies: np.ndarray, max_range_m: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return flat ray and body indices of all pairs that may meet; none that meet is left out."""
    beams = rays.shape[1]
    radius = np.hypot(bodies["half"][:, 0], bodies["half"][:, 1])
    away = np.linalg.norm(bodies["centre"][:, :2] - rays.origins[:, :2].mean(0), axis=1)
    rows = np.nonzero(away - radius < max_range_m)[0]
    fan = _Fan.of(rays)
    column, which = fan.columns_towards(bodies["centre"][rows], radius[rows])
    begin, count = fan.beams_between(column, bodies[rows], radius[rows], which)
    pair, step = _ragged(count)
    return column[pair] * beams + begin[pair] + step, rows[which[pair]]


def _ragged(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return group and place in the group of the members of groups of ``count`` members each."""
    group = np.repeat(np.arange(len(count)), count)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)


@dataclass(frozen=True)
class _Fan:
    """Columns by bearing and beams by elevation, with bounds on how a tilt bends both.

    Args:
        rays: The rays.
        middle: (2,) mean position of the sensor.
        travel: Farthest that a column starts from it.
        flat: (2, W) horizontal unit vector of each column.
        turned: (W,) radians turned clockwise since the first column, growing.
        first: Bearing of the first column.
        bend: Largest |sin| of the angle in plan between a beam and its column.
        elevation: (B,) mean elevation of each beam, growing.
        lift_low, lift_high: (W,) bounds of a column's elevations against those means.
    """

    rays: Rays
    middle: np.ndarray
    travel: float
    flat: np.ndarray
    turned: np.ndarray
    first: float
    bend: float
    elevation: np.ndarray
    lift_low: np.ndarray
    lift_high: np.ndarray

    @staticmethod
    def of(rays: Rays) -> _Fan:
        plan = rays.directions[..., :2]
        length = np.linalg.norm(plan, axis=2)
        flat = plan[:, rays.shape[1] // 2] / length[:, rays.shape[1] // 2, None]
        across = plan[..., 0] * flat[:, None, 1] - plan[..., 1] * flat[:, None, 0]
        bearing = np.unwrap(np.arctan2(flat[:, 1], flat[:, 0]))
        elevation = np.arctan2(rays.directions[..., 2], length)
        mean = elevation.mean(0)
        middle = rays.origins[:, :2].mean(0)
        return _Fan(
            rays=rays,
            middle=middle,
            travel=float(np.linalg.norm(rays.origins[:, :2] - middle, axis=1).max()),
            flat=flat.T,
            turned=np.maximum.accumulate(bearing[0] - bearing),
            first=float(bearing[0]),
            bend=float(np.max(np.abs(across) / length)) + 1e-9,
            elevation=mean,
            lift_low=(elevation - mean).min(1) - 1e-9,
            lift_high=(elevation - mean).max(1) + 1e-9,
        )

    def columns_towards(
        self, centre: np.ndarray, radius: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return columns and bodies (P,) where a column may touch a body's circle in plan."""
        towards = centre[:, :2] - self.middle
        distance = np.linalg.norm(towards, axis=1)
        sine = (radius + self.travel) / np.maximum(distance, 1e-9)
        # asin grows faster than its argument near 1: close bodies are given every column
        half = np.where(sine < 0.95, np.arcsin(np.minimum(sine, 0.95)), np.pi)
        half = np.minimum(half + np.arcsin(min(self.bend, 1.0)) + 0.02, np.pi)
        angle = np.mod(self.first - np.arctan2(towards[:, 1], towards[:, 0]), 2.0 * np.pi)
        starts, counts = [], []
        for turns in (-1, 0, 1):
            low = angle + 2.0 * np.pi * turns - half
            high = np.where(half >= np.pi, low + 2.0 * np.pi - 1e-12, low + 2.0 * half)
            begin = np.searchsorted(self.turned, low, "left")
            end = np.searchsorted(self.turned, high, "right")
            starts.append(begin)
            counts.append(np.maximum(end - begin, 0))
        group, step = _ragged(np.concatenate(counts))
        column = np.concatenate(starts)[group] + step
        which = group % len(centre)
        ux, uy = self.flat[:, column]
        dx, dy = (centre[which, :2] - self.rays.origins[column, :2]).T
        reach = radius[which] + self.bend * np.hypot(dx, dy)
        keep = (np.abs(dx * uy - dy * ux) <= reach) & (dx * ux + dy * uy >= -reach)
        return column[keep], which[keep]

    def beams_between(
        self, column: np.ndarray, bodies: np.ndarray, radius: np.ndarray, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first beam, and how many, that may pass between a body's floor and top."""
        centre, half = bodies["centre"][which], bodies["half"][which, 2]
        origin = self.rays.origins[column]
        distance = np.hypot(centre[:, 0] - origin[:, 0], centre[:, 1] - origin[:, 1])
        near = np.maximum(distance - radius[which], 1e-2)
        far = distance + radius[which]
        top = centre[:, 2] + half - origin[:, 2]
        floor = centre[:, 2] - half - origin[:, 2]
        high = np.arctan(np.maximum(top / near, top / far)) - self.lift_low[column]
        low = np.arctan(np.minimum(floor / near, floor / far)) - self.lift_high[column]
        begin = np.searchsorted(self.elevation, low, "left")
        return begin, np.maximum(np.searchsorted(self.elevation, high, "right") - begin, 0)


def _own_frame(rays: Rays, bodies: np.ndarray, ray: np.ndarray, which: np.ndarray):
    """Return origins and directions (3, P) of the pairs where the body spans [-1, 1]."""
    part = bodies[which]
    origin = rays.origins[ray // rays.shape[1]] - part["centre"]
    direction = rays.directions.reshape(-1, 3)[ray]
    cos, sin, half = part["cos"], part["sin"], part["half"].T

    def turn(v: np.ndarray) -> np.ndarray:
        return np.stack([cos * v[:, 0] + sin * v[:, 1], cos * v[:, 1] - sin * v[:, 0], v[:, 2]])

    return turn(origin) / half, turn(direction) / half


def enter_all(rays, bodies, ray, which, rng) -> np.ndarray:
    """Return the range (P,) at which each pair meets, inf where it does not."""
    enter = np.full(len(ray), np.inf)
    kind = bodies["kind"][which]
    luck = rng.random(len(ray))
    for code, interval in _INTERVALS.items():
        rows = np.nonzero(kind == code)[0]
        if len(rows) == 0:
            continue
        o, d = _own_frame(rays, bodies, ray[rows], which[rows])
        t0, t1 = interval(o, d, bodies["taper"].T, which[rows])
        fill = bodies["fill"][which[rows]]
        if code == FOLIAGE:
            t = np.maximum(t0, 0.0) - np.log1p(-luck[rows]) / np.maximum(fill, 1e-9)
            hit = (t1 > t) & (t1 > t0)
        else:
            t, hit = t0, (t1 > t0) & (t0 > 0.0) & (luck[rows] < fill)
        enter[rows] = np.where(hit, t, np.inf)
    return enter
