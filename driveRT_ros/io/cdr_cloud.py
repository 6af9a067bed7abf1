"""A serialized sensor_msgs/msg/PointCloud2, read where it lies: its points are not copied.

rclpy copies the points three times on their way into a message object, and twice into bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.messages import Types

_MOST_FIELDS = 1 << 10  # a wrong number must not cost the time of reading so many


@dataclass(frozen=True)
class FieldOfCloud:
    """A sensor_msgs/msg/PointField."""

    name: str
    offset: int
    datatype: int
    count: int


@dataclass(frozen=True, eq=False)
class SerializedCloud:
    """A sensor_msgs/msg/PointCloud2 by the names of its fields; ``data`` is the serialized memory.

    Args:
        header: Of the message classes that :func:`read_cloud` was given.
        height: Rows.
        width: Points a row.
        fields: What a point holds.
        is_bigendian: Byte order of ``data``.
        point_step: Bytes from a point to the next.
        row_step: Bytes from a row to the next.
        data: Read-only bytes of all points.
        is_dense: Whether every value is finite, as the publisher says.
    """

    header: Any
    height: int
    width: int
    fields: tuple[FieldOfCloud, ...]
    is_bigendian: bool
    point_step: int
    row_step: int
    data: memoryview
    is_dense: bool


def read_cloud(raw: bytes, types: Types) -> SerializedCloud:
    """Read everything but the points.

    Args:
        raw: CDR with its four-byte encapsulation, as every ROS 2 middleware sends it.
        types: Message classes, for the header.

    Raises:
        InvalidFrame: If the bytes are no such message.
    """
    try:
        return _read(raw, types)
    except (struct.error, IndexError):
        raise InvalidFrame(
            "A serialized cloud ends before all of it is told; drop it.",
            "raw", len(raw), "more bytes",
        ) from None  # fmt: skip


def _read(raw: bytes, types: Types) -> SerializedCloud:
    if raw[0] != 0 or raw[1] > 1:
        raise InvalidFrame(
            "A serialized cloud is not in plain CDR; its publisher must send version 1.",
            "encapsulation", raw[:2].hex(), "0000 or 0001",
        )  # fmt: skip
    order = "<" if raw[1] else ">"
    number, triple = struct.Struct(order + "I").unpack_from, struct.Struct(order + "3I").unpack_from
    sec, nanosec, size = struct.unpack_from(order + "iII", raw, 4)
    frame_id, at = _text(raw, 16, size)
    height, width, count = triple(raw, _aligned(at))
    at = _aligned(at) + 12
    if count > _MOST_FIELDS:
        raise InvalidFrame("A cloud has too many fields.", "fields", count, _MOST_FIELDS)
    fields = []
    for _ in range(count):
        field, at = _field(raw, _aligned(at), number)
        fields.append(field)
    is_bigendian = raw[at] != 0
    point_step, row_step, size = triple(raw, _aligned(at + 1))
    at = _aligned(at + 1) + 12
    is_dense = raw[at + size] != 0
    stamp = types("builtin_interfaces/msg/Time")(sec=sec, nanosec=nanosec)
    header = types("std_msgs/msg/Header")(stamp=stamp, frame_id=frame_id)
    data = memoryview(raw)[at : at + size]
    return SerializedCloud(
        header, height, width, tuple(fields), is_bigendian, point_step, row_step, data, is_dense
    )


def _field(raw: bytes, at: int, number: Callable[..., Any]) -> tuple[FieldOfCloud, int]:
    """Return the PointField at a place, and the place after it."""
    name, at = _text(raw, at + 4, *number(raw, at))
    at = _aligned(at)
    (offset,), datatype, (count,) = number(raw, at), raw[at + 4], number(raw, at + 8)
    return FieldOfCloud(name, offset, datatype, count), at + 12


def _text(raw: bytes, at: int, size: int) -> tuple[str, int]:
    """Return a string of so many bytes, its end mark included, and the place after it."""
    end = at + size
    if end > len(raw):
        raise IndexError
    return raw[at:end].partition(b"\0")[0].decode(errors="replace"), end


def _aligned(at: int) -> int:
    """Return the next place for a number; encapsulation and numbers are of four bytes."""
    return at + -at % 4
