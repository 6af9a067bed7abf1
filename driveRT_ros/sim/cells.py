"""The roadside in cells of 24 m: what stands still on one side, annotated objects or scenery."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from driveRT_ros.sim import scenery
from driveRT_ros.sim.actors import Actor, build, draw_size, label_of
from driveRT_ros.sim.materials import INDEX
from driveRT_ros.sim.road import Road
from driveRT_ros.sim.solids import join, placed
from driveRT_ros.sim.streams import CELL, stream
from driveRT_ros.sim.style import Style

CELL_M = 24.0
"""Length of a cell along the road."""


@dataclass(frozen=True)
class Cell:
    """One side of 24 m of road.

    Args:
        actors: Annotated objects that stand still.
        bodies: Everything that rays can hit, ``SOLID`` in world coordinates.
        junction: A side street joins here: no kerb, no pavement.
        verge: Material index of the ground behind the pavement.
    """

    actors: tuple[Actor, ...]
    bodies: np.ndarray
    junction: bool
    verge: int


def draw_cell(seed: int, side: int, index: int, road: Road, style: Style) -> Cell:
    """Draw a cell.

    Args:
        seed: Seed of the scene.
        side: 1 left of the road, -1 right.
        index: The cell covers s from 24 * index to 24 * (index + 1).
        road: Where it lies.
        style: Densities of the scene.
    """
    rng = stream(seed, CELL, side, index)
    site = _Site(rng, side, index, road)
    junction = rng.random() < road.config.junction_share
    if side > 0 and not junction:
        _divide(site, style, stream(seed, CELL, 0, 0))
    use = "junction" if junction else _draw_use(rng, style)
    verge = "asphalt"
    if junction:
        _junction(site, style)
    else:
        _kerbside(site, style)
        _furniture(site, style)
        verge = _USES[use](site, style)
        if use in ("building", "wall", "park") and rng.random() < 0.45 * min(style.buildings, 2.0):
            behind = road.frontage_m + rng.uniform(28.0, 40.0)
            site.put(scenery.building(rng, rng.uniform(14.0, 22.0), 15.0), 12.0, behind + 7.5)
    return Cell(tuple(site.actors), join(site.bodies), junction, INDEX[verge])


def _draw_use(rng: np.random.Generator, style: Style) -> str:
    weights = {
        "building": 0.50 * style.buildings,
        "park": 0.22 * style.vegetation,
        "wall": 0.14 * style.buildings,
        "lot": 0.11 * style.parked,
        "works": 0.05 * style.roadworks,
        "open": 0.05,
    }
    chances = np.array(list(weights.values()))
    return str(rng.choice(list(weights), p=chances / chances.sum()))


def _divide(site: _Site, style: Style, scene: np.random.Generator) -> None:
    """Part the directions of traffic, in some scenes over their whole length.

    What stands there hides the lower half of oncoming and parked vehicles: hardly half of the
    firings that enter the box of a real car 20 m off are hidden by nothing.

    Args:
        site: A cell.
        style: Densities of the scene.
        scene: Stream that is the same in all cells of the scene.
    """
    kind = scene.random()
    green = 0.15 * min(style.vegetation, 2.0)
    if kind < green:
        site.put(scenery.planting(site.rng, CELL_M), CELL_M / 2, 0.0)
    elif kind < green + 0.15:
        site.put(scenery.rail(site.rng, CELL_M), CELL_M / 2, 0.0)
    elif kind < green + 0.22:
        site.put(scenery.blocks(site.rng, CELL_M), CELL_M / 2, 0.0)


@dataclass
class _Site:
    """A cell being filled; positions are metres into the cell and metres from the centre line."""

    rng: np.random.Generator
    side: int
    index: int
    road: Road
    actors: list[Actor] = field(default_factory=list)
    bodies: list[np.ndarray] = field(default_factory=list)

    def pose(self, ahead: float, out: float) -> tuple[float, float, float, float]:
        """Return x, y, floor height and the direction of traffic at a place."""
        s = np.float64(self.index * CELL_M + ahead)
        x, y, heading = self.road.place(s, self.side * out)
        lift = self.road.config.kerb_height_m if out > self.road.kerb_m else 0.0
        towards = float(heading) + (np.pi if self.side > 0 else 0.0)  # traffic keeps right
        return float(x), float(y), float(self.road.height(x, y)) + lift, towards

    def put(self, bodies: np.ndarray, ahead: float, out: float, turn: float = 0.0) -> None:
        """Add scenery; its x axis follows the traffic and its y axis points to the road."""
        x, y, z, towards = self.pose(ahead, out)
        self.bodies.append(placed(bodies, x, y, z, towards + turn))

    def add(self, name: str, ahead: float, out: float, turn: float = 0.0) -> None:
        """Add an annotated object that stands still."""
        size = draw_size(name, self.rng)
        x, y, z, towards = self.pose(ahead, out)
        lane = 1 if self.side > 0 else 0
        track = (lane + 1) << 40 | (self.index + (1 << 24)) << 7 | len(self.actors)
        actor = Actor(track, label_of(name), size, x, y, z, towards + turn)
        self.actors.append(actor)
        bodies = build(name, size, self.rng, moving=False)
        self.bodies.append(placed(bodies, x, y, z, actor.yaw, track))


def _junction(site: _Site, style: Style) -> None:
    rng = site.rng
    for lane, turn in ((8.0, np.pi / 2), (15.5, -np.pi / 2)):
        if rng.random() < 0.35 * style.vehicles:
            site.add("car", lane, site.road.kerb_m + rng.uniform(7.0, 11.0), turn)
    site.put(scenery.sign(rng), 2.0, site.road.kerb_m + 1.0)
    if rng.random() < 0.4 * style.buildings:  # where the side street ends
        out = site.road.frontage_m + rng.uniform(30.0, 50.0)
        site.put(scenery.building(rng, 22.0, 10.0), 12.0, out)


def _kerbside(site: _Site, style: Style) -> None:
    rng, road = site.rng, site.road
    kind = rng.random()
    if kind < 0.10 * style.roadworks:
        edge = road.kerb_m - 2.0
        if rng.random() < 0.65:
            for ahead in np.arange(1.6, CELL_M - 1.0, rng.uniform(2.7, 3.3)):
                site.add("barrier", float(ahead), edge, np.pi / 2 + rng.normal(0, 0.04))
        else:
            for ahead in np.arange(1.0, CELL_M, rng.uniform(2.0, 4.5)):
                site.add("traffic_cone", float(ahead) + rng.normal(0, 0.1), edge)
        return
    if kind < 0.10 * style.roadworks + 0.05 * style.parked:
        site.add("truck", 12.0, road.parking_m + 0.1)
        ends: tuple[float, ...] = (2.9, 21.1)
    else:
        ends = (3.0, 9.0, 15.0, 21.0)
    for end in ends:
        if rng.random() < 0.58 * style.parked:
            place = float(end + rng.uniform(-0.3, 0.3))
            if rng.random() < 0.05:
                for step in (-1.2, 0.0, 1.2):
                    site.add("motorcycle", place + step, road.parking_m, 1.3 + rng.normal(0, 0.1))
            else:
                backwards = np.pi if rng.random() < 0.06 else 0.0
                site.add(
                    "car",
                    place,
                    road.parking_m + rng.uniform(-0.1, 0.15),
                    backwards + rng.normal(0, 0.02),
                )


def _furniture(site: _Site, style: Style) -> None:
    rng, row = site.rng, site.road.kerb_m + 0.8
    site.put(scenery.lamp(rng), 0.8, row)
    for ahead in (4.0, 8.0, 12.0, 16.0, 20.0):
        place, kind = ahead + rng.uniform(-1.0, 1.0), rng.random()
        tree = min(0.28 * style.vegetation, 0.7)
        rest = (kind - tree) / max(1.0 - tree, 1e-9)
        if kind < tree:
            site.put(scenery.tree(rng, crown_floor_m=2.3), place, row)
        elif rest < 0.12 * style.cyclists:
            site.add("bicycle", place, row, rng.normal(0, 0.15))
        elif rest < 0.12 * style.cyclists + 0.25 * style.street_furniture:
            kinds = (scenery.sign, scenery.bin_, scenery.bollards, scenery.cabinet)
            site.put(kinds[rng.integers(len(kinds))](rng), place, row)
        elif rest > 1.0 - 0.10 * style.pedestrians:
            site.add("pedestrian", place, row + rng.uniform(0.0, 0.3), rng.uniform(-3.1, 3.1))


def _building(site: _Site, style: Style) -> str:
    rng = site.rng
    front, depth = rng.uniform(13.0, 23.0), rng.uniform(9.0, 18.0)
    setback = rng.choice((0.6, 2.5, 5.0), p=(0.45, 0.3, 0.25)) + rng.uniform(0.0, 0.8)
    out = site.road.frontage_m + setback
    site.put(scenery.building(rng, front, depth), 12.0, out + depth / 2)
    if setback > 2.0:
        _green_strip(site, style, setback)
    for ahead in (1.0, 23.0):  # the gap to the neighbour
        if rng.random() < 0.4 * style.vegetation:
            site.put(scenery.tree(rng, crown_floor_m=1.8), ahead, out + rng.uniform(2.0, 8.0))
    return "grass" if setback > 2.0 else "pavement"


def _green_strip(site: _Site, style: Style, depth: float) -> None:
    rng = site.rng
    if rng.random() < 0.5 * style.vegetation:
        site.put(scenery.hedge(rng, rng.uniform(8.0, 20.0)), 12.0, site.road.frontage_m + 0.8)
    for _ in range(rng.poisson(1.5 * style.vegetation)):
        site.put(
            scenery.bush(rng),
            rng.uniform(1.0, 23.0),
            site.road.frontage_m + rng.uniform(1.4, max(depth - 0.8, 1.5)),
        )


def _park(site: _Site, style: Style) -> str:
    rng, edge = site.rng, site.road.frontage_m
    for _ in range(rng.poisson(5.0 * style.vegetation)):
        site.put(
            scenery.tree(rng, crown_floor_m=1.6),
            rng.uniform(0.0, CELL_M),
            edge + rng.uniform(2.5, 30.0),
        )
    for _ in range(rng.poisson(7.0 * style.vegetation)):
        site.put(scenery.bush(rng), rng.uniform(0.0, CELL_M), edge + rng.uniform(1.5, 22.0))
    if rng.random() < 0.35:
        site.put(scenery.fence(rng, CELL_M - 1.0), 12.0, edge + 0.4)
    return "grass"


def _wall(site: _Site, style: Style) -> str:
    rng, edge = site.rng, site.road.frontage_m
    site.put(scenery.wall(rng, CELL_M - rng.uniform(0.5, 4.0)), 12.0, edge + 0.5)
    for _ in range(rng.poisson(3.0 * style.vegetation)):
        site.put(
            scenery.tree(rng, crown_floor_m=1.4),
            rng.uniform(0.0, CELL_M),
            edge + rng.uniform(3.0, 10.0),
        )
    site.put(scenery.building(rng, rng.uniform(9.0, 16.0), 10.0), 12.0, edge + 18.0)
    return "grass"


def _lot(site: _Site, style: Style) -> str:
    rng, edge = site.rng, site.road.frontage_m
    if rng.random() < 0.5 * min(style.vegetation, 2.0):  # then cars are seen over it
        site.put(scenery.hedge(rng, rng.uniform(12.0, 22.0)), 12.0, edge + 0.8)
    for row, turn in ((4.7, np.pi / 2), (16.0, -np.pi / 2)):
        for ahead in np.arange(1.6, CELL_M - 1.2, 2.7):
            if rng.random() < 0.6 * style.parked:
                site.add(
                    "car",
                    float(ahead),
                    edge + row + rng.normal(0, 0.2),
                    turn + np.pi * (rng.random() < 0.4) + rng.normal(0, 0.02),
                )
    site.put(scenery.fence(rng, CELL_M), 12.0, edge + 21.0)
    return "asphalt"


def _works(site: _Site, style: Style) -> str:
    rng, edge = site.rng, site.road.frontage_m
    for ahead in np.arange(1.5, CELL_M - 1.0, 2.75):
        site.add("barrier", float(ahead), edge + 0.6, np.pi / 2 + rng.normal(0, 0.05))
    site.add(
        "construction_vehicle",
        rng.uniform(6.0, 9.0),
        edge + rng.uniform(7.0, 10.0),
        rng.uniform(-3.1, 3.1),
    )
    if rng.random() < 0.6:
        kind = "trailer" if rng.random() < 0.7 else "construction_vehicle"
        site.add(kind, 15.0, edge + rng.uniform(17.0, 20.0), rng.normal(0, 0.2))
    for ahead in rng.choice(np.arange(1.0, CELL_M, 1.5), min(rng.poisson(3.0), 8), replace=False):
        site.add("traffic_cone", float(ahead), edge + rng.uniform(1.3, 1.9))
    site.put(scenery.heap(rng), rng.uniform(17.0, 20.0), edge + rng.uniform(6.0, 11.0))
    return "grass"


def _open(site: _Site, style: Style) -> str:
    if site.rng.random() < 0.5:
        site.put(scenery.fence(site.rng, CELL_M), 12.0, site.road.frontage_m + 0.5)
    return "grass"


_USES = {
    "building": _building,
    "park": _park,
    "wall": _wall,
    "lot": _lot,
    "works": _works,
    "open": _open,
}
