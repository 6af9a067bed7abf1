"""Objects of the ten classes: how large they are and which bodies they are made of.

Sizes are means and standard deviations over the 81 annotated keyframes of nuScenes mini_val, and
for the classes those hardly show, the data set's published averages. Every body lies inside the
box length x width x height that is the ground truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.sim import street_users, vehicles

SIZES_LWH: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "car": ((4.55, 1.84, 1.66), (0.36, 0.13, 0.17)),
    "truck": ((6.7, 2.45, 2.85), (1.2, 0.25, 0.40)),
    "construction_vehicle": ((6.4, 2.8, 3.2), (1.0, 0.25, 0.40)),
    "bus": ((11.6, 2.90, 3.45), (0.8, 0.10, 0.15)),
    "trailer": ((11.0, 2.80, 3.80), (1.5, 0.20, 0.25)),
    "barrier": ((0.55, 2.10, 1.03), (0.08, 0.25, 0.08)),
    "motorcycle": ((2.08, 0.75, 1.45), (0.20, 0.08, 0.10)),
    "bicycle": ((1.75, 0.62, 1.35), (0.12, 0.06, 0.12)),
    "pedestrian": ((0.70, 0.66, 1.75), (0.12, 0.09, 0.12)),
    "traffic_cone": ((0.40, 0.40, 0.98), (0.05, 0.05, 0.17)),
}
"""Mean and standard deviation of length, width, height in metres by class."""


@dataclass(frozen=True)
class Actor:
    """One object where it stands at one instant, in world axes.

    Args:
        track_id: Identity over the whole drive.
        label: Index into ``NUSCENES_CLASSES``.
        size_lwh: Length, width, height in metres.
        x, y, z: Middle of the floor of its box, metres.
        yaw: Heading, radians counter-clockwise.
        velocity_xy: World velocity in m/s.
    """

    track_id: int
    label: int
    size_lwh: tuple[float, float, float]
    x: float
    y: float
    z: float
    yaw: float
    velocity_xy: tuple[float, float] = (0.0, 0.0)


def draw_size(name: str, rng: np.random.Generator) -> tuple[float, float, float]:
    """Draw length, width and height; one factor is shared, so big objects are big all over."""
    mean, std = (np.array(v) for v in SIZES_LWH[name])
    away = 0.7 * rng.standard_normal() + 0.7 * rng.standard_normal(3)
    length, width, height = mean + std * np.clip(away, -2.0, 2.0)
    return float(length), float(width), float(height)


def build(
    name: str, size_lwh: tuple[float, float, float], rng: np.random.Generator, *, moving: bool
) -> np.ndarray:
    """Return the bodies of an object in its own frame: x forward, origin at the floor's middle.

    Args:
        name: One of the ten classes.
        size_lwh: Outer size in metres.
        rng: Decides shape variants and colours.
        moving: Whether someone rides it (bicycles and motorcycles).
    """
    if name in ("bicycle", "motorcycle"):
        return street_users.two_wheeler(name, size_lwh, rng, ridden=moving)
    return _BUILDERS[name](size_lwh, rng)


def label_of(name: str) -> int:
    """Return the label of a class."""
    return NUSCENES_CLASSES.index(name)


_BUILDERS: dict[str, Callable[[vehicles.Size, np.random.Generator], np.ndarray]] = {
    "car": vehicles.car,
    "truck": vehicles.truck,
    "bus": vehicles.bus,
    "trailer": vehicles.trailer,
    "construction_vehicle": vehicles.construction_vehicle,
    "barrier": street_users.barrier,
    "pedestrian": street_users.pedestrian,
    "traffic_cone": street_users.traffic_cone,
}
