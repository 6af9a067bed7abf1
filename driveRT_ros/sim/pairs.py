"""Which columns of rays may meet which bodies, and in which of their beams.

A body meets few columns and few beams of each, so pairs are found first, by a circle around the
body in plan and by its height in elevation. One random number belongs to each of these pairs;
fewer are intersected: those that a box around the body leaves, see :func:`narrowed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

_PARALLEL = 1e-12
_WORTH_IT = 3  # beams of a group that is looked at twice


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

    @cached_property
    def axes(self) -> np.ndarray:
        """(3, R) x, y and z of the directions, rays flattened as column * beams + beam."""
        return np.ascontiguousarray(self.directions.reshape(-1, 3).T)


@dataclass(frozen=True)
class Shapes:
    """Bodies by parameter: (N,) or (K, N) arrays of what ``SOLID`` holds body by body."""

    centre: np.ndarray
    half: np.ndarray
    taper: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    fill: np.ndarray
    kind: np.ndarray

    @staticmethod
    def of(bodies: np.ndarray) -> Shapes:
        """Return the shapes of (N,) ``SOLID``."""
        names = ("centre", "half", "taper", "cos", "sin", "fill", "kind")
        return Shapes(*(np.ascontiguousarray(bodies[name].T) for name in names))


@dataclass(frozen=True)
class Groups:
    """Neighbouring beams of one column that may meet one body, group by group.

    Args:
        column: (G,) their column.
        which: (G,) row of the body.
        begin: (G,) lowest beam.
        count: (G,) beams.
        pair: (G,) number of the pair of the lowest beam and the body.
        near: (G,) least range in metres at which they meet.
    """

    column: np.ndarray
    which: np.ndarray
    begin: np.ndarray
    count: np.ndarray
    pair: np.ndarray
    near: np.ndarray

    def take(self, rows: np.ndarray) -> Groups:
        """Return the groups in these rows."""
        return Groups(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def and_(self, others: Groups) -> Groups:
        """Return these groups and others."""
        names = self.__dataclass_fields__
        return Groups(*(np.concatenate([getattr(g, n) for g in (self, others)]) for n in names))


def ragged(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return group and place in the group of the members of groups of ``count`` members each."""
    group = np.repeat(np.arange(len(count)), count)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)


def candidates(rays: Rays, shapes: Shapes, max_range_m: float) -> tuple[Groups, int]:
    """Return what a closer look leaves of all pairs that may meet, and the number of all.

    Args:
        rays: The rays.
        shapes: The bodies.
        max_range_m: Bodies beyond are left out.

    Returns:
        Groups in any order, in which no pair that meets is missing; the number of pairs before.
    """
    centre = shapes.centre
    radius = np.hypot(shapes.half[0], shapes.half[1])
    middle = rays.origins[:, :2].mean(0)
    away = centre[:2] - middle[:, None]
    away = np.sqrt(away[0] * away[0] + away[1] * away[1])
    rows = np.nonzero(away - radius < max_range_m)[0]
    fan = _Fan.of(rays)
    column, which = fan.columns_towards(centre[:2, rows], radius[rows])
    which = rows[which]
    begin, count, near = fan.beams_between(column, which, shapes, radius)
    groups = Groups(column, which, begin, count, np.cumsum(count) - count, near)
    large = groups.take(np.nonzero(count >= _WORTH_IT)[0])
    small = groups.take(np.nonzero((count > 0) & (count < _WORTH_IT))[0])
    return small.and_(narrowed(large, fan, shapes, radius)), int(count.sum())


def narrowed(groups: Groups, fan: _Fan, shapes: Shapes, radius: np.ndarray) -> Groups:
    """Return what is left of groups after a look at the boxes around their bodies.

    In plan a column is a line, up to the bend of its beams, by which the box is made wider; where
    it enters and leaves the box tells how high the beams must point.

    Args:
        groups: To look at.
        fan: Of the rays.
        shapes: Bodies of the groups.
        radius: (N,) of the circle around each body in plan.
    """
    column, which = groups.column, groups.which
    origin = fan.rays.origins[column].T
    ox, oy = (origin[k] - shapes.centre[k].take(which) for k in (0, 1))
    cos, sin = shapes.cos.take(which), shapes.sin.take(which)
    ux, uy = fan.flat.take(column, axis=1)
    spare = 1.1 * fan.bend * (np.sqrt(ox * ox + oy * oy) + radius.take(which)) + 1e-6
    near, far = np.zeros(len(which)), np.full(len(which), np.inf)
    for k, (o, u) in enumerate(
        ((cos * ox + sin * oy, cos * ux + sin * uy), (cos * oy - sin * ox, cos * uy - sin * ux))
    ):
        half = shapes.half[k].take(which) + spare
        inverse = 1.0 / np.where(np.abs(u) < _PARALLEL, _PARALLEL, u)
        a, b = (-half - o) * inverse, (half - o) * inverse
        near = np.maximum(near, np.minimum(a, b))
        far = np.minimum(far, np.maximum(a, b))
    rows = np.nonzero(far >= near)[0]
    groups, near, far, middle = groups.take(rows), near[rows], far[rows], origin[2, rows]
    low, high = fan.window(
        groups.column, np.maximum(near, 1e-2), far, *_heights(shapes, groups.which, middle)
    )
    begin = np.maximum(groups.begin, np.searchsorted(fan.elevation, low - 1e-6, "left"))
    end = np.searchsorted(fan.elevation, high + 1e-6, "right")
    count = np.minimum(groups.begin + groups.count, end) - begin
    pair = groups.pair + begin - groups.begin
    left = Groups(groups.column, groups.which, begin, count, pair, near)
    return left.take(np.nonzero(count > 0)[0])


