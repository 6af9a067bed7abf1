"""Playing recorded messages at the pace of the sensor; knows no ROS, so it is tested without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.nodes.lockstep import Lockstep, SetLockstep
from driveRT_ros.nodes.pacing import Pacer
from driveRT_ros.nodes.replay_config import TF_STATIC, ReplayConfig, ReplayReport


class Message(Protocol):
    """What is needed of a recorded message (io.bag.BagMessage)."""

    topic: str
    log_time_ns: int
    raw: bytes


class Playback:
    """Play a bag through callbacks: static transforms first, then everything in log-time order.

    Args:
        config: Rate, loop, lockstep and so on.
        publish: ``publish(topic, raw)`` sends one message.
        publish_clock: ``publish_clock(bag_ns)`` sends the time.
        warn: Takes one sentence.
        images: Topics of the images that are answered together.
    """

    def __init__(
        self,
        config: ReplayConfig,
        publish: Callable[[str, bytes], None],
        publish_clock: Callable[[int], None],
        warn: Callable[[str], None],
        images: Collection[str] = (),
    ) -> None:
        self.config = config
        self.cancelled = threading.Event()
        self.lockstep, self.images = Lockstep(), SetLockstep(images)
        self.report = ReplayReport()
        self._publish, self._publish_clock = publish, publish_clock
        self._warn = warn
        self._pacer = Pacer(config.rate)
        self._tick_s = 1.0 / config.clock_hz if config.clock_hz else 0.1
        self._clock_ns = 0
        self._start_ns: int | None = None

    def run(
        self,
        read: Callable[[list[str] | None], Iterable[Message]],
        stamp_of: Callable[[bytes], int],
        on_cloud: Callable[[int], object] = lambda n: None,
        *,
        start_ns: int | None = None,
    ) -> ReplayReport:
        """Play until the end, the pass limit, or ``cancelled``.

        Args:
            read: ``read(topics)`` yields the messages of those topics (None: all) in log-time
                order.
            stamp_of: Reads the header stamp of a serialized cloud.
            on_cloud: Called with the clouds played so far, for a progress bar.
            start_ns: Log time from which ``start_offset_s`` counts; None: the first message read.

        Raises:
            ConfigError: If nothing lies behind ``start_offset_s``.
        """
        begin, self._start_ns = time.monotonic(), start_ns
        while not self.cancelled.is_set():
            if not self.config.topics or TF_STATIC in self.config.topics:
                for message in read([TF_STATIC]):
                    self._send(message)
            self._play_once(read(list(self.config.topics) or None), stamp_of, on_cloud)
            self._settle(0)  # answers of this pass must not be taken for those of the next
            self._settle_images()
            self.report.passes += 1
            limit = self.config.passes if self.config.loop else 1
            if limit and self.report.passes >= limit:
                break
        self.report.dropped = self.lockstep.dropped
        self.report.wall_s = time.monotonic() - begin
        return self.report

    def _play_once(
        self,
        messages: Iterable[Message],
        stamp_of: Callable[[bytes], int],
        on_cloud: Callable[[int], object],
    ) -> None:
        config, first_ns, clouds = self.config, None, 0
        for message in messages:
            now_ns = message.log_time_ns
            if first_ns is None:
                start_ns = now_ns if self._start_ns is None else self._start_ns
                first_ns = start_ns + round(config.start_offset_s * 1e9)
                self._clock_ns = 0
            if message.topic == TF_STATIC or now_ns < first_ns:
                continue
            if not self._clock_ns:
                self._pacer.start(now_ns)
            is_cloud = message.topic == config.cloud_topic
            if message.topic in self.images:
                self._settle_images()
            if is_cloud and config.max_clouds and clouds >= config.max_clouds:
                return
            if is_cloud:
                self._settle(config.lockstep_depth - 1)
            self._wait_until(now_ns)
            if self.cancelled.is_set():
                return
            if (is_cloud and config.lockstep_topic) or message.topic in self.images:
                self._expect_answer(message, stamp_of)
            self._send(message)
            if is_cloud:
                clouds += 1
                self.report.clouds += 1
                on_cloud(self.report.clouds)
        if not self._clock_ns:
            raise ConfigError(
                f"Nothing to play in bag '{config.bag_path}' after start_offset_s = "
                f"{config.start_offset_s}: the bag is shorter, or empty."
            )

    def _expect_answer(self, message: Message, stamp_of: Callable[[bytes], int]) -> None:
        try:
            stamp_ns = stamp_of(message.raw)
        except InvalidFrame as error:  # played as it is, but nobody can answer it
            where = f"{message.topic} logged at {message.log_time_ns} ns"
            self._warn(f"The message of {where} has no stamp: {error}")
            return
        if message.topic in self.images:
            self.images.sent(message.topic, stamp_ns)
        else:
            self.lockstep.sent(stamp_ns)

    def _wait_until(self, bag_ns: int) -> None:
        self.report.behind_s += self._pacer.slip(bag_ns)
        while (left_s := self._pacer.remaining_s(bag_ns)) > 0:
            if self.cancelled.wait(min(left_s, self._tick_s)):
                return
            self._tick(min(self._pacer.bag_now_ns(), bag_ns))
        self._tick(bag_ns)

    def _tick(self, bag_ns: int) -> None:
        if bag_ns > self._clock_ns:
            self._clock_ns = bag_ns
            if self.config.clock_hz:
                self._publish_clock(bag_ns)

    def _settle(self, at_most: int) -> None:
        config = self.config
        if not config.lockstep_topic:
            return
        while True:
            missing = self.lockstep.wait(at_most, config.lockstep_timeout_s, self.cancelled)
            if missing is None:
                return
            self.report.unanswered_stamps_ns.append(missing)
            self._warn(
                f"No answer on '{config.lockstep_topic}' to the cloud stamped {missing} ns within "
                f"{config.lockstep_timeout_s:g} s; going on "
                f"({len(self.report.unanswered_stamps_ns)} without answer so far)."
            )

    def _settle_images(self) -> None:
        if not self.images.wait(self.config.lockstep_timeout_s, self.cancelled):
            self._warn(
                f"No answer on '{self.config.lockstep_images_topic}' to a set of images within "
                f"{self.config.lockstep_timeout_s:g} s; images are not waited for any more."
            )

    def _send(self, message: Message) -> None:
        self._publish(message.topic, message.raw)
        self.report.published[message.topic] += 1
