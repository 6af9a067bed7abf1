"""Cameras from a simulated drive through 'drivert convert' and a replay to a subscriber."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from nav_msgs.msg import OccupancyGrid
from sensor_msgs.msg import CameraInfo, CompressedImage, PointCloud2
from tf2_msgs.msg import TFMessage

from driveRT_ros.cli import main
from driveRT_ros.io.camera import decode_camera_info, is_rectified_topic
from driveRT_ros.io.image import decode_image
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.sim.rig import NAMES, RIG
from test.support.node_process import started
from test.support.ros_client import RosClient, profile

pytestmark = pytest.mark.nodes


def simulated(folder: Path, scale: float) -> Path:
    """Return a bag of a fifth of a second, with two images of each camera."""
    settings, bag = folder / "sim.yaml", folder / "bag"
    settings.write_text(f"cameras: {{scale: {scale}, every_nth_sweep: 2}}\n")
    arguments = ["convert", "--sim", str(bag), "--sim-config", str(settings), "--cameras"]
    assert main([*arguments, "--duration", "0.2"]) == 0
    return bag


def test_six_cameras_of_a_converted_drive_arrive_whole_and_calibrated(
    domain_id: int, tmp_path: Path
) -> None:
    bag = simulated(tmp_path, scale=0.5)
    images = {name: f"/{name}/image_rect_compressed" for name in NAMES}
    infos = {name: f"/{name}/camera_info" for name in NAMES}
    with RosClient(domain_id) as client:
        for name in NAMES:
            client.subscribe(CompressedImage, images[name])
            client.subscribe(CameraInfo, infos[name])
        client.subscribe(TFMessage, "/tf_static", profile(latched=True))
        client.subscribe(PointCloud2, "/LIDAR_TOP")  # its subscriber is what the replay waits for
        params = {"bag_path": str(bag), "rate": 0.2}
        with started("replay_node", tmp_path, domain_id, params=params) as node:
            assert node.wait() == 0, node.log()
        (static,) = client.wait_count("/tf_static", 1)
        assert {t.child_frame_id for t in static.transforms} == {*NAMES, "LIDAR_TOP"}
        for name in NAMES:
            got, calibrations = (client.wait_count(t[name], 2) for t in (images, infos))
            stamps = [[stamp_ns_of(m.header.stamp) for m in part] for part in (got, calibrations)]
            assert stamps[0] == stamps[1] and stamps[0][1] - stamps[0][0] == 100_000_000
            for image, info in zip(got, calibrations):
                pixels = decode_image(image)
                rectified = is_rectified_topic(images[name])
                intrinsics = decode_camera_info(info, rectified=rectified)
                assert pixels.shape == (450, 800, 3) and pixels.std() > 10
                assert intrinsics.is_pinhole and intrinsics.size_wh == (800, 450)
                np.testing.assert_allclose(intrinsics.K, RIG[name].K((800, 450)))


def test_images_wait_for_whoever_is_to_answer_them_though_the_clouds_are_heard(
    domain_id: int, tmp_path: Path
) -> None:
    # On a busy machine a camera node is found seconds after the node that takes the clouds.
    bag = simulated(tmp_path, scale=0.1)
    images = [f"/{name}/image_rect_compressed" for name in NAMES]
    params = {
        "bag_path": str(bag),
        "rate": 0.0,
        "wait_for_subscriber_s": 240.0,
        "lockstep_images_topic": "/grid",
        "lockstep_timeout_s": 1.0,
    }
    with (
        RosClient(domain_id, "lidar") as lidar,
        started("replay_node", tmp_path, domain_id, params=params) as node,
    ):
        lidar.subscribe(PointCloud2, "/LIDAR_TOP")
        lidar.wait_matched()
        time.sleep(2.0)  # of which the replay needs a tenth where it waits for nobody else
        assert not lidar.received["/LIDAR_TOP"]
        with RosClient(domain_id, "camera") as camera:
            camera.publisher(OccupancyGrid, "/grid")
            for topic in images:
                camera.subscribe(CompressedImage, topic)
            assert node.wait() == 0, node.log()
            assert [len(camera.wait_count(topic, 2)) for topic in images] == [2] * len(images)
        assert "within 1 s" in node.log()  # nobody answered, which is another matter


def test_cameras_are_an_option_of_simulated_drives_only(tmp_path: Path, capsys) -> None:
    (tmp_path / "kitti").mkdir()
    out = str(tmp_path / "bag")
    assert main(["convert", "--kitti", str(tmp_path / "kitti"), out, "--cameras"]) == 2
    assert "--cameras is for simulated drives" in capsys.readouterr().err
