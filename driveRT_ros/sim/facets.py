"""Bodies and ground as flat four-cornered facets with a colour: what a camera draws.

A triangle is a facet with two equal corners. Round bodies become prisms and polyhedra whose
corners lie on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.materials import NAMES as MATERIALS
from driveRT_ros.sim.solids import BOX, CYLINDER, ELLIPSOID, FOLIAGE, NOBODY, WEDGE

COLOURS: dict[str, tuple[int, int, int]] = {
    "asphalt": (84, 85, 88),
    "marking": (216, 216, 208),
    "pavement": (140, 136, 130),
    "grass": (98, 118, 64),
    "concrete": (158, 154, 147),
    "brick": (148, 94, 76),
    "glass": (60, 76, 94),
    "leaves": (70, 104, 52),
    "bark": (92, 76, 60),
    "metal": (122, 126, 132),
    "paint": (176, 178, 182),
    "rubber": (36, 36, 38),
    "cloth": (98, 92, 112),
    "plastic": (70, 112, 100),
    "retro": (206, 126, 66),
    "wood": (150, 120, 86),
    "own_paint": (60, 62, 66),
}
"""sRGB by material, in full light."""

_COLOUR_TABLE = np.array([COLOURS[name] for name in MATERIALS], np.float64)
_KEEP_OWN_COLOUR = np.array([name in ("glass", "rubber") for name in MATERIALS])
_SIDES = 8
_BANDS = 4
_AMBIENT, _FROM_ABOVE, _FROM_SUN = 0.52, 0.10, 0.40


@dataclass(frozen=True)
class Facets:
    """Many facets in world coordinates; arrays share their first dimension F.

    Args:
        corners: (F, 4, 3) float64 metres, counter-clockwise as seen from outside.
        normals: (F, 3) float64 outward, of any length.
        colours: (F, 3) float64 sRGB 0..255, lit.
        cover: (F,) share of pixels covered: 1, less for leaves and fences.
        owners: (F,) int64 track id, or NOBODY.
        two_sided: (F,) bool: drawn from behind, too.
    """

    corners: np.ndarray
    normals: np.ndarray
    colours: np.ndarray
    cover: np.ndarray
    owners: np.ndarray
    two_sided: np.ndarray

    @staticmethod
    def of(
        corners: np.ndarray,
        colours: np.ndarray,
        sun: np.ndarray,
        *,
        cover: np.ndarray | float = 1.0,
        owners: np.ndarray | int = NOBODY,
        two_sided: bool = False,
    ) -> Facets:
        """Light facets whose colours are those in full light."""
        normals = np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1])
        unit = normals / np.maximum(np.linalg.norm(normals, axis=1), 1e-12)[:, None]
        light = _AMBIENT + _FROM_ABOVE * unit[:, 2] + _FROM_SUN * np.maximum(unit @ sun, 0.0)
        return Facets(
            corners,
            normals,
            np.clip(colours * light[:, None], 0.0, 255.0),
            np.broadcast_to(cover, len(corners)),
            np.broadcast_to(np.asarray(owners, np.int64), len(corners)),
            np.full(len(corners), two_sided),
        )

    @staticmethod
    def join(parts: list[Facets]) -> Facets:
        """Return all facets in one."""
        names = ("corners", "normals", "colours", "cover", "owners", "two_sided")
        return Facets(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def facets_of(
    bodies: np.ndarray, class_colours: Mapping[int, tuple[int, int, int]], sun: np.ndarray
) -> Facets:
    """Return the facets of bodies.

    Args:
        bodies: (N,) ``SOLID`` in world coordinates.
        class_colours: sRGB by track id; what belongs to nobody has the colour of its material.
        sun: (3,) unit vector towards the sun.
    """
    parts = []
    for kind, template in _TEMPLATES.items():
        some = bodies[bodies["kind"] == kind]
        corners = _placed(template, some).reshape(-1, 4, 3)
        repeat = len(template)
        parts.append(
            Facets.of(
                corners,
                np.repeat(_colours(some, class_colours), repeat, axis=0),
                sun,
                cover=np.repeat(_cover(some), repeat),
                owners=np.repeat(some["owner"], repeat),
            )
        )
    return Facets.join(parts)


def _placed(template: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    """Return (N, T, 4, 3) world corners of a template (T, 4, 3) that spans -1 to 1."""
    at = np.broadcast_to(template, (len(bodies), *template.shape)).copy()
    lean = bodies["taper"][:, None, None, :] / 2.0  # |x| <= 1 - lean (z + 1), as rays see it
    at[..., :2] *= 1.0 - lean * (at[..., 2:] + 1.0)
    at *= bodies["half"][:, None, None, :]
    cos, sin = bodies["cos"][:, None, None], bodies["sin"][:, None, None]
    x, y = at[..., 0].copy(), at[..., 1].copy()
    at[..., 0], at[..., 1] = cos * x - sin * y, sin * x + cos * y
    return at + bodies["centre"][:, None, None, :]


def _colours(bodies: np.ndarray, class_colours: Mapping[int, tuple[int, int, int]]) -> np.ndarray:
    own = _COLOUR_TABLE[bodies["material"]]
    of_class = np.array([class_colours.get(int(o), (0, 0, 0)) for o in bodies["owner"]], np.float64)
    classed = (bodies["owner"] != NOBODY) & ~_KEEP_OWN_COLOUR[bodies["material"]]
    colours = np.where(classed[:, None], of_class.reshape(-1, 3), own)
    return colours * np.clip(bodies["gain"], 0.2, 5.0)[:, None] ** 0.25


def _cover(bodies: np.ndarray) -> np.ndarray:
    """Return the share of rays stopped: of leaves along the mean chord, of fences as they are."""
    chord = 4.0 / 3.0 * np.cbrt(bodies["half"].prod(axis=1))  # of a ball of the same volume
    leaves = 1.0 - np.exp(-bodies["fill"] * chord)
    thin = np.where(bodies["fill"] < 0.5, bodies["fill"], 1.0)  # panes of glass look opaque
    return np.where(bodies["kind"] == FOLIAGE, leaves, thin)


def _box_template() -> np.ndarray:
    faces = []
    for axis in range(3):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        for sign in (-1.0, 1.0):
            face = np.full((4, 3), sign)
            face[:, u] = (-1, 1, 1, -1)
            face[:, v] = (-1, -1, 1, 1)
            faces.append(face if sign > 0 else face[::-1])
    return np.array(faces)


def _ring(z: float, radius: float) -> np.ndarray:
    turn = 2.0 * np.pi * np.arange(_SIDES) / _SIDES
    x, y = radius * np.cos(turn), radius * np.sin(turn)
    return np.stack([x, y, np.full(_SIDES, z)], axis=1)


def _between(low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """Return the facets of a band between two rings of corners."""
    after = np.roll(np.arange(_SIDES), -1)
    return [np.stack([low[k], low[n], high[n], high[k]]) for k, n in enumerate(after)]


def _cylinder_template() -> np.ndarray:
    low, high = _ring(-1.0, 1.0), _ring(1.0, 1.0)
    lid = [high[[0, 1, 2, 3]], high[[0, 3, 4, 7]], high[[4, 5, 6, 7]]]
    return np.array(_between(low, high) + lid)


def _ball_template() -> np.ndarray:
    heights = np.sin(np.linspace(-np.pi / 2, np.pi / 2, _BANDS + 1))
    rings = [_ring(z, np.sqrt(max(1.0 - z * z, 0.0))) for z in heights]
    return np.array([face for pair in zip(rings, rings[1:]) for face in _between(*pair)])


_TEMPLATES = {
    BOX: _box_template(),
    WEDGE: _box_template(),
    CYLINDER: _cylinder_template(),
    ELLIPSOID: _ball_template(),
    FOLIAGE: _ball_template(),
}
