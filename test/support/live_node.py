"""A running LiDAR node with a client that feeds it, and what tests ask of both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from sensor_msgs.msg import PointCloud2
from vision_msgs.msg import Detection3DArray

from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.lidar import LidarNode
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL_STILL
from test.support.node_process import NodeUnderTest
from test.support.ros_client import LATE_S, RosClient

CLOUDS, DETECTIONS = "/lidar_node/input/pointcloud", "/lidar_node/output/detections"
DEBUG = "/lidar_node/debug"


@contextmanager
def active_node(domain_id: int, **params: object) -> Iterator[LidarNode]:
    """Run an active LiDAR node without past sweeps in this process, on the CPU.

    Args:
        domain_id: Of DDS.
        params: Further parameters, ``__`` for each dot.
    """
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    more = {name.replace("__", "."): value for name, value in params.items()}
    every = {**SMALL_STILL, "device": "cpu", **more}
    given = [word for item in every.items() for word in ("-p", "{}:={}".format(*item))]
    node = LidarNode(context=context, cli_args=["--ros-args", *given])
    node.trigger_configure()
    node.trigger_activate()
    assert node.fatal is None
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


def latest(client: RosClient) -> dict[str, DiagnosticStatus]:
    """Return diagnostics made after this call, by the short name of the status."""
    now_ns = time.time_ns()

    def made_later(got: dict[str, list[Any]]) -> DiagnosticArray | None:
        # Stamped once its statuses are made: those of the second one were made after the first.
        later = [m for m in got["/diagnostics"] if stamp_ns_of(m.header.stamp) > now_ns]
        return later[1] if len(later) > 1 else None

    found = client.wait(made_later)
    assert found is not None, "no diagnostics"
    return {s.name.split(": ")[1]: s for s in found.status}


def rested(client: RosClient) -> dict[str, str]:
    """Wait until a node has counted all that it received, and return its input status."""
    deadline = time.monotonic() + LATE_S
    while True:
        told = values(latest(client)["input_status"])
        if int(told["received"]) == int(told["processed"]) + int(told["dropped"]):
            return told
        assert time.monotonic() < deadline, told


def values(status: DiagnosticStatus) -> dict[str, str]:
    return {pair.key: pair.value for pair in status.values}


def wait_for_status(client: RosClient, text: str, timeout_s: float = LATE_S) -> DiagnosticStatus:
    """Wait for a diagnostics status whose message contains ``text``."""

    def find(got: dict[str, list[Any]]) -> DiagnosticStatus | None:
        statuses = (s for msg in got["/diagnostics"] for s in msg.status)
        return next((s for s in statuses if text in s.message), None)

    found = client.wait(find, timeout_s)
    assert found is not None, f"no {text!r} in the diagnostics within {timeout_s} s"
    return found


class Live:
    """A node without past sweeps, and a client that feeds it stamps that always grow."""

    def __init__(self, node: NodeUnderTest, client: RosClient) -> None:
        self.node, self.client = node, client
        self._stamp_ns = 1_700_000_000 * S

    def next_stamp_ns(self) -> int:
        self._stamp_ns += S // 20
        return self._stamp_ns

    def send(self, cloud: Any) -> None:
        self.client.publisher(PointCloud2, CLOUDS).publish(cloud)

    def ask(self, cloud: Any, timeout_s: float = LATE_S) -> Detection3DArray:
        """Send a cloud and return the detections with its stamp."""
        self.send(cloud)
        stamp = cloud.header.stamp

        def answer(got: dict[str, list[Any]]) -> Detection3DArray | None:
            return next((m for m in got[DETECTIONS] if m.header.stamp == stamp), None)

        found = self.client.wait(answer, timeout_s)
        assert found is not None, f"no detections for {stamp}:\n{self.node.log()}"
        return found


def set_parameter(client: RosClient, name: str, **value: Any) -> Any:
    kind = {
        "double_value": ParameterType.PARAMETER_DOUBLE,
        "integer_value": ParameterType.PARAMETER_INTEGER,
        "double_array_value": ParameterType.PARAMETER_DOUBLE_ARRAY,
        "string_value": ParameterType.PARAMETER_STRING,
    }[next(iter(value))]
    parameter = Parameter(name=name, value=ParameterValue(type=kind, **value))
    request = SetParameters.Request(parameters=[parameter])
    return client.call(SetParameters, "/lidar_node/set_parameters", request).results[0]
