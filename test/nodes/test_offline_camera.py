"""The camera node on recordings: found topics, pairs by log time, the real keyframe."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from nav_msgs.msg import OccupancyGrid
from sensor_msgs.msg import Image

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.camera_topics import COMPRESSED_IMAGE
from driveRT_ros.io.camera_view import camera_map_view, footprint
from driveRT_ros.io.encode import encode_camera_info, encode_compressed_image, encode_transforms
from driveRT_ros.io.scene_bag import read_scene_frames
from driveRT_ros.io.typestore import message_type
from driveRT_ros.nodes.offline_source import ImageSource, OfflineCameraConfig
from test.support.camera_messages import SMALL, jpegs, stamped
from test.support.camera_rig import NAMES
from test.support.lidar_messages import SECOND as S
from test.support.node_process import started
from test.support.ros_client import RosClient

GRID, PICTURE = "/camera_node/output/occupancy_grid", "/camera_node/output/bev_image"
KEYFRAME = "rosbag2_nuscenes_scene0061_kf0"


def write_images(path: Path, count: int = 3, *, damaged: int = -1) -> Path:
    """Write ``count`` sets; calibrations come after their images, and one image may be rubbish."""
    frames = jpegs(size_wh=(320, 180))
    with BagWriter(path) as writer:
        mounts = [(0, "base_link", f.frame_id, f.T_ego_camera) for f in frames.values()]
        tf = "tf2_msgs/msg/TFMessage"
        writer.write("/tf_static", tf, encode_transforms(mounts, message_type), S)
        for i in range(count):
            for k, (name, frame) in enumerate(frames.items()):
                stamp_ns = S + i * S // 2 + k * 5_000_000
                raw: object = encode_compressed_image(stamped(frame, stamp_ns), message_type)
                if (i, k) == (damaged, 2):
                    raw = b"\0\1\0\0\5"
                topic = f"/{name}/image_rect_compressed"
                writer.write(topic, COMPRESSED_IMAGE, raw, stamp_ns)
                calibration = encode_camera_info(stamped(frame, stamp_ns), message_type)
                info_type = "sensor_msgs/msg/CameraInfo"
                writer.write(f"/{name}/camera_info", info_type, calibration, stamp_ns + 1000)
    return path


def test_source_yields_images_with_calibrations_ahead_of_them(tmp_path: Path) -> None:
    bag = write_images(tmp_path / "bag")
    source = ImageSource(OfflineCameraConfig(bag_path=str(bag), max_images=7))
    items = list(source)
    source.close()
    assert source.total == len(items) == 7
    ahead, first = items[0]
    assert source.cameras[first.topic] == NAMES[0]
    assert {source.infos[m.topic] for m in ahead} == set(NAMES)


def test_bag_without_any_of_the_cameras_is_refused_with_those_it_has(tmp_path: Path) -> None:
    bag = write_images(tmp_path / "bag", 1)
    with pytest.raises(ConfigError, match="none of the cameras left; its cameras: .*CAM_BACK"):
        ImageSource(OfflineCameraConfig(bag_path=str(bag), cameras=("left",)))


@pytest.mark.nodes
def test_every_set_is_answered_and_an_unreadable_message_costs_itself(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_images(tmp_path / "bag", 4, damaged=1)
    params = {**SMALL, "bag_path": str(bag), "wait_for_subscriber_s": 240.0}
    with RosClient(domain_id) as client:
        client.subscribe(OccupancyGrid, GRID)
        with started("offline_camera_node", tmp_path, domain_id, params=params) as node:
            assert node.wait() == 0, node.log()
            assert "Processed 4 camera sets of 24 images of 6 cameras" in node.log()
            assert "1 malformed_message" in node.log()
        grids = client.wait_count(GRID, 4)
    known = [(np.asarray(g.data) >= 0).sum() for g in grids]
    assert known[1] < known[0] == known[2] == known[3]
    stamps = [g.header.stamp.sec * S + g.header.stamp.nanosec for g in grids]
    assert stamps == [S + i * S // 2 + 25_000_000 for i in range(4)]  # of the newest image


@pytest.mark.nodes
def test_the_six_frusta_of_a_real_rig_are_drawn_where_they_belong(
    domain_id: int, tmp_path: Path, data_dir: Path
) -> None:
    bag = data_dir / "bags" / KEYFRAME
    # Without probabilities, the picture shows nothing but what the cameras see.
    params = {**SMALL, "bag_path": str(bag), "wait_for_subscriber_s": 240.0}
    params |= {"model.grid.resolution_m": 0.6, "bev.image_pixels_per_cell": 4}
    with RosClient(domain_id) as client:
        client.subscribe(Image, PICTURE)
        client.subscribe(OccupancyGrid, GRID)  # last: its subscriber is waited for
        with started("offline_camera_node", tmp_path, domain_id, params=params) as node:
            assert node.wait() == 0, node.log()
        message = client.wait_count(PICTURE, 1)[0]
        occupancy = client.wait_count(GRID, 1)[0]
    picture = np.asarray(message.data, np.uint8).reshape(message.height, message.width, 3)
    seen = (np.asarray(occupancy.data) >= 0).reshape(180, 180)
    with BagReader(bag) as reader:
        (topic,) = reader.topics_of_type("sensor_msgs/msg/PointCloud2")
    (scene,) = read_scene_frames(bag, cloud_topic=topic)
    config = CameraConfig.from_dict({k: v for k, v in params.items() if k.startswith(("m", "be"))})
    view = camera_map_view(config)
    assert picture.shape[:2] == (view.height_px, view.width_px)
    whole = np.zeros((180, 180), np.uint8)
    for camera in scene.cameras:
        outline = footprint(camera, config)
        # Half way along each long edge, the line is brighter than the ground beside it.
        for start, end in ((outline[0], outline[1]), (outline[3], outline[2])):
            col, row = np.rint(view.to_pixels(start + 0.4 * (end - start))).astype(int)
            around = picture[row - 2 : row + 3, col - 2 : col + 3].reshape(-1, 3).max(axis=1)
            assert around.max() > 120, camera.name
        cells = np.rint((outline + 54.0) / 0.6 - 0.5).astype(np.int32)
        cv2.fillConvexPoly(whole, cells, 1)
    assert (seen == (whole > 0)).mean() > 0.98  # an independent drawing of the same rig
    assert len(scene.cameras) == 6
