"""Everything that moves: flows of vehicles, cyclists and pedestrians along the road.

A flow is an endless column of slots that advances along the road with one common, smoothly
varying speed, so that nobody in it ever collides. What a slot holds depends on the seed, the flow
and the number of the slot only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from driveRT_ros.sim.actors import Actor, build, draw_size, label_of
from driveRT_ros.sim.road import Road
from driveRT_ros.sim.solids import join, placed
from driveRT_ros.sim.streams import EGO, FLOW, SLOT, stream
from driveRT_ros.sim.style import Style

_VEHICLE_SLOT_M, _CYCLE_SLOT_M, _WALKER_SLOT_M = 30.0, 26.0, 6.5


@dataclass(frozen=True)
class Progress:
    """Distance over time: v (1 + a cos(w t + phase)), integrated; times of any shape."""

    speed_mps: float
    swing: float
    omega: float
    phase: float

    def distance(self, t: np.ndarray | float) -> np.ndarray | float:
        """Return metres driven since t = 0."""
        wave = (np.sin(self.omega * t + self.phase) - np.sin(self.phase)) / self.omega
        return self.speed_mps * (t + self.swing * wave)

    def speed(self, t: np.ndarray | float) -> np.ndarray | float:
        """Return metres per second."""
        return self.speed_mps * (1.0 + self.swing * np.cos(self.omega * t + self.phase))

    @staticmethod
    def draw(speed_mps: float, rng: np.random.Generator, swing: float = 0.15) -> Progress:
        """Draw a swing period of 12 to 30 s around a mean speed."""
        omega = 2.0 * np.pi / rng.uniform(12.0, 30.0)
        return Progress(speed_mps, swing, omega, float(rng.uniform(0.0, 2.0 * np.pi)))


def ego_progress(seed: int, speed_mps: float) -> Progress:
    """Return how the own vehicle moves along the road."""
    return Progress.draw(speed_mps, stream(seed, EGO))


@dataclass(frozen=True)
class Rider:
    """One moving object in its slot: offsets from the slot's middle, and its bodies."""

    track_id: int
    name: str
    size_lwh: tuple[float, float, float]
    ahead_m: float
    aside_m: float
    bodies: np.ndarray


@dataclass(frozen=True)
class Flow:
    """One column of slots.

    Args:
        number: Which flow of the scene.
        kind: ``vehicle``, ``cycle`` or ``walker``.
        offset_m: Where it moves, metres left of the centre line.
        direction: 1 with the own vehicle, -1 against it.
        slot_m: Length of a slot.
        density: Scale of how many slots are taken.
        progress: How it advances.
        clear_of_ego: The slot around the own vehicle stays empty.
    """

    number: int
    kind: str
    offset_m: float
    direction: int
    slot_m: float
    density: float
    progress: Progress
    clear_of_ego: bool = False


