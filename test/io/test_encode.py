"""Messages built alike for rclpy and rosbags: conventions, exact return, and cost."""

from __future__ import annotations

import array
import importlib
import importlib.util
import math
import time

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import NUSCENES_CLASSES, CameraFrame, Detections, PointBatch
from driveRT_ros.io import encode
from driveRT_ros.io.decode_messages import AUTOWARE_CLASSES, decode_camera
from driveRT_ros.io.messages import is_rclpy, stamp_ns_of, transform_of
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.rigid import rigid
from driveRT_ros.io.typestore import canonical_cdr, message_type, serialize

STAMP_NS = 1_700_000_000_123_456_789


def rclpy_type(name: str) -> type:
    package, _, message = name.split("/")
    return getattr(importlib.import_module(f"{package}.msg"), message)


NO_ROS = [
    p
    for p in ("sensor_msgs", "vision_msgs", "autoware_perception_msgs", "tf2_msgs")
    if importlib.util.find_spec(p) is None
]


@pytest.fixture(params=["rosbags", "rclpy"])
def types(request):
    if request.param == "rosbags":
        return message_type
    if NO_ROS:
        pytest.skip(f"message packages are not installed: {', '.join(NO_ROS)}")
    return rclpy_type


def to_cdr(message, type_name: str) -> bytes:
    """Serialize with the library that the message comes from."""
    if is_rclpy(type(message)):
        return importlib.import_module("rclpy.serialization").serialize_message(message)
    return serialize(message, type_name)


def batch(count: int = 400, ring: bool = True, lag: bool = True) -> PointBatch:
    rng = np.random.default_rng(0)
    return PointBatch(
        xyz=rng.normal(0, 20, (count, 3)).astype(np.float32),
        intensity=rng.uniform(0, 255, count).astype(np.float32),
        time_lag_s=np.linspace(0.1 if lag else 0, 0, count).astype(np.float32),
        ring=rng.integers(0, 128, count).astype(np.int32) if ring else None,
        stamp_ns=STAMP_NS,
        frame_id="lidar",
    )


def detections(rows, labels, **options) -> Detections:
    boxes = torch.tensor(rows, dtype=torch.float32).reshape(-1, 9)
    scores = torch.linspace(0.9, 0.1, len(boxes))
    return Detections(boxes, scores, torch.tensor(labels, dtype=torch.int64), **options)


# --- clouds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ring", "lag"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("count", [0, 1, 400])
def test_decoding_our_own_cloud_returns_the_input(types, count, ring, lag):
    points = batch(count, ring, lag and count > 1)
    message = encode.encode_pointcloud(points, types)
    got = decode(message)
    for name in ("xyz", "intensity", "time_lag_s"):
        np.testing.assert_array_equal(getattr(got, name), getattr(points, name))
    if ring and count:
        np.testing.assert_array_equal(got.ring, points.ring)
    assert (got.stamp_ns, got.frame_id) == (STAMP_NS, "lidar")


def test_offsets_follow_the_sizes_of_mixed_fields(types):
    """Offset = index x size would be wrong: viewers would show nonsense."""
    columns = {a: np.arange(3, dtype=np.float32) for a in "xyz"}
    columns |= {n: np.arange(3, dtype=np.uint8) for n in ("intensity", "return_type")}
    columns["channel"] = np.array([5, 6, 700], np.uint16)
    message = encode.encode_columns(columns, STAMP_NS, "lidar", types)
    assert [f.offset for f in message.fields] == [0, 4, 8, 12, 13, 14]
    assert [f.datatype for f in message.fields] == [7, 7, 7, 2, 2, 4]
    assert (message.point_step, message.row_step, len(message.data)) == (16, 48, 48)
    got = decode(message)
    np.testing.assert_array_equal(got.xyz[:, 2], [0, 1, 2])
    np.testing.assert_array_equal(got.ring, [5, 6, 700])
    with pytest.raises(InvalidFrame, match="no field type for int64"):
        encode.encode_columns({"x": np.zeros(2, np.int64)}, 0, "lidar", types)


def test_cloud_bytes_are_assigned_in_the_type_that_costs_nothing(types):
    data = encode.encode_pointcloud(batch(), types).data
    if types is message_type:
        assert isinstance(data, np.ndarray) and data.dtype == np.uint8
    else:
        assert isinstance(data, array.array) and data.typecode == "B"


