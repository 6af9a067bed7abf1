"""Convex bodies of which everything above the ground is made, as one structured array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsFloat

import numpy as np

from driveRT_ros.sim.materials import INDEX

BOX, WEDGE, CYLINDER, ELLIPSOID, FOLIAGE = range(5)
"""Kinds: box; box whose sides lean inwards; upright cylinder; ellipsoid; ellipsoid of leaves."""

NOBODY = -1
"""Owner of scenery."""

SOLID = np.dtype(
    [
        ("centre", np.float64, 3),  # metres
        ("half", np.float64, 3),  # half extents along the body's own axes, metres
        ("taper", np.float64, 2),  # wedge: share of the half extents x, y lost from floor to top
        ("cos", np.float64),  # direction of the body's x axis
        ("sin", np.float64),
        ("fill", np.float64),  # share of rays stopped; leaves: mean number of hits per metre
        ("gain", np.float64),  # brightness against the material
        ("owner", np.int64),  # track id, or NOBODY
        ("kind", np.int8),
        ("material", np.int8),
    ]
)


_RECORD = np.dtype((np.void, SOLID.itemsize))


def solid(
    kind: int,
    centre: Iterable[SupportsFloat],
    size: Iterable[SupportsFloat],
    material: str,
    *,
    yaw: float = 0.0,
    taper: tuple[float, float] = (0.0, 0.0),
    fill: float = 1.0,
    gain: float = 1.0,
) -> np.ndarray:
    """Return one body as an array of length 1 with dtype ``SOLID``.

    Args:
        kind: One of the kinds above.
        centre: x, y, z of the middle, metres.
        size: Full extents along the body's own axes, metres.
        material: Name in ``materials.MATERIALS``.
        yaw: Radians counter-clockwise about z.
        taper: For a wedge, how much narrower the top is than the floor, 0..1 along x and y.
        fill: Share of rays that the body stops (a fence 0.3); for leaves, hits per metre.
        gain: Brightness against the material.
    """
    half = tuple(max(float(extent) / 2, 1e-3) for extent in size)
    cos, sin, code = np.cos(yaw), np.sin(yaw), INDEX[material]
    row = (tuple(centre), half, taper, cos, sin, fill, gain, NOBODY, kind, code)
    return np.array([row], SOLID)  # field by field it would take four times as long


def join(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return all bodies in one array; none give an empty one."""
    parts = list(parts)
    if not parts:
        return np.zeros(0, SOLID)
    # As bytes: NumPy compares the fields of all parts before it joins records.
    return np.concatenate([np.ascontiguousarray(p).view(_RECORD) for p in parts]).view(SOLID)


def placed(
    bodies: np.ndarray,
    x: float | np.ndarray,
    y: float | np.ndarray,
    z: float | np.ndarray,
    yaw: float | np.ndarray,
    owner: int | np.ndarray | None = None,
) -> np.ndarray:
    """Return copies turned by ``yaw`` about z and then moved to x, y, z.

    Args:
        bodies: (N,) ``SOLID`` in their own frame.
        x, y, z: Position in metres; one for all, or (N,).
        yaw: Radians counter-clockwise; one for all, or (N,).
        owner: New owner, one for all or (N,), or None to keep it.
    """
    out = bodies.copy()
    c, s = np.cos(yaw), np.sin(yaw)
    bx, by = bodies["centre"][:, 0], bodies["centre"][:, 1]
    out["centre"][:, 0] = x + c * bx - s * by
    out["centre"][:, 1] = y + s * bx + c * by
    out["centre"][:, 2] += z
    out["cos"] = c * bodies["cos"] - s * bodies["sin"]
    out["sin"] = s * bodies["cos"] + c * bodies["sin"]
    if owner is not None:
        out["owner"] = owner
    return out


def draw_gain(rng: np.random.Generator, spread: float = 0.45) -> float:
    """Draw how bright one object is against its material: log-normal, at most two deviations."""
    return float(np.exp(np.clip(rng.standard_normal(), -2, 2) * spread))
