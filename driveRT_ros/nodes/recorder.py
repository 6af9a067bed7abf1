"""Record topics into a rosbag2, as serialized as they arrive."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.bag import BagWriter
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.handshake import Handshake
from driveRT_ros.nodes.raw import canonical, header_stamp_ns, message_class, starts_with_header
from driveRT_ros.nodes.recording import RecorderConfig, ReorderBuffer, TopicFilter

READY = "Recording"
"""What the node logs once every topic named outright has a publisher that knows of the recorder."""


class RecorderNode(ManagedNode):
    """Write every message of the chosen topics; the log time is its header stamp, if it has one.

    Recording by header stamp makes two runs over the same data comparable: the bytes and their
    order do not depend on how fast the machine was.
    """

    config_class = RecorderConfig
    default_name = "recorder_node"
    topics_help = "in: every topic that matches the parameter 'topics'\n"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.counts: Counter[str] = Counter()
        self._types: dict[str, str] = {}
        self._skipped: set[str] = set()
        self._writer: BagWriter | None = None
        self._subscriptions_made: list[Any] = []
        self._scan_timer: Any = None
        self._said_ready = False
        self._handshake = Handshake(self)

    def do_configure(self) -> None:
        """Open the bag, and enter the topics whose type is given."""
        self.fault_code = 2  # what can go wrong here is what was asked for
        config: RecorderConfig = self.config
        if not config.bag_path:
            raise ConfigError("Parameter 'bag_path' must name the bag to write.")
        if Path(config.bag_path).exists():
            raise ConfigError(f"Bag '{config.bag_path}' exists; name another 'bag_path'.")
        self._filter = TopicFilter.parse(config.topics)
        self._writer = BagWriter(config.bag_path, storage=config.storage)
        self._writer.__enter__()
        self._buffer = ReorderBuffer(self._write, config.hold_s)
        for topic, type_name in self._filter.typed.items():
            self._writer.add_topic(topic, type_name)
            self._types[topic] = type_name
        self.fault_code = 1

    def do_activate(self) -> None:
        """Look for topics now and from now on."""
        self._scan()
        self._scan_timer = self.create_steady_timer(0.1, self._scan)

    def do_deactivate(self) -> None:
        """Take what has arrived and stop listening."""
        if self._scan_timer is not None:
            self.destroy_timer(self._scan_timer)
            self._scan_timer = None
        while self._subscriptions_made:
            subscription = self._subscriptions_made.pop()
            handle, kind = subscription.handle, subscription.msg_type
            with handle:
                while (taken := handle.take_message(kind, True)) is not None:
                    subscription.callback(taken[0])
            self.destroy_subscription(subscription)

    def do_cleanup(self) -> None:
        """Write what is held, close the bag and say how much is in it."""
        if self._writer is None:
            return
        self._buffer.flush()
        self._writer.__exit__(None, None, None)
        self._writer = None
        self.get_logger().info(
            f"Recorded {sum(self.counts.values())} messages on {len(self._types)} topics into "
            f"{self.config.bag_path}."
        )

    def close(self) -> bool:
        """Close the bag on any way out."""
        self.do_deactivate()
        self.do_cleanup()
        return True

    def _scan(self) -> None:
        self._buffer.write_old(monotonic())
        heard = {s.topic_name for s in self._subscriptions_made}
        for topic, type_names in self.get_topic_names_and_types():
            if topic in heard or topic in self._skipped or not self._filter.wants(topic):
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            if publishers and len(type_names) == 1:
                self._subscribe(topic, type_names[0], [p.qos_profile for p in publishers])
        if not self._said_ready and self._is_ready():
            self._said_ready = True
            self._handshake.close()
            self.get_logger().info(
                f"{READY} {len(self._subscriptions_made)} topics into {self.config.bag_path}."
            )

    def _is_ready(self) -> bool:
        named = self._filter.named()
        heard = [subscription.topic_name for subscription in self._subscriptions_made]
        # A node that has answered sends the recorder its first message, too.
        return all(map(self.count_publishers, named)) and not self._handshake.open_with(heard=heard)

    def _subscribe(self, topic: str, type_name: str, offered: list[QoSProfile]) -> None:
        expected = self._types.get(topic, type_name)
        try:
            if expected != type_name:
                raise ConfigError(f"it is a {type_name}, not a {expected}.")
            kind = message_class(type_name)
        except ConfigError as error:
            self._skipped.add(topic)
            self.get_logger().warning(f"Topic '{topic}' is not recorded: {error}")
            return
        self._types[topic] = type_name
        assert self._writer is not None
        self._writer.add_topic(topic, type_name)
        handler = partial(self._on_message, topic, starts_with_header(kind))
        qos = strongest_common(offered, self.config.queue_depth)
        made = self.create_subscription(kind, topic, handler, qos, raw=True)
        self._subscriptions_made.append(made)

    def _on_message(self, topic: str, has_header: bool, raw: bytes) -> None:
        stamp_ns = header_stamp_ns(raw) if has_header else 0
        if self.config.canonical:
            raw = self._canonical(topic, raw)
        log_time_ns = stamp_ns or self.get_clock().now().nanoseconds
        self._buffer.add(topic, raw, log_time_ns, monotonic())
        self.counts[topic] += 1
        until = self.config.until_count
        if until and self.counts[self.config.until_topic] >= until:
            self.finished = True

    def _canonical(self, topic: str, raw: bytes) -> bytes:
        try:
            return canonical(raw, self._types[topic])
        except (ConfigError, InvalidFrame) as error:
            self.get_logger().warning(
                f"Topic '{topic}' is recorded as it arrives: {error}", throttle_duration_sec=10.0
            )
            return raw

    def _write(self, topic: str, raw: bytes, log_time_ns: int) -> None:
        assert self._writer is not None
        self._writer.write(topic, self._types[topic], raw, log_time_ns)


def strongest_common(offered: list[QoSProfile], depth: int) -> QoSProfile:
    """Return the strictest quality of service that every publisher satisfies.

    Args:
        offered: Profiles of the publishers of one topic.
        depth: History depth.
    """
    reliable = all(q.reliability == ReliabilityPolicy.RELIABLE for q in offered)
    latched = all(q.durability == DurabilityPolicy.TRANSIENT_LOCAL for q in offered)
    return QoSProfile(
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )
