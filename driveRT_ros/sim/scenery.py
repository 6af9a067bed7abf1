"""Scenery beside the road, each as bodies in its own frame: x along the road, y towards it."""

from __future__ import annotations

import numpy as np

from driveRT_ros.sim.solids import (
    BOX,
    CYLINDER,
    ELLIPSOID,
    FOLIAGE,
    WEDGE,
    draw_gain,
    join,
    solid,
)


def building(rng: np.random.Generator, front_m: float, depth_m: float) -> np.ndarray:
    """Return a block with window bays, a plinth, an entrance and perhaps balconies."""
    height, gain = rng.uniform(4.0, 22.0), draw_gain(rng, 0.7)
    material = str(rng.choice(("concrete", "brick", "concrete", "wood")))
    parts = [
        solid(BOX, (0, 0, height / 2 - 0.5), (front_m, depth_m, height + 1.0), material, gain=gain)
    ]
    face = depth_m / 2
    parts.append(
        solid(BOX, (0, face + 0.05, 0.3), (front_m, 0.1, 1.2), "concrete", gain=draw_gain(rng))
    )
    bay = rng.uniform(2.6, 4.2)
    glazed = rng.random() < 0.6
    for k in range(int(front_m / bay)):
        x = (k + 0.5) * bay - front_m / 2
        if glazed:
            for floor in range(min(int(height / 3.1), 4)):
                parts.append(
                    solid(
                        BOX, (x, face + 0.02, 3.1 * floor + 2.0), (bay * 0.45, 0.05, 1.5), "glass"
                    )
                )
        parts.append(
            solid(
                BOX, (x + bay / 2, face + 0.1, height / 2), (0.3, 0.2, height), material, gain=gain
            )
        )
    door = rng.uniform(-0.35, 0.35) * front_m
    parts.append(solid(BOX, (door, face + 0.5, 2.7), (rng.uniform(1.5, 4.0), 1.0, 0.25), "metal"))
    if height > 7.0 and rng.random() < 0.5:
        for floor in range(1, min(int(height / 3.1), 4)):
            parts.append(
                solid(
                    BOX,
                    (-door, face + 0.25, 3.1 * floor + 0.6),
                    (2.6, 0.5, 1.1),
                    "concrete",
                    gain=gain,
                )
            )
    return join(parts)


def tree(rng: np.random.Generator, crown_floor_m: float) -> np.ndarray:
    """Return a trunk below a crown of three clumps of leaves whose lowest point is given."""
    wide, tall = rng.uniform(2.6, 6.0), rng.uniform(2.5, 6.0)
    floor = crown_floor_m + rng.uniform(0.0, 0.9)
    thick, leaves, gain = rng.uniform(0.18, 0.5), rng.uniform(0.35, 0.8), draw_gain(rng, 0.25)
    parts = [
        solid(
            CYLINDER,
            (0, 0, (floor + 0.4 * tall) / 2 - 0.2),
            (thick, thick, floor + 0.4 * tall),
            "bark",
            gain=draw_gain(rng),
        )
    ]
    for _ in range(3):
        angle, off = rng.uniform(0, 2 * np.pi), rng.uniform(0.0, 0.25) * wide
        size = np.array((wide, wide, tall)) * rng.uniform(0.55, 0.95)
        middle = (
            off * np.cos(angle),
            off * np.sin(angle),
            floor + size[2] / 2 + rng.uniform(0.0, 1.0) * (tall - size[2]),
        )
        parts.append(
            solid(
                FOLIAGE,
                middle,
                size,
                "leaves",
                fill=leaves,
                gain=gain,
                yaw=float(rng.uniform(0, np.pi)),
            )
        )
    return join(parts)


def bush(rng: np.random.Generator) -> np.ndarray:
    """Return one low, dense clump of leaves."""
    size = rng.uniform((0.7, 0.7, 0.5), (2.4, 1.8, 1.8))
    return solid(
        FOLIAGE,
        (0, 0, size[2] * 0.42),
        size,
        "leaves",
        fill=rng.uniform(1.2, 4.0),
        gain=draw_gain(rng, 0.25),
        yaw=float(rng.uniform(0, np.pi)),
    )


def hedge(rng: np.random.Generator, length_m: float) -> np.ndarray:
    """Return a row of dense clumps along the road."""
    height, gain = rng.uniform(0.8, 1.9), draw_gain(rng, 0.25)
    return join(
        solid(
            FOLIAGE,
            (x, rng.normal(0, 0.06), height * 0.45),
            (1.7, 1.0, height),
            "leaves",
            fill=4.0,
            gain=gain,
        )
        for x in np.arange(-length_m / 2 + 0.6, length_m / 2 - 0.5, 0.9)
    )


def lamp(rng: np.random.Generator) -> np.ndarray:
    """Return a lamp post with an arm over the road."""
    height = rng.uniform(5.5, 9.0)
    return join(
        [
            solid(CYLINDER, (0, 0, height / 2), (0.16, 0.16, height), "metal", gain=draw_gain(rng)),
            solid(CYLINDER, (0, 0, 0.5), (0.28, 0.28, 1.0), "metal"),
            solid(BOX, (0, 0.9, height), (0.1, 1.8, 0.1), "metal"),
        ]
    )


