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
from driveRT_ros.sim.solids import BOX, CYLINDER, ELLIPSOID, WEDGE, join, solid

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

_COATS = ("cloth", "cloth", "paint")


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
    shared, own = np.clip(rng.standard_normal(), -2, 2), np.clip(rng.standard_normal(3), -2, 2)
    length, width, height = mean + std * (0.7 * shared + 0.7 * own)
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
        return _two_wheeler(name, size_lwh, rng, ridden=moving)
    return _BUILDERS[name](size_lwh, rng)


def label_of(name: str) -> int:
    """Return the label of a class."""
    return NUSCENES_CLASSES.index(name)


def _brightness(rng: np.random.Generator, spread: float = 0.45) -> float:
    return float(np.exp(np.clip(rng.standard_normal(), -2, 2) * spread))


def _wheels(length: float, width: float, radius: float, axles: tuple[float, ...]) -> list:
    """Return wheels at shares ``axles`` of the length, as upright slabs."""
    return [
        solid(
            BOX,
            (share * length, side * (width / 2 - 0.13), radius),
            (1.7 * radius, 0.22, 2 * radius),
            "rubber",
        )
        for share in axles
        for side in (-1, 1)
    ]


def _car(size, rng):
    length, width, height = size
    gain = _brightness(rng, 0.6)
    clearance, waist = 0.11 * height, 0.56 * height
    van = rng.random() < 0.25
    cabin, back = (0.78, -0.09) if van else (rng.uniform(0.5, 0.64), rng.uniform(-0.1, -0.02))
    body = width * 0.93  # mirrors fill the rest of the box
    roof, glass = 0.94 * height, (waist + 0.94 * height) / 2
    taper = (0.18 if van else 0.34, 0.24)
    return join(
        [
            solid(BOX, (0, 0, (clearance + waist * 0.75) / 2),
                  (length, body, waist * 0.75 - clearance), "paint", gain=gain),
            solid(WEDGE, (0, 0, waist * 0.875), (length * 0.985, body, waist * 0.25), "paint",
                  taper=(0.05, 0.06), gain=gain),
            solid(WEDGE, (back * length, 0, glass), (cabin * length, body * 0.97, roof - waist),
                  "glass", taper=taper, fill=0.8),
            solid(WEDGE, (back * length, 0, (roof + height) / 2),
                  (cabin * length * (1 - taper[0]), body * 0.74, height - roof), "paint",
                  taper=(0.12, 0.12), gain=gain),
            solid(BOX, (back * length, 0, glass), (0.12, body * 0.86, roof - waist), "paint",
                  gain=gain),
            solid(BOX, (back * length + 0.24 * cabin * length, 0, waist + 0.08),
                  (0.08, width, 0.14), "plastic"),
            solid(BOX, (-length / 2 + 0.01, 0, waist * 0.72), (0.02, body * 0.55, 0.11), "retro"),
            *_wheels(length, body, 0.2 * height, (-0.30, 0.31)),
        ]
    )


def _truck(size, rng):
    length, width, height = size
    gain, cab = _brightness(rng), min(2.1, 0.34 * length)
    floor = 0.3 * height
    front = length / 2 - cab / 2
    parts = [
        solid(WEDGE, (front, 0, 0.14 * height + 0.36 * height), (cab, width * 0.92, 0.72 * height),
              "paint", taper=(0.16, 0.04), gain=gain),
        solid(BOX, (0, 0, 0.22 * height), (length * 0.96, 0.9, 0.16 * height), "metal"),
        *_wheels(length, width, 0.17 * height, (-0.34, -0.2, 0.36)),
    ]
    load = length - cab - 0.25
    if rng.random() < 0.7:
        parts.append(solid(BOX, (-length / 2 + load / 2, 0, (floor + height) / 2),
                           (load, width, height - floor), "paint", gain=_brightness(rng)))
    else:  # an open bed with something on it
        parts += [
            solid(BOX, (-length / 2 + load / 2, 0, floor + 0.3), (load, width, 0.6), "paint",
                  gain=gain),
            solid(BOX, (-length / 2 + load * 0.4, 0, (floor + 0.6 + height) / 2),
                  (load * 0.5, width * 0.7, height - floor - 0.6), "wood"),
        ]
    return join(parts)


