"""The recorder node over real DDS: what ends up in the bag."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Float64
from vision_msgs.msg import Detection3DArray

from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.encode import encode_pointcloud
from driveRT_ros.nodes.raw import canonical, message_class
from test.support.bags import PERIOD_NS, START_NS, cloud_batch, messages, write_drive
from test.support.node_process import started
from test.support.ros_client import LATE_S, RosClient, profile

pytestmark = pytest.mark.nodes

DETECTIONS = "vision_msgs/msg/Detection3DArray"


def cloud(index: int) -> PointCloud2:
    return encode_pointcloud(cloud_batch(index), message_class)


def wait_until_heard(publisher: Any) -> None:
    """Wait until a publisher knows its subscriber: from then on nothing reliable is lost."""
    deadline = time.monotonic() + LATE_S
    while not publisher.get_subscription_count():
        assert time.monotonic() < deadline, f"nobody subscribed within {LATE_S} s"
        time.sleep(0.02)


def test_the_bag_holds_every_message_with_its_header_stamp_as_log_time(
    domain_id: int, tmp_path: Path
) -> None:
    bag = tmp_path / "bag"
    params = {"bag_path": str(bag), "topics": ["/points", "/quiet:std_msgs/msg/Float64"]}
    with RosClient(domain_id) as client:
        clouds = client.publisher(PointCloud2, "/points")
        client.publisher(Float64, "/quiet")
        client.publisher(Float64, "/other")
        with started("recorder_node", tmp_path, domain_id, params=params) as node:
            node.wait_for_log("Recording 2 topics")
            sent = [cloud(i) for i in range(5)]
            wait_until_heard(clouds)
            for msg in sent:
                clouds.publish(msg)
            assert clouds.wait_for_all_acked()
            assert node.stop(signal.SIGINT) == 0, node.log()
            assert "Recorded 5 messages on 2 topics" in node.log()
    recorded = messages(bag, "/points")
    assert [t for t, _ in recorded] == [START_NS + i * PERIOD_NS for i in range(5)]
    for (_, raw), msg in zip(recorded, sent):
        assert raw == canonical(serialize_message(msg), "sensor_msgs/msg/PointCloud2")
        assert deserialize_message(raw, PointCloud2) == msg
    with BagReader(bag) as reader:  # a topic without messages is a topic all the same
        assert reader.topics == {
            "/points": "sensor_msgs/msg/PointCloud2",
            "/quiet": "std_msgs/msg/Float64",
        }
        assert reader.message_counts["/quiet"] == 0


def test_a_topic_with_a_given_type_is_in_the_bag_though_nobody_publishes_it(
    domain_id: int, tmp_path: Path
) -> None:
    bag = tmp_path / "bag"
    params = {"bag_path": str(bag), "topics": [f"/found:{DETECTIONS}"]}
    with started("recorder_node", tmp_path, domain_id, params=params) as node:
        while not bag.exists():  # made when the node is configured
            assert node.popen.poll() is None, node.log()
            time.sleep(0.02)
        assert node.stop(signal.SIGTERM) == 0, node.log()
    with BagReader(bag) as reader:
        assert reader.topics == {"/found": DETECTIONS}


def test_recording_ends_by_itself_at_the_count_asked_for(domain_id: int, tmp_path: Path) -> None:
    params = {
        "bag_path": str(tmp_path / "bag"),
        "topics": ["/values"],
        "until_topic": "/values",
        "until_count": 3,
    }
    with (
        RosClient(domain_id) as client,
        started("recorder_node", tmp_path, domain_id, params=params) as node,
    ):
        values = client.publisher(Float64, "/values", profile(best_effort=True))
        node.wait_for_log("Recording")
        wait_until_heard(values)
        while node.popen.poll() is None:  # best effort may lose one: keep sending
            values.publish(Float64(data=1.5))
            client.wait(lambda got: False, 0.05)
        assert node.wait() == 0, node.log()
    assert len(messages(tmp_path / "bag", "/values")) >= 3


def test_two_recordings_of_one_replay_hold_the_same_bytes_in_the_same_order(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "source", 12)
    recorded = []
    for run in ("first", "second"):
        folder = tmp_path / run
        folder.mkdir()
        params = {"bag_path": str(folder / "bag"), "topics": ["/points", "/tf"]}
        params["use_sim_time"] = True
        replay = {"bag_path": str(bag), "rate": 2.0, "wait_for_subscriber_s": LATE_S}
        with (
            started("recorder_node", folder, domain_id, params=params) as node,
            started("replay_node", folder, domain_id, params=replay) as player,
        ):
            assert player.wait() == 0, player.log()
            assert node.stop(signal.SIGINT) == 0, node.log()
        recorded.append(messages(folder / "bag", "/points"))
    assert len(recorded[0]) == 12
    assert recorded[0] == recorded[1]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"bag_path": ""}, "'bag_path' must name the bag"),
        ({"topics": ["points"]}, "the entry 'points'"),
        ({"topics": ["/x:strange_msgs/msg/Odd"]}, "strange_msgs/msg/Odd"),
    ],
)
def test_a_recording_that_cannot_be_made_is_one_sentence_and_exit_code_2(
    domain_id: int, tmp_path: Path, params: dict[str, object], sentence: str
) -> None:
    params = {"bag_path": str(tmp_path / "bag"), **params}
    with started("recorder_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 2, node.log()
        assert sentence in node.log()
        assert "Traceback" not in node.log()


def test_an_existing_bag_is_not_overwritten(domain_id: int, tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 1)
    with started("recorder_node", tmp_path, domain_id, params={"bag_path": str(bag)}) as node:
        assert node.wait() == 2
        assert f"Bag '{bag}' exists" in node.log()
    assert len(messages(bag, "/points")) == 1


def test_a_topic_of_another_type_than_given_is_named_and_left_out(
    domain_id: int, tmp_path: Path
) -> None:
    params = {"bag_path": str(tmp_path / "bag"), "topics": [f"/mixed:{DETECTIONS}"]}
    with RosClient(domain_id) as client:
        client.publisher(Float64, "/mixed")
        with started("recorder_node", tmp_path, domain_id, params=params) as node:
            node.wait_for_log("Topic '/mixed' is not recorded: it is a std_msgs/msg/Float64")
            assert node.stop(signal.SIGINT) == 0, node.log()
    assert Detection3DArray is message_class(DETECTIONS)
    with BagReader(tmp_path / "bag") as reader:
        assert reader.message_counts == {"/mixed": 0}