class Traffic:
    """All flows of a scene.

    Args:
        seed: Seed of the scene.
        road: Where they move.
        style: Densities drawn for this scene.
        ego: Progress of the own vehicle, whose lane moves with it.
        ego_lane: Lane of the own vehicle.
    """

    def __init__(self, seed: int, road: Road, style: Style, ego: Progress, ego_lane: int) -> None:
        self._seed, self._road = seed, road
        self.flows = tuple(_flows(seed, road, style, ego, ego_lane))
        self._riders = cache(self._draw_slot)

    def at(self, t: float, s_ego: float, reach_m: float) -> tuple[list[Actor], np.ndarray]:
        """Return who moves within ``reach_m`` of the own vehicle at time t, and their bodies."""
        found: list[Rider] = []
        rows = []  # s, d, direction, speed of each
        for flow in self.flows:
            moved = flow.direction * float(flow.progress.distance(t))
            first = int(np.floor((s_ego - reach_m - moved) / flow.slot_m))
            last = int(np.ceil((s_ego + reach_m - moved) / flow.slot_m))
            speed = float(flow.progress.speed(t))
            for slot in range(first, last + 1):
                for rider in self._riders(flow, slot):
                    s = slot * flow.slot_m + moved + rider.ahead_m
                    found.append(rider)
                    rows.append((s, flow.offset_m + rider.aside_m, flow.direction, speed))
        if not found:
            return [], join([])
        x, y, z, yaw, vx, vy = self._places(np.array(rows).T)
        where = np.repeat(np.arange(len(found)), [len(rider.bodies) for rider in found])
        tracks = np.array([rider.track_id for rider in found], np.int64)
        bodies = placed(
            join(rider.bodies for rider in found),
            *(v[where] for v in (x, y, z, yaw)),
            tracks[where],
        )
        actors = [
            Actor(rider.track_id, label_of(rider.name), rider.size_lwh, *place, velocity)
            for rider, place, velocity in zip(
                found, np.stack([x, y, z, yaw], 1).tolist(), zip(vx.tolist(), vy.tolist())
            )
        ]
        return actors, bodies

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return x, y, floor height, yaw and velocity x, y of objects.

        Args:
            rows: (4, N) road coordinates s and d, direction, and speed on the centre line.
        """
        s, d, direction, speed = rows
        x, y, headings = self._road.place(s + np.array([[0.0], [-1.0], [1.0]]), d)
        x, y, heading = x[0], y[0], headings[0]
        stretch = 1.0 - (headings[2] - headings[1]) / 2.0 * d  # a bend is shorter inside
        along = direction * speed * stretch
        on_pavement = np.abs(d) > self._road.kerb_m
        z = self._road.height(x, y) + self._road.config.kerb_height_m * on_pavement
        yaw = heading + np.where(direction < 0, np.pi, 0.0)
        return x, y, z, yaw, along * np.cos(heading), along * np.sin(heading)

    def _draw_slot(self, flow: Flow, slot: int) -> tuple[Rider, ...]:
        rng = stream(self._seed, SLOT, flow.number, slot)
        if flow.clear_of_ego and slot == 0:
            return ()
        plan = {"vehicle": _vehicles, "cycle": _cycles, "walker": _walkers}[flow.kind]
        riders = []
        for place, (name, ahead, aside) in enumerate(plan(rng, flow.density)):
            size = draw_size(name, rng)
            track = ((1 << 6) + flow.number) << 40 | ((slot + (1 << 24)) << 4) | place
            bodies = build(name, size, rng, moving=True)
            riders.append(Rider(track, name, size, flow.direction * ahead, aside, bodies))
        return tuple(riders)


def _flows(seed, road, style, ego, ego_lane):
    rng = stream(seed, FLOW)
    number = 0
    for direction in (1, -1):
        for lane in range(road.lanes):
            own = direction == 1 and lane == ego_lane
            pace = 2.0 if rng.random() < 0.12 else ego.speed_mps * rng.uniform(0.6, 1.25)
            progress = ego if own else Progress.draw(pace, rng)
            yield Flow(
                number,
                "vehicle",
                -direction * road.lane_centre_m(lane),
                direction,
                _VEHICLE_SLOT_M,
                style.vehicles,
                progress,
                own,
            )
            number += 1
        yield Flow(
            number,
            "cycle",
            -direction * road.bike_lane_m,
            direction,
            _CYCLE_SLOT_M,
            style.cyclists,
            Progress.draw(rng.uniform(3.5, 5.5), rng),
        )
        number += 1
    walk = road.config.sidewalk_width_m - 1.4  # what the furniture leaves
    for side in (1, -1):
        for row in range(2):
            offset = side * (road.kerb_m + 1.5 + (row + 0.5) / 2 * (walk - 0.3))
            direction = 1 if (row + side) % 2 else -1
            yield Flow(
                number,
                "walker",
                offset,
                direction,
                _WALKER_SLOT_M,
                style.pedestrians,
                Progress.draw(rng.uniform(1.0, 1.6), rng, swing=0.1),
            )
            number += 1


def _vehicles(rng, density):
    """Yield class, metres ahead and metres aside of the vehicles of a 30 m slot."""
    aside = float(rng.uniform(-0.25, 0.25))
    kind, share = rng.random(), min(0.48 * density, 0.95)
    if kind < 0.05 * min(density, 1.0):
        yield "bus", 0.0, 0.0
    elif kind < 0.08 * min(density, 1.0):
        yield "truck", 7.6, 0.0
        yield "trailer", -4.6, 0.0
    else:
        for ahead in (7.5, -7.5):
            if rng.random() < share:
                name = rng.choice(("car", "truck", "motorcycle"), p=(0.86, 0.09, 0.05))
                yield str(name), ahead + float(rng.uniform(-2.2, 2.2)), aside


def _cycles(rng, density):
    if rng.random() < 0.14 * density:
        name = "bicycle" if rng.random() < 0.75 else "motorcycle"
        yield name, float(rng.uniform(-8.0, 8.0)), float(rng.uniform(-0.15, 0.15))


def _walkers(rng, density):
    for ahead in (-1.6, 1.6):
        if rng.random() < 0.20 * density:
            yield (
                "pedestrian",
                ahead + float(rng.uniform(-1.0, 1.0)),
                float(rng.uniform(-0.12, 0.12)),
            )
