"""A LiDAR node with past sweeps: transforms, simulated time and its jumps, over DDS."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import PointCloud2
from tf2_msgs.msg import TFMessage
from vision_msgs.msg import Detection3DArray

from driveRT_ros.nodes.process_env import private_domain
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL, make_cloud, make_transform
from test.support.live_node import (
    Live,
    wait_for_status,
)
from test.support.node_process import started
from test.support.ros_client import RosClient, profile

pytestmark = pytest.mark.nodes


MOVING: dict[str, object] = {
    **SMALL,
    "densification_params.num_past_frames": 2,
    "input.tf_timeout_s": 3.0,
    "input.back_pressure": True,
    "input.reliability": "reliable",
    "input.queue_depth": 50,
    "use_sim_time": True,
}


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A node with past sweeps, simulated time and static transforms sent before it started."""
    folder = tmp_path_factory.mktemp("moving")
    with private_domain() as domain_id, RosClient(domain_id, "moving_client") as client:
        static = client.publisher(TFMessage, "/tf_static", profile(latched=True))
        static.publish(make_transform(0, 1.0, parent="base_link", child="lidar"))
        client.subscribe(Detection3DArray, "/moving/output/detections")
        client.subscribe(DiagnosticArray, "/diagnostics")
        remap = ("--ros-args", "-r", "__node:=moving")
        with started("lidar_node", folder, domain_id, params=MOVING, extra_args=remap) as node:
            for kind, topic in (
                (PointCloud2, "/moving/input/pointcloud"),
                (TFMessage, "/tf"),
                (Clock, "/clock"),
            ):
                client.publisher(kind, topic)
            node.wait_for_log("Active")
            client.wait_matched()
            yield Live(node, client)
            code = node.stop(signal.SIGINT)
            assert (code, "Traceback" in node.log()) == (0, False), node.log()


def play(live: Live, start_ns: int, count: int, *, tf_delay_s: float = 0.0) -> None:
    """Play clock, clouds and then their transforms at 20 Hz."""
    for i in range(count):
        stamp_ns = start_ns + i * S // 20
        clock = Clock()
        clock.clock.sec, clock.clock.nanosec = divmod(stamp_ns, S)
        live.client.publisher(Clock, "/clock").publish(clock)
        cloud = make_cloud(stamp_ns, seed=i)
        live.client.publisher(PointCloud2, "/moving/input/pointcloud").publish(cloud)
        time.sleep(tf_delay_s)
        live.client.publisher(TFMessage, "/tf").publish(make_transform(stamp_ns, float(i)))
        time.sleep(0.05)


def test_transform_50_ms_after_its_cloud_is_waited_for_and_time_may_start_again(
    moving: Live,
) -> None:
    topic = "/moving/output/detections"
    play(moving, 100 * S, 6, tf_delay_s=0.05)
    first = [m.header.stamp for m in moving.client.wait_count(topic, 6)]
    play(moving, 100 * S, 6, tf_delay_s=0.05)
    both = [m.header.stamp for m in moving.client.wait_count(topic, 12)]
    assert both == first + first
    assert moving.node.log().count("Time went back") == 1


def test_cloud_without_transform_is_dropped_with_both_times_and_later_ones_work(
    moving: Live,
) -> None:
    topic = "/moving/output/detections"
    play(moving, 200 * S, 1)
    moving.client.wait(lambda got: any(m.header.stamp.sec == 200 for m in got[topic]))
    moving.client.clear()
    publisher = moving.client.publisher(PointCloud2, "/moving/input/pointcloud")
    publisher.publish(make_cloud(203 * S))
    status = wait_for_status(moving.client, "is dropped")
    assert "203.000000 s" in status.message and "200.000000 s" in status.message
    assert moving.client.received[topic] == []
    play(moving, 204 * S, 2)
    assert [m.header.stamp.sec for m in moving.client.wait_count(topic, 2)] == [204, 204]
