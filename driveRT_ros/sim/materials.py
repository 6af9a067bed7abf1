"""What surfaces return: intensity and detection by material.

The medians and spreads were fitted to labelled points of a real nuScenes sequence of 32
keyframes and two other sweeps (5th, 50th and 95th percentile of the intensity): road 3, 13, 36
(8 to 11 at the median elsewhere); pavement 10, 37, 65; building 5, 31, 87; vegetation 8, 28, 65;
vehicle 2, 19, 87; person 5, 34, 100; the own vehicle 3, 21, 65.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Material(NamedTuple):
    """How one surface answers.

    Args:
        intensity: Median intensity, 0..255.
        spread: Log standard deviation from point to point.
        cosine: Exponent of the cosine of incidence in the received power (0 = retroreflector).
        reflectivity: Share of the light returned, which sets how far off it is seen.
        loss: Share of firings lost at any range (mirrors, glass).
        rough_m: Standard deviation of the surface along the ray in metres.
    """

    intensity: float
    spread: float
    cosine: float
    reflectivity: float
    loss: float
    rough_m: float


MATERIALS: dict[str, Material] = {
    "asphalt": Material(10.5, 0.60, 0.6, 0.13, 0.004, 0.003),
    "marking": Material(40.0, 0.35, 0.4, 0.40, 0.004, 0.003),
    "pavement": Material(31.0, 0.50, 0.6, 0.28, 0.004, 0.004),
    "grass": Material(26.0, 0.50, 0.3, 0.30, 0.004, 0.04),
    "concrete": Material(32.0, 0.55, 0.8, 0.35, 0.004, 0.006),
    "brick": Material(24.0, 0.60, 0.8, 0.25, 0.004, 0.01),
    "glass": Material(7.0, 0.90, 2.0, 0.10, 0.60, 0.0),
    "leaves": Material(29.0, 0.55, 0.3, 0.35, 0.01, 0.02),
    "bark": Material(22.0, 0.50, 0.7, 0.25, 0.004, 0.01),
    "metal": Material(26.0, 0.80, 0.9, 0.30, 0.02, 0.002),
    "paint": Material(19.0, 0.95, 1.1, 0.22, 0.12, 0.002),
    "rubber": Material(5.0, 0.60, 0.7, 0.08, 0.03, 0.004),
    "cloth": Material(30.0, 0.75, 0.5, 0.30, 0.01, 0.01),
    "plastic": Material(15.0, 0.70, 0.7, 0.25, 0.01, 0.003),
    "retro": Material(78.0, 0.32, 0.0, 1.00, 0.0, 0.002),
    "wood": Material(26.0, 0.50, 0.7, 0.30, 0.004, 0.006),
    "own_paint": Material(18.0, 0.75, 0.3, 0.25, 0.0, 0.005),
}
NAMES = tuple(MATERIALS)
INDEX = {name: k for k, name in enumerate(NAMES)}
TABLE = np.array(list(MATERIALS.values()), dtype=np.float64)
"""(materials, 6) float64, columns as the fields of :class:`Material`."""


def respond(
    material: np.ndarray,
    gain: np.ndarray,
    cosine: np.ndarray,
    range_m: np.ndarray,
    dropout: float,
    brightness: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw which firings return, and how brightly.

    The received power P falls with the square of the range and with the cosine of incidence; a
    return is found with probability P^1.5 / (P^1.5 + P0^1.5), a smooth step around the power P0
    that a grey surface (20 %) gives face-on at 90 m.

    Args:
        material: (N,) index into ``NAMES``.
        gain: (N,) brightness of the individual object against its material.
        cosine: (N,) cosine of incidence, 0..1.
        range_m: (N,) metres.
        dropout: Scale of the losses; 0 loses none.
        brightness: Scale of every intensity, the sensor's own.
        rng: Stream of the sweep.

    Returns:
        (N,) bool found, (N,) float64 intensity 0..255.
    """
    intensity, spread, exponent, reflectivity, loss, _ = TABLE[material].T
    shape = np.clip(cosine, 0.02, 1.0) ** exponent
    power = reflectivity * gain * shape * (90.0 / np.maximum(range_m, 1.0)) ** 2 / 0.2
    missed = np.clip(loss + (1.0 - loss) / (1.0 + power**1.5), 0.0, 1.0)
    found = rng.random(len(material)) >= missed * dropout
    bright = (
        brightness
        * intensity
        * gain
        * (0.45 + 0.55 * shape)
        * np.exp(spread * rng.standard_normal(len(material)))
    )
    return found, np.clip(np.round(bright), 0.0, 255.0)
