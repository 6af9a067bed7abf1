"""Frames to a bag and back: nothing is lost, and other tools find what they need."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from driveRT_ros.core.boxes import yaw_to_quat_xyzw
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import CameraFrame, Detections, PointBatch, SceneFrame
from driveRT_ros.io import encode, kitti
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.nuscenes import NuScenes
from driveRT_ros.io.rigid import rigid
from driveRT_ros.io.scene_bag import read_scene_frames, write_scene_bag
from driveRT_ros.io.typestore import message_type
from test.support.nuscenes import MiniNuScenes

START_NS = 1_700_000_000_000_000_000
PERIOD_NS = 50_000_000


def pose(x: float, yaw: float) -> np.ndarray:
    return rigid((x, 2.0, 0.5), yaw_to_quat_xyzw(torch.tensor(yaw, dtype=torch.float64)).tolist())


def scene_frame(number: int, boxes: int = 12, camera: bool = True) -> SceneFrame:
    rng = np.random.default_rng(number)
    points = PointBatch(
        xyz=rng.normal(0, 20, (500, 3)).astype(np.float32),
        intensity=rng.uniform(0, 255, 500).astype(np.float32),
        time_lag_s=np.linspace(0.05, 0, 500).astype(np.float32),
        ring=rng.integers(0, 32, 500).astype(np.int32),
        stamp_ns=START_NS + number * PERIOD_NS,
        frame_id="LIDAR_TOP",
    )
    values = torch.tensor(rng.uniform(-3, 3, (boxes, 9)), dtype=torch.float32)
    values[:, 3:6] = values[:, 3:6].abs() + 0.1
    values[::3, 7:] = math.nan
    truth = Detections(
        boxes=values,
        scores=torch.ones(boxes),
        labels=torch.arange(boxes) % 10,
        track_ids=torch.arange(boxes) + 5,
    )
    image = CameraFrame(
        name="CAM_FRONT",
        stamp_ns=points.stamp_ns - 7_000_000,
        frame_id="CAM_FRONT",
        image=None,
        encoded=bytes(rng.integers(0, 256, 900, dtype=np.uint8)),
        format="jpeg",
        K=np.array([[1266.4, 0, 816.2], [0, 1266.4, 491.5], [0, 0, 1]]),
        D=np.zeros(0),
        distortion_model="plumb_bob",
        size_wh=(1600, 900),
        T_ego_camera=rigid((1.7, 0.0, 1.5), (-0.5, 0.5, -0.5, 0.5)),
    )
    return SceneFrame(
        points, pose(number, 0.1 * number), pose(0.9, -1.5), truth, (image,) if camera else ()
    )


def assert_same_points(got: PointBatch, expected: PointBatch) -> None:
    for name in ("xyz", "intensity", "time_lag_s", "ring"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), name)
    assert (got.stamp_ns, got.frame_id) == (expected.stamp_ns, expected.frame_id)
    assert not got.report.dropped


def assert_same_boxes(got: Detections, expected: Detections) -> None:
    torch.testing.assert_close(got.boxes, expected.boxes, rtol=0, atol=1e-5, equal_nan=True)
    assert torch.equal(got.boxes[:, :6], expected.boxes[:, :6])
    assert torch.equal(got.labels, expected.labels) and torch.equal(got.scores, expected.scores)
    assert got.class_names == expected.class_names


@pytest.mark.parametrize(
    ("storage", "compression"), [("mcap", "none"), ("sqlite3", "none"), ("mcap", "chunk")]
)
def test_frames_come_back_as_they_were(tmp_path, storage, compression):
    frames = [scene_frame(k, boxes=12 * (k % 2)) for k in range(5)]
    seen: list[int] = []
    count = write_scene_bag(
        frames, tmp_path / "bag", storage=storage, compression=compression, progress=seen.append
    )
    assert count == 5 and seen == [1, 2, 3, 4, 5]
    read = list(read_scene_frames(tmp_path / "bag"))
    assert len(read) == 5
    for got, expected in zip(read, frames):
        assert_same_points(got.points, expected.points)
        assert_same_boxes(got.ground_truth, expected.ground_truth)
        if len(expected.ground_truth):
            assert torch.equal(got.ground_truth.track_ids, expected.ground_truth.track_ids)
        np.testing.assert_allclose(got.T_world_ego, expected.T_world_ego, atol=1e-9)
        np.testing.assert_allclose(got.T_ego_lidar, expected.T_ego_lidar, atol=1e-12)
        (image,), (wanted,) = got.cameras, expected.cameras
        for name in ("name", "stamp_ns", "frame_id", "encoded", "format", "size_wh"):
            assert getattr(image, name) == getattr(wanted, name)
        np.testing.assert_array_equal(image.K, wanted.K)
        np.testing.assert_allclose(image.T_ego_camera, wanted.T_ego_camera, atol=1e-12)


def test_the_same_frames_give_the_same_bytes(tmp_path):
    contents = []
    for run in ("one", "two"):
        write_scene_bag((scene_frame(k) for k in range(3)), tmp_path / run / "bag")
        contents.append([p.read_bytes() for p in sorted((tmp_path / run / "bag").iterdir())])
    assert contents[0] == contents[1]


def test_a_frame_without_annotation_differs_from_one_without_objects(tmp_path):
    frames = [scene_frame(0, boxes=0), dataclasses.replace(scene_frame(1), ground_truth=None)]
    write_scene_bag(frames, tmp_path / "bag")
    first, second = read_scene_frames(tmp_path / "bag")
    assert first.ground_truth.boxes.shape == (0, 9) and second.ground_truth is None


def test_messages_are_in_order_and_static_transforms_come_first_and_once(tmp_path):
    write_scene_bag([scene_frame(k) for k in range(4)], tmp_path / "bag")
    with BagReader(tmp_path / "bag") as reader:
        messages = list(reader)
        assert [m.log_time_ns for m in messages] == sorted(m.log_time_ns for m in messages)
        assert messages[0].topic == "/tf_static"
        assert reader.message_counts["/tf_static"] == 1
        static = messages[0].deserialize().transforms
        assert [(t.header.frame_id, t.child_frame_id) for t in static] == [
            ("base_link", "CAM_FRONT"),
            ("base_link", "LIDAR_TOP"),
        ]
        assert reader.topics == {
            "/tf_static": "tf2_msgs/msg/TFMessage",
            "/tf": "tf2_msgs/msg/TFMessage",
            "/LIDAR_TOP": "sensor_msgs/msg/PointCloud2",
            "/CAM_FRONT/camera_info": "sensor_msgs/msg/CameraInfo",
            "/CAM_FRONT/image_rect_compressed": "sensor_msgs/msg/CompressedImage",
            "/ground_truth/detections": "vision_msgs/msg/Detection3DArray",
            "/ground_truth/objects": "autoware_perception_msgs/msg/DetectedObjects",
        }
        clouds = [k for k, m in enumerate(messages) if m.topic == "/LIDAR_TOP"]
        poses = [k for k, m in enumerate(messages) if m.topic == "/tf"]
        assert all(p < c for p, c in zip(poses, clouds)), "the pose is there before its cloud"


def test_a_sensor_that_appears_later_or_moves_is_announced_again(tmp_path):
    frames = [scene_frame(0, camera=False), scene_frame(1), scene_frame(2)]
    frames[2] = dataclasses.replace(frames[2], T_ego_lidar=pose(0.95, -1.5))
    write_scene_bag(frames, tmp_path / "bag")
    with BagReader(tmp_path / "bag", ["/tf_static"]) as reader:
        sizes = [len(m.deserialize().transforms) for m in reader]
    assert sizes == [1, 2, 2], "each message holds every sensor: a late subscriber gets only one"


def test_static_transforms_at_the_end_of_a_bag_still_count(tmp_path):
    """Offline, /tf_static is read before anything else, wherever it was recorded."""
    frame = scene_frame(0, camera=False)
    with BagWriter(tmp_path / "bag") as writer:
        cloud = encode.encode_pointcloud(frame.points, message_type)
        writer.write("/points", "sensor_msgs/msg/PointCloud2", cloud, 1)
        static = encode.encode_transforms(
            [(5, "base_link", "rack", pose(1, 0)), (5, "rack", "LIDAR_TOP", pose(2, 0))],
            message_type,
        )
        writer.write("/tf_static", "tf2_msgs/msg/TFMessage", static, 10_000_000_000)
    (read,) = read_scene_frames(tmp_path / "bag")
    np.testing.assert_allclose(read.T_ego_lidar, pose(1, 0) @ pose(2, 0), atol=1e-12)
    assert read.T_world_ego is None


def test_a_missing_static_transform_is_an_error_that_names_the_frame(tmp_path):
    frame = scene_frame(0, camera=False)
    with BagWriter(tmp_path / "bag") as writer:
        cloud = encode.encode_pointcloud(frame.points, message_type)
        writer.write("/points", "sensor_msgs/msg/PointCloud2", cloud, 1)
    with pytest.raises(ConfigError, match="no transform from 'LIDAR_TOP' to 'base_link'"):
        list(read_scene_frames(tmp_path / "bag"))


def test_the_pose_between_two_recorded_ones_is_interpolated_and_outside_unknown(tmp_path):
    frames = [scene_frame(k, camera=False) for k in range(3)]
    with BagWriter(tmp_path / "bag") as writer:
        kind, cloud_kind = "tf2_msgs/msg/TFMessage", "sensor_msgs/msg/PointCloud2"
        static = encode.encode_transforms([(0, "base_link", "LIDAR_TOP", np.eye(4))], message_type)
        writer.write("/tf_static", kind, static, 0)
        for offset_ns, yaw in ((-20_000_000, 3.0), (30_000_000, -3.0)):
            at = frames[1].points.stamp_ns + offset_ns
            moved = [(at, "map", "base_link", pose(offset_ns * 1e-6, yaw))]
            writer.write("/tf", kind, encode.encode_transforms(moved, message_type), at)
        for frame in frames:
            cloud = encode.encode_pointcloud(frame.points, message_type)
            writer.write("/LIDAR_TOP", cloud_kind, cloud, frame.points.stamp_ns)
    before, between, after = read_scene_frames(tmp_path / "bag")
    assert before.T_world_ego is None and after.T_world_ego is None
    turned = 3.0 + 0.4 * (2 * math.pi - 6.0)  # the short way round
    np.testing.assert_allclose(between.T_world_ego, pose(0.0, turned), atol=1e-9)


def test_a_cloud_that_cannot_be_decoded_is_skipped_with_a_warning(tmp_path, caplog):
    frames = [scene_frame(k, camera=False) for k in range(3)]
    write_scene_bag(frames, tmp_path / "good")
    with BagReader(tmp_path / "good") as reader, BagWriter(tmp_path / "bad") as writer:
        for m in reader:
            message = m.deserialize()
            if m.topic == "/LIDAR_TOP" and m.log_time_ns == frames[1].points.stamp_ns:
                message.row_step += 1
            writer.write(m.topic, m.type_name, message, m.log_time_ns)
    read = list(read_scene_frames(tmp_path / "bad"))
    assert [f.points.stamp_ns for f in read] == [frames[k].points.stamp_ns for k in (0, 2)]
    assert "row_step" in caplog.text
    for got, expected in zip(read, (frames[0], frames[2])):
        assert_same_boxes(got.ground_truth, expected.ground_truth)


def test_a_bag_without_cloud_topic_lists_what_it_has(tmp_path):
    with BagWriter(tmp_path / "bag") as writer:
        writer.add_topic("/text", "std_msgs/msg/String")
    with pytest.raises(ConfigError, match="/text"):
        list(read_scene_frames(tmp_path / "bag"))


def test_a_nuscenes_scene_survives_the_bag(tmp_path):
    data = MiniNuScenes(keyframes=3, ego_yaw=0.7, lidar_yaw=-1.5)
    data.add_object("vehicle.car", {k: (110.0 + 5 * k, 50.0, 1.0) for k in range(3)}, yaw=0.3)
    data.add_object("human.pedestrian.adult", {1: (105.0, 40.0, 1.0)})
    frames = list(NuScenes(data.write(tmp_path / "data")).frames())
    write_scene_bag(frames, tmp_path / "bag")
    read = list(read_scene_frames(tmp_path / "bag"))
    assert len(read) == len(frames) == 21
    for got, expected in zip(read, frames):
        assert_same_points(got.points, expected.points)
        np.testing.assert_allclose(got.T_world_ego, expected.T_world_ego, atol=1e-9)
        assert (got.ground_truth is None) == (expected.ground_truth is None)
        if expected.ground_truth is not None:
            assert_same_boxes(got.ground_truth, expected.ground_truth)
        assert [c.encoded for c in got.cameras] == [c.encoded for c in expected.cameras]


# --- real data ----------------------------------------------------------------------------------


def test_a_real_keyframe_survives_the_bag(tmp_path, data_dir):
    (frame,) = NuScenes(data_dir / "nuscenes" / "scene-0061").frames()
    write_scene_bag([frame], tmp_path / "bag")
    (read,) = read_scene_frames(tmp_path / "bag")
    assert_same_points(read.points, frame.points)
    assert_same_boxes(read.ground_truth, frame.ground_truth)
    assert [c.encoded for c in read.cameras] == [c.encoded for c in frame.cameras]


def test_real_kitti_frames_survive_the_bag(tmp_path, data_dir):
    frames = list(kitti.frames(data_dir / "lidar" / "kitti_object"))
    write_scene_bag(frames, tmp_path / "bag")
    read = list(read_scene_frames(tmp_path / "bag"))
    assert len(read) == 3 and all(f.T_world_ego is None for f in read)
    for got, expected in zip(read, frames):
        np.testing.assert_array_equal(got.points.xyz, expected.points.xyz)
        np.testing.assert_array_equal(got.points.intensity, expected.points.intensity)
        assert_same_boxes(got.ground_truth, expected.ground_truth)


def test_a_bag_recorded_elsewhere_is_read_like_the_data_set(data_dir):
    (got,) = read_scene_frames(data_dir / "bags" / "rosbag2_nuscenes_scene0061_kf0")
    (expected,) = NuScenes(data_dir / "nuscenes" / "scene-0061").frames()
    np.testing.assert_array_equal(got.points.xyz, expected.points.xyz)
    np.testing.assert_array_equal(got.points.intensity, expected.points.intensity)
    assert got.points.stamp_ns == expected.points.stamp_ns
    np.testing.assert_allclose(got.T_ego_lidar, expected.T_ego_lidar, atol=1e-6)
    np.testing.assert_allclose(got.T_world_ego, expected.T_world_ego, atol=1e-4)
    assert got.ground_truth is None, "that bag has no annotations"
    for image, wanted in zip(got.cameras, expected.cameras):
        assert (image.name, image.stamp_ns, image.size_wh) == (
            wanted.name,
            wanted.stamp_ns,
            wanted.size_wh,
        )
        np.testing.assert_allclose(image.K, wanted.K, atol=1e-9)
        np.testing.assert_allclose(image.T_ego_camera, wanted.T_ego_camera, atol=1e-6)
    assert len(got.cameras) == 6
