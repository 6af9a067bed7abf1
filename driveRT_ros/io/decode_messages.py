"""Boxes and cameras back from ROS messages, of rclpy or rosbags alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.boxes import quat_xyzw_to_yaw, rotate_xy
from driveRT_ros.core.frame import NUSCENES_CLASSES, CameraFrame, Detections
from driveRT_ros.io.camera import decode_camera_info
from driveRT_ros.io.image import check_size, decode_image
from driveRT_ros.io.messages import stamp_ns_of

AUTOWARE_CLASSES = (
    "unknown",
    "car",
    "truck",
    "bus",
    "trailer",
    "motorcycle",
    "bicycle",
    "pedestrian",
    "animal",
    "hazard",
    "over_drivable",
    "under_drivable",
)
"""Names of the constants of autoware_perception_msgs/msg/ObjectClassification, by value."""


def decode_detections(msg: Any, class_names: tuple[str, ...] = NUSCENES_CLASSES) -> Detections:
    """Return the boxes of a vision_msgs/msg/Detection3DArray; their velocity is NaN.

    The best hypothesis counts; a detection without one is left out. ``track_ids`` is set where
    every ``id`` is a number.

    Args:
        msg: The message.
        class_names: Known names; others are appended in the order in which they are met.

    Raises:
        InvalidFrame: If an orientation is not a quaternion.
    """
    names, rows, quats, scores, labels, ids = list(class_names), [], [], [], [], []
    for detection in msg.detections:
        if not len(detection.results):
            continue
        best = max(detection.results, key=lambda result: float(result.hypothesis.score)).hypothesis
        if best.class_id not in names:
            names.append(best.class_id)
        row, quat = _pose_row(detection.bbox.center, detection.bbox.size)
        rows.append(row + [math.nan, math.nan])
        quats.append(quat)
        scores.append(float(best.score))
        labels.append(names.index(best.class_id))
        ids.append(detection.id)
    known = bool(ids) and all(i.isascii() and i.isdigit() for i in ids)
    return Detections(
        boxes=_boxes(rows, quats),
        scores=torch.tensor(scores, dtype=torch.float32),
        labels=torch.tensor(labels, dtype=torch.int64),
        class_names=tuple(names),
        track_ids=torch.tensor([int(i) for i in ids], dtype=torch.int64) if known else None,
    )


def decode_objects(msg: Any) -> Detections:
    """Return the boxes of an autoware_perception_msgs/msg/DetectedObjects.

    Velocities are turned from the frame of the object back into the frame of the header, and NaN
    where ``has_twist`` is false. Labels are Autoware's (:data:`AUTOWARE_CLASSES`), the most
    probable of each object.

    Raises:
        InvalidFrame: If an orientation is not a quaternion.
    """
    rows, quats, scores, labels = [], [], [], []
    for item in msg.objects:
        kinematics = item.kinematics
        row, quat = _pose_row(kinematics.pose_with_covariance.pose, item.shape.dimensions)
        linear = kinematics.twist_with_covariance.twist.linear
        rows.append(row + ([linear.x, linear.y] if kinematics.has_twist else [math.nan, math.nan]))
        quats.append(quat)
        scores.append(float(item.existence_probability))
        best = max(item.classification, key=lambda c: float(c.probability), default=None)
        label = 0 if best is None else int(best.label)
        labels.append(label if label < len(AUTOWARE_CLASSES) else 0)
    boxes = _boxes(rows, quats, velocity_in_object_frame=True)
    return Detections(
        boxes=boxes,
        scores=torch.tensor(scores, dtype=torch.float32),
        labels=torch.tensor(labels, dtype=torch.int64),
        class_names=AUTOWARE_CLASSES,
    )


def _pose_row(pose: Any, size: Any) -> tuple[list[float], list[float]]:
    """Return centre, size and a place for yaw; and the orientation."""
    p, q = pose.position, pose.orientation
    return [p.x, p.y, p.z, size.x, size.y, size.z, 0.0], [q.x, q.y, q.z, q.w]


def _boxes(
    rows: list[list[float]], quats: list[list[float]], velocity_in_object_frame: bool = False
) -> torch.Tensor:
    if not rows:
        return torch.zeros(0, 9)
    boxes = torch.tensor(rows, dtype=torch.float64)
    boxes[:, 6] = quat_xyzw_to_yaw(torch.tensor(quats, dtype=torch.float64))
    if velocity_in_object_frame:
        boxes[:, 7:9] = rotate_xy(boxes[:, 7:9], boxes[:, 6])
    return boxes.float()


def decode_camera(
    info: Any, image: Any | None, name: str, T_ego_camera: np.ndarray, *, rectified: bool = False
) -> CameraFrame:
    """Return a camera frame of a CameraInfo and, where there is one, its image.

    Args:
        info: sensor_msgs/msg/CameraInfo.
        image: sensor_msgs/msg/CompressedImage, kept as it is, or Image, decoded.
        name: Camera name.
        T_ego_camera: (4, 4) frame of the camera to ego.
        rectified: The image is undistorted already.

    Raises:
        InvalidFrame: If the calibration or a raw image cannot be used.
    """
    header = info.header if image is None else image.header
    intrinsics = decode_camera_info(info, rectified=rectified)
    T_ego_pixels = T_ego_camera.copy()
    T_ego_pixels[:3, :3] = T_ego_camera[:3, :3] @ intrinsics.R  # the frame is the rectified one
    pixels, encoded, kind = None, None, ""
    if hasattr(image, "encoding"):
        pixels = decode_image(image)
        check_size(pixels, intrinsics.size_wh, name)
    elif image is not None:
        encoded = bytes(memoryview(image.data))
        kind = "png" if "png" in image.format.lower() else "jpeg"
    return CameraFrame(
        name=name,
        stamp_ns=stamp_ns_of(header.stamp),
        frame_id=header.frame_id,
        image=pixels,
        encoded=encoded,
        format=kind,
        K=intrinsics.K,
        D=intrinsics.D,
        distortion_model=intrinsics.distortion_model,
        size_wh=intrinsics.size_wh,
        T_ego_camera=T_ego_pixels,
    )
