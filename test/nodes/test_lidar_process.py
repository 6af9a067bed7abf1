"""The LiDAR node as a process: faults of its surroundings, lifecycle, and its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.context import Context
from rclpy.lifecycle import TransitionCallbackReturn
from sensor_msgs.msg import PointCloud2
from vision_msgs.msg import Detection3DArray

from driveRT_ros.nodes.lidar import LidarNode
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL, SMALL_STILL, make_cloud
from test.support.live_node import (
    CLOUDS,
    DETECTIONS,
    set_parameter,
    values,
    wait_for_status,
)
from test.support.node_process import started
from test.support.ros_client import RosClient, profile

pytestmark = pytest.mark.nodes


def test_incompatible_qos_and_silence_are_reported_by_topic_policy_and_hint(
    domain_id: int, tmp_path: Path
) -> None:
    params = {
        **SMALL_STILL,
        "input.reliability": "reliable",
        "diagnostics.no_data_hint_s": 1.0,
    }
    remap = ("--ros-args", "-r", "__node:=picky")
    topic = "/picky/input/pointcloud"
    with (
        started("lidar_node", tmp_path, domain_id, params=params, extra_args=remap) as node,
        RosClient(domain_id, "picky_client") as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.publisher(PointCloud2, topic, profile(best_effort=True))
        status = wait_for_status(client, "incompatible")
        assert status.level == DiagnosticStatus.ERROR
        assert topic in status.message and "RELIABILITY" in status.message
        hint = wait_for_status(client, "FASTDDS_BUILTIN_TRANSPORTS=LARGE_DATA")
        assert topic in hint.message
        # SIGTERM ends it like Ctrl-C does.
        assert node.stop(signal.SIGTERM) == 0
        assert "Traceback" not in node.log()


def test_two_interrupts_during_inference_end_the_process_before_its_frame_is_done(
    domain_id: int, tmp_path: Path
) -> None:
    # The full network in a cloud of 60,000 points keeps one core busy for many seconds; the less
    # this process gets of the core, the more.
    params = {"densification_params.num_past_frames": 0, "num_threads": 1, "device": "cpu"}
    remap = ("--ros-args", "-r", "__node:=busy")
    with (
        started("lidar_node", tmp_path, domain_id, params=params, extra_args=remap) as node,
        RosClient(domain_id, "busy_client") as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.subscribe(Detection3DArray, "/busy/output/detections")
        publisher = client.publisher(PointCloud2, "/busy/input/pointcloud")
        node.wait_for_log("Active")
        client.wait_matched()
        publisher.publish(make_cloud(S, count=60_000))
        client.wait(lambda got: any(is_busy(m) for m in got["/diagnostics"]))
        code = node.stop(signal.SIGINT, signal.SIGINT)
        assert (code, "Traceback" in node.log()) == (0, False), node.log()
        assert client.received["/busy/output/detections"] == []


def is_busy(msg: DiagnosticArray) -> bool:
    """Tell whether a cloud has arrived and is not processed yet."""
    found = {k: v for s in msg.status for k, v in values(s).items()}
    return (found["received"], found["processed"]) == ("1", "0")


def test_wrong_parameter_ends_the_process_with_one_sentence(domain_id: int, tmp_path: Path) -> None:
    params = {**SMALL, "voxelization.voxel_size": [0.1, 0.1]}
    with started("lidar_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 1
        [sentence] = node.log().splitlines()
        assert "'voxelization.voxel_size' must hold 3 values, got 2" in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [("checkpoint_path", "/nowhere/weights.pth"), ("precision", "fp16")],
)
def test_value_that_cannot_be_used_fails_the_configuration_by_name(
    name: str, value: str, domain_id: int
) -> None:
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    arguments = ["--ros-args", "-p", f"{name}:={value}", "-p", "device:=cpu"]
    node = LidarNode(context=context, cli_args=arguments)
    assert node.trigger_configure() == TransitionCallbackReturn.FAILURE
    assert value in node.fatal
    assert not node.parameters.frozen  # a better value may be set now
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_plan_that_cannot_be_used_is_named_and_the_node_runs_without(
    domain_id: int, tmp_path: Path
) -> None:
    params = {**SMALL_STILL, "plan_path": "/nowhere/plan.json", "device": "cpu"}
    with (
        started("lidar_node", tmp_path, domain_id, params=params) as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.subscribe(Detection3DArray, DETECTIONS)
        client.publisher(PointCloud2, CLOUDS)
        node.wait_for_log("Active")
        client.wait_matched()
        client.publisher(PointCloud2, CLOUDS).publish(make_cloud(S))
        client.wait_count(DETECTIONS, 1)
        status = wait_for_status(client, "/nowhere/plan.json")
        assert status.level == DiagnosticStatus.WARN
        assert "model_status" in status.name
        assert node.log().count("/nowhere/plan.json") == 1


def test_build_only_configures_and_exits(domain_id: int, tmp_path: Path) -> None:
    params = {**SMALL, "build_only": True}
    with started("lidar_node", tmp_path, domain_id, params=params) as node:
        assert node.wait() == 0
        assert "Configured in" in node.log() and "Active" not in node.log()


def change_state(client: RosClient, transition: int) -> bool:
    request = ChangeState.Request(transition=Transition(id=transition))
    return client.call(ChangeState, "/lidar_node/change_state", request).success


def test_lifecycle_runs_in_circles_and_its_shutdown_ends_the_process(
    domain_id: int, tmp_path: Path
) -> None:
    params = {**SMALL_STILL, "autostart": False}
    with (
        started("lidar_node", tmp_path, domain_id, params=params) as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(Detection3DArray, DETECTIONS)
        client.publisher(PointCloud2, CLOUDS)
        node.wait_for_log("Waiting for the transition 'configure'")
        for top_k in (500, 1):
            # Unconfigured, every parameter may change; it takes effect at configure.
            name = "post_process_params.max_boxes_per_head"
            assert set_parameter(client, name, integer_value=top_k).successful
            assert set_parameter(client, "voxelization.max_voxels", integer_value=9999).successful
            assert change_state(client, Transition.TRANSITION_CONFIGURE)
            assert change_state(client, Transition.TRANSITION_ACTIVATE)
            client.wait_matched()
            client.clear()
            client.publisher(PointCloud2, CLOUDS).publish(make_cloud(S))
            [found] = client.wait_count(DETECTIONS, 1)
            assert 0 < len(found.detections) <= 6 * top_k
            assert change_state(client, Transition.TRANSITION_DEACTIVATE)
            assert change_state(client, Transition.TRANSITION_CLEANUP)
            client.wait_alone()  # else the topics of this round pass for those of the next
        assert len(found.detections) <= 6  # one box a head
        assert change_state(client, Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)
        assert node.wait() == 0
        assert "Traceback" not in node.log()


def test_node_that_waits_for_configure_ends_on_sigterm(domain_id: int, tmp_path: Path) -> None:
    params = {**SMALL, "autostart": False}
    with started("lidar_node", tmp_path, domain_id, params=params) as node:
        node.wait_for_log("Waiting for the transition 'configure'")
        code = node.stop(signal.SIGTERM)
        assert (code, "Traceback" in node.log()) == (0, False)


def test_clouds_lost_by_the_default_transport_are_counted_with_the_remedy(
    domain_id: int, tmp_path: Path
) -> None:
    # Fast DDS loses most best-effort messages of this size unless told that they are large.
    with (
        started(
            "lidar_node", tmp_path, domain_id, params=SMALL_STILL, transports="DEFAULT"
        ) as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        node.wait_for_log("Active")
        with started(
            "cloud_sender", tmp_path, domain_id, transports="DEFAULT", package="test.support"
        ):
            # A loss is known once something has come after it: it goes on until then.
            status = wait_for_status(client, "lost on their way")
        assert "FASTDDS_BUILTIN_TRANSPORTS=LARGE_DATA" in status.message
        assert int(values(status)["lost_by_transport"]) > 0


def test_interrupt_while_the_process_still_imports_ends_it_without_traceback(
    domain_id: int, tmp_path: Path
) -> None:
    with started("lidar_node", tmp_path, domain_id, params=SMALL_STILL) as node:
        node.wait_until_it_takes_signals()  # torch is imported after that
        code = node.stop(signal.SIGINT)
        assert (code, "Traceback" in node.log()) == (0, False), node.log()
