"""nuScenes annotations as boxes in the LiDAR frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections
from driveRT_ros.io.rigid import inverse, rigid

CLASS_OF_CATEGORY: dict[str, str] = {
    "human.pedestrian.adult": "pedestrian",
    "human.pedestrian.child": "pedestrian",
    "human.pedestrian.construction_worker": "pedestrian",
    "human.pedestrian.police_officer": "pedestrian",
    "movable_object.barrier": "barrier",
    "movable_object.trafficcone": "traffic_cone",
    "vehicle.bicycle": "bicycle",
    "vehicle.bus.bendy": "bus",
    "vehicle.bus.rigid": "bus",
    "vehicle.car": "car",
    "vehicle.construction": "construction_vehicle",
    "vehicle.motorcycle": "motorcycle",
    "vehicle.trailer": "trailer",
    "vehicle.truck": "truck",
}
"""Categories of the nuScenes detection task; others (animals, strollers, debris) are not boxes."""

MAX_VELOCITY_GAP_S = 1.5
"""Neighbours further apart than this (twice this, where both exist) give no velocity."""

Table = Mapping[str, Mapping[str, Any]]


def pose_of(record: Mapping[str, Any]) -> np.ndarray:
    """Return the (4, 4) of a record with ``translation`` and ``rotation`` (w, x, y, z)."""
    w, x, y, z = record["rotation"]
    return rigid(record["translation"], (x, y, z, w))


def velocity_global(
    annotation: Mapping[str, Any], annotations: Table, samples: Table
) -> np.ndarray:
    """Return (3,) m/s in the global frame from the neighbouring annotations of the same object.

    NaN where there is no neighbour, or the two that are used are too far apart in time.

    Source: the definition of box velocity in nuScenes: central difference where both neighbours
    exist, else one-sided.
    """
    absent = np.full(3, math.nan)
    before = annotations.get(annotation["prev"]) if annotation["prev"] else None
    after = annotations.get(annotation["next"]) if annotation["next"] else None
    if before is None and after is None:
        return absent
    limit_s = MAX_VELOCITY_GAP_S * (2 if before is not None and after is not None else 1)
    first, last = before or annotation, after or annotation
    elapsed_us = (
        samples[last["sample_token"]]["timestamp"] - samples[first["sample_token"]]["timestamp"]
    )
    elapsed_s = elapsed_us * 1e-6
    if not 0 < elapsed_s <= limit_s:
        return absent
    return (np.array(last["translation"]) - np.array(first["translation"])) / elapsed_s


def annotated_boxes(
    records: Sequence[tuple[Mapping[str, Any], str, int]],
    T_global_lidar: np.ndarray,
    annotations: Table,
    samples: Table,
) -> Detections:
    """Return annotations of one sample as boxes in the LiDAR frame.

    Args:
        records: Annotation, its class name, and its object number.
        T_global_lidar: (4, 4) at the stamp of the sweep.
        annotations: All annotations by token.
        samples: All samples by token.
    """
    T_lidar_global = inverse(T_global_lidar)
    rows, labels, counts, tracks = [], [], [], []
    for record, name, track in records:
        T_lidar_box = T_lidar_global @ pose_of(record)
        yaw_ccw = math.atan2(T_lidar_box[1, 0], T_lidar_box[0, 0])
        width, length, height = record["size"]
        # a velocity is turned like a direction; it has no place to be moved to
        velocity = T_lidar_global[:3, :3] @ velocity_global(record, annotations, samples)
        rows.append([*T_lidar_box[:3, 3], length, width, height, yaw_ccw, *velocity[:2]])
        labels.append(NUSCENES_CLASSES.index(name))
        counts.append(int(record.get("num_lidar_pts", 0)))
        tracks.append(track)
    return ground_truth(rows, labels, counts, tracks)


def info_boxes(info: Mapping[str, Any], categories: Mapping[str, int]) -> Detections:
    """Return the instances of one frame of an mmdetection3d 1.1 info file.

    Those are already in the LiDAR frame: centre, length, width, height, yaw counter-clockwise from
    +x, velocity (null where unknown); the label numbers are those of the file.

    Args:
        info: One entry of ``data_list``.
        categories: ``metainfo.categories``: class name to label number.
    """
    names = {number: name for name, number in categories.items()}
    rows, labels, counts = [], [], []
    for item in info["instances"]:
        name = names.get(item["bbox_label_3d"])
        if name not in NUSCENES_CLASSES:
            continue
        velocity = [math.nan if v is None else v for v in item.get("velocity", (None, None))]
        rows.append([*item["bbox_3d"], *velocity])
        labels.append(NUSCENES_CLASSES.index(name))
        counts.append(int(item.get("num_lidar_pts", 0)))
    return ground_truth(rows, labels, counts, None)


def ground_truth(
    rows: Sequence[Sequence[float]],
    labels: Sequence[int],
    counts: Sequence[int] | None,
    tracks: Sequence[int] | None,
) -> Detections:
    """Return boxes that are certain (score 1), in the ten nuScenes classes."""

    def integers(values: Sequence[int] | None) -> torch.Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.int64)

    return Detections(
        boxes=torch.tensor(rows, dtype=torch.float32).reshape(-1, 9),
        scores=torch.ones(len(rows)),
        labels=torch.tensor(labels, dtype=torch.int64),
        num_points=integers(counts),
        track_ids=integers(tracks),
    )
