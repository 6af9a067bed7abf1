"""What a LiDAR node is told between two frames holds, whatever its life does in between."""

from __future__ import annotations

from typing import Any

import pytest
import rclpy
from rclpy.context import Context
from rclpy.parameter import Parameter

from driveRT_ros.nodes.lidar import LidarNode
from driveRT_ros.nodes.publish import Outputs
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL_STILL, make_cloud


def test_parameters_changed_before_a_silence_hold_after_the_next_activation(
    domain_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    monkeypatch.setattr(Outputs, "publish", lambda self, result: results.append(result))
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    given = [
        w for i in {**SMALL_STILL, "device": "cpu"}.items() for w in ("-p", "{}:={}".format(*i))
    ]
    node = LidarNode(context=context, cli_args=["--ros-args", *given])
    node.trigger_configure()
    node.trigger_activate()
    node.handle_cloud(make_cloud(S))
    assert node.wait_idle(20.0)
    thresholds = Parameter("post_process_params.score_thresholds", value=[0.99])
    [answer] = node.set_parameters([thresholds])
    assert answer.successful
    node.trigger_deactivate()  # no frame came that the worker could have met it with
    node.trigger_activate()
    node.handle_cloud(make_cloud(2 * S))
    assert node.wait_idle(20.0)
    assert [len(result.found) > 0 for result in results] == [True, False]
    assert node.close()
    node.destroy_node()
    rclpy.shutdown(context=context)
