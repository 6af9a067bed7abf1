"""A serialized cloud, read where it lies, is what deserializing it gives; garbage is refused."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.cdr import cloud_crc32
from driveRT_ros.io.cdr_cloud import SerializedCloud, read_cloud
from driveRT_ros.io.encode import encode_columns
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.typestore import deserialize, message_type, serialize, typestore

CLOUD = "sensor_msgs/msg/PointCloud2"
FLAT = ("height", "width", "is_bigendian", "point_step", "row_step", "is_dense")


def cloud(names="xyz", points=5, frame_id="lidar", stamp_ns=1_700_000_000_123_456_789):
    rng = np.random.default_rng(len(names))
    columns = {name: rng.random(points).astype(np.float32) for name in names}
    columns["intensity"] = np.arange(points, dtype=np.uint8)
    return encode_columns(columns, stamp_ns, frame_id, message_type)


def plain(msg) -> tuple:
    header = (msg.header.stamp.sec, msg.header.stamp.nanosec, msg.header.frame_id)
    fields = [(f.name, f.offset, f.datatype, f.count) for f in msg.fields]
    return header, *(getattr(msg, name) for name in FLAT), fields, bytes(msg.data)


@pytest.mark.parametrize("frame_id", ["", "a", "map", "lidar", "os_sensor/ä"])
@pytest.mark.parametrize("names", ["xyz", ["x", "y", "z", "läge", "seven77"]])
@pytest.mark.parametrize("points", [0, 1, 1000])
@pytest.mark.parametrize("stamp_ns", [-1, 0, 1_700_000_000_123_456_789])
def test_a_cloud_read_where_it_lies_is_the_message(frame_id, names, points, stamp_ns):
    raw = serialize(cloud(names, points, frame_id, stamp_ns), CLOUD)
    for given in (raw, raw + bytes(3)):  # a transport pads what it carries
        read = read_cloud(given, message_type)
        assert plain(read) == plain(deserialize(raw, CLOUD))
        assert cloud_crc32(read) == zlib.crc32(raw)


@pytest.mark.parametrize("little_endian", [True, False])
def test_the_byte_order_of_the_publisher_does_not_matter(little_endian):
    msg = cloud(["x", "y", "z", "seven77"], 20)
    store = typestore()
    raw = bytes(store.serialize_cdr(msg, CLOUD, little_endian=little_endian))
    assert plain(read_cloud(raw, message_type)) == plain(msg)


def test_the_points_are_not_copied_and_cannot_be_written_to():
    raw = serialize(cloud(points=100), CLOUD)
    read = read_cloud(raw, message_type)
    assert read.data.obj is raw and read.data.readonly
    np.testing.assert_array_equal(decode(read).xyz, decode(deserialize(raw, CLOUD)).xyz)


def test_a_cloud_that_ends_anywhere_before_its_end_is_refused():
    raw = serialize(cloud(["x", "y", "z", "seven77"], 3), CLOUD)
    read_cloud(raw, message_type)
    for size in range(len(raw)):
        with pytest.raises(InvalidFrame):
            read_cloud(raw[:size], message_type)


def test_sizes_that_cannot_be_are_refused_at_once():
    raw = bytearray(serialize(cloud(), CLOUD))
    for at in range(4, 60):
        wrong = bytes(raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :])
        try:
            assert isinstance(read_cloud(wrong, message_type), SerializedCloud)
        except InvalidFrame as error:
            assert error.code in ("raw", "fields")


def test_a_stamp_that_is_no_time_is_read_as_it_is():
    raw = bytearray(serialize(cloud(), CLOUD))
    raw[4:12] = b"\xff\xff\xff\x7f\xff\xff\xff\xff"
    stamp = read_cloud(bytes(raw), message_type).header.stamp
    assert (stamp.sec, stamp.nanosec) == (2**31 - 1, 2**32 - 1)


@pytest.mark.parametrize("encapsulation", [b"\0\2", b"\0\7", b"\1\1"])
def test_another_encapsulation_is_refused_by_name(encapsulation):
    raw = serialize(cloud(), CLOUD)
    with pytest.raises(InvalidFrame, match="plain CDR"):
        read_cloud(encapsulation + raw[2:], message_type)


def test_a_text_that_is_not_utf_8_is_read_as_rclpy_reads_it():
    raw = serialize(cloud(frame_id="abcde"), CLOUD).replace(b"abcde", b"ab\xffd\0")
    assert read_cloud(raw, message_type).header.frame_id == "ab\ufffdd"


def test_the_value_is_frozen():
    read = read_cloud(serialize(cloud(), CLOUD), message_type)
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.width = 1  # type: ignore[misc]