def _bus(size, rng):
    length, width, height = size
    gain = _brightness(rng)
    low, waist, top = 0.09 * height, 0.42 * height, 0.83 * height
    return join(
        [
            solid(BOX, (0, 0, (low + waist) / 2), (length, width, waist - low), "paint", gain=gain),
            solid(BOX, (0, 0, (waist + top) / 2), (length * 0.99, width * 0.97, top - waist),
                  "glass", fill=0.85),
            *(solid(BOX, (x * length, 0, (waist + top) / 2), (0.18, width, top - waist), "paint",
                    gain=gain) for x in (-0.48, -0.24, 0.0, 0.24, 0.48)),
            solid(WEDGE, (0, 0, (top + height) / 2), (length, width, height - top), "paint",
                  taper=(0.02, 0.12), gain=gain),
            *_wheels(length, width, 0.14 * height, (-0.28, 0.33)),
        ]
    )


def _trailer(size, rng):
    length, width, height = size
    floor, gain = 0.3 * height, _brightness(rng)
    parts = [
        solid(BOX, (0, 0, floor - 0.12), (length * 0.98, 1.0, 0.24), "metal"),
        *_wheels(length, width, 0.13 * height, (-0.36, -0.27, -0.18)),
        solid(BOX, (0.3 * length, 0, floor * 0.45), (0.15, 1.3, floor * 0.9), "metal"),
        solid(BOX, (0, 0, (floor + height) / 2), (length, width, height - floor), "paint",
              gain=gain),
    ]
    return join(parts)


def _construction_vehicle(size, rng):
    length, width, height = size
    gain, turn = _brightness(rng), rng.uniform(-0.25, 0.25)
    track, deck = 0.24 * height, 0.55 * height
    arm = [  # the boom rises and falls again, in short boxes
        solid(BOX, (x * length, turn * width * 0.5 * x, z * height), (0.15 * length, 0.32, 0.16
              * height), "paint", gain=gain)
        for x, z in ((0.08, 0.66), (0.2, 0.8), (0.31, 0.74), (0.39, 0.52), (0.42, 0.3))
    ]
    return join(
        [
            *(solid(BOX, (-0.14 * length, side * (width / 2 - 0.3), track / 2),
                    (0.66 * length, 0.58, track), "rubber") for side in (-1, 1)),
            solid(BOX, (-0.18 * length, 0, (track + deck) / 2 + 0.05),
                  (0.56 * length, width * 0.92, deck - track - 0.1), "paint", gain=gain),
            solid(WEDGE, (-0.03 * length, 0.22 * width, (deck + height) / 2),
                  (0.24 * length, 0.4 * width, height - deck), "glass", taper=(0.2, 0.1), fill=0.8),
            solid(BOX, (0.44 * length, 0, 0.12 * height), (0.12 * length, 0.5 * width,
                  0.22 * height), "metal"),
            *arm,
        ]
    )


def _barrier(size, rng):
    length, width, height = size
    gain = _brightness(rng)
    if rng.random() < 0.5:  # a water-filled block
        return join(
            [
                solid(WEDGE, (0, 0, 0.22 * height), (length, width, 0.44 * height), "plastic",
                      taper=(0.45, 0.02), gain=gain),
                solid(WEDGE, (0, 0, 0.72 * height), (length * 0.55, width * 0.98, 0.56 * height),
                      "plastic", taper=(0.35, 0.02), gain=gain),
            ]
        )
    return join(  # boards on two feet
        [
            solid(BOX, (0, 0, 0.84 * height), (0.07, width, 0.32 * height), "retro", gain=0.6),
            solid(BOX, (0, 0, 0.45 * height), (0.07, width, 0.22 * height), "plastic", gain=gain),
            *(solid(BOX, (0, side * 0.42 * width, 0.3 * height), (0.08, 0.08, 0.6 * height),
                    "metal") for side in (-1, 1)),
            *(solid(BOX, (0, side * 0.42 * width, 0.05), (length, 0.14, 0.1), "rubber")
              for side in (-1, 1)),
        ]
    )


