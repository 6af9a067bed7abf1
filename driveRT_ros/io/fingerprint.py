"""The fingerprint of a frame as a message, and the numbers of the messages around the frame.

A std_msgs/msg/UInt32MultiArray has one dimension label a value, so that readers find values by
name: ``stamp_sec`` and ``stamp_nanosec`` of the frame's header, then the CRC-32 of each stage that
was computed (:data:`driveRT_ros.core.fingerprint.STAGES`, in that order), and last ``self``, the
CRC-32 of the labels and values before it: a fingerprint that was damaged itself accuses no other.
"""

from __future__ import annotations

import array
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from rosbags.typesys.store import Typestore

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.fingerprint import in_order
from driveRT_ros.io.messages import NS, Types, is_rclpy
from driveRT_ros.io.typestore import canonical_cdr

FINGERPRINT = "std_msgs/msg/UInt32MultiArray"

_STAMP = ("stamp_sec", "stamp_nanosec")
_SELF = "self"
_UINT32 = 0xFFFFFFFF


class Fingerprint(NamedTuple):
    """What was recorded of one frame.

    Args:
        stamp_ns: Stamp of the frame, integer nanoseconds.
        stages: CRC-32 by stage.
    """

    stamp_ns: int
    stages: dict[str, int]


def encode_fingerprint(stamp_ns: int, stages: Mapping[str, int], types: Types) -> Any:
    """Return the message of a fingerprint.

    Args:
        stamp_ns: Stamp of the frame.
        stages: CRC-32 by stage, in any order.
        types: Message classes.
    """
    sec, nanosec = divmod(stamp_ns, NS)
    values = dict(zip(_STAMP, (sec & _UINT32, nanosec)))
    values |= {stage: int(stages[stage]) for stage in in_order(stages)}
    values[_SELF] = _own_crc32(values)
    dimension = types("std_msgs/msg/MultiArrayDimension")
    layout = types("std_msgs/msg/MultiArrayLayout")(
        dim=[dimension(label=name, size=1, stride=1) for name in values], data_offset=0
    )
    message_class = types(FINGERPRINT)
    numbers = array.array("I", values.values())
    data = numbers if is_rclpy(message_class) else np.frombuffer(numbers, np.uint32)
    return message_class(layout=layout, data=data)


def decode_fingerprint(message: Any) -> Fingerprint:
    """Return the fingerprint in a message.

    Raises:
        InvalidFrame: If it names no stamp, or does not have the values that it was sent with.
    """
    labels = [str(dim.label) for dim in message.layout.dim]
    values = dict(zip(labels, (int(v) for v in message.data)))
    if len(values) != len(message.data) or not {*_STAMP, _SELF} <= values.keys():
        raise InvalidFrame(
            "A fingerprint must label each value once, its stamp and itself among them.",
            "layout.dim",
            ", ".join(labels),
            f"{', '.join(_STAMP)}, stages, {_SELF}",
            code="fingerprint_labels",
        )
    own = values.pop(_SELF)
    if own != _own_crc32(values):
        raise InvalidFrame(
            "A fingerprint is not as it was sent.", "data", own, "the CRC-32 of what precedes it",
            code="fingerprint_damaged",
        )  # fmt: skip
    sec, nanosec = (values.pop(name) for name in _STAMP)
    sec -= (sec >> 31) << 32  # builtin_interfaces/msg/Time is signed
    return Fingerprint(sec * NS + nanosec, values)


def message_crc32(raw: bytes, type_name: str, store: Typestore | None = None) -> int:
    """Return the CRC-32 of a serialized message with zeros between its fields.

    Args:
        raw: CDR with its encapsulation.
        type_name: ``package/msg/Name``.
        store: Where an unusual type is defined.
    """
    return zlib.crc32(canonical_cdr(raw, type_name, store))


def _own_crc32(values: Mapping[str, int]) -> int:
    return zlib.crc32("".join(f"{name}={value}\n" for name, value in values.items()).encode())
