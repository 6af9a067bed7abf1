"""Our values to ROS messages, for rclpy and for rosbags classes alike.

Every builder takes ``types``, which maps ``vision_msgs/msg/Detection3DArray`` to the class to use:
``io.typestore.message_type``, or an import of the generated module in a node.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.boxes import rotate_xy, yaw_to_quat_xyzw
from driveRT_ros.core.frame import CameraFrame, Detections, PointBatch
from driveRT_ros.io.cloud_layout import datatype_of, packed_offsets
from driveRT_ros.io.decode_messages import decode_detections, decode_objects
from driveRT_ros.io.messages import (
    Types,
    byte_buffer,
    make_header,
    make_pose,
    make_transform,
    make_vector,
    set_bytes,
)

__all__ = [
    "AUTOWARE_LABELS",
    "decode_detections",
    "decode_objects",
    "encode_camera_info",
    "encode_columns",
    "encode_compressed_image",
    "encode_detections",
    "encode_image",
    "encode_objects",
    "encode_pointcloud",
    "encode_transforms",
]

AUTOWARE_LABELS: dict[str, int] = {
    "car": 1,
    "truck": 2,
    "bus": 3,
    "trailer": 4,
    "motorcycle": 5,
    "bicycle": 6,
    "pedestrian": 7,
    "construction_vehicle": 2,  # a heavy vehicle; the message has no closer class
    "barrier": 9,  # HAZARD: a thing on the road that one must not hit
    "traffic_cone": 9,
}
"""nuScenes class to constant of autoware_perception_msgs/msg/ObjectClassification; else UNKNOWN."""

_ORIENTATION_AVAILABLE = 2
_BOUNDING_BOX = 0


def encode_columns(
    columns: Mapping[str, np.ndarray],
    stamp_ns: int,
    frame_id: str,
    types: Types,
    *,
    is_dense: bool = True,
) -> Any:
    """Return a sensor_msgs/msg/PointCloud2 with one field a column, in the order given.

    Args:
        columns: Field name to (N,) values of any dtype that PointCloud2 knows. Each offset is a
            multiple of the field's size, and the point step is a multiple of 4.
        stamp_ns: Header stamp.
        frame_id: Header frame.
        types: Message classes.
        is_dense: Whether every value is finite.

    Raises:
        InvalidFrame: If a dtype has no PointField constant.
    """
    dtypes = [column.dtype.newbyteorder("<") for column in columns.values()]
    offsets, point_step = packed_offsets(dtypes)
    count = len(next(iter(columns.values()), ()))
    data = byte_buffer(count * point_step)
    field_class = types("sensor_msgs/msg/PointField")
    fields = []
    for (name, column), dtype, offset in zip(columns.items(), dtypes, offsets):
        fields.append(field_class(name=name, offset=offset, datatype=datatype_of(dtype), count=1))
        if count:
            np.ndarray((count,), dtype, data, offset, (point_step,))[:] = column
    return _point_cloud(
        make_header(stamp_ns, frame_id, types), fields, point_step, data, is_dense, types
    )


def _point_cloud(
    header: Any,
    fields: list[Any],
    point_step: int,
    data: array.array[int],
    dense: bool,
    types: Types,
) -> Any:
    message = types("sensor_msgs/msg/PointCloud2")(
        header=header,
        height=1,
        width=len(data) // point_step,
        fields=fields,
        is_bigendian=False,
        point_step=point_step,
        row_step=len(data),
        data=np.empty(0, np.uint8),
        is_dense=dense,
    )
    set_bytes(message, data)
    return message


def encode_pointcloud(batch: PointBatch, types: Types) -> Any:
    """Return a sensor_msgs/msg/PointCloud2; ``io.pointcloud.decode`` gives the batch back exactly.

    Fields are x, y, z, intensity (float32), ``ring`` (uint16, or int32 where it does not fit) if
    known, and ``time`` (float32 seconds after the stamp, so <= 0) unless every lag is zero.
    """
    columns: dict[str, np.ndarray] = {name: batch.xyz[:, k] for k, name in enumerate("xyz")}
    columns["intensity"] = batch.intensity
    if batch.ring is not None:
        fits = len(batch) == 0 or (batch.ring.min() >= 0 and batch.ring.max() < 1 << 16)
        columns["ring"] = batch.ring.astype(np.uint16 if fits else np.int32)
    if batch.time_lag_s.any():
        columns["time"] = -batch.time_lag_s
    return encode_columns(columns, batch.stamp_ns, batch.frame_id, types)


def encode_detections(det: Detections, stamp_ns: int, frame_id: str, types: Types) -> Any:
    """Return a vision_msgs/msg/Detection3DArray; one hypothesis a box, its class by name.

    ``id`` is the track identity where it is known. The message has no place for velocity.
    """
    header = make_header(stamp_ns, frame_id, types)
    boxes, quats, scores, names = _plain(det)
    tracks = None if det.track_ids is None else det.track_ids.tolist()
    result_class = types("vision_msgs/msg/ObjectHypothesisWithPose")
    detections = []
    for k, (box, quat) in enumerate(zip(boxes, quats)):
        pose = make_pose(box[:3], quat, types)
        result = result_class(
            hypothesis=types("vision_msgs/msg/ObjectHypothesis")(
                class_id=names[k], score=scores[k]
            ),
            pose=types("geometry_msgs/msg/PoseWithCovariance")(pose=pose, covariance=np.zeros(36)),
        )
        detections.append(
            types("vision_msgs/msg/Detection3D")(
                header=header,
                results=[result],
                bbox=types("vision_msgs/msg/BoundingBox3D")(
                    center=pose, size=make_vector(box[3:6], types)
                ),
                id="" if tracks is None else str(tracks[k]),
            )
        )
    return types("vision_msgs/msg/Detection3DArray")(header=header, detections=detections)


def _plain(
    det: Detections,
) -> tuple[list[list[float]], list[list[float]], list[float], list[str]]:
    """Return boxes, orientations, scores and class names as Python values."""
    boxes = det.boxes.double()
    names = [det.class_names[label] for label in det.labels.tolist()]
    return boxes.tolist(), yaw_to_quat_xyzw(boxes[:, 6]).tolist(), det.scores.tolist(), names


def encode_objects(det: Detections, stamp_ns: int, frame_id: str, types: Types) -> Any:
    """Return an autoware_perception_msgs/msg/DetectedObjects.

    The twist is in the frame of the object (x along its heading), as Autoware has it; ``has_twist``
    is false where the velocity is NaN. Classes follow :data:`AUTOWARE_LABELS`.
    """
    boxes, quats, scores, names = _plain(det)
    twists = rotate_xy(det.boxes[:, 7:9].double(), -det.boxes[:, 6].double())
    has_twist = torch.isfinite(twists).all(dim=1).tolist()
    objects = []
    for k, (box, quat, twist) in enumerate(zip(boxes, quats, twists.tolist())):
        velocity = (*twist, 0.0) if has_twist[k] else (0.0, 0.0, 0.0)
        objects.append(
            types("autoware_perception_msgs/msg/DetectedObject")(
                existence_probability=scores[k],
                classification=[
                    types("autoware_perception_msgs/msg/ObjectClassification")(
                        label=AUTOWARE_LABELS.get(names[k], 0), probability=1.0
                    )
                ],
                kinematics=_kinematics(box, quat, velocity, has_twist[k], types),
                shape=types("autoware_perception_msgs/msg/Shape")(
                    type=_BOUNDING_BOX,
                    footprint=types("geometry_msgs/msg/Polygon")(points=[]),
                    dimensions=make_vector(box[3:6], types),
                ),
            )
        )
    return types("autoware_perception_msgs/msg/DetectedObjects")(
        header=make_header(stamp_ns, frame_id, types), objects=objects
    )


def _kinematics(
    box: list[float],
    quat: list[float],
    velocity: tuple[float, ...],
    has_twist: bool,
    types: Types,
) -> Any:
    twist = types("geometry_msgs/msg/Twist")(
        linear=make_vector(velocity, types), angular=make_vector((0.0, 0.0, 0.0), types)
    )
    return types("autoware_perception_msgs/msg/DetectedObjectKinematics")(
        pose_with_covariance=types("geometry_msgs/msg/PoseWithCovariance")(
            pose=make_pose(box[:3], quat, types), covariance=np.zeros(36)
        ),
        has_position_covariance=False,
        orientation_availability=_ORIENTATION_AVAILABLE,
        twist_with_covariance=types("geometry_msgs/msg/TwistWithCovariance")(
            twist=twist, covariance=np.zeros(36)
        ),
        has_twist=has_twist,
        has_twist_covariance=False,
    )


def encode_transforms(transforms: Iterable[tuple[int, str, str, np.ndarray]], types: Types) -> Any:
    """Return a tf2_msgs/msg/TFMessage.

    Args:
        transforms: ``(stamp_ns, parent, child, T_parent_child)`` each.
        types: Message classes.
    """
    return types("tf2_msgs/msg/TFMessage")(
        transforms=[
            types("geometry_msgs/msg/TransformStamped")(
                header=make_header(stamp_ns, parent, types),
                child_frame_id=child,
                transform=make_transform(T_parent_child, types),
            )
            for stamp_ns, parent, child, T_parent_child in transforms
        ]
    )


def encode_camera_info(camera: CameraFrame, types: Types) -> Any:
    """Return a sensor_msgs/msg/CameraInfo of a rectified or monocular camera (R = I, P = [K 0])."""
    width, height = camera.size_wh
    projection = np.zeros((3, 4))
    projection[:, :3] = camera.K
    return types("sensor_msgs/msg/CameraInfo")(
        header=make_header(camera.stamp_ns, camera.frame_id, types),
        height=height,
        width=width,
        distortion_model=camera.distortion_model,
        d=np.asarray(camera.D, np.float64),
        k=np.asarray(camera.K, np.float64).reshape(9),
        r=np.eye(3).reshape(9),
        p=projection.reshape(12),
        binning_x=0,
        binning_y=0,
        roi=types("sensor_msgs/msg/RegionOfInterest")(
            x_offset=0, y_offset=0, height=0, width=0, do_rectify=False
        ),
    )


def encode_compressed_image(camera: CameraFrame, types: Types) -> Any:
    """Return a sensor_msgs/msg/CompressedImage with the bytes as recorded.

    Args:
        camera: A frame whose ``encoded`` is set.
        types: Message classes.
    """
    if camera.encoded is None:
        raise ValueError(f"Camera '{camera.name}' has no encoded image; compress it first.")
    message = types("sensor_msgs/msg/CompressedImage")(
        header=make_header(camera.stamp_ns, camera.frame_id, types),
        format=camera.format,
        data=np.empty(0, np.uint8),
    )
    set_bytes(message, array.array("B", camera.encoded))
    return message


def encode_image(camera: CameraFrame, types: Types) -> Any:
    """Return a sensor_msgs/msg/Image with encoding ``rgb8``.

    Args:
        camera: A frame whose ``image`` is set.
        types: Message classes.
    """
    if camera.image is None:
        raise ValueError(f"Camera '{camera.name}' has no pixels; decode it first.")
    height, width = camera.image.shape[:2]
    message = types("sensor_msgs/msg/Image")(
        header=make_header(camera.stamp_ns, camera.frame_id, types),
        height=height,
        width=width,
        encoding="rgb8",
        is_bigendian=0,
        step=3 * width,
        data=np.empty(0, np.uint8),
    )
    set_bytes(message, array.array("B", camera.image.tobytes()))
    return message
