"""Drive through a seeded street and yield what the sensors of the vehicle record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from driveRT_ros.core.frame import Detections, SceneFrame
from driveRT_ros.sim.cameras import Cameras
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.lidar import Lidar, Sweep
from driveRT_ros.sim.streams import SWEEP, stream
from driveRT_ros.sim.world import World

_BOX_MARGIN_M = 0.06  # range noise on a box's faces, as an annotator allows for it


def _every(index: int) -> bool:
    return True


def simulate(config: SimConfig, annotated: Callable[[int], bool] = _every) -> Iterator[SceneFrame]:
    """Yield the sweeps of one drive with poses and ground truth, in time order.

    The same configuration gives the same bytes, and a drive of N sweeps is the beginning of the
    same drive with more.

    Args:
        config: What to simulate.
        annotated: Whether a sweep, by its number, needs ground truth. The others have None and
            are made faster; nothing else differs.

    Yields:
        Frames whose points are given in the LiDAR frame at their stamp (``time_lag_s`` is 0) and
        whose boxes are in that frame too. Velocities are those of the objects in the world,
        turned into the axes of the LiDAR; the motion of the own vehicle is not subtracted. Images
        are there where ``config.cameras`` asks for them; they change nothing else.
    """
    world = World(config)
    lidar, cameras = Lidar(world), Cameras(world)
    for index in range(config.num_sweeps):
        sweep = lidar.sweep(index, stream(config.seed, SWEEP, index))
        yield frame_of(lidar, index, sweep, cameras, annotated(index))


def frame_of(
    lidar: Lidar,
    index: int,
    sweep: Sweep,
    cameras: Cameras | None = None,
    annotated: bool = True,
) -> SceneFrame:
    """Return the frame of one sweep with its pose, ground truth and images, if it has some."""
    world = lidar.world
    time_s = (sweep.points.stamp_ns - world.config.start_time_ns) * 1e-9
    T_world_ego = world.T_world_ego(np.array([time_s]))[0]
    truth = None
    if annotated:
        truth = _ground_truth(world, time_s, T_world_ego @ lidar.T_ego_lidar, sweep)
    images = cameras.frames(index) if cameras is not None and cameras.wants(index) else ()
    return SceneFrame(sweep.points, T_world_ego, lidar.T_ego_lidar, truth, images)


def _ground_truth(
    world: World, time_s: float, T_world_lidar: np.ndarray, sweep: Sweep
) -> Detections:
    config = world.config
    actors = world.at(time_s).actors
    if not actors:
        return Detections.empty()
    T = np.linalg.inv(T_world_lidar)
    turn = np.arctan2(T[1, 0], T[0, 0])
    size = np.array([a.size_lwh for a in actors])
    middle = np.array([(a.x, a.y, a.z + a.size_lwh[2] / 2) for a in actors]) @ T[:3, :3].T
    middle += T[:3, 3]
    yaw = np.array([a.yaw for a in actors]) + turn
    yaw = (yaw + np.pi) % (2.0 * np.pi) - np.pi
    velocity = np.array([(*a.velocity_xy, 0.0) for a in actors]) @ T[:3, :3].T
    boxes = np.concatenate([middle, size, yaw[:, None], velocity[:, :2]], axis=1)
    near = np.hypot(boxes[:, 0], boxes[:, 1]) <= config.ground_truth_range_m
    boxes = boxes[near].astype(np.float32)
    count = count_points(sweep.points.xyz[sweep.returned], boxes, _BOX_MARGIN_M)
    keep = count >= config.ground_truth_min_points
    labels = np.array([a.label for a in actors], np.int64)[near][keep]
    tracks = np.array([a.track_id for a in actors], np.int64)[near][keep]
    return Detections(
        boxes=torch.from_numpy(boxes[keep]),
        scores=torch.ones(len(labels)),
        labels=torch.from_numpy(labels),
        num_points=torch.from_numpy(count[keep]),
        track_ids=torch.from_numpy(tracks),
    )


def count_points(xyz: np.ndarray, boxes: np.ndarray, margin_m: float = 0.0) -> np.ndarray:
    """Return how many points lie in each box, its faces moved out by a margin.

    Args:
        xyz: (N, 3) points.
        boxes: (M, 7+) x, y, z, l, w, h, yaw in the frame of the points.
        margin_m: Metres.

    Returns:
        (M,) int64.
    """
    count = np.zeros(len(boxes), np.int64)
    order = np.argsort(xyz[:, 0], kind="stable")
    xyz = xyz[order].astype(np.float64)
    xs, ys = xyz[:, 0].copy(), xyz[:, 1].copy()
    for k, (x, y, z, length, width, height, yaw) in enumerate(boxes[:, :7].astype(np.float64)):
        reach = np.hypot(length, width) / 2 + 2 * margin_m + 1e-6
        first, last = np.searchsorted(xs, (x - reach, x + reach))
        strip = ys[first:last]
        rows = first + np.nonzero((strip >= y - reach) & (strip <= y + reach))[0]
        at = xyz[rows] - (x, y, z)
        u = at[:, 0] * np.cos(yaw) + at[:, 1] * np.sin(yaw)
        v = at[:, 1] * np.cos(yaw) - at[:, 0] * np.sin(yaw)
        inside = (np.abs(u) <= length / 2 + margin_m) & (np.abs(v) <= width / 2 + margin_m)
        count[k] = (inside & (np.abs(at[:, 2]) <= height / 2 + margin_m)).sum()
    return count
