"""The LiDAR node that reads a bag itself: nothing lost, nothing left to the clock on the wall."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

from driveRT_ros.io.bag import BagWriter
from driveRT_ros.io.encode import encode_pointcloud, encode_transforms
from driveRT_ros.io.typestore import message_type
from driveRT_ros.nodes.offline_source import CloudSource, OfflineConfig
from test.support.bags import CLOUD, PERIOD_NS, START_NS, TF, cloud_batch, ego_pose, write_drive
from test.support.lidar_messages import SMALL, SMALL_STILL
from test.support.node_process import started
from test.support.ros_client import RosClient

DETECTIONS = "/lidar_node/output/detections"
DROPPED = "/lidar_node/debug/dropped_cloud"


def stamps_of(found: list[Detection3DArray]) -> list[int]:
    return [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in found]


def test_transforms_logged_up_to_a_second_late_come_before_their_cloud(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "bag") as writer:
        for i in range(3):
            stamp_ns = START_NS + i * PERIOD_NS
            cloud = encode_pointcloud(cloud_batch(i), message_type)
            writer.write("/points", CLOUD, cloud, stamp_ns)
            moved = encode_transforms([(stamp_ns, "map", "base_link", ego_pose(i))], message_type)
            writer.write("/tf", TF, moved, stamp_ns + 900_000_000)
    source = CloudSource(OfflineConfig(bag_path=str(tmp_path / "bag")))
    assert (source.topic, source.total) == ("/points", 3)
    taken = [(len(transforms), cloud.log_time_ns) for transforms, cloud in source]
    # 1 s after the first cloud, the transforms of 0.90, 0.95 and 1.00 s have been logged
    assert taken == [(3, START_NS), (0, START_NS + PERIOD_NS), (0, START_NS + 2 * PERIOD_NS)]


def test_max_clouds_limits_a_source(tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 4)
    config = OfflineConfig(bag_path=str(bag), max_clouds=2)
    source = CloudSource(config)
    assert source.total == len(list(source)) == 2
    assert len(list(source.static_transforms())) == 1


@pytest.mark.nodes
def test_every_cloud_is_answered_though_transforms_come_late_and_frames_are_slow(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "bag", 8, num_points=300)
    params = {**SMALL, "bag_path": str(bag), "wait_for_subscriber_s": 240.0}
    with RosClient(domain_id) as client:
        client.subscribe(Detection3DArray, DETECTIONS)
        with started("offline_node", tmp_path, domain_id, params=params) as node:
            assert node.wait() == 0, node.log()
            assert "Processed 8 of 8 clouds of '/points'." in node.log()
        found = client.wait_count(DETECTIONS, 8)
    assert stamps_of(found) == [START_NS + i * PERIOD_NS for i in range(8)]
    assert {m.header.frame_id for m in found} == {"LIDAR_TOP"}


@pytest.mark.nodes
def test_a_cloud_without_transform_and_one_that_is_garbage_cost_only_themselves(
    domain_id: int, tmp_path: Path
) -> None:
    with BagWriter(tmp_path / "bag") as writer:
        mount = encode_transforms([(0, "base_link", "LIDAR_TOP", np.eye(4))], message_type)
        writer.write("/tf_static", TF, mount, START_NS)
        for i in range(4):
            stamp_ns = START_NS + i * PERIOD_NS
            if i != 0:  # nothing is known of the first moment
                moved = [(stamp_ns, "map", "base_link", ego_pose(i))]
                writer.write("/tf", TF, encode_transforms(moved, message_type), stamp_ns)
            raw: object = encode_pointcloud(cloud_batch(i, 300), message_type)
            if i == 2:
                raw = b"\0\1\0\0\5"
            writer.write("/points", CLOUD, raw, stamp_ns + 1)
    params = {**SMALL, "bag_path": str(tmp_path / "bag"), "wait_for_subscriber_s": 240.0}
    with RosClient(domain_id) as client:
        client.subscribe(Header, DROPPED)
        client.subscribe(Detection3DArray, DETECTIONS)  # last: its subscriber is waited for
        with started("offline_node", tmp_path, domain_id, params=params) as node:
            assert node.wait() == 0, node.log()
            assert "Processed 2 of 4 clouds" in node.log()
            assert "1 malformed_message" in node.log() and "1 tf_past" in node.log()
        found = client.wait_count(DETECTIONS, 2)
        lost = client.wait_count(DROPPED, 2)
    assert stamps_of(found) == [START_NS + i * PERIOD_NS for i in (1, 3)]
    # Of the second one not even the header can be read.
    assert [h.frame_id for h in lost] == ["LIDAR_TOP", ""]
    assert lost[0].stamp.sec * 10**9 + lost[0].stamp.nanosec == START_NS


@pytest.mark.nodes
def test_ctrl_c_ends_an_offline_run_in_time(domain_id: int, tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 200, num_points=3_000)
    params = {**SMALL, "bag_path": str(bag)}
    with started("offline_node", tmp_path, domain_id, params=params) as node:
        node.wait_for_log("of 200 clouds")
        assert node.stop(signal.SIGINT) == 0, node.log()
        assert "Processed" not in node.log(), "it ended by itself"
        assert "Traceback" not in node.log()


@pytest.mark.nodes
@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, "'bag_path' must name the bag"),
        ({"bag_path": "/nowhere"}, "/nowhere"),
        ({"cloud_topic": "/tf"}, "is a tf2_msgs/msg/TFMessage"),
    ],
)
def test_a_bag_that_cannot_be_processed_is_one_sentence_and_exit_code_2(
    domain_id: int, tmp_path: Path, params: dict[str, object], sentence: str
) -> None:
    if params and "bag_path" not in params:
        params = {"bag_path": str(write_drive(tmp_path / "bag", 1)), **params}
    with started("offline_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 2, node.log()
        assert sentence in node.log()


@pytest.mark.nodes
def test_a_damaged_bag_is_processed_as_far_as_it_goes_and_the_exit_code_says_so(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "bag", 8, num_points=40_000)  # several chunks
    (storage,) = bag.glob("*.mcap")
    whole = storage.read_bytes()
    storage.write_bytes(whole[: len(whole) * 7 // 10])
    params = {**SMALL_STILL, "bag_path": str(bag)}
    with started("offline_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 3, node.log()
        assert re.search(r"Processed [1-7] of [1-7] clouds", node.log()), node.log()