def _rider(x: float, seat: float, top: float, width: float, rng) -> list:
    head = 0.12
    middle = (seat + top - 2 * head) / 2
    return [
        solid(ELLIPSOID, (x, 0, middle), (0.42, min(0.52, width), top - 2 * head - seat + 0.15),
              "cloth", gain=_brightness(rng)),
        solid(ELLIPSOID, (x + 0.08, 0, top - head), (0.24, 0.22, 2 * head), "plastic"),
        *(solid(CYLINDER, (x + 0.15, side * 0.14, seat - 0.12), (0.15, 0.15, 0.55), "cloth")
          for side in (-1, 1)),
    ]


def _two_wheeler(name, size, rng, *, ridden):
    length, width, height = size
    motor = name == "motorcycle"
    radius = min(0.31 if motor else 0.34, height * 0.3)
    thick = 0.16 if motor else 0.05
    gain, material = _brightness(rng), "paint" if motor else "metal"
    bar = min(0.95 if motor else 1.02, height * 0.8)
    parts = [
        *(solid(BOX, (x, 0, radius), (1.8 * radius, thick, 2 * radius), "rubber",
                fill=0.9 if motor else 0.4) for x in (radius - length / 2, length / 2 - radius)),
        solid(BOX, (length * 0.26, 0, bar), (0.06, width, 0.06), "metal"),
        solid(BOX, (length * 0.28, 0, (bar + radius) / 2), (0.08, 0.08, bar - radius), "metal"),
    ]
    if motor:
        parts += [
            solid(ELLIPSOID, (0, 0, 0.58), (length * 0.62, 0.36, 0.5), material, gain=gain),
            solid(BOX, (-0.1 * length, 0, 0.72), (length * 0.42, 0.28, 0.16), "cloth"),
        ]
    else:
        parts += [
            solid(BOX, (0, 0, 0.58), (length * 0.45, 0.06, 0.42), material, fill=0.4, gain=gain),
            solid(BOX, (-0.12 * length, 0, 0.88), (0.26, 0.16, 0.08), "plastic"),
        ]
    if ridden:
        parts += _rider(-0.1, 0.8 if motor else 0.85, height, width, rng)
    return join(parts)


def _pedestrian(size, rng):
    length, width, height = size
    gain, stride = _brightness(rng, 0.4), 0.24 * length
    hip, shoulder = 0.48 * height, 0.84 * height
    coat = _COATS[rng.integers(len(_COATS))]
    return join(
        [
            *(solid(CYLINDER, (side * stride, side * 0.13 * width, hip / 2),
                    (0.17, 0.16, hip), "cloth", gain=0.8 * gain) for side in (-1, 1)),
            solid(CYLINDER, (0, 0, (hip + shoulder) / 2 - 0.03),
                  (0.36 * length + 0.04, 0.66 * width, shoulder - hip + 0.06), coat, gain=gain),
            *(solid(CYLINDER, (-side * 0.3 * length, side * 0.42 * width, 0.64 * height),
                    (0.11, 0.11, 0.32 * height), coat, gain=gain) for side in (-1, 1)),
            solid(ELLIPSOID, (0.03, 0, 0.92 * height), (0.21, 0.18, 0.16 * height), "cloth"),
        ]
    )


def _traffic_cone(size, rng):
    length, width, height = size
    up = 0.06 * height
    parts = [solid(BOX, (0, 0, up / 2), (length, width, up), "rubber")]
    for low, high, material in ((0.06, 0.5, "plastic"), (0.5, 0.75, "retro"), (0.75, 1.0,
                                "plastic")):
        wide = (0.78 - 0.58 * low) * length
        parts.append(
            solid(WEDGE, (0, 0, (low + high) / 2 * height), (wide, wide, (high - low) * height),
                  material, taper=(0.58 * (high - low) * length / wide,) * 2)
        )
    return join(parts)


_BUILDERS: dict[str, Callable] = {
    "car": _car,
    "truck": _truck,
    "bus": _bus,
    "trailer": _trailer,
    "construction_vehicle": _construction_vehicle,
    "barrier": _barrier,
    "pedestrian": _pedestrian,
    "traffic_cone": _traffic_cone,
}
