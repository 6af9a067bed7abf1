"""Publish clouds at the rate of a sensor, and time the detections that come back."""

from __future__ import annotations

import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import TransformStamped
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage
from vision_msgs.msg import Detection3DArray

from driveRT_ros.core.errors import ConfigError, DriveRTError
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.handshake import Handshake
from driveRT_ros.nodes.pacing import Pacer
from driveRT_ros.nodes.probe_config import ProbeConfig, Tally, load_clouds, stamped, write_result
from driveRT_ros.nodes.progress import Progress
from driveRT_ros.nodes.raw import header_stamp_ns

_NO_ANSWER = 5  # first clouds without answer after which the node is given up


class ProbeFailed(DriveRTError):  # noqa: N818 - it is the probe that failed, not a value
    """The node under test is not there, or does not answer."""


class ProbeNode(ManagedNode):
    """Time another node from outside of its process, as its users meet it.

    A latency runs from the call that publishes a serialized cloud until the serialized detections
    with its stamp are in a callback of this process. Clouds go out at their rate whatever comes
    back; the first ones bring up the connections and do not count.
    """

    config_class = ProbeConfig
    default_name = "probe_node"
    topics_help = (
        "out: /<node>/input/pointcloud, /tf_static (latched)\n"
        "in: /<node>/output/detections, /<node>/debug/dropped_cloud, "
        "/<node>/debug/latency_percentiles\n"
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cancelled = threading.Event()
        self._news = threading.Condition()
        self._tally = Tally()
        self._percentiles, self._open_percentiles = b"", 0  # one message after each answer
        self._thread: threading.Thread | None = None

    def do_configure(self) -> None:
        """Read the clouds."""
        if not self.config.output_path:
            raise ConfigError("Parameter 'output_path' must name the file for the result.")
        self._clouds = load_clouds(self.config.clouds_path)

    def do_activate(self) -> None:
        """Open the topics and begin in a thread."""
        node = f"/{self.config.node}"
        self._output = self.create_publisher(
            PointCloud2, f"{node}/input/pointcloud", qos.sensor_data(10, "reliable")
        )
        self._static = self.create_publisher(TFMessage, "/tf_static", qos.LATCHED)
        standing = TransformStamped(child_frame_id=self.config.frame_id)
        standing.header.frame_id = self.config.world_frame_id
        self._static.publish(TFMessage(transforms=[standing]))  # without rotation and translation
        self._answers = f"{node}/output/detections"
        for kind, topic, arrived in (
            (Detection3DArray, self._answers, self._answered),
            (Header, f"{node}/debug/dropped_cloud", self._dropped),
            (DiagnosticStatus, f"{node}/debug/latency_percentiles", self._heard_percentiles),
        ):
            self.create_subscription(kind, topic, arrived, qos.OUTPUT, raw=True)
        self._thread = threading.Thread(target=self._work, name="probe", daemon=True)
        self._thread.start()
        self.create_steady_timer(0.05, self._check_end)

    def close(self) -> bool:
        """Stop the thread."""
        self._cancelled.set()
        with self._news:
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join()
        return True

    def _answered(self, raw: bytes) -> None:
        now_ns = time.monotonic_ns()
        with self._news:
            self._open_percentiles += 1
            self._tally.answered_ns.setdefault(header_stamp_ns(raw), now_ns)
            self._news.notify_all()

    def _dropped(self, raw: bytes) -> None:
        with self._news:
            self._tally.dropped.add(header_stamp_ns(raw))
            self._news.notify_all()

    def _heard_percentiles(self, raw: bytes) -> None:
        with self._news:
            self._percentiles, self._open_percentiles = raw, self._open_percentiles - 1
            self._news.notify_all()

    def _check_end(self) -> None:
        self.finished = self._thread is not None and not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._wait_for_node()
            self._warm_up()
            with Progress(self.config.clouds, self.get_logger().info) as progress:
                self._send_all(progress)
            self._settle()
            if not self._cancelled.is_set():
                write_result(self._result(), self.config.output_path)
        except (DriveRTError, OSError) as error:
            self.fatal = str(error)
            self.get_logger().error(self.fatal)
        except Exception as error:
            self.fatal = f"{type(error).__name__}: {error}"
            self.get_logger().error(f"Stopped by an unexpected {self.fatal}")

    def _wait_for_node(self) -> None:
        deadline = time.monotonic() + self.config.wait_s
        while not (self._output.get_subscription_count() and self.count_publishers(self._answers)):
            if time.monotonic() > deadline:
                raise ProbeFailed(
                    f"Node '{self.config.node}' was not there within {self.config.wait_s:g} s."
                )
            if self._cancelled.wait(0.05):
                return
        Handshake(self).wait([self._output.topic_name], self._cancelled)

    def _warm_up(self) -> None:
        answered = missed = 0
        while answered < self.config.warm_ups and not self._cancelled.is_set():
            stamp_ns = self._publish(answered + missed)
            with self._news:
                self._news.wait_for(
                    lambda s=stamp_ns: s in self._tally.answered_ns or self._cancelled.is_set(),
                    self.config.wait_s / _NO_ANSWER,
                )
                come = stamp_ns in self._tally.answered_ns
            answered, missed = answered + come, missed + (not come)
            if missed == _NO_ANSWER:
                raise ProbeFailed(f"Node '{self.config.node}' did not answer {missed} clouds.")
        with self._news:
            self._tally = Tally()

    def _send_all(self, progress: Progress) -> None:
        period_ns = round(1e9 / self.config.rate_hz)
        pacer = Pacer(1.0)
        pacer.start(0)
        for number in range(self.config.clouds):
            due_ns = number * period_ns
            if self._cancelled.wait(max(pacer.remaining_s(due_ns), 0.0)):
                return
            late_s = -pacer.remaining_s(due_ns)
            if late_s > 0.1 / self.config.rate_hz:  # less is what any timer is late by
                self._tally.behind_s += pacer.slip(due_ns)
            self._publish(number)
            progress(number + 1)

    def _publish(self, number: int) -> int:
        """Publish a cloud, stamped now; return its stamp."""
        stamp_ns = self.get_clock().now().nanoseconds
        raw = stamped(self._clouds[number % len(self._clouds)], stamp_ns)
        begin_ns = time.monotonic_ns()
        with self._news:
            self._tally.sent_ns[stamp_ns] = begin_ns
        self._output.publish(raw)
        self._tally.publish_ns.append(time.monotonic_ns() - begin_ns)
        return stamp_ns

    def _settle(self) -> None:
        """Wait until every cloud is accounted for and counted, or nothing has come for a while."""
        with self._news:
            # The node sends percentiles after the detections that they are about.
            while self._tally.open or self._open_percentiles > 0:
                if self._cancelled.is_set() or not self._news.wait(self.config.settle_s):
                    return

    def _result(self) -> dict[str, Any]:
        with self._news:
            result = self._tally.result()
        values: dict[str, float] = {}
        if self._percentiles:
            status = deserialize_message(self._percentiles, DiagnosticStatus)
            values = {pair.key: float(pair.value) for pair in status.values}
        # Where the node drops clouds, its window reaches back to the warm-ups.
        mixed_in = max(0, int(values.get("frames", 0)) - int(result["answered"]))
        return {**result, "node": values, "node_warm_ups": mixed_in}
