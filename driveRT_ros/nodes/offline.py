"""A node on a recording: it reads the bag itself, at its own pace, and loses nothing.

What belongs to a frame (transforms, calibrations) is read ahead of it, and a frame is handed over
only when the one before it is done. Outputs therefore do not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from rclpy.serialization import deserialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import PointCloud2
from tf2_msgs.msg import TFMessage

from driveRT_ros.core.errors import ConfigError, DriveRTError, InvalidFrame
from driveRT_ros.io.bag import BagMessage
from driveRT_ros.nodes.handshake import Handshake
from driveRT_ros.nodes.lidar import LidarNode
from driveRT_ros.nodes.lidar_session import GRID_FILES_GRACE_S
from driveRT_ros.nodes.offline_source import CloudSource, OfflineConfig
from driveRT_ros.nodes.perception import PerceptionNode
from driveRT_ros.nodes.progress import Progress
from driveRT_ros.nodes.qos import MATCH_S, RECORDED
from driveRT_ros.nodes.raw import header_of, header_stamp_ns
from driveRT_ros.nodes.stop import PARTIAL

_STEP_S = 0.001
_END_OF_TIME_NS = 2**31 * 1_000_000_000  # what a message holds as seconds
_IDLE_WAIT_S = 0.05  # longer would delay parameter services, shorter would take time from detection


class Offline(PerceptionNode):
    """Feed a bag to the handler of a perception node; results go out on the same topics."""

    noun = "clouds"
    main_output = "detections"
    output_qos = RECORDED

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._feeder: Any = None
        self._clock_output: Any = None

    def open_source(self) -> Any:
        """Return the source: it yields (messages ahead, message), and knows what is to come."""
        raise NotImplementedError

    def take_ahead(self, message: BagMessage) -> None:
        """Take what belongs to later frames; by default transforms."""
        self.handle_transforms(deserialize_message(message.raw, TFMessage))

    def take(self, message: BagMessage) -> None:
        """Take the message that the source is about.

        Raises:
            InvalidFrame: If it cannot be read.
            RuntimeError: Likewise.
        """
        raise NotImplementedError

    def do_configure(self) -> None:
        """Look into the bag before anything expensive, then configure."""
        try:
            self._source = self.open_source()
        except ConfigError:
            self.fault_code = 2
            raise
        super().do_configure()

    def do_activate(self) -> None:
        """Open the topics and begin to feed."""
        super().do_activate()
        self._clock_output = self.create_publisher(Clock, "/clock", 10)
        for message in self._source.static_transforms():
            self._try(message, self._take_static)
        self._items, self._fed = iter(self._source), 0
        self._progress = Progress(self._source.total, self.get_logger().info, self.noun)
        self._start_s = self._latest_s = monotonic() + self.config.wait_for_subscriber_s
        self._heard: list[int] = []
        self._handshake = Handshake(self)
        self._feeder = self.create_steady_timer(_STEP_S, self._step)

    def do_deactivate(self) -> None:
        """Stop feeding; the next activation starts at the beginning."""
        if self._feeder is not None:
            self.destroy_timer(self._feeder)
            self.destroy_publisher(self._clock_output)
            self._progress.close()
            self._feeder = None
        super().do_deactivate()

    def do_cleanup(self) -> None:
        """Close the bag and free the pipeline."""
        self._source.close()
        super().do_cleanup()

    def _step(self) -> None:
        if self._start_s and not self._may_start():
            return
        if not self.wait_idle(_IDLE_WAIT_S):
            return
        if self._guard.ending:  # before the rest of the bag is dropped and the end looks like one
            self.fail(self._guard.ending)
            return
        self._progress(self._fed)
        if self._items is None:
            self._finish()
            return
        try:
            following = next(self._items, None)
        except DriveRTError as error:
            self.fatal, self.finished = str(error), True
            self.get_logger().error(str(error))
            return
        if following is None:
            self._items = None
            self.flush()  # the last frames may still be waiting for more
        else:
            self._feed(*following)

    def _feed(self, ahead: list[BagMessage], message: BagMessage) -> None:
        self._fed += 1
        for earlier in ahead:
            self._try(earlier, self.take_ahead)
        try:
            self._publish_clock(header_stamp_ns(message.raw))
            self.take(message)
        except (InvalidFrame, RuntimeError) as error:
            sentence = f"Message {self._fed} of {message.topic} cannot be read: {error}"
            self.handle_drop(header_of(message.raw), "malformed_message", sentence)

    def _take_static(self, message: BagMessage) -> None:
        self.handle_transforms(deserialize_message(message.raw, TFMessage), static=True)

    def _try(self, message: BagMessage, take: Callable[[BagMessage], None]) -> None:
        try:
            take(message)
        except (InvalidFrame, RuntimeError) as error:
            self.get_logger().warning(f"A message of {message.topic} cannot be read: {error}")

    def _may_start(self) -> bool:
        topic = f"{self.get_fully_qualified_name()}/output/{self.main_output}"
        publishers = list(self.publishers)
        heard = [p.get_subscription_count() for p in publishers]
        main = any(n for n, p in zip(heard, publishers) if p.topic_name == topic)
        if main and heard != self._heard:  # a recorder finds topic after topic
            self._heard, self._start_s = heard, min(self._latest_s, monotonic() + MATCH_S)
        if monotonic() < self._start_s or (
            main and self._handshake.open_with(published=[p.topic_name for p in publishers])
        ):
            return False
        self._handshake.close()
        self._start_s = 0.0
        return True

    def _publish_clock(self, stamp_ns: int) -> None:
        if not 0 <= stamp_ns < _END_OF_TIME_NS:
            return  # every node that heard it would end; the stamp itself counts as any other
        message = Clock()
        message.clock.sec, message.clock.nanosec = divmod(stamp_ns, 1_000_000_000)
        self._clock_output.publish(message)

    def _finish(self) -> None:
        self._progress.close()
        with self.health.lock:
            state = self.health.state
            dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(state.dropped.items()))
            self.get_logger().info(
                self.summary(state.processed) + (f"; dropped: {dropped}." if dropped else ".")
            )
        if self._source.partial:
            self.fatal, self.fault_code = "part of the bag cannot be read", PARTIAL
        self.finished = True

    def summary(self, processed: int) -> str:
        """Return what was done, without a full stop."""
        return f"Processed {processed} of {self._fed} {self.noun} of '{self._source.topic}'"


class OfflineNode(Offline, LidarNode):
    """The LiDAR node on a recording."""

    config_class = OfflineConfig

    def open_source(self) -> CloudSource:
        """Return the clouds of the bag."""
        return CloudSource(self.config)

    def take(self, message: BagMessage) -> None:
        """Take a cloud."""
        self.handle_cloud(deserialize_message(message.raw, PointCloud2))
        self.flush()  # what is not there by now does not come: never wait by the wall clock

    def _finish(self) -> None:
        self._handler.grid_files.wait(GRID_FILES_GRACE_S)  # longer than closing may take
        super()._finish()