def test_a_cloud_of_ten_megabytes_is_encoded_within_milliseconds(types):
    """A check of every byte would take seconds. Measured in CPU time: other work may run beside."""
    points = batch(625_000, ring=False, lag=False)
    spent = []
    for _ in range(10):
        start = time.thread_time()
        message = encode.encode_pointcloud(points, types)
        spent.append(time.thread_time() - start)
    assert len(message.data) == 10_000_000
    assert min(spent) < 0.010, f"{min(spent) * 1e3:.1f} ms"


# --- boxes --------------------------------------------------------------------------------------


def test_a_box_moving_along_y_is_published_with_its_heading_along_y(types):
    """Length 4, width 2, at (10, 5, 0): size is (l, w, h), yaw counter-clockwise from +x."""
    det = detections([[10, 5, 0, 4, 2, 1.5, math.pi / 2, 0, 3]], [0])
    message = encode.encode_detections(det, STAMP_NS, "lidar", types)
    (one,) = message.detections
    assert stamp_ns_of(message.header.stamp) == stamp_ns_of(one.header.stamp) == STAMP_NS
    assert message.header.frame_id == one.header.frame_id == "lidar"
    (result,) = one.results
    assert result.hypothesis.class_id == "car"
    assert result.hypothesis.score == pytest.approx(0.9)
    place, turn, size = one.bbox.center.position, one.bbox.center.orientation, one.bbox.size
    assert (place.x, place.y, place.z) == (10, 5, 0)
    assert (turn.x, turn.y) == (0, 0)
    assert (turn.z, turn.w) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))
    assert (size.x, size.y, size.z) == (4, 2, 1.5)


def test_detections_come_back_exactly_but_for_their_velocity(types):
    rng = np.random.default_rng(1)
    rows = rng.uniform(-3, 3, (20, 9))
    det = detections(rows.tolist(), [k % 10 for k in range(20)], track_ids=torch.arange(20))
    message = encode.encode_detections(det, STAMP_NS, "lidar", types)
    got = encode.decode_detections(message)
    assert torch.equal(got.boxes[:, :6], det.boxes[:, :6])
    torch.testing.assert_close(got.boxes[:, 6], det.boxes[:, 6], rtol=0, atol=1e-6)
    assert got.boxes[:, 7:].isnan().all()
    assert torch.equal(got.scores, det.scores) and torch.equal(got.labels, det.labels)
    assert torch.equal(got.track_ids, det.track_ids) and got.class_names == NUSCENES_CLASSES


def test_class_names_that_are_not_ours_are_appended(types):
    det = detections([[0] * 9] * 3, [1, 0, 1], class_names=("van", "tram"))
    message = encode.encode_detections(det, STAMP_NS, "lidar", types)
    got = encode.decode_detections(message)
    assert got.class_names == (*NUSCENES_CLASSES, "tram", "van")
    assert [got.class_names[k] for k in got.labels.tolist()] == ["tram", "van", "tram"]


def test_nothing_detected_is_an_empty_array_with_its_header(types):
    empty = Detections.empty()
    for build, parse in (
        (encode.encode_detections, encode.decode_detections),
        (encode.encode_objects, encode.decode_objects),
    ):
        message = build(empty, STAMP_NS, "lidar", types)
        assert message.header.frame_id == "lidar" and parse(message).boxes.shape == (0, 9)


def test_velocity_is_in_the_frame_of_the_object_and_comes_back(types):
    """An object heading +y and moving along +y moves forward, along its own x."""
    det = detections(
        [[10, 5, 0, 4, 2, 1.5, math.pi / 2, 0, 3], [0, 0, 0, 4, 2, 1.5, -math.pi / 2, 1, 1]], [0, 3]
    )
    message = encode.encode_objects(det, STAMP_NS, "lidar", types)
    ahead, across = (o.kinematics.twist_with_covariance.twist.linear for o in message.objects)
    assert (ahead.x, ahead.y, ahead.z) == pytest.approx((3, 0, 0), abs=1e-6)
    assert (across.x, across.y) == pytest.approx((-1, 1), abs=1e-6)
    assert all(o.kinematics.has_twist for o in message.objects)
    first = message.objects[0]
    assert first.existence_probability == pytest.approx(0.9)
    size = first.shape.dimensions
    assert (first.shape.type, size.x, size.y, size.z) == (0, 4, 2, 1.5)
    got = encode.decode_objects(message)
    torch.testing.assert_close(got.boxes, det.boxes, rtol=0, atol=1e-6)
    assert [AUTOWARE_CLASSES[k] for k in got.labels.tolist()] == ["car", "bus"]


