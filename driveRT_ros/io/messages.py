"""Small parts that most messages share, built alike for rclpy and rosbags classes."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np

from driveRT_ros.io.rigid import quat_xyzw_of, rigid

Types = Callable[[str], type]
"""Maps ``sensor_msgs/msg/PointCloud2`` to its class."""

NS = 1_000_000_000


def stamp_ns_of(stamp: Any) -> int:
    """Return integer nanoseconds of a builtin_interfaces/msg/Time."""
    return int(stamp.sec) * NS + int(stamp.nanosec)


def make_time(stamp_ns: int, types: Types) -> Any:
    """Return a builtin_interfaces/msg/Time."""
    sec, nanosec = divmod(int(stamp_ns), NS)
    return types("builtin_interfaces/msg/Time")(sec=sec, nanosec=nanosec)


def make_header(stamp_ns: int, frame_id: str, types: Types) -> Any:
    """Return a std_msgs/msg/Header."""
    return types("std_msgs/msg/Header")(stamp=make_time(stamp_ns, types), frame_id=frame_id)


def make_vector(xyz: Any, types: Types, name: str = "Vector3") -> Any:
    """Return a geometry_msgs Vector3 or Point."""
    x, y, z = (float(v) for v in xyz)
    return types(f"geometry_msgs/msg/{name}")(x=x, y=y, z=z)


def make_quaternion(quat_xyzw: Any, types: Types) -> Any:
    """Return a geometry_msgs/msg/Quaternion."""
    x, y, z, w = (float(v) for v in quat_xyzw)
    return types("geometry_msgs/msg/Quaternion")(x=x, y=y, z=z, w=w)


def make_pose(xyz: Any, quat_xyzw: Any, types: Types) -> Any:
    """Return a geometry_msgs/msg/Pose."""
    return types("geometry_msgs/msg/Pose")(
        position=make_vector(xyz, types, "Point"), orientation=make_quaternion(quat_xyzw, types)
    )


def make_transform(T_parent_child: np.ndarray, types: Types) -> Any:
    """Return a geometry_msgs/msg/Transform."""
    return types("geometry_msgs/msg/Transform")(
        translation=make_vector(T_parent_child[:3, 3], types),
        rotation=make_quaternion(quat_xyzw_of(T_parent_child[:3, :3]), types),
    )


def transform_of(transform: Any) -> np.ndarray:
    """Return the (4, 4) of a geometry_msgs/msg/Transform.

    Raises:
        InvalidFrame: If it is not a rigid transform.
    """
    t, q = transform.translation, transform.rotation
    return rigid((t.x, t.y, t.z), (q.x, q.y, q.z, q.w))


def is_rclpy(message_class: type) -> bool:
    """Tell an rclpy message class from one of rosbags."""
    return hasattr(message_class, "get_fields_and_field_types")


def byte_buffer(size: int) -> array.array[int]:
    """Return ``size`` zero bytes of the one type that rclpy takes without checking each byte."""
    return array.array("B", [0]) * size


def set_bytes(message: Any, data: array.array[int]) -> None:
    """Assign to ``message.data`` of type uint8[] without a loop over its bytes."""
    # rosbags serializes numpy arrays; rclpy takes array.array. Neither copies byte by byte.
    message.data = data if is_rclpy(type(message)) else np.frombuffer(data, np.uint8)
