"""The fingerprint as a message: values by label, whole or refused, with either message library."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.encode import encode_pointcloud
from driveRT_ros.io.fingerprint import (
    FINGERPRINT,
    decode_fingerprint,
    encode_fingerprint,
    message_crc32,
)
from driveRT_ros.io.typestore import deserialize, message_type, serialize
from test.support.bags import CLOUD, START_NS, cloud_batch

STAGES = {"detections": 0xFFFFFFFF, "points": 7, "coords": 0}


@pytest.mark.parametrize("stamp_ns", [0, START_NS + 5, -1])
def test_a_fingerprint_comes_back_with_its_stamp_and_its_stages_in_order(stamp_ns: int) -> None:
    message = encode_fingerprint(stamp_ns, STAGES, message_type)
    got = decode_fingerprint(deserialize(serialize(message, FINGERPRINT), FINGERPRINT))
    assert got == (stamp_ns, STAGES)
    assert list(got.stages) == ["points", "coords", "detections"]
    labels = [dim.label for dim in message.layout.dim]
    assert labels == ["stamp_sec", "stamp_nanosec", "points", "coords", "detections", "self"]


def test_any_changed_byte_of_labels_and_values_is_refused() -> None:
    """A fingerprint that is damaged itself must not accuse the data that it describes."""
    raw = serialize(encode_fingerprint(START_NS, STAGES, message_type), FINGERPRINT)
    whole = decode_fingerprint(deserialize(raw, FINGERPRINT))
    values_at = len(raw) - 4 * len(whole.stages) - 12  # two numbers of the stamp, and its own
    for at in range(values_at, len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        with pytest.raises(InvalidFrame, match="not as it was sent"):
            decode_fingerprint(deserialize(bytes(damaged), FINGERPRINT))
    renamed = raw.replace(b"points\0", b"pointz\0")
    with pytest.raises(InvalidFrame, match="not as it was sent"):
        decode_fingerprint(deserialize(renamed, FINGERPRINT))
    assert whole.stages == STAGES


@pytest.mark.parametrize("labels", [["points"], [], ["stamp_sec", "stamp_nanosec", "self"] * 2])
def test_values_without_the_labels_are_no_fingerprint(labels: list[str]) -> None:
    message = encode_fingerprint(START_NS, STAGES, message_type)
    dimension = type(message.layout.dim[0])
    message.layout.dim = [dimension(label=name, size=1, stride=1) for name in labels]
    message.data = np.zeros(len(labels), np.uint32)
    with pytest.raises(InvalidFrame, match="label each value"):
        decode_fingerprint(message)


def test_the_number_of_a_message_does_not_depend_on_the_bytes_between_its_fields() -> None:
    raw = serialize(encode_pointcloud(cloud_batch(0, 10), message_type), CLOUD)
    assert message_crc32(raw, CLOUD) == zlib.crc32(raw)
    at = raw.index(b"LIDAR_TOP\0") + 10  # two bytes align the height that follows
    dirty = raw[:at] + b"\xaa\xbb" + raw[at + 2 :]
    assert message_crc32(dirty, CLOUD) == zlib.crc32(raw) != zlib.crc32(dirty)
    other = raw[:-1] + bytes([raw[-1] ^ 1])
    assert message_crc32(other, CLOUD) != zlib.crc32(raw)
    assert message_crc32(raw[:30], CLOUD) == zlib.crc32(raw[:30])  # no such message: as it is
