"""What can be told about a serialized message without deserializing it."""

from __future__ import annotations

import importlib
import struct
from typing import Any

from driveRT_ros.core.errors import ConfigError, InvalidFrame


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
