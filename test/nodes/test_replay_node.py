"""The replay node over real DDS: what an independent subscriber gets of a bag."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage
from vision_msgs.msg import Detection3DArray

from driveRT_ros.io.bag import BagWriter
from driveRT_ros.io.encode import encode_pointcloud, encode_transforms
from driveRT_ros.io.typestore import message_type
from test.support.bags import (
    CLOUD,
    PERIOD_NS,
    START_NS,
    TF,
    cloud_batch,
    ego_pose,
    messages,
    write_drive,
)
from test.support.lidar_messages import SMALL
from test.support.node_process import started
from test.support.ros_client import RosClient, profile

pytestmark = pytest.mark.nodes

CLOUDS, DETECTIONS = "/points", "/lidar_node/output/detections"
PATIENT = {"wait_for_subscriber_s": 240.0, "lockstep_timeout_s": 600.0}
"""Of a replay for which no node is too slow: an answer that is not needed would end the test."""

DETECTOR = {
    **SMALL,
    "use_sim_time": True,
    "input.back_pressure": True,
    "input.reliability": "reliable",
}
"""A node that misses no cloud of a replay."""


def test_a_subscriber_gets_every_cloud_of_the_bag_unchanged_and_in_order(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "bag", 8, num_points=30_000)
    with RosClient(domain_id) as client:
        client.subscribe(TFMessage, "/tf")
        client.subscribe(Clock, "/clock")
        client.subscribe(TFMessage, "/tf_static", profile(latched=True))
        client.subscribe(PointCloud2, CLOUDS)  # last: for its subscriber the replay waits
        with started("replay_node", tmp_path, domain_id, params={"bag_path": str(bag)}) as node:
            assert node.wait() == 0
            assert "Played 17 messages (8 clouds)" in node.log()
        clouds = client.wait_count(CLOUDS, 8)
        assert clouds == [deserialize_message(raw, PointCloud2) for _, raw in messages(bag, CLOUDS)]
        moving = client.wait_count("/tf", 8)
        assert moving == [deserialize_message(raw, TFMessage) for _, raw in messages(bag, "/tf")]
        end_ns = START_NS + 7 * PERIOD_NS + 1_000_000
        client.wait(lambda got: end_ns in clock_ns(got["/clock"]))
        clock = clock_ns(client.received["/clock"])
        assert clock == sorted(clock)
        assert clock[0] >= START_NS and clock[-1] == end_ns


def clock_ns(messages: list[Clock]) -> list[int]:
    return [m.clock.sec * 10**9 + m.clock.nanosec for m in messages]


def test_best_effort_subscribers_hear_the_reliable_publisher_of_the_replay(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "bag", 4, storage="sqlite3")
    with RosClient(domain_id) as client:
        client.subscribe(PointCloud2, CLOUDS, profile(best_effort=True))
        with started("replay_node", tmp_path, domain_id, params={"bag_path": str(bag)}) as node:
            assert node.wait() == 0
        client.wait_count(CLOUDS, 4)


def test_static_transforms_from_the_middle_of_the_bag_reach_a_late_subscriber(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "bag", 10)
    params = {
        "bag_path": str(bag),
        "start_offset_s": 0.4,  # behind the static transform
        "rate": 0.001,
        "wait_for_subscriber_s": 0.0,
    }
    with started("replay_node", tmp_path, domain_id, params=params) as node:
        node.wait_for_log("1 of")
        with RosClient(domain_id) as client:
            client.subscribe(TFMessage, "/tf_static", profile(latched=True))
            (static,) = client.wait_count("/tf_static", 1)
            assert [t.child_frame_id for t in static.transforms] == ["LIDAR_TOP"]
        assert node.stop(signal.SIGINT) == 0, node.log()
        assert "Traceback" not in node.log()


def test_a_looping_bag_turns_the_clock_back_and_the_second_pass_gives_as_many_detections(
    domain_id: int, tmp_path: Path
) -> None:
    # A transform buffer that keeps times of the first pass would refuse all of the second.
    bag = write_drive(tmp_path / "bag", 6, num_points=300)
    replay = {
        "bag_path": str(bag),
        "loop": True,
        "passes": 2,
        "min_subscribers": 2,  # the node and, once it hears the player's clock, the client
        "lockstep_topic": DETECTIONS,
        **PATIENT,
    }
    remap = ("-r", f"~/input/pointcloud:={CLOUDS}")
    with (
        RosClient(domain_id) as client,
        started("lidar_node", tmp_path, domain_id, params=DETECTOR, extra_args=remap) as node,
    ):
        client.subscribe(Detection3DArray, DETECTIONS)
        client.subscribe(Clock, "/clock", profile(2000))
        with started("replay_node", tmp_path, domain_id, params=replay) as player:
            client.wait_matched()
            client.subscribe(PointCloud2, CLOUDS)  # the second, for whom the player waits
            assert player.wait() == 0, player.log() + node.log()
            found = client.wait_count(DETECTIONS, 12)
            assert len(found) == 12
            stamps = [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in found]
            assert stamps[:6] == stamps[6:] == [START_NS + i * PERIOD_NS for i in range(6)]
            counts = [len(m.detections) for m in found]
            assert counts[:6] == counts[6:] and sum(counts) > 0
            assert node.log().count("Time went back") == 1
        clock = clock_ns(client.received["/clock"])
        assert sum(b < a for a, b in zip(clock, clock[1:])) == 1


def test_lockstep_never_overtakes_a_slow_consumer(domain_id: int, tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 6)
    params = {"bag_path": str(bag), "rate": 0.0, "lockstep_topic": "/answers", **PATIENT}
    with (
        RosClient(domain_id) as client,
        started("replay_node", tmp_path, domain_id, params=params) as node,
    ):
        client.subscribe(PointCloud2, CLOUDS)
        answers = client.publisher(Detection3DArray, "/answers")
        client.wait_matched()
        for count in range(1, 7):
            client.wait_count(CLOUDS, count)
            time.sleep(0.15)  # a replay that overtakes would do so now
            assert len(client.received[CLOUDS]) == count
            answers.publish(Detection3DArray(header=client.received[CLOUDS][-1].header))
        assert node.wait() == 0
        assert "no answer" not in node.log()


def test_a_missing_answer_is_named_and_the_replay_goes_on(domain_id: int, tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 2)
    params = {"bag_path": str(bag), "lockstep_topic": "/answers", "lockstep_timeout_s": 0.2}
    with RosClient(domain_id) as client:
        client.subscribe(PointCloud2, CLOUDS)
        client.publisher(Detection3DArray, "/answers")
        with started("replay_node", tmp_path, domain_id, params=params) as node:
            assert node.wait() == 0
            assert f"the cloud stamped {START_NS} ns" in node.log()
            assert "2 clouds got no answer" in node.log()
        client.wait_count(CLOUDS, 2)


def test_clouds_that_the_lidar_node_drops_do_not_hold_up_a_lockstep_replay(
    domain_id: int, tmp_path: Path
) -> None:
    # Without a word about them, each would be waited for to the end of lockstep_timeout_s, which
    # is longer than this test waits for the end.
    dropped, bad, strange = "/lidar_node/debug/dropped_cloud", 2, (1, 4)
    with BagWriter(tmp_path / "bag") as writer:
        mount = [(START_NS, "base_link", "LIDAR_TOP", np.eye(4))]
        writer.write("/tf_static", TF, encode_transforms(mount, message_type), START_NS)
        for i in range(6):
            stamp_ns = START_NS + i * PERIOD_NS
            moved = [(stamp_ns, "map", "base_link", ego_pose(i))]
            writer.write("/tf", TF, encode_transforms(moved, message_type), stamp_ns)
            frame_id = "no_such_frame" if i in strange else "LIDAR_TOP"
            cloud = encode_pointcloud(cloud_batch(i, 300, frame_id), message_type)
            if i == bad:
                cloud.data = cloud.data[:-1]
            writer.write(CLOUDS, CLOUD, cloud, stamp_ns + 1)
    replay = {
        "bag_path": str(tmp_path / "bag"),
        "lockstep_topic": DETECTIONS,
        "lockstep_dropped_topic": dropped,
        **PATIENT,
    }
    remap = ("-r", f"~/input/pointcloud:={CLOUDS}")
    with (
        RosClient(domain_id) as client,
        started("lidar_node", tmp_path, domain_id, params=DETECTOR, extra_args=remap) as node,
    ):
        client.subscribe(Detection3DArray, DETECTIONS)
        client.subscribe(Header, dropped)
        client.wait_matched()
        with started("replay_node", tmp_path, domain_id, params=replay) as player:
            assert player.wait() == 0, player.log() + node.log()
            assert "3 clouds were dropped by the consumer." in player.log()
        found = [m.header for m in client.wait_count(DETECTIONS, 3)]
        lost = client.wait_count(dropped, 3)
    assert [stamp_index(h) for h in found] == [0, 3, 5]
    assert [stamp_index(h) for h in lost] == [1, 2, 4]
    assert [h.frame_id for h in lost] == ["no_such_frame", "LIDAR_TOP", "no_such_frame"]


def stamp_index(header: Header) -> int:
    return (header.stamp.sec * 10**9 + header.stamp.nanosec - START_NS) // PERIOD_NS


def test_without_subscriber_a_lockstep_replay_ends_with_a_sentence(
    domain_id: int, tmp_path: Path
) -> None:
    bag = write_drive(tmp_path / "bag", 2)
    params = {
        "bag_path": str(bag),
        "lockstep_topic": "/answers",
        "wait_for_subscriber_s": 0.5,
    }
    with started("replay_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 1
        assert "Nobody subscribed to '/points' within 0.5 s; nothing was played." in node.log()


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, "'bag_path' must name the bag"),
        ({"bag_path": "/nowhere"}, "/nowhere"),
        ({"topics": ["/nothing"]}, "has no topic '/nothing'"),
        ({"cloud_topic": "/tf"}, "is a tf2_msgs/msg/TFMessage"),
        ({"start_offset_s": 60.0, "wait_for_subscriber_s": 0.0}, "start_offset_s = 60.0"),
    ],
)
def test_a_bag_that_cannot_be_played_is_one_sentence_and_exit_code_2(
    domain_id: int, tmp_path: Path, params: dict[str, object], sentence: str
) -> None:
    if params and "bag_path" not in params:
        params = {"bag_path": str(write_drive(tmp_path / "bag", 2)), **params}
    with started("replay_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 2, node.log()
        assert sentence in node.log()
        assert "Traceback" not in node.log()


def test_an_uninstalled_message_type_is_skipped_and_the_rest_is_played(
    domain_id: int, tmp_path: Path
) -> None:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("int32 x", "strange_msgs/msg/Odd"))
    bag = write_drive(tmp_path / "source", 2)
    with BagWriter(tmp_path / "bag") as writer:
        writer.add_topic("/odd", "strange_msgs/msg/Odd", store=store)
        for log_time_ns, raw in messages(bag, CLOUDS):
            writer.write(CLOUDS, "sensor_msgs/msg/PointCloud2", raw, log_time_ns)
            writer.write("/odd", "strange_msgs/msg/Odd", b"\0\1\0\0\5\0\0\0", log_time_ns)
    params = {"bag_path": str(tmp_path / "bag"), "wait_for_subscriber_s": 0.0}
    with started("replay_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 0, node.log()
        assert "Topic '/odd' is not played" in node.log()
        assert "Played 2 messages (2 clouds)" in node.log()
