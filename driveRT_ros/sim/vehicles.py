"""Bodies of cars, trucks, buses, trailers and machines, inside length x width x height.

Each is in its own frame: x forward, y left, z up, the origin at the middle of the floor. Annotated
boxes leave room at the roof, the mirrors and the bumpers, and most of the light passes through
panes; of the firings that enter the box of a close vehicle that nothing hides, real sweeps hold
0.52 for cars, 0.59 for trucks and 0.50 for buses.
"""

from __future__ import annotations

import numpy as np

from driveRT_ros.sim.solids import BOX, WEDGE, draw_gain, join, solid

Size = tuple[float, float, float]
"""Length, width, height in metres."""

_PANE = 0.75  # share of the firings that a pane stops or throws aside; the others go in


def _wheels(
    length: float, width: float, radius: float, axles: tuple[float, ...]
) -> list[np.ndarray]:
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


def car(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a car or a van: body, tapered cabin of glass and pillars, roof, mirrors, wheels."""
    length, width, height = size
    gain = draw_gain(rng, 1.1)
    clearance, waist = 0.17 * height, 0.53 * height
    van = rng.random() < 0.25
    cabin, back = (0.78, -0.09) if van else (rng.uniform(0.5, 0.64), rng.uniform(-0.1, -0.02))
    body = width * 0.92  # mirrors fill the rest of the box
    taper = (0.18 if van else 0.34, 0.24)
    x, long = back * length, cabin * length
    return join(
        [
            solid(
                BOX,
                (0, 0, (clearance + waist * 0.75) / 2),
                (0.97 * length, body, waist * 0.75 - clearance),
                "paint",
                gain=gain,
            ),
            solid(
                WEDGE,
                (0, 0, waist * 0.875),
                (0.96 * length, body, waist * 0.25),
                "paint",
                taper=(0.06, 0.08),
                gain=gain,
            ),
            *_cabin(x, (long, body, height), waist, taper, gain),
            solid(BOX, (x + 0.24 * long, 0, waist + 0.08), (0.08, width, 0.14), "plastic"),
            solid(BOX, (-0.49 * length, 0, waist * 0.72), (0.02, body * 0.55, 0.11), "retro"),
            *_wheels(length, body, 0.2 * height, (-0.30, 0.31)),
        ]
    )


def _cabin(
    x: float, size: Size, waist: float, taper: tuple[float, float], gain: float
) -> list[np.ndarray]:
    """Return panes, seats, roof and pillars of a car above its waist.

    Args:
        x: Middle of the cabin.
        size: Length of the cabin, width of the body, height of the car.
        waist: Floor of the panes.
        taper: How the panes lean.
        gain: Brightness of the paint.
    """
    long, body, height = size
    roof, top = 0.90 * height, 0.93 * height
    glass = (waist + roof) / 2
    return [
        solid(
            WEDGE,
            (x, 0, glass),
            (long, body * 0.97, roof - waist),
            "glass",
            taper=taper,
            fill=_PANE,
        ),
        solid(  # what the light that passes the panes meets: seats, seen through them twice
            BOX,
            (x, 0, 0.64 * height),
            (0.4 * long, body * 0.7, 0.22 * height),
            "cloth",
            gain=0.25,
        ),
        solid(
            WEDGE,
            (x, 0, (roof + top) / 2),
            (long * (1 - taper[0]), body * 0.74, top - roof),
            "paint",
            taper=(0.2, 0.2),
            gain=gain,
        ),
        solid(BOX, (x, 0, glass), (0.12, body * 0.8, roof - waist), "paint", gain=gain),
    ]


def truck(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a truck: cab, frame, and a closed body or a loaded bed."""
    length, width, height = size
    gain, cab = draw_gain(rng), min(2.1, 0.34 * length)
    floor, top = 0.37 * height, rng.uniform(0.82, 0.96) * height
    wide = 0.88 * width  # mirrors fill the rest of the box
    front = 0.49 * length - cab / 2
    parts = [
        solid(
            WEDGE,
            (front, 0, 0.47 * height),
            (cab, 0.85 * width, 0.66 * height),
            "paint",
            taper=(0.2, 0.06),
            gain=gain,
        ),
        solid(BOX, (0, 0, 0.25 * height), (length * 0.96, 0.9, 0.14 * height), "metal"),
        *_wheels(length, wide, 0.15 * height, (-0.3, 0.36)),
    ]
    load = length - cab - 0.25
    if rng.random() < 0.6:
        parts.append(
            solid(
                BOX,
                (-0.49 * length + load / 2, 0, (floor + top) / 2),
                (0.98 * load, wide, top - floor),
                "paint",
                gain=draw_gain(rng),
            )
        )
    else:  # an open bed with something on it
        parts += [
            solid(
                BOX,
                (-0.49 * length + load / 2, 0, floor + 0.25),
                (0.98 * load, wide, 0.5),
                "paint",
                gain=gain,
            ),
            solid(
                BOX,
                (-length / 2 + load * 0.4, 0, (floor + 0.5 + top) / 2),
                (load * 0.5, width * 0.7, top - floor - 0.5),
                "wood",
            ),
        ]
    return join(parts)


def bus(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a bus with a band of windows between its pillars."""
    length, width, height = size
    gain, length, width = 1.8 * draw_gain(rng), 0.97 * length, 0.9 * width
    low, waist, top, roof = 0.11 * height, 0.38 * height, 0.8 * height, 0.93 * height
    return join(
        [
            solid(BOX, (0, 0, (low + waist) / 2), (length, width, waist - low), "paint", gain=gain),
            solid(
                BOX,
                (0, 0, (waist + top) / 2),
                (length * 0.99, width * 0.97, top - waist),
                "glass",
                fill=_PANE,
            ),
            *(
                solid(
                    BOX,
                    (x * length, 0, (waist + top) / 2),
                    (0.18, width, top - waist),
                    "paint",
                    gain=gain,
                )
                for x in (-0.48, -0.24, 0.0, 0.24, 0.48)
            ),
            solid(
                WEDGE,
                (0, 0, (top + roof) / 2),
                (length, width, roof - top),
                "paint",
                taper=(0.02, 0.16),
                gain=gain,
            ),
            *_wheels(length, width, 0.14 * height, (-0.28, 0.33)),
        ]
    )


def trailer(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return a semi-trailer on three axles."""
    length, width, height = size
    floor, top, gain = 0.3 * height, 0.97 * height, draw_gain(rng)
    parts = [
        solid(BOX, (0, 0, floor - 0.12), (length * 0.98, 1.0, 0.24), "metal"),
        *_wheels(length, width, 0.13 * height, (-0.36, -0.27, -0.18)),
        solid(BOX, (0.3 * length, 0, floor * 0.45), (0.15, 1.3, floor * 0.9), "metal"),
        solid(
            BOX,
            (0, 0, (floor + top) / 2),
            (0.98 * length, 0.95 * width, top - floor),
            "paint",
            gain=gain,
        ),
    ]
    return join(parts)


def construction_vehicle(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return an excavator: tracks, deck, cabin, boom and bucket."""
    length, width, height = size
    gain, turn = draw_gain(rng), rng.uniform(-0.25, 0.25)
    track, deck = 0.24 * height, 0.55 * height
    arm = [  # the boom rises and falls again, in short boxes
        solid(
            BOX,
            (x * length, turn * width * 0.5 * x, z * height),
            (0.15 * length, 0.32, 0.16 * height),
            "paint",
            gain=gain,
        )
        for x, z in ((0.08, 0.66), (0.2, 0.8), (0.31, 0.74), (0.39, 0.52), (0.42, 0.3))
    ]
    return join(
        [
            *(
                solid(
                    BOX,
                    (-0.14 * length, side * (width / 2 - 0.3), track / 2),
                    (0.66 * length, 0.58, track),
                    "rubber",
                )
                for side in (-1, 1)
            ),
            solid(
                BOX,
                (-0.18 * length, 0, (track + deck) / 2 + 0.05),
                (0.56 * length, width * 0.92, deck - track - 0.1),
                "paint",
                gain=gain,
            ),
            solid(
                WEDGE,
                (-0.03 * length, 0.22 * width, (deck + height) / 2),
                (0.24 * length, 0.4 * width, height - deck),
                "glass",
                taper=(0.2, 0.1),
                fill=_PANE,
            ),
            solid(
                BOX,
                (0.44 * length, 0, 0.12 * height),
                (0.12 * length, 0.5 * width, 0.22 * height),
                "metal",
            ),
            *arm,
        ]
    )