def _heights(shapes: Shapes, which: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return floor and top of bodies above heights z."""
    centre, half = shapes.centre[2].take(which), shapes.half[2].take(which)
    return centre - half - z, centre + half - z


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
        x, y, z = (axis.reshape(rays.shape) for axis in rays.axes)
        length = np.sqrt(x * x + y * y)
        beam = rays.shape[1] // 2
        flat = np.stack([x[:, beam] / length[:, beam], y[:, beam] / length[:, beam]])
        across = x * flat[1][:, None] - y * flat[0][:, None]
        bearing = np.unwrap(np.arctan2(flat[1], flat[0]))
        elevation = np.arctan2(z, length)
        mean = elevation.mean(0)
        middle = rays.origins[:, :2].mean(0)
        return _Fan(
            rays=rays,
            middle=middle,
            travel=float(np.linalg.norm(rays.origins[:, :2] - middle, axis=1).max()),
            flat=flat,
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
        """Return columns and bodies (P,) where a column may touch a body's circle in plan.

        Args:
            centre: (2, N) of the circles.
            radius: (N,).
        """
        x, y = centre[0] - self.middle[0], centre[1] - self.middle[1]
        distance = np.sqrt(x * x + y * y)
        sine = (radius + self.travel) / np.maximum(distance, 1e-9)
        # asin grows faster than its argument near 1: close bodies are given every column
        half = np.where(sine < 0.95, np.arcsin(np.minimum(sine, 0.95)), np.pi)
        half = np.minimum(half + np.arcsin(min(self.bend, 1.0)) + 0.02, np.pi)
        angle = np.mod(self.first - np.arctan2(y, x), 2.0 * np.pi)
        starts, counts = [], []
        for turns in (-1, 0, 1):
            low = angle + 2.0 * np.pi * turns - half
            high = np.where(half >= np.pi, low + 2.0 * np.pi - 1e-12, low + 2.0 * half)
            begin = np.searchsorted(self.turned, low, "left")
            end = np.searchsorted(self.turned, high, "right")
            starts.append(begin)
            counts.append(np.maximum(end - begin, 0))
        group, step = ragged(np.concatenate(counts))
        column = np.concatenate(starts).take(group) + step
        which = group % len(radius)
        ux, uy = self.flat.take(column, axis=1)
        origin = self.rays.origins
        dx = centre[0].take(which) - origin[:, 0].take(column)
        dy = centre[1].take(which) - origin[:, 1].take(column)
        reach = radius.take(which) + self.bend * np.hypot(dx, dy)
        keep = np.nonzero((np.abs(dx * uy - dy * ux) <= reach) & (dx * ux + dy * uy >= -reach))[0]
        return column[keep], which[keep]

    def beams_between(
        self, column: np.ndarray, which: np.ndarray, shapes: Shapes, radius: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first beam, and how many, that may pass between a body's floor and top.

        The third array (G,) is how near in plan the body's circle is.
        """
        x, y, z = self.rays.origins[column].T
        distance = np.hypot(shapes.centre[0].take(which) - x, shapes.centre[1].take(which) - y)
        radius = radius.take(which)
        near = np.maximum(distance - radius, 1e-2)
        low, high = self.window(column, near, distance + radius, *_heights(shapes, which, z))
        begin = np.searchsorted(self.elevation, low, "left")
        count = np.maximum(np.searchsorted(self.elevation, high, "right") - begin, 0)
        return begin, count, np.maximum(distance - radius - 1e-6, 0.0)

    def window(
        self,
        column: np.ndarray,
        near: np.ndarray,
        far: np.ndarray,
        floor: np.ndarray,
        top: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest mean elevation of beams that may meet a body.

        Args:
            column: (G,) of the beams.
            near, far: (G,) metres in plan between which the body lies.
            floor, top: (G,) metres above the sensor.
        """
        high = np.arctan(np.maximum(top / near, top / far)) - self.lift_low.take(column)
        low = np.arctan(np.minimum(floor / near, floor / far)) - self.lift_high.take(column)
        return low, high
