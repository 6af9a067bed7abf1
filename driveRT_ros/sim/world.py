"""The whole scene at one instant: bodies to hit, objects to annotate, ground to stand on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from driveRT_ros.sim.actors import Actor
from driveRT_ros.sim.cells import CELL_M, Cell, draw_cell
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.materials import INDEX
from driveRT_ros.sim.road import Road
from driveRT_ros.sim.solids import join
from driveRT_ros.sim.style import Style
from driveRT_ros.sim.traffic import Traffic, ego_progress

LANE_MARK_HALF_M = 0.08
DASH_M, DASH_PERIOD_M = 3.0, 9.0


@dataclass(frozen=True)
class Snapshot:
    """What a sensor can see at one instant.

    Args:
        time_s: Seconds since the first sweep.
        actors: Every annotated object near the own vehicle.
        bodies: (N,) ``SOLID`` in world coordinates.
    """

    time_s: float
    actors: tuple[Actor, ...]
    bodies: np.ndarray


class World:
    """Everything around the drive of one seed; cameras and LiDAR look at the same one.

    Args:
        config: The simulation.
    """

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.road = Road(config)
        self.style = Style.draw(config)
        self.ego = ego_progress(config.seed, config.traffic.ego_speed_mps)
        self.ego_offset_m = -self.road.lane_centre_m(0)
        self.traffic = Traffic(config.seed, self.road, self.style, self.ego, ego_lane=0)
        self._latest: Snapshot | None = None
        self.cell = lru_cache(maxsize=256)(self._draw_cell)
        self._roadside = lru_cache(maxsize=2)(self._draw_roadside)  # the same for 24 m of driving
        self.reach_m = config.lidar.max_range_m + 20.0

    def _draw_cell(self, side: int, index: int) -> Cell:
        return draw_cell(self.config.seed, side, index, self.road, self.style)

    def ego_s(self, time_s: np.ndarray | float) -> np.ndarray | float:
        """Return the road coordinate of the own vehicle at times of any shape."""
        return self.ego.distance(time_s)

    def T_world_ego(self, time_s: np.ndarray) -> np.ndarray:  # noqa: N802 - a transform's name
        """Return poses (K, 4, 4) float64 of the own vehicle at times (K,) in seconds.

        The origin is the middle of the rear axle on the ground; the axes are x forward, y left,
        z up, tilted with the terrain.
        """
        s = np.asarray(self.ego_s(np.asarray(time_s, dtype=np.float64)))
        x, y, heading = self.road.place(s, self.ego_offset_m)
        gx, gy = self.road.gradient(x, y)
        forward = np.stack(
            [np.cos(heading), np.sin(heading), gx * np.cos(heading) + gy * np.sin(heading)], axis=1
        )
        forward /= np.linalg.norm(forward, axis=1, keepdims=True)
        up = np.stack([-gx, -gy, np.ones_like(gx)], axis=1)
        left = np.cross(up, forward)
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        poses = np.zeros((len(s), 4, 4))
        poses[:, :3, 0], poses[:, :3, 1] = forward, left
        poses[:, :3, 2] = np.cross(forward, left)
        poses[:, :3, 3] = np.stack([x, y, self.road.height(x, y)], axis=1)
        poses[:, 3, 3] = 1.0
        return poses

    def at(self, time_s: float) -> Snapshot:
        """Return who and what is within reach of the sensor at a time in seconds."""
        if self._latest is None or self._latest.time_s != time_s:
            self._latest = self._snapshot(time_s)
        return self._latest

    def _snapshot(self, time_s: float) -> Snapshot:
        s_ego = float(self.ego_s(time_s))
        moving, bodies = self.traffic.at(time_s, s_ego, self.reach_m)
        standing, still = self._roadside(self._cells_near(s_ego))
        return Snapshot(time_s, (*standing, *moving), join([still, bodies]))

    def _draw_roadside(self, near: range) -> tuple[tuple[Actor, ...], np.ndarray]:
        cells = [self.cell(side, k) for side in (1, -1) for k in near]
        return (
            tuple(actor for cell in cells for actor in cell.actors),
            join(cell.bodies for cell in cells),
        )

    def _cells_near(self, s: float) -> range:
        first = int(np.floor((s - self.reach_m) / CELL_M))
        return range(first, int(np.floor((s + self.reach_m) / CELL_M)) + 1)

    def surface(self, s: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lift above the terrain and the material of the ground at road coordinates.

        Args:
            s, d: (N,) metres.

        Returns:
            (N,) float64 metres, (N,) int8 index into the materials.
        """
        if len(s) == 0:
            return np.zeros(0), np.zeros(0, np.int8)
        index = np.floor(s / CELL_M).astype(np.int64)
        low, high = int(index.min()), int(index.max())
        cells = [[self.cell(side, k) for k in range(low, high + 1)] for side in (-1, 1)]
        junction = np.array([[c.junction for c in row] for row in cells])
        verge = np.array([[c.verge for c in row] for row in cells], np.int8)
        side, index, out = (d > 0).astype(np.int64), index - low, np.abs(d)
        beside = out > self.road.kerb_m
        raised = beside & ~junction[side, index]
        material = np.where(
            out > self.road.frontage_m,
            verge[side, index],
            np.where(raised, INDEX["pavement"], INDEX["asphalt"]),
        )
        material = np.where(self._marked(s, out), INDEX["marking"], material).astype(np.int8)
        return raised * self.road.config.kerb_height_m, material

    def _marked(self, s: np.ndarray, out: np.ndarray) -> np.ndarray:
        road, half = self.road, LANE_MARK_HALF_M
        solid_line = (np.abs(out - 0.12) < half) | (np.abs(out - road.lane_edge_m) < half)
        lanes = out / road.config.lane_width_m
        across = np.abs(lanes - np.round(lanes)) * road.config.lane_width_m < half
        dashed = across & (out < road.lane_edge_m - 1.0) & (out > 1.0)
        return solid_line | (dashed & (np.mod(s, DASH_PERIOD_M) < DASH_M))
