"""Bytes written straight from arrays are those of the message objects, zeros between fields."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest
import torch

from driveRT_ros.core.frame import Detections
from driveRT_ros.io.cdr import cloud_crc32, detections_cdr
from driveRT_ros.io.encode import encode_columns, encode_detections
from driveRT_ros.io.typestore import deserialize, message_type, serialize

DETECTIONS, CLOUD = "vision_msgs/msg/Detection3DArray", "sensor_msgs/msg/PointCloud2"
NAMES = (
    "car",
    "truck",
    "construction_vehicle",
    "pedestrian",
    "fußgänger",
    "",
    "a\nb",
    "車",
    "x" * 40,
)


def boxes(count, tracks=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(count, 9, generator=generator)
    found[:, 7:] = torch.nan
    return Detections(
        boxes=found,
        scores=torch.rand(count, generator=generator),
        labels=torch.randint(0, len(NAMES), (count,), generator=generator),
        class_names=NAMES,
        track_ids=torch.arange(count) * 977 if tracks else None,
    )


@pytest.mark.parametrize("frame_id", ["", "a", "map", "lidar", "base_link", "os_sensor/ä"])
@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize("count", [0, 1, 119, 500])
def test_detections_are_the_bytes_of_the_message(count, tracks, frame_id):
    det, stamp_ns = boxes(count, tracks), 1_700_000_000_123_456_789
    expected = serialize(encode_detections(det, stamp_ns, frame_id, message_type), DETECTIONS)
    assert detections_cdr(det, stamp_ns, frame_id) == expected


@pytest.mark.parametrize("tracks", [[0, -1, 7], [10**k for k in range(3)], [9, 10, 2**62]])
def test_every_length_of_a_track_number_moves_what_follows_as_in_the_message(tracks):
    det = dataclasses.replace(boxes(3), track_ids=torch.tensor(tracks))
    expected = serialize(encode_detections(det, 0, "lidar", message_type), DETECTIONS)
    assert detections_cdr(det, 0, "lidar") == expected


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, -0.0, 1e-45, 3.4e38])
def test_odd_numbers_are_those_of_the_message(value):
    det = boxes(9)
    det.boxes[1:3], det.scores[4] = value, value
    expected = serialize(encode_detections(det, 5, "lidar", message_type), DETECTIONS)
    assert detections_cdr(det, 5, "lidar") == expected


def test_a_stamp_before_1970_is_that_of_the_message():
    det = boxes(2)
    raw = detections_cdr(det, -1, "lidar")
    stamp = deserialize(raw, DETECTIONS).detections[1].header.stamp
    assert (stamp.sec, stamp.nanosec) == (-1, 999_999_999)


@pytest.mark.parametrize("frame_id", ["", "a", "lidar", "base_link"])
@pytest.mark.parametrize("points", [0, 1, 1000])
@pytest.mark.parametrize("dense", [True, False])
def test_the_number_of_a_cloud_is_that_of_its_bytes(points, frame_id, dense):
    rng = np.random.default_rng(0)
    columns = {name: rng.random(points).astype(np.float32) for name in ("x", "y", "z", "intensity")}
    columns["ring"] = rng.integers(0, 32, points).astype(np.uint16)
    msg = encode_columns(columns, 10**18 + 7, frame_id, message_type, is_dense=dense)
    assert cloud_crc32(msg) == zlib.crc32(serialize(msg, CLOUD))
    if points:
        msg.data[-1] ^= 1
        assert cloud_crc32(msg) == zlib.crc32(serialize(msg, CLOUD))
