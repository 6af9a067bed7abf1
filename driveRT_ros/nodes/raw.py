"""Serialized messages: what can be told without the class of rclpy, and one form of their bytes."""

from __future__ import annotations

import functools
import importlib
import struct
from typing import Any

from rosbags.serde import SerdeError

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.typestore import deserialize, serialize


@functools.cache  # asked for once a part of a message
def message_class(type_name: str) -> Any:
    """Return the Python class of ``sensor_msgs/msg/PointCloud2`` and the like.

    Raises:
        ConfigError: If the package is not installed or lacks the message.
    """
    package, _, name = type_name.replace("/msg/", "/").partition("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(
            f"Message type '{type_name}' is not installed: build or install the ROS package "
            f"'{package}'."
        ) from None


def starts_with_header(message_type: Any) -> bool:
    """Tell whether the first field of a message class is a std_msgs/Header."""
    return next(iter(message_type.get_fields_and_field_types().values()), "") == "std_msgs/Header"


def header_of(raw: bytes) -> Any:
    """Return the std_msgs/Header at the start of a serialized message, or an empty one."""
    from rclpy.serialization import deserialize_message  # the rest does without ROS

    kind = message_class("std_msgs/msg/Header")
    try:
        return deserialize_message(raw, kind)
    except RuntimeError:
        return kind()


def header_stamp_ns(raw: bytes) -> int:
    """Read the stamp of a serialized message that starts with a header.

    Args:
        raw: CDR with its four-byte encapsulation; bit 0 of the second byte tells little endian.

    Returns:
        Integer nanoseconds.

    Raises:
        InvalidFrame: If the message is too short to hold a stamp.
    """
    if len(raw) < 12:
        raise InvalidFrame(
            "A serialized message is too short for a header stamp; drop it.",
            "raw", len(raw), "at least 12 bytes",
        )  # fmt: skip
    sec, nanosec = struct.unpack_from("<iI" if raw[1] & 1 else ">iI", raw, 4)
    return sec * 1_000_000_000 + nanosec


def canonical(raw: bytes, type_name: str) -> bytes:
    """Return the bytes of an equal message with zeros between its fields and nothing behind them.

    Fast CDR leaves the bytes that align a field as they were in memory, and the transport pads a
    message to four bytes, so that equal messages travel as different bytes.

    Args:
        raw: CDR with its encapsulation.
        type_name: ``package/msg/Name``.

    Raises:
        ConfigError: If the type is not known to this package.
        InvalidFrame: If the bytes are no such message.
    """
    try:
        return serialize(deserialize(raw, type_name), type_name)
    except SerdeError as error:
        raise InvalidFrame(f"{len(raw)} bytes are no {type_name}: {error}; drop them.") from None
