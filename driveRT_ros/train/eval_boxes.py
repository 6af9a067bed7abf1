"""Detections and ground truth of one frame as an evaluation compares them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from driveRT_ros.core.boxes import VELOCITY, transform_boxes
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections, SceneFrame
from driveRT_ros.train.matching import BoolArray, EvalBoxes, FloatArray, IntArray

CLASS_RANGE_M = {
    "car": 50.0,
    "truck": 50.0,
    "construction_vehicle": 50.0,
    "bus": 50.0,
    "trailer": 50.0,
    "barrier": 30.0,
    "motorcycle": 40.0,
    "bicycle": 40.0,
    "pedestrian": 40.0,
    "traffic_cone": 30.0,
}
"""Boxes count below this distance from the vehicle, as the nuScenes detection task has it."""

MAX_BOXES = 500
"""Most detections of one frame that the nuScenes detection task takes."""

MOVING_MPS = 0.2
_ATTRIBUTES = {
    **dict.fromkeys(
        ("car", "truck", "construction_vehicle", "bus", "trailer"),
        ("vehicle.parked", "vehicle.moving"),
    ),
    **dict.fromkeys(("motorcycle", "bicycle"), ("cycle.without_rider", "cycle.with_rider")),
    "pedestrian": ("pedestrian.standing", "pedestrian.moving"),
}


@dataclasses.dataclass(frozen=True)
class EvalSettings:
    """What counts.

    Args:
        min_points: Ground truth with fewer LiDAR points is left out: neither missed nor found.
            Ground truth without a point does not count in any case, and a detection there is wrong.
        max_range_m: Boxes at this distance from the vehicle or beyond do not count, where the
            range of their class is longer.
        every_box: Every box counts, however far and with however few points, even none.
    """

    min_points: int = 1
    max_range_m: float = math.inf
    every_box: bool = False

    def __post_init__(self) -> None:
        if self.every_box and (self.min_points != 1 or math.isfinite(self.max_range_m)):
            raise ConfigError(
                "Where every box counts there is no least number of points and no greatest range."
            )
        if self.min_points < 1:
            raise ConfigError(
                f"The least number of points must be at least 1, got {self.min_points}."
            )
        if not self.max_range_m > 0:
            raise ConfigError(f"The greatest range must be positive, got {self.max_range_m} m.")

    def range_m(self, name: str) -> float:
        """Return the distance below which boxes of a class count."""
        return math.inf if self.every_box else min(CLASS_RANGE_M[name], self.max_range_m)


@dataclasses.dataclass(frozen=True, eq=False)
class EvalFrame:
    """The boxes of one frame in its world, or above the ground under the vehicle.

    Args:
        token: Name of the frame; a nuScenes sample token, or one that is made up.
        found: Detections, at most 500, the best ones.
        truth: Ground truth.
    """

    token: str
    found: EvalBoxes
    truth: EvalBoxes


def eval_frame(
    frame: SceneFrame,
    found: Detections,
    token: str,
    *,
    settings: EvalSettings | None = None,
    attributes: Sequence[str] | None = None,
    ignored: BoolArray | None = None,
) -> EvalFrame:
    """Return detections and ground truth of one frame as they are compared.

    Boxes are turned into the world where the pose is known, else into the frame of the vehicle:
    distances on the ground must not depend on how the sensor is tilted. The attribute of a
    detection follows from its speed; so does that of a ground truth whose source has none.

    Args:
        frame: With ground truth.
        found: Detections in the frame of its points.
        token: Name of the frame.
        settings: What counts.
        attributes: Annotated attribute of every ground truth, in their order.
        ignored: Of every detection, whether it is where nothing is annotated.

    Raises:
        ConfigError: If the frame has no ground truth.
    """
    settings = settings or EvalSettings()
    if frame.ground_truth is None:
        raise ConfigError(f"Frame '{token}' has no ground truth to compare with.")
    ours = upright_boxes(frame, found)
    if ignored is not None:
        ours = dataclasses.replace(ours, ignored=ignored[_usable(found)])
    ours = ours.select(np.sort(np.argsort(-ours.scores, kind="stable")[:MAX_BOXES]))
    theirs = upright_boxes(frame, frame.ground_truth, attributes)
    points = frame.ground_truth.num_points
    if points is not None and not settings.every_box:
        count = points.numpy()[_usable(frame.ground_truth)]
        theirs = dataclasses.replace(theirs, ignored=count < settings.min_points)
        theirs = theirs.select(count > 0)
    limits = np.array([settings.range_m(name) for name in NUSCENES_CLASSES])
    ours, theirs = (b.select(b.ranges_m < limits[b.labels]) for b in (ours, theirs))
    return EvalFrame(token, ours, theirs)


def without_racks(frame: EvalFrame, racks: FloatArray) -> EvalFrame:
    """Return a frame without the bicycles and motorcycles in bicycle racks, as nuScenes has it.

    Args:
        frame: Boxes in the world.
        racks: (K, 7) x, y, z, l, w, h, yaw in the world.
    """
    ours, theirs = (b.select(~_in_racks(b, racks)) for b in (frame.found, frame.truth))
    return EvalFrame(frame.token, ours, theirs)


def _in_racks(boxes: EvalBoxes, racks: FloatArray) -> BoolArray:
    cycle = np.isin(boxes.labels, [NUSCENES_CLASSES.index(n) for n in ("bicycle", "motorcycle")])
    inside = np.zeros(len(boxes), bool)
    for x, y, z, length, width, height, yaw in racks:
        at = boxes.boxes[:, :3] - (x, y, z)
        ahead = at[:, 0] * math.cos(yaw) + at[:, 1] * math.sin(yaw)
        left = at[:, 1] * math.cos(yaw) - at[:, 0] * math.sin(yaw)
        gaps = np.abs(np.stack((ahead, left, at[:, 2]), axis=1))
        inside |= (gaps <= np.array((length, width, height)) / 2).all(axis=1)
    return cycle & inside


def _usable(boxes: Detections) -> IntArray:
    """Return the indices of boxes with a known class and a place."""
    known = np.array([name in NUSCENES_CLASSES for name in boxes.class_names], bool)
    finite = np.isfinite(boxes.boxes.numpy()[:, :7]).all(axis=1)
    return np.flatnonzero(known[boxes.labels.numpy()] & finite) if len(boxes) else np.zeros(0, int)


def upright_boxes(
    frame: SceneFrame, boxes: Detections, attributes: Sequence[str] | None = None
) -> EvalBoxes:
    """Return boxes in the world where the pose is known, else in the frame of the vehicle.

    Boxes of unknown classes, or without a finite place, are left out.

    Args:
        frame: Where they are.
        boxes: In the frame of its points.
        attributes: Of each box; None takes what its speed suggests.
    """
    T_up_ego = np.eye(4) if frame.T_world_ego is None else frame.T_world_ego
    keep = _usable(boxes)
    names = [boxes.class_names[i] for i in boxes.labels.numpy()[keep]]
    rows = transform_boxes(boxes.boxes[keep].double(), T_up_ego @ frame.T_ego_lidar).numpy()
    speeds = np.hypot(rows[:, VELOCITY][:, 0], rows[:, VELOCITY][:, 1])
    by_speed = [attribute_of(name, speed) for name, speed in zip(names, speeds)]
    return EvalBoxes(
        boxes=rows,
        labels=np.array([NUSCENES_CLASSES.index(name) for name in names], np.int64),
        scores=boxes.scores.numpy()[keep].astype(np.float64),
        ranges_m=np.hypot(*(rows[:, :2] - T_up_ego[:2, 3]).T),
        attributes=tuple(by_speed if attributes is None else (attributes[i] for i in keep)),
        ignored=np.zeros(len(keep), bool),
    )


def attribute_of(name: str, speed_mps: float) -> str:
    """Return the nuScenes attribute that a speed suggests; empty where there is none.

    Args:
        name: Class name.
        speed_mps: Speed over the ground; NaN where unknown.
    """
    if name not in _ATTRIBUTES or math.isnan(speed_mps):
        return ""
    return _ATTRIBUTES[name][int(speed_mps > MOVING_MPS)]