def test_an_unknown_velocity_never_reaches_the_message(types):
    det = detections([[1, 2, 3, 4, 2, 1.5, 0.3, math.nan, math.nan]], [0])
    message = encode.encode_objects(det, STAMP_NS, "lidar", types)
    kinematics = message.objects[0].kinematics
    linear = kinematics.twist_with_covariance.twist.linear
    assert not kinematics.has_twist and (linear.x, linear.y, linear.z) == (0, 0, 0)
    assert encode.decode_objects(message).boxes[0, 7:].isnan().all()


def test_every_nuscenes_class_has_an_autoware_label():
    assert set(encode.AUTOWARE_LABELS) == set(NUSCENES_CLASSES)
    for name, label in encode.AUTOWARE_LABELS.items():
        if name in AUTOWARE_CLASSES:
            assert AUTOWARE_CLASSES[label] == name
    constants = message_type("autoware_perception_msgs/msg/ObjectClassification")
    assert all(getattr(constants, n.upper()) == k for k, n in enumerate(AUTOWARE_CLASSES))


def test_a_zero_orientation_is_refused(types):
    message = encode.encode_detections(detections([[1] * 9], [0]), STAMP_NS, "lidar", types)
    message.detections[0].bbox.center.orientation.z = 0.0
    message.detections[0].bbox.center.orientation.w = 0.0
    with pytest.raises(InvalidFrame, match="not a quaternion"):
        encode.decode_detections(message)


# --- transforms and cameras ----------------------------------------------------------------------


def test_transforms_come_back(types):
    rng = np.random.default_rng(2)
    quats = rng.normal(size=(50, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    quats[:3] = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)  # half turns: w is zero
    poses = [rigid(rng.uniform(-9, 9, 3).tolist(), q.tolist()) for q in quats]
    message = encode.encode_transforms([(STAMP_NS, "a", "b", T) for T in poses], types)
    for item, expected in zip(message.transforms, poses):
        assert (item.header.frame_id, item.child_frame_id) == ("a", "b")
        assert stamp_ns_of(item.header.stamp) == STAMP_NS
        np.testing.assert_allclose(transform_of(item.transform), expected, atol=1e-12)
    with pytest.raises(InvalidFrame, match="unit quaternion"):
        rigid((0, 0, 0), (0, 0, 0, 0))


def test_a_camera_comes_back(types):
    camera = CameraFrame(
        name="CAM",
        stamp_ns=STAMP_NS,
        frame_id="cam_optical",
        image=None,
        encoded=bytes(range(256)),
        format="png",
        K=np.array([[700.0, 0, 320], [0, 710, 240], [0, 0, 1]]),
        D=np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
        distortion_model="plumb_bob",
        size_wh=(640, 480),
        T_ego_camera=np.eye(4),
    )
    info = encode.encode_camera_info(camera, types)
    image = encode.encode_compressed_image(camera, types)
    assert list(info.p) == [700, 0, 320, 0, 0, 710, 240, 0, 0, 0, 1, 0]
    got = decode_camera(info, image, "CAM", np.eye(4))
    for name in ("stamp_ns", "frame_id", "encoded", "format", "distortion_model", "size_wh"):
        assert getattr(got, name) == getattr(camera, name)
    np.testing.assert_array_equal(got.K, camera.K)
    np.testing.assert_array_equal(got.D, camera.D)


# --- the two libraries ---------------------------------------------------------------------------


@pytest.mark.skipif(bool(NO_ROS), reason=f"message packages are not installed: {NO_ROS}")
def test_both_libraries_put_the_same_bytes_on_the_wire():
    """But for padding, which rclpy leaves as it was in memory: it is zeroed before recording."""
    det = detections(np.random.default_rng(3).uniform(1, 2, (5, 9)).tolist(), [0, 1, 2, 3, 4])
    pose = [(STAMP_NS, "map", "base_link", rigid((1, 2, 3), (0, 0, 0.6, 0.8)))]
    for type_name, build in (
        ("sensor_msgs/msg/PointCloud2", lambda t: encode.encode_pointcloud(batch(50), t)),
        (
            "vision_msgs/msg/Detection3DArray",
            lambda t: encode.encode_detections(det, STAMP_NS, "lidar", t),
        ),
        (
            "autoware_perception_msgs/msg/DetectedObjects",
            lambda t: encode.encode_objects(det, STAMP_NS, "lidar", t),
        ),
        ("tf2_msgs/msg/TFMessage", lambda t: encode.encode_transforms(pose, t)),
    ):
        ours, theirs = (to_cdr(build(t), type_name) for t in (message_type, rclpy_type))
        assert canonical_cdr(theirs, type_name) == ours == canonical_cdr(ours, type_name)
