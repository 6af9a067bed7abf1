"""Bodies of people, two-wheelers, cones and barriers, inside length x width x height.

Each is in its own frame: x forward, y left, z up, the origin at the middle of the floor.
"""

from __future__ import annotations

import numpy as np

from driveRT_ros.sim.solids import BOX, CYLINDER, ELLIPSOID, WEDGE, draw_gain, join, solid

Size = tuple[float, float, float]
"""Length, width, height in metres."""

_COATS = ("cloth", "cloth", "paint")


def barrier(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a water-filled block or a board on two feet."""
    length, width, height = size
    gain = draw_gain(rng)
    if rng.random() < 0.5:  # a water-filled block
        return join(
            [
                solid(
                    WEDGE,
                    (0, 0, 0.22 * height),
                    (length, width, 0.44 * height),
                    "plastic",
                    taper=(0.45, 0.02),
                    gain=gain,
                ),
                solid(
                    WEDGE,
                    (0, 0, 0.72 * height),
                    (length * 0.55, width * 0.98, 0.56 * height),
                    "plastic",
                    taper=(0.35, 0.02),
                    gain=gain,
                ),
            ]
        )
    return join(  # boards on two feet
        [
            solid(BOX, (0, 0, 0.84 * height), (0.07, width, 0.32 * height), "retro", gain=0.6),
            solid(BOX, (0, 0, 0.45 * height), (0.07, width, 0.22 * height), "plastic", gain=gain),
            *(
                solid(
                    BOX, (0, side * 0.42 * width, 0.3 * height), (0.08, 0.08, 0.6 * height), "metal"
                )
                for side in (-1, 1)
            ),
            *(
                solid(BOX, (0, side * 0.42 * width, 0.05), (length, 0.14, 0.1), "rubber")
                for side in (-1, 1)
            ),
        ]
    )


def _rider(
    x: float, seat: float, top: float, width: float, rng: np.random.Generator
) -> list[np.ndarray]:
    head = 0.12
    middle = (seat + top - 2 * head) / 2
    return [
        solid(
            ELLIPSOID,
            (x, 0, middle),
            (0.42, min(0.52, width), top - 2 * head - seat + 0.15),
            "cloth",
            gain=draw_gain(rng),
        ),
        solid(ELLIPSOID, (x + 0.08, 0, top - head), (0.24, 0.22, 2 * head), "plastic"),
        *(
            solid(CYLINDER, (x + 0.15, side * 0.14, seat - 0.12), (0.15, 0.15, 0.55), "cloth")
            for side in (-1, 1)
        ),
    ]


def two_wheeler(name: str, size: Size, rng: np.random.Generator, *, ridden: bool) -> np.ndarray:
    """Return a bicycle or a motorcycle, with its rider where it has one."""
    length, width, height = size
    motor = name == "motorcycle"
    radius = min(0.31 if motor else 0.34, height * 0.3)
    thick = 0.16 if motor else 0.05
    gain, material = draw_gain(rng), "paint" if motor else "metal"
    bar = min(0.95 if motor else 1.02, height * 0.8)
    parts = [
        *(
            solid(
                BOX,
                (x, 0, radius),
                (1.8 * radius, thick, 2 * radius),
                "rubber",
                fill=0.9 if motor else 0.3,
            )
            for x in (radius - length / 2, length / 2 - radius)
        ),
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
            solid(BOX, (0, 0, 0.58), (length * 0.45, 0.06, 0.42), material, fill=0.3, gain=gain),
            solid(BOX, (-0.12 * length, 0, 0.88), (0.26, 0.16, 0.08), "plastic"),
        ]
    if ridden:
        parts += _rider(-0.1, 0.8 if motor else 0.85, height, width, rng)
    return join(parts)


def pedestrian(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a walking person: legs in stride, coat, arms, head.

    Annotated boxes are wide: a real person returns a quarter of the firings that enter one.
    """
    length, width, height = size[0], size[1], 0.96 * size[2]
    gain, stride = draw_gain(rng, 0.4), 0.22 * length
    hip, shoulder = 0.48 * height, 0.84 * height
    coat = _COATS[rng.integers(len(_COATS))]
    return join(
        [
            *(
                solid(
                    CYLINDER,
                    (side * stride, side * 0.12 * width, hip / 2),
                    (0.13, 0.13, hip),
                    "cloth",
                    gain=0.8 * gain,
                )
                for side in (-1, 1)
            ),
            solid(
                CYLINDER,
                (0, 0, (hip + shoulder) / 2 - 0.03),
                (0.30 * length, 0.48 * width, shoulder - hip + 0.06),
                coat,
                gain=gain,
            ),
            *(
                solid(
                    CYLINDER,
                    (-side * 0.2 * length, side * 0.29 * width, 0.64 * height),
                    (0.09, 0.09, 0.32 * height),
                    coat,
                    gain=gain,
                )
                for side in (-1, 1)
            ),
            solid(ELLIPSOID, (0.03, 0, 0.92 * height), (0.19, 0.16, 0.15 * height), "cloth"),
        ]
    )


def traffic_cone(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a cone with a reflecting band on its foot."""
    length, width, height = size
    up = 0.04 * height
    parts = [solid(BOX, (0, 0, up / 2), (length, width, up), "rubber")]
    for low, high, material in (
        (0.04, 0.5, "plastic"),
        (0.5, 0.75, "retro"),
        (0.75, 1.0, "plastic"),
    ):
        wide = (0.45 - 0.36 * low) * length
        parts.append(
            solid(
                WEDGE,
                (0, 0, (low + high) / 2 * height),
                (wide, wide, (high - low) * height),
                material,
                taper=(0.36 * (high - low) * length / wide,) * 2,
            )
        )
    return join(parts)
