"""How crowded, green, built-up and bright one scene is: the configuration, varied by the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.streams import STYLE, stream


@dataclass(frozen=True)
class Style:
    """Densities of one scene, where 1 is a busy town street, and the sensor's brightness.

    Median intensities of four real recordings were 11, 12, 18 and 21 although their streets
    resemble each other; ``brightness`` is that difference.
    """

    vehicles: float
    parked: float
    pedestrians: float
    cyclists: float
    roadworks: float
    buildings: float
    vegetation: float
    street_furniture: float
    brightness: float

    @staticmethod
    def draw(config: SimConfig) -> Style:
        """Scale each configured density by a log-normal factor of the seed."""
        rng = stream(config.seed, STYLE)
        traffic, scenery = config.traffic, config.scenery
        mean = {
            "vehicles": traffic.vehicles,
            "parked": traffic.parked,
            "pedestrians": traffic.pedestrians,
            "cyclists": traffic.cyclists,
            "roadworks": traffic.roadworks,
            "buildings": scenery.buildings,
            "vegetation": scenery.vegetation,
            "street_furniture": scenery.street_furniture,
        }
        factors = np.exp(traffic.spread * np.clip(rng.standard_normal(len(mean)), -2, 2))
        densities = {name: float(mean[name] * f) for name, f in zip(mean, factors, strict=True)}
        brightness = np.exp(0.6 * traffic.spread * np.clip(rng.standard_normal(), -2, 2))
        return Style(**densities, brightness=float(brightness))
