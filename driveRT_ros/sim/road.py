"""The road: a smooth centre line, its cross-section, and the terrain it lies on.

Road coordinates are s, metres along the centre line, and d, metres to its left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from driveRT_ros.sim.config import RoadConfig, SimConfig
from driveRT_ros.sim.streams import ROAD, stream

_START_S, _STEP_M = -400.0, 0.5
_MARGIN_M = 400.0  # the table reaches this far past the end of the drive
_BIKE_LANE_M, _PARKING_M = 1.4, 2.4
_X, _Y, _COS, _SIN, _HEADING = range(5)  # rows of the table


class Road:
    """The centre line as a table, and closed-form terrain.

    Args:
        config: The whole simulation; the length of the table follows from its duration.
    """

    def __init__(self, config: SimConfig) -> None:
        self.config: RoadConfig = config.road
        rng = stream(config.seed, ROAD)
        self.lanes = self.config.lanes_per_direction or int(rng.integers(1, 3))
        end = config.duration_s * config.traffic.ego_speed_mps * 1.3 + _MARGIN_M
        s = np.arange(_START_S, end, _STEP_M)
        heading = rng.uniform(-np.pi, np.pi) + _waves(s, rng, self.config.max_heading_rad)
        x, y = np.cumsum(np.cos(heading)) * _STEP_M, np.cumsum(np.sin(heading)) * _STEP_M
        self._table = np.stack([x, y, np.cos(heading), np.sin(heading), heading])
        self._steps = np.diff(self._table)
        self._terrain = Terrain.draw(rng, self.config.max_slope)

    @property
    def lane_edge_m(self) -> float:
        """Distance from the centre line to the outer edge of the lanes."""
        return self.lanes * self.config.lane_width_m

    @property
    def parking_m(self) -> float:
        """Distance from the centre line to the middle of a parked car."""
        return self.lane_edge_m + _BIKE_LANE_M + _PARKING_M / 2

    @property
    def bike_lane_m(self) -> float:
        """Distance from the centre line to where cyclists ride, away from the parked cars."""
        return self.lane_edge_m + 0.43 * _BIKE_LANE_M

    @property
    def kerb_m(self) -> float:
        """Distance from the centre line to the kerb."""
        return self.lane_edge_m + _BIKE_LANE_M + _PARKING_M

    @property
    def frontage_m(self) -> float:
        """Distance from the centre line to the end of the pavement."""
        return self.kerb_m + self.config.sidewalk_width_m

    def lane_centre_m(self, lane: int) -> float:
        """Return the distance of a lane's middle from the centre line, lane 0 the innermost."""
        return (lane + 0.5) * self.config.lane_width_m

    def _lookup(self, s: np.ndarray | np.float64, *rows: int) -> list[np.ndarray]:
        """Return rows of the table at road coordinates of any shape."""
        where = np.clip((s - _START_S) / _STEP_M, 0.0, self._table.shape[1] - 1.001)
        low = where.astype(np.int64)
        part = where - low
        return [self._table[k][low] + self._steps[k][low] * part for k in rows]

    def place(
        self, s: np.ndarray | float, d: np.ndarray | float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return world x, y and the heading of the road at road coordinates (any shape)."""
        x, y, heading = self._lookup(np.asarray(s, dtype=np.float64), _X, _Y, _HEADING)
        return x - d * np.sin(heading), y + d * np.cos(heading), heading

    def locate(self, x: np.ndarray, y: np.ndarray, s_guess: float) -> tuple[np.ndarray, np.ndarray]:
        """Return road coordinates s, d of world points near ``s_guess`` by foot-point iteration."""
        frame = (_X, _Y, _COS, _SIN)
        cx, cy, cos, sin = self._lookup(np.float64(s_guess), *frame)
        s = s_guess + (x - cx) * cos + (y - cy) * sin
        for _ in range(4):
            cx, cy, cos, sin = self._lookup(s, *frame)
            s = s + (x - cx) * cos + (y - cy) * sin
        cx, cy, cos, sin = self._lookup(s, *frame)
        return s, (y - cy) * cos - (x - cx) * sin

    def height(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the height of the terrain, without the kerb, in metres (any shape)."""
        return self._terrain.height(x, y)

    def gradient(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the slope of the terrain along world x and y."""
        return self._terrain.gradient(x, y)

    def height_and_gradient(
        self, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what :meth:`height` and :meth:`gradient` do, in less time."""
        return self._terrain.height_and_gradient(x, y)


@dataclass(frozen=True)
class Terrain:
    """A sum of long waves: wave vectors (K, 2) rad/m, phases (K,), amplitudes (K,) metres."""

    vectors: np.ndarray
    phases: np.ndarray
    amplitudes: np.ndarray

    @staticmethod
    def draw(rng: np.random.Generator, max_slope: float) -> Terrain:
        """Draw three waves whose slopes add up to at most ``max_slope``."""
        lengths = rng.uniform((60.0, 110.0, 220.0), (90.0, 180.0, 400.0))
        towards = rng.uniform(0.0, 2.0 * np.pi, 3)
        vectors = np.stack([np.cos(towards), np.sin(towards)], 1) * (2 * np.pi / lengths)[:, None]
        share = max_slope * np.array([0.2, 0.35, 0.45])
        return Terrain(vectors, rng.uniform(0.0, 2.0 * np.pi, 3), share * lengths / (2.0 * np.pi))

    def _phase(self, k: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.vectors[k, 0] * x + self.vectors[k, 1] * y + self.phases[k]

    def height(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the height at world points of any shape."""
        return sum(a * np.sin(self._phase(k, x, y)) for k, a in enumerate(self.amplitudes))

    def gradient(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return dz/dx and dz/dy at world points of any shape."""
        return self._slopes(self._phase(k, x, y) for k in range(len(self.amplitudes)))

    def height_and_gradient(
        self, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return height, dz/dx and dz/dy at world points of any shape."""
        phases = [self._phase(k, x, y) for k in range(len(self.amplitudes))]
        height = sum(a * np.sin(p) for a, p in zip(self.amplitudes, phases))
        return height, *self._slopes(phases)

    def _slopes(self, phases: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        slopes = [a * np.cos(p) for a, p in zip(self.amplitudes, phases)]
        gx = sum(w * v[0] for w, v in zip(slopes, self.vectors, strict=True))
        gy = sum(w * v[1] for w, v in zip(slopes, self.vectors, strict=True))
        return gx, gy


def _waves(s: np.ndarray, rng: np.random.Generator, amplitude: float) -> np.ndarray:
    """Return three sine waves of s, 180 to 480 m long, whose amplitudes sum to ``amplitude``."""
    lengths = rng.uniform(180.0, 480.0, 3)
    phases = rng.uniform(0.0, 2.0 * np.pi, 3)
    share = np.sqrt(lengths) / np.sqrt(lengths).sum() * amplitude
    return (share[:, None] * np.sin(2 * np.pi * s / lengths[:, None] + phases[:, None])).sum(0)
