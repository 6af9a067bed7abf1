"""Play a rosbag2 over DDS as its sensors did, or as fast as the consumer can follow."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from nav_msgs.msg import OccupancyGrid
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

from driveRT_ros.core.errors import ConfigError, DriveRTError
from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.camera_topics import camera_topics
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.consumers import Consumers
from driveRT_ros.nodes.handshake import wait_received
from driveRT_ros.nodes.playback import Playback
from driveRT_ros.nodes.progress import Progress
from driveRT_ros.nodes.raw import header_stamp_ns, message_class
from driveRT_ros.nodes.replay_choice import choose_played, expected_clouds
from driveRT_ros.nodes.replay_config import TF, TF_STATIC, ReplayConfig
from driveRT_ros.nodes.stop import GOODBYE_S, PARTIAL, exit_within


class ReplayNode(ManagedNode):
    """Publish the serialized messages of a bag as they are, with /clock and latched transforms."""

    config_class = ReplayConfig
    default_name = "replay_node"
    topics_help = (
        "out: every topic of the bag (or those of 'topics'), /clock, /tf, /tf_static (latched)\n"
        "in: the topics named by 'lockstep_topic' and 'lockstep_dropped_topic'\n"
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._types: dict[str, str] = {}
        self._outputs: dict[str, Any] = {}
        self._clock_output: Any = None
        self._playback: Playback | None = None
        self._thread: threading.Thread | None = None
        self._owned: list[Any] = []

    def do_configure(self) -> None:
        """Open the bag and see that what was asked for is in it."""
        config: ReplayConfig = self.config
        try:
            if not config.bag_path:
                raise ConfigError("Parameter 'bag_path' must name the bag to play.")
            with BagReader(config.bag_path) as reader:
                self._played, self._types = choose_played(config, reader.topics)
                self._total = expected_clouds(self._played, reader.message_counts)
                self._partial = reader.partial
        except DriveRTError:
            self.fault_code = 2
            raise
        for topic, type_name in list(self._types.items()):
            try:
                message_class(type_name)
            except ConfigError as error:
                del self._types[topic]
                self.get_logger().warning(f"Topic '{topic}' is not played: {error}")
        self._played = dataclasses.replace(self._played, topics=tuple(self._types))

    def do_activate(self) -> None:
        """Announce the topics and start to play in a thread."""
        config: ReplayConfig = self.config
        self._clock_output = self.create_publisher(Clock, "/clock", 10)
        for topic, type_name in self._types.items():
            kind = message_class(type_name)
            self._outputs[topic] = self.create_publisher(kind, topic, self._profile(topic))
        images = tuple(camera_topics(self._types).values()) if config.lockstep_images_topic else ()
        self._playback = Playback(
            self._played,
            lambda topic, raw: self._outputs[topic].publish(raw),
            self._publish_clock,
            self.get_logger().warning,
            images,
        )
        cloud = self._outputs.get(self._played.cloud_topic)
        topics = [output.topic_name for output in self._all_outputs()]
        self._consumers = Consumers(self, self._played, cloud, topics, images)
        if config.lockstep_topic:
            lockstep = self._playback.lockstep
            self._listen(config.lockstep_topic, Detection3DArray, lockstep.answer)
            if config.lockstep_dropped_topic:
                self._listen(config.lockstep_dropped_topic, Header, lockstep.drop)
        if config.lockstep_images_topic:
            answer = self._playback.images.answer
            self._listen(config.lockstep_images_topic, OccupancyGrid, answer)
            if config.lockstep_images_dropped_topic:
                self._listen(config.lockstep_images_dropped_topic, Header, answer)
        self._thread = threading.Thread(target=self._play, name="playback", daemon=True)
        self._thread.start()
        self._timer = self.create_steady_timer(0.05, self._check_end)

    def do_deactivate(self) -> None:
        """Stop playing; the next activation starts at the beginning."""
        if self._playback is not None and self._thread is not None:
            self._playback.cancelled.set()
            self._thread.join()
            self.destroy_timer(self._timer)
        self._playback = self._thread = None
        for publisher in filter(None, self._all_outputs()):
            self.destroy_publisher(publisher)
        self._outputs, self._clock_output = {}, None
        while self._owned:
            self.destroy_subscription(self._owned.pop())

    def close(self) -> bool:
        """Stop the thread."""
        self.do_deactivate()
        return True

    def _profile(self, topic: str) -> QoSProfile:
        if topic == TF_STATIC:
            return qos.LATCHED
        if topic == TF:
            return qos.TF
        return qos.sensor_data(10, self.config.reliability)

    def _listen(self, topic: str, kind: Any, note: Callable[[int], None]) -> None:
        def arrived(raw: bytes) -> None:
            note(header_stamp_ns(raw))

        self._owned.append(self.create_subscription(kind, topic, arrived, qos.OUTPUT, raw=True))

    def _publish_clock(self, bag_ns: int) -> None:
        message = Clock()
        message.clock.sec, message.clock.nanosec = divmod(bag_ns, 1_000_000_000)
        self._clock_output.publish(message)

    def _play(self) -> None:
        playback = self._playback
        assert playback is not None
        try:
            self._consumers.wait(playback.cancelled)
            with (
                BagReader(self._played.bag_path) as reader,
                Progress(self._total, self.get_logger().info) as progress,
            ):
                report = playback.run(
                    reader.messages, header_stamp_ns, progress, start_ns=reader.start_ns
                )
            if not self._played.lockstep_topic:  # else the answers have said so
                wait_received(self._all_outputs(), playback.cancelled)
            self.get_logger().info(report.sentence())
            if self._partial:
                self.fatal, self.fault_code = "part of the bag cannot be read", PARTIAL
        except DriveRTError as error:
            self.fatal = str(error)
            self.fault_code = 2 if isinstance(error, ConfigError) else 1
            self.get_logger().error(str(error))
        except Exception as error:
            self.fatal = f"{type(error).__name__}: {error}"
            self.get_logger().error(f"Playing stopped by an unexpected {self.fatal}")
        if not playback.cancelled.is_set():  # the main loop may hang where nobody was ever found
            exit_within(2 * GOODBYE_S, self.fault_code if self.fatal else 0)

    def _all_outputs(self) -> list[Any]:
        return [self._clock_output, *self._outputs.values()]

    def _check_end(self) -> None:
        if self._thread is not None and not self._thread.is_alive():
            self.finished = True
