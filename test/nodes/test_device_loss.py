"""A node whose GPU is lost ends, where it is told to, so that a launch file starts it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.offline import OfflineNode
from test.support.bags import write_drive
from test.support.failing_gpu import FailingGpu
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL_STILL, make_cloud
from test.support.live_node import CLOUDS, DEBUG, DETECTIONS, wait_for_status
from test.support.node_process import started
from test.support.ros_client import LATE_S, RosClient

pytestmark = pytest.mark.nodes


def test_node_ends_with_an_error_and_its_reason_when_the_gpu_is_lost(
    domain_id: int, tmp_path: Path
) -> None:
    params = {**SMALL_STILL, "on_device_loss": "exit"}
    with (
        started("failing_node", tmp_path, domain_id, params=params, package="test.support") as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.subscribe(Detection3DArray, DETECTIONS)
        client.subscribe(Header, f"{DEBUG}/dropped_cloud")
        clouds = client.publisher(PointCloud2, CLOUDS)
        node.wait_for_log("Active")
        client.wait_matched()
        clouds.publish(make_cloud(1 * S))
        client.wait_count(DETECTIONS, 1)
        clouds.publish(make_cloud(2 * S))
        [dropped] = client.wait_count(f"{DEBUG}/dropped_cloud", 1)
        assert dropped.stamp.sec == 2
        assert wait_for_status(client, "so it ends").level == DiagnosticStatus.ERROR
        assert node.wait() == 1
        assert "CUDA is lost to this process" in node.log()
        assert "illegal memory access" in node.log() and "Traceback" not in node.log()


class FailingOffline(OfflineNode):
    def make_pipeline(self, config: LidarConfig, weights: Any) -> Any:
        return FailingGpu(config, iter(["ok", "lost"]))


def test_a_bag_is_not_dropped_to_its_end_when_the_gpu_is_lost(
    domain_id: int, tmp_path: Path
) -> None:
    # The end of the bag would come before the diagnostics that end the node, with exit code 0.
    bag = write_drive(tmp_path / "bag", 6, num_points=50)
    params = {**SMALL_STILL, "bag_path": str(bag), "on_device_loss": "exit", "device": "cpu"}
    params |= {"diagnostics.validation_callback_interval_ms": 60_000}
    given = [word for item in params.items() for word in ("-p", "{}:={}".format(*item))]
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    node = FailingOffline(context=context, cli_args=["--ros-args", *given])
    node.trigger_configure()
    node.trigger_activate()
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    deadline_s = time.monotonic() + LATE_S
    while not node.finished and time.monotonic() < deadline_s:
        executor.spin_once(0.1)
    assert node.fatal is not None and "so it ends" in node.fatal
    assert node.health.state.processed == 1
    assert sum(node.health.state.dropped.values()) == 1
    assert node.close()
    executor.shutdown()
    node.destroy_node()
    rclpy.shutdown(context=context)
