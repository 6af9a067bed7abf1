"""Cameras through bags: simulated, raw, distorted, uncalibrated, and with other people's names."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from driveRT_ros.core.frame import CameraFrame, SceneFrame
from driveRT_ros.io import encode
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.camera import Undistorter, decode_camera_info, undistorted
from driveRT_ros.io.camera_topics import camera_topics, image_topic, info_topic
from driveRT_ros.io.decode_messages import decode_camera
from driveRT_ros.io.image import decode_image, with_pixels
from driveRT_ros.io.nuscenes import NuScenes
from driveRT_ros.io.scene_bag import read_scene_frames, write_scene_bag
from driveRT_ros.io.typestore import message_type
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from test.support.images import encoded, random_rgb

COMPRESSED, RAW = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
INFO = "sensor_msgs/msg/CameraInfo"


@pytest.fixture(scope="module")
def drive() -> list[SceneFrame]:
    config = {"num_sweeps": 4, "cameras.enabled": True, "cameras.scale": 0.1}
    return list(simulate(SimConfig.from_dict(config)))


def with_camera(frame: SceneFrame, **change: object) -> SceneFrame:
    """Return a frame with its first camera only, changed."""
    return dataclasses.replace(frame, cameras=(dataclasses.replace(frame.cameras[0], **change),))


def assert_same_camera(got: CameraFrame, expected: CameraFrame) -> None:
    for name in ("name", "stamp_ns", "frame_id", "encoded", "format", "size_wh"):
        assert getattr(got, name) == getattr(expected, name), name
    np.testing.assert_array_equal(got.K, expected.K)
    np.testing.assert_array_equal(got.D, expected.D)
    np.testing.assert_allclose(got.T_ego_camera, expected.T_ego_camera, atol=1e-12)


@pytest.mark.parametrize("storage", ("mcap", "sqlite3"))
def test_a_simulated_drive_with_six_cameras_survives_the_bag(tmp_path, drive, storage):
    write_scene_bag(drive, tmp_path / "bag", storage=storage)
    read = list(read_scene_frames(tmp_path / "bag"))
    assert [len(frame.cameras) for frame in read] == [6, 0, 6, 0]
    for got, expected in zip(read, drive):
        cameras = sorted(expected.cameras, key=lambda camera: camera.name)
        for camera, wanted in zip(sorted(got.cameras, key=lambda c: c.name), cameras):
            assert_same_camera(camera, wanted)
            assert with_pixels(camera).image.shape == (90, 160, 3)


def test_the_bag_has_image_calibration_and_transform_of_every_camera(tmp_path, drive):
    write_scene_bag(drive[:1], tmp_path / "bag")
    with BagReader(tmp_path / "bag") as reader:
        messages = {m.topic: m.deserialize() for m in reader}
    children = {t.child_frame_id for t in messages["/tf_static"].transforms}
    for camera in drive[0].cameras:
        image = messages[f"/{camera.name}/image_rect_compressed"]
        info = messages[f"/{camera.name}/camera_info"]
        assert image.header.stamp == info.header.stamp and image.header.frame_id in children
        intrinsics = decode_camera_info(info, rectified=True)
        assert intrinsics.is_pinhole and intrinsics.size_wh == (160, 90)
        assert decode_image(image).shape == (90, 160, 3)


def test_pixels_are_written_as_raw_images_and_come_back_exactly(tmp_path, drive):
    image = random_rgb(1, 90, 160)
    frame = with_camera(drive[0], image=image, encoded=None, format="")
    write_scene_bag([frame], tmp_path / "bag")
    with BagReader(tmp_path / "bag") as reader:
        assert reader.topics["/CAM_FRONT/image_rect"] == RAW
    ((camera,),) = (read.cameras for read in read_scene_frames(tmp_path / "bag"))
    np.testing.assert_array_equal(camera.image, image)
    assert camera.encoded is None
    np.testing.assert_array_equal(camera.K, frame.cameras[0].K)


@pytest.mark.parametrize("raw", (False, True))
def test_distorted_images_are_not_called_rectified_and_can_be_undistorted(tmp_path, drive, raw):
    image, D = random_rgb(2, 90, 160), np.array([-0.3, 0.1, 0.0, 0.0, 0.0])
    pixels = {"image": image, "encoded": None} if raw else {"encoded": encoded(image, ".png")}
    frame = with_camera(drive[0], **pixels, format="" if raw else "png", D=D)
    write_scene_bag([frame], tmp_path / "bag")
    with BagReader(tmp_path / "bag") as reader:
        topic = "/CAM_FRONT/image_raw" + ("" if raw else "/compressed")
        assert reader.topics[topic] == (RAW if raw else COMPRESSED)
    ((camera,),) = (read.cameras for read in read_scene_frames(tmp_path / "bag"))
    np.testing.assert_array_equal(camera.D, D)
    undistorter = Undistorter()
    straight = undistorted(camera, undistorter)
    assert undistorter.builds == 1 and not straight.D.size and straight.encoded is None
    assert (straight.image != image).mean() > 0.3
    assert undistorted(straight, undistorter) is straight


def test_a_camera_without_calibration_is_left_out_and_the_others_are_not(tmp_path, drive, caplog):
    """Drivers publish a CameraInfo of zeros until they are calibrated."""
    write_scene_bag(drive, tmp_path / "good")
    with BagReader(tmp_path / "good") as reader, BagWriter(tmp_path / "bad") as writer:
        for m in reader:
            message = m.deserialize()
            if m.topic == "/CAM_BACK/camera_info":
                message.k, message.p = np.zeros(9), np.zeros(12)
            writer.write(m.topic, m.type_name, message, m.log_time_ns)
    read = list(read_scene_frames(tmp_path / "bad"))
    assert [len(frame.cameras) for frame in read] == [5, 0, 5, 0]
    warnings = [r.getMessage() for r in caplog.records if "CAM_BACK" in r.getMessage()]
    assert len(warnings) == 1 and "not calibrated" in warnings[0]


def test_a_camera_without_transform_is_left_out_with_one_warning(tmp_path, drive, caplog):
    write_scene_bag(drive, tmp_path / "good")
    with BagReader(tmp_path / "good") as reader, BagWriter(tmp_path / "bad") as writer:
        for m in reader:
            message = m.deserialize()
            if m.topic == "/tf_static":
                message.transforms = [
                    t for t in message.transforms if t.child_frame_id != "CAM_FRONT"
                ]
            writer.write(m.topic, m.type_name, message, m.log_time_ns)
    read = list(read_scene_frames(tmp_path / "bad"))
    assert [len(frame.cameras) for frame in read] == [5, 0, 5, 0]
    assert sum("no transform to 'base_link'" in r.getMessage() for r in caplog.records) == 1


def test_a_bag_with_names_of_other_projects_is_read(tmp_path, drive):
    """Raw and compressed, rectified and not: one image a camera, named by its namespace."""
    frame = drive[0]
    image = dataclasses.replace(frame.cameras[0], image=random_rgb(3, 90, 160))
    space = "/sensing/camera/camera0"
    write_scene_bag([dataclasses.replace(frame, cameras=())], tmp_path / "plain")
    mount = [(frame.points.stamp_ns, "base_link", image.frame_id, image.T_ego_camera)]
    with BagReader(tmp_path / "plain") as reader, BagWriter(tmp_path / "bag") as writer:
        now_ns = frame.points.stamp_ns
        tf = encode.encode_transforms(mount, message_type)
        writer.write("/tf_static", "tf2_msgs/msg/TFMessage", tf, now_ns)
        info = encode.encode_camera_info(image, message_type)
        writer.write(f"{space}/camera_info", INFO, info, now_ns)
        raw = encode.encode_image(image, message_type)
        writer.write(f"{space}/image_raw", RAW, raw, now_ns)
        packed = encode.encode_compressed_image(image, message_type)
        packed.format = "rgb8; jpeg compressed bgr8"
        writer.write(f"{space}/image_rect_color/compressed", COMPRESSED, packed, now_ns)
        for m in reader:
            writer.write(m.topic, m.type_name, m.deserialize(), m.log_time_ns)
    ((camera,),) = (read.cameras for read in read_scene_frames(tmp_path / "bag"))
    assert (camera.name, camera.format) == ("camera0", "jpeg")
    assert camera.encoded == image.encoded


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ({"/CAM_FRONT/image_rect_compressed": COMPRESSED, "/CAM_FRONT/camera_info": INFO},
         {"CAM_FRONT": "/CAM_FRONT/image_rect_compressed"}),
        ({"/left/cam/image_raw": RAW, "/left/cam/camera_info": INFO,
          "/right/cam/image_raw": RAW, "/right/cam/camera_info": INFO},
         {"left/cam": "/left/cam/image_raw", "right/cam": "/right/cam/image_raw"}),
        ({"/cam/image_raw": RAW, "/cam/image_rect/compressed": COMPRESSED, "/cam/image_rect": RAW,
          "/cam/camera_info": INFO}, {"cam": "/cam/image_rect/compressed"}),
        ({"/cam/depth/compressedDepth": COMPRESSED, "/cam/depth/camera_info": INFO,
          "/cam/camera_info": INFO}, {}),
        ({"/image_raw": RAW, "/camera_info": INFO}, {"camera": "/image_raw"}),
        ({"/lidar_node/output/bev_image": RAW}, {}),
    ],
)  # fmt: skip
def test_one_image_topic_is_chosen_for_every_camera_with_calibration(topics, expected):
    assert camera_topics(topics) == expected


@pytest.mark.parametrize(
    ("topic", "info"),
    [
        ("/CAM_FRONT/image_rect_compressed", "/CAM_FRONT/camera_info"),
        ("/a/b/image_raw/compressed", "/a/b/camera_info"),
        ("/a/image", "/a/camera_info"),
    ],
)
def test_the_calibration_is_the_neighbour_of_the_image(topic, info):
    assert info_topic(topic) == info


def test_a_fisheye_without_coefficients_is_distorted(drive):
    camera = drive[0].cameras[0]
    assert image_topic(camera)[0].endswith("image_rect_compressed")
    bent = dataclasses.replace(camera, D=np.zeros(4), distortion_model="equidistant")
    assert image_topic(bent)[0].endswith("image_raw/compressed")


def test_an_unrectified_eye_of_a_stereo_pair_looks_where_its_own_axes_point(drive):
    """The frame of a CameraInfo has the rectified axes; the pixels of the raw image have others."""
    camera = dataclasses.replace(drive[0].cameras[0], image=random_rgb(4, 90, 160), encoded=None)
    info = encode.encode_camera_info(camera, message_type)
    cos, sin = np.cos(0.1), np.sin(0.1)
    R = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
    info.r = R.reshape(-1)
    image = encode.encode_image(camera, message_type)
    T = camera.T_ego_camera
    raw = decode_camera(info, image, "CAM", T)
    point_raw = np.array([0.3, -0.2, 5.0])
    in_ego = T[:3, :3] @ (R @ point_raw) + T[:3, 3]
    np.testing.assert_allclose(raw.T_ego_camera[:3, :3] @ point_raw + T[:3, 3], in_ego)
    rectified = decode_camera(info, image, "CAM", T, rectified=True)
    np.testing.assert_array_equal(rectified.T_ego_camera, T)


# --- real data -----------------------------------------------------------------------------------


def test_real_images_of_a_bag_decode_and_agree_with_the_data_set(data_dir):
    (got,) = read_scene_frames(data_dir / "bags" / "rosbag2_nuscenes_scene0061_kf0")
    (expected,) = NuScenes(data_dir / "nuscenes" / "scene-0061").frames()
    wanted = {camera.name: camera for camera in expected.cameras}
    assert sorted(wanted) == sorted(camera.name for camera in got.cameras)
    for camera in got.cameras:
        image = with_pixels(camera).image
        assert image.shape == (900, 1600, 3) and not camera.D.size
        other = with_pixels(wanted[camera.name]).image
        assert np.abs(image.astype(int) - other.astype(int)).mean() < 3
