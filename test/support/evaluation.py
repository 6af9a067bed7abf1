"""Frames for the evaluation: placed by hand, drawn or recorded; the same for nuscenes-devkit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections, PointBatch, SceneFrame
from driveRT_ros.io.bag import BagWriter
from driveRT_ros.io.encode import encode_detections, encode_objects
from driveRT_ros.io.scene_bag import DETECTIONS, OBJECTS, write_scene_bag
from driveRT_ros.io.typestore import message_type
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.train.matching import EvalBoxes

LABEL = {name: label for label, name in enumerate(NUSCENES_CLASSES)}
TINY = SimConfig.from_dict({"lidar.num_azimuths": 180})
NODE = "/lidar_node/output"


def boxes_of(
    rows: Sequence[Sequence[float]],
    name: str = "car",
    scores: Sequence[float] | None = None,
    num_points: Sequence[int] | None = None,
) -> Detections:
    """Return boxes of one class; a row is x, y or more of the nine columns.

    What a row lacks is a box 4 m long, 2 m wide and 1.5 m high that stands still at z = 0.
    """
    still = [0.0, 0.0, 0.0, 4.0, 2.0, 1.5, 0.0, 0.0, 0.0]
    full = [[*row, *still[len(row) :]] for row in rows]
    return Detections(
        boxes=torch.tensor(full, dtype=torch.float32).reshape(-1, 9),
        scores=torch.ones(len(rows)) if scores is None else torch.tensor(scores),
        labels=torch.full((len(rows),), LABEL[name], dtype=torch.int64),
        num_points=None if num_points is None else torch.tensor(num_points),
    )


def joined(*parts: Detections) -> Detections:
    """Return boxes of several classes together."""
    return Detections(
        boxes=torch.cat([p.boxes for p in parts]),
        scores=torch.cat([p.scores for p in parts]),
        labels=torch.cat([p.labels for p in parts]),
    )


def frame_of(
    truth: Detections | None, *, T_world_ego: np.ndarray | None = None, stamp_ns: int = 0
) -> SceneFrame:
    """Return a frame without points whose LiDAR is the vehicle."""
    nothing = np.zeros(0, np.float32)
    points = PointBatch(np.zeros((0, 3), np.float32), nothing, nothing, None, stamp_ns, "LIDAR_TOP")
    return SceneFrame(points, T_world_ego, np.eye(4), truth)


def drawn_boxes(rng: np.random.Generator, count: int) -> Detections:
    """Return boxes of all classes anywhere within 60 m."""
    boxes = np.concatenate(
        [
            rng.uniform((-45, -45, -1), (45, 45, 1), (count, 3)),
            rng.uniform((0.5, 0.5, 0.5), (5, 3, 2), (count, 3)),
            rng.uniform(-math.pi, math.pi, (count, 1)),
            rng.normal(0, 3, (count, 2)),
        ],
        axis=1,
    )
    boxes[rng.random(count) < 0.1, 7:] = np.nan
    return Detections(
        boxes=torch.tensor(boxes, dtype=torch.float32),
        scores=torch.ones(count),
        labels=torch.tensor(rng.integers(0, 10, count)),
    )


def noisy(rng: np.random.Generator, truth: Detections) -> Detections:
    """Return detections that hit most of the truth, with scores out of twenty: many are equal."""
    near = truth.boxes.numpy().copy()
    near += rng.normal(0, (1.5, 1.5, 0.1, 0.1, 0.1, 0.1, 0.4, 1.0, 1.0), near.shape)
    near[:, 3:6] = near[:, 3:6].clip(0.1)
    keep = rng.random(len(near)) < 0.8
    found = joined(
        Detections(
            torch.tensor(near[keep]).float(), torch.ones(int(keep.sum())), truth.labels[keep]
        ),
        drawn_boxes(rng, len(near)),
    )
    scores = rng.integers(1, 21, len(found)) / 20
    return Detections(found.boxes, torch.tensor(scores, dtype=torch.float64), found.labels)


def devkit_boxes(token: str, boxes: EvalBoxes, kind: Any) -> list[Any]:
    """Return the same boxes as instances of a box class of nuscenes-devkit."""
    rows = zip(boxes.boxes.tolist(), boxes.labels, boxes.scores, boxes.attributes)
    return [
        kind(
            sample_token=token,
            translation=tuple(box[:3]),
            size=(box[4], box[3], box[5]),
            rotation=(math.cos(box[6] / 2), 0.0, 0.0, math.sin(box[6] / 2)),
            velocity=tuple(box[7:9]),
            detection_name=NUSCENES_CLASSES[label],
            detection_score=float(score),
            attribute_name=attribute,
        )
        for box, label, score, attribute in rows
    ]


def recorded_drive(path: Path, *, shift_m: float = 0.0, answered: int = 3) -> Path:
    """Write a drive of three sweeps with detections: the ground truth, moved."""
    frames = list(simulate(dataclasses.replace(TINY, seed=7, num_sweeps=3)))
    write_scene_bag(iter(frames), path / "clouds")
    with BagWriter(path / "results") as writer:
        for frame in frames[:answered]:
            boxes = frame.ground_truth.boxes.clone()
            boxes[:, 0] += shift_m
            found = dataclasses.replace(frame.ground_truth, boxes=boxes)
            stamp_ns, frame_id = frame.points.stamp_ns, frame.points.frame_id
            for name, kind, encode in (
                ("detections", DETECTIONS, encode_detections),
                ("objects", OBJECTS, encode_objects),
            ):
                message = encode(found, stamp_ns, frame_id, message_type)
                writer.write(f"{NODE}/{name}", kind, message, stamp_ns)
    return path
