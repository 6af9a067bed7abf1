"""A node whose GPU is lost ends, where it is told to, so that a launch file starts it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL_STILL, make_cloud
from test.support.live_node import CLOUDS, DEBUG, DETECTIONS, wait_for_status
from test.support.node_process import started
from test.support.ros_client import RosClient

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
        assert node.wait(10.0) == 1
        assert "CUDA is lost to this process" in node.log()
        assert "illegal memory access" in node.log() and "Traceback" not in node.log()
