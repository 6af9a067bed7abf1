"""Helpers to look at simulated drives: world coordinates, footprints, brute-force rays."""

from __future__ import annotations

import numpy as np

from driveRT_ros.core.frame import SceneFrame
from driveRT_ros.sim.raycast import Rays
from driveRT_ros.sim.solids import BOX, CYLINDER, WEDGE


def world_points(frame: SceneFrame, keep: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return points (N, 3) of a frame in the world."""
    T = frame.T_world_ego @ frame.T_ego_lidar
    return frame.points.xyz[keep].astype(np.float64) @ T[:3, :3].T + T[:3, 3]


def corners_xy(box: np.ndarray, shrink_m: float = 0.0) -> np.ndarray:
    """Return the four corners (4, 2) of a box x, y, z, l, w, h, yaw in plan."""
    x, y, _, length, width, _, yaw = box[:7]
    half = np.array([length, width]) / 2 - shrink_m
    local = np.array([(1, 1), (1, -1), (-1, -1), (-1, 1)]) * half
    turn = np.array([(np.cos(yaw), -np.sin(yaw)), (np.sin(yaw), np.cos(yaw))])
    return local @ turn.T + (x, y)


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two rectangles (4, 2) overlap, by the separating axes of both."""
    for shape in (a, b):
        for k in (0, 1):
            axis = shape[k + 1] - shape[k]
            pa, pb = a @ axis, b @ axis
            if pa.max() <= pb.min() or pb.max() <= pa.min():
                return False
    return True


def random_rays(rng: np.random.Generator, columns: int = 90, beams: int = 12) -> Rays:
    """Return a tilted, moving fan of rays that turns clockwise once."""
    azimuth = np.pi - (np.arange(columns) + rng.random()) * 2 * np.pi / columns
    elevation = np.radians(np.linspace(-35.0, 20.0, beams))
    local = np.stack(
        [
            np.cos(azimuth)[:, None] * np.cos(elevation),
            np.sin(azimuth)[:, None] * np.cos(elevation),
            np.broadcast_to(np.sin(elevation), (columns, beams)),
        ],
        axis=-1,
    )
    pitch = rng.uniform(-0.04, 0.04)
    tilt = np.array(
        [[np.cos(pitch), 0, np.sin(pitch)], [0, 1, 0], [-np.sin(pitch), 0, np.cos(pitch)]]
    )
    along = np.linspace(0.0, 0.6, columns)[:, None] * np.array([1.0, 0.3, 0.01])
    return Rays(np.array([3.0, -2.0, 1.8]) + along, local @ tilt.T)


def inside(body: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return which points (N, 3) lie in one body, written apart from the intersection code."""
    x, y, z = (points - body["centre"]).T
    u = (body["cos"] * x + body["sin"] * y) / body["half"][0]
    v = (body["cos"] * y - body["sin"] * x) / body["half"][1]
    w = z / body["half"][2]
    if body["kind"] == BOX:
        return np.maximum(np.maximum(abs(u), abs(v)), abs(w)) <= 1
    if body["kind"] == WEDGE:
        room = [1 - lean * (w + 1) / 2 for lean in body["taper"]]
        return (abs(w) <= 1) & (abs(u) <= room[0]) & (abs(v) <= room[1])
    if body["kind"] == CYLINDER:
        return (u * u + v * v <= 1) & (abs(w) <= 1)
    return u * u + v * v + w * w <= 1
