"""The ground as facets: road, kerbs, pavement, verges and markings, cut along the road."""

from __future__ import annotations

import numpy as np

from driveRT_ros.sim.facets import COLOURS, Facets
from driveRT_ros.sim.materials import INDEX
from driveRT_ros.sim.materials import NAMES as MATERIALS
from driveRT_ros.sim.world import DASH_M, DASH_PERIOD_M, LANE_MARK_HALF_M, World

STEP_M = 3.0
"""Length of a facet along the road; it divides dashes, their gaps and the roadside cells."""

_OUTER_M = (8.0, 20.0, 40.0)  # edges of the verge beyond the frontage
_PAINT_M = 0.006  # markings lie this much above the road, so that they are in front of it
_TABLE = np.array([COLOURS[name] for name in MATERIALS], np.float64)


def ground_facets(world: World, s_ego: float, reach_m: float, sun: np.ndarray) -> Facets:
    """Return the ground around a place on the road.

    Args:
        world: Road, terrain and roadside.
        s_ego: Road coordinate of the vehicle.
        reach_m: How far along the road.
        sun: (3,) unit vector towards the sun.
    """
    first = int(np.floor((s_ego - reach_m) / STEP_M))
    s = STEP_M * np.arange(first, int(np.ceil((s_ego + reach_m) / STEP_M)) + 1)
    return Facets.join([_surface(world, s, sun), _markings(world, s, sun)])


def _surface(world: World, s: np.ndarray, sun: np.ndarray) -> Facets:
    """Return one facet a patch, and upright ones where neighbours differ in height."""
    road = world.road
    right = [road.kerb_m, road.frontage_m, *(road.frontage_m + m for m in _OUTER_M)]
    d = np.array([*(-m for m in reversed(right)), 0.0, *right])
    middle_s, middle_d = np.meshgrid((s[:-1] + s[1:]) / 2, (d[:-1] + d[1:]) / 2, indexing="ij")
    lift, material = world.surface(middle_s.ravel(), middle_d.ravel())
    lift, material = lift.reshape(middle_s.shape), material.reshape(middle_s.shape)
    # The middle of a strip may carry paint; what lies under it is the road.
    material = np.where(material == INDEX["marking"], INDEX["asphalt"], material)
    x, y, _ = road.place(s[:, None], d[None, :])
    base = np.stack([x, y, road.height(x, y)], axis=-1)
    corners = np.stack([base[:-1, :-1], base[1:, :-1], base[1:, 1:], base[:-1, 1:]], axis=2)
    corners[..., 2] += lift[..., None]
    flat = Facets.of(corners.reshape(-1, 4, 3), _TABLE[material.ravel()], sun, two_sided=True)
    along = _steps(base[:-1, 1:-1], base[1:, 1:-1], lift[:, :-1], lift[:, 1:], sun)
    across = _steps(base[1:-1, :-1], base[1:-1, 1:], lift[:-1], lift[1:], sun)
    return Facets.join([flat, along, across])


def _steps(
    begin: np.ndarray, end: np.ndarray, lift_a: np.ndarray, lift_b: np.ndarray, sun: np.ndarray
) -> Facets:
    """Return upright facets on the edges (begin, end) between patches of different height."""
    rows = np.nonzero(lift_a != lift_b)
    a, b = begin[rows], end[rows]
    corners = np.stack([a, b, b, a], axis=1)
    low, high = (choose(lift_a[rows], lift_b[rows]) for choose in (np.minimum, np.maximum))
    corners[:, :2, 2] += low[:, None]
    corners[:, 2:, 2] += high[:, None]
    colour = np.tile(_TABLE[INDEX["concrete"]], (len(corners), 1))
    return Facets.of(corners, colour, sun, two_sided=True)


def _markings(world: World, s: np.ndarray, sun: np.ndarray) -> Facets:
    road, half = world.road, LANE_MARK_HALF_M
    dashes = s[:-1][np.mod(s[:-1], DASH_PERIOD_M) < DASH_M]
    lanes = [k * road.config.lane_width_m for k in range(1, road.lanes)]
    lines = [(0.12, s[:-1]), (road.lane_edge_m, s[:-1]), *((d, dashes) for d in lanes)]
    parts = []
    for side in (-1.0, 1.0):
        for out, begin in lines:
            ends = np.stack([begin, begin + STEP_M, begin + STEP_M, begin], axis=1)
            sides = side * out + np.array([-half, -half, half, half])
            x, y, _ = road.place(ends, np.broadcast_to(sides, ends.shape))
            parts.append(np.stack([x, y, road.height(x, y) + _PAINT_M], axis=-1))
    corners = np.concatenate(parts)
    colour = np.tile(_TABLE[INDEX["marking"]], (len(corners), 1))
    return Facets.of(corners, colour, sun, two_sided=True)
