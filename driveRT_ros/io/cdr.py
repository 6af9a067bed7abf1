"""Messages that are sent with every frame, straight from arrays to their serialized bytes.

Objects of message classes cost a hundred microseconds a box, and their serialization leaves chance
between fields. What is written here is the canonical form of ``io.typestore.canonical_cdr``: CDR,
little-endian, with zeros between fields.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from driveRT_ros.core.boxes import YAW, quats_of_yaws
from driveRT_ros.core.frame import Detections
from driveRT_ros.io.messages import NS

_LITTLE_ENDIAN = b"\0\1\0\0"
_NUMBERS = 54
"""Float64 in a row in each detection: score, pose, covariance of 36, centre of the box, size."""
_NO_ID = b"\1\0\0\0\0"  # an empty string


class Cdr:
    """Bytes that grow field by field, each aligned to its size."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> Cdr:
        """Add zeros up to a multiple of ``size``."""
        self.data += bytes(-len(self.data) % size)
        return self

    def raw(self, data: bytes | bytearray) -> Cdr:
        """Add bytes as they are."""
        self.data += data
        return self

    def put(self, kind: str, *values: int) -> Cdr:
        """Add values of one ``struct`` format, such as ``I``."""
        size = struct.calcsize(kind)
        for value in values:
            self.align(size).data += struct.pack("<" + kind, value)
        return self

    def string(self, text: str) -> Cdr:
        """Add a string."""
        raw = text.encode() + b"\0"
        self.put("I", len(raw)).data += raw
        return self

    def header(self, stamp_ns: int, frame_id: str) -> Cdr:
        """Add a std_msgs/msg/Header."""
        sec, nanosec = divmod(stamp_ns, NS)
        return self.put("i", sec).put("I", nanosec).string(frame_id)


def detections_cdr(det: Detections, stamp_ns: int, frame_id: str) -> bytes:
    """Return the bytes of the message that :func:`io.encode.encode_detections` makes.

    Args:
        det: Boxes in ``frame_id``.
        stamp_ns: Header stamp.
        frame_id: Header frame.

    Returns:
        A vision_msgs/msg/Detection3DArray with its encapsulation.
    """
    boxes, count = det.boxes.numpy(), len(det)
    numbers = np.zeros((count, _NUMBERS), "<f8")
    numbers[:, 0] = det.scores.numpy()
    numbers[:, 1:4] = numbers[:, 44:47] = boxes[:, :3]
    numbers[:, 4:8] = numbers[:, 47:51] = quats_of_yaws(boxes[:, YAW].astype(np.float64))
    numbers[:, 51:54] = boxes[:, 3:6]
    rows = memoryview(numbers.tobytes())
    tails = [_NO_ID] * count
    if det.track_ids is not None:
        tails = [bytes(Cdr().string(str(track)).data) for track in det.track_ids.tolist()]
    before = bytes(Cdr().header(stamp_ns, frame_id).put("I", count).data)
    lead = Cdr().header(stamp_ns, frame_id).put("I", 1).data  # one hypothesis
    # The numbers end at a multiple of eight: what leads to the next ones depends on nothing else.
    heads: dict[tuple[bytes, int], bytearray] = {}
    parts: list[bytes | bytearray | memoryview] = [_LITTLE_ENDIAN]
    size = 8 * _NUMBERS
    for k, (label, tail) in enumerate(zip(det.labels.tolist(), tails)):
        head = heads.get((before, label))
        if head is None:
            head = Cdr().raw(before).align(4).raw(lead).string(det.class_names[label]).align(8).data
            heads[before, label] = head
        parts += (head, rows[k * size : (k + 1) * size])
        before = tail
    parts.append(before)
    return b"".join(parts)


def cloud_crc32(msg: Any) -> int:
    """Return the CRC-32 of the canonical bytes of a sensor_msgs/msg/PointCloud2.

    Args:
        msg: Of rclpy or rosbags; its data is read where it lies.
    """
    stamp = msg.header.stamp
    begin = Cdr().header(int(stamp.sec) * NS + int(stamp.nanosec), msg.header.frame_id)
    begin.put("I", msg.height, msg.width, len(msg.fields))
    for field in msg.fields:
        begin.string(field.name).put("I", field.offset).put("B", field.datatype)
        begin.put("I", field.count)
    begin.put("B", bool(msg.is_bigendian)).put("I", msg.point_step, msg.row_step, len(msg.data))
    crc = zlib.crc32(begin.data, zlib.crc32(_LITTLE_ENDIAN))
    return zlib.crc32(bytes([bool(msg.is_dense)]), zlib.crc32(memoryview(msg.data), crc))
