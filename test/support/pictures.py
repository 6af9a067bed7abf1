"""Boxes and clouds for tests of pictures, and where colours are found in them."""

import numpy as np
import torch

from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections, FrameReport


def boxes_of(*rows, names=None, scores=None, num_points=None, report=None):
    """Return detections from rows x, y, z, l, w, h, yaw, vx, vy; all cars unless named."""
    boxes = torch.tensor(rows, dtype=torch.float32).reshape(-1, 9)
    names = names or ["car"] * len(boxes)
    return Detections(
        boxes=boxes,
        scores=torch.tensor(scores or [0.9] * len(boxes), dtype=torch.float32),
        labels=torch.tensor([NUSCENES_CLASSES.index(n) for n in names], dtype=torch.int64),
        report=report or FrameReport(),
        num_points=None if num_points is None else torch.tensor(num_points),
    )


def car_at(x, y, yaw=0.0, vx=0.0, vy=0.0):
    """Return one box row of a car of 4 m by 2 m."""
    return [x, y, -1.0, 4.0, 2.0, 1.6, yaw, vx, vy]


def street(num=3000, seed=0):
    """Return a flat ring of ground with a few uprights, (N, 5) float32."""
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0, 2 * np.pi, num), rng.uniform(3, 50, num)
    z = np.where(rng.random(num) < 0.2, rng.uniform(-1.5, 2.0, num), -1.8)
    columns = [radius * np.cos(angle), radius * np.sin(angle), z, rng.uniform(0, 99, num), 0 * z]
    return np.stack(columns, axis=1).astype(np.float32)


def no_points():
    """Return a cloud of zero points."""
    return np.zeros((0, 5), np.float32)


def changed(first, second):
    """Return rows and columns of the pixels that differ between two pictures."""
    return np.nonzero((first != second).any(axis=2))


def near(picture, color, tolerance=60):
    """Return (K, 2) column, row of the pixels whose colour is close to ``color``."""
    distance = np.abs(picture.astype(int) - np.array(color)).sum(axis=2)
    return np.argwhere(distance <= tolerance)[:, ::-1]