def sign(rng: np.random.Generator) -> np.ndarray:
    """Return a post with one or two retroreflecting plates across the road."""
    parts = [solid(CYLINDER, (0, 0, 1.4), (0.07, 0.07, 2.8), "metal")]
    for k in range(rng.integers(1, 3)):
        parts.append(
            solid(
                BOX,
                (0, 0, 2.5 - 0.75 * k),
                (0.03, rng.uniform(0.5, 0.8), rng.uniform(0.4, 0.7)),
                "retro",
            )
        )
    return join(parts)


def bin_(rng: np.random.Generator) -> np.ndarray:
    """Return a litter bin or a wheeled one."""
    wide, height = rng.uniform(0.4, 0.8), rng.uniform(0.8, 1.2)
    return solid(
        CYLINDER if rng.random() < 0.5 else BOX,
        (0, 0, height / 2),
        (wide, wide, height),
        "plastic",
        gain=draw_gain(rng),
    )


def bollards(rng: np.random.Generator) -> np.ndarray:
    """Return three short posts in a row."""
    return join(
        solid(CYLINDER, (x, 0, 0.45), (0.15, 0.15, 0.9), "metal", gain=draw_gain(rng))
        for x in (-1.3, 0.0, 1.3)
    )


def cabinet(rng: np.random.Generator) -> np.ndarray:
    """Return a switch cabinet."""
    size = rng.uniform((0.6, 0.35, 0.9), (1.3, 0.55, 1.5))
    return solid(BOX, (0, 0, size[2] / 2), size, "metal", gain=draw_gain(rng))


def wall(rng: np.random.Generator, length_m: float) -> np.ndarray:
    """Return a garden wall with piers."""
    height, gain = rng.uniform(0.9, 2.6), draw_gain(rng)
    material = str(rng.choice(("brick", "concrete")))
    parts = [solid(BOX, (0, 0, height / 2), (length_m, 0.25, height), material, gain=gain)]
    for x in np.arange(-length_m / 2, length_m / 2 + 0.1, length_m / 5):
        parts.append(
            solid(BOX, (x, 0, height / 2 + 0.1), (0.4, 0.4, height + 0.2), material, gain=gain)
        )
    return join(parts)


def fence(rng: np.random.Generator, length_m: float) -> np.ndarray:
    """Return a fence that stops some of the rays, on posts."""
    height = rng.uniform(1.0, 2.0)
    parts = [
        solid(
            BOX, (0, 0, height / 2), (length_m, 0.04, height), "metal", fill=rng.uniform(0.15, 0.45)
        )
    ]
    for x in np.arange(-length_m / 2, length_m / 2 + 0.1, 2.5):
        parts.append(solid(CYLINDER, (x, 0, height / 2), (0.09, 0.09, height + 0.1), "metal"))
    return join(parts)


def planting(rng: np.random.Generator, length_m: float) -> np.ndarray:
    """Return a narrow row of low shrubs, as it parts the directions of traffic."""
    gain = draw_gain(rng, 0.25)
    return join(
        solid(
            FOLIAGE,
            (x, 0, 0.3),
            (5.0, 0.8, rng.uniform(0.9, 1.6)),
            "leaves",
            fill=rng.uniform(2.0, 5.0),
            gain=gain,
        )
        for x in np.arange(-length_m / 2 + 2.0, length_m / 2, 3.4)
    )


def rail(rng: np.random.Generator, length_m: float) -> np.ndarray:
    """Return a guard rail, or a railing that stops some of the rays, on posts."""
    gain, dense = draw_gain(rng), rng.random() < 0.5
    parts = [
        solid(BOX, (0, 0, 0.62), (length_m, 0.08, 0.34), "metal", gain=gain)
        if dense
        else solid(BOX, (0, 0, 0.55), (length_m, 0.04, 0.9), "metal", fill=0.35, gain=gain)
    ]
    for x in np.arange(-length_m / 2 + 1.0, length_m / 2, 4.0):
        parts.append(solid(BOX, (x, 0, 0.45), (0.1, 0.1, 0.9), "metal", gain=gain))
    return join(parts)


def blocks(rng: np.random.Generator, length_m: float) -> np.ndarray:
    """Return a wall of concrete blocks as high as a wheel, wider at the foot."""
    size = (length_m, 0.55, rng.uniform(0.75, 0.95))
    return solid(
        WEDGE, (0, 0, size[2] / 2), size, "concrete", taper=(0.0, 0.6), gain=draw_gain(rng)
    )


def heap(rng: np.random.Generator) -> np.ndarray:
    """Return a heap of earth beside a stack of boards."""
    size = rng.uniform((2.5, 2.0, 1.6), (5.0, 4.0, 3.2))
    return join(
        [
            solid(ELLIPSOID, (0, 0, 0), size, "grass", gain=0.7),
            solid(WEDGE, (0, -size[1] / 2 - 1.0, 0.5), (3.0, 1.2, 1.0), "wood", taper=(0.05, 0.1)),
        ]
    )
