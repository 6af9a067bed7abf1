"""Playing recorded messages at the pace of the sensor; knows no ROS, so it is tested without."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.schema import Config, param

TF, TF_STATIC = "/tf", "/tf_static"

MATCH_S = 1.5
"""Wait between finding a subscriber and the first message.

Fast DDS reports the match before its TCP connection carries data (measured: up to 0.8 s on two busy
cores); until then best-effort messages are lost.
"""

PARTIAL = 3
"""Exit code of a node that processed what it could read of a damaged bag."""


@dataclass(frozen=True)
class ReplayConfig(Config):
    """Everything the replay node takes."""

    bag_path: str = param("", "The rosbag2 folder or storage file to play.")
    topics: tuple[str, ...] = param((), "Topics to play; empty plays all of them.")
    cloud_topic: str = param("", "The point cloud that paces the replay; empty: the only one.")
    rate: float = param(
        1.0, "Speed: 1 is sensor rate, 0 is as fast as the consumer allows.", ge=0.0, le=1000.0
    )
    start_offset_s: float = param(0.0, "Skip this much of the bag.", unit="s", ge=0.0)
    max_clouds: int = param(0, "Stop after this many clouds; 0 plays all.", ge=0)
    loop: bool = param(False, "Start again at the end; the clock jumps back.")
    passes: int = param(0, "With loop: stop after this many passes; 0 never stops.", ge=0)
    clock_hz: float = param(100.0, "Rate of /clock; 0 publishes no clock.", ge=0.0, le=1000.0)
    reliability: str = param(
        "reliable",
        "Reliability offered on the sensor topics.",
        choices=("best_effort", "reliable"),
    )
    wait_for_subscriber_s: float = param(
        30.0,
        "How long to wait for a subscriber of the cloud before playing; 0 does not wait.",
        unit="s",
        ge=0.0,
    )
    min_subscribers: int = param(1, "Subscribers of the cloud to wait for.", ge=1, le=100)
    lockstep_topic: str = param(
        "", "Topic on which the consumer answers each cloud with its header; empty: free running."
    )
    lockstep_depth: int = param(1, "Clouds that may be without answer.", ge=1, le=1000)
    lockstep_timeout_s: float = param(
        60.0, "An answer later than this is given up and counted.", unit="s", ge=0.1
    )
    autostart: bool = param(True, "Configure and activate at start.")


class Message(Protocol):
    """What is needed of a recorded message (io.bag.BagMessage)."""

    topic: str
    log_time_ns: int
    raw: bytes


class Pacer:
    """Map bag time to wall time at a rate, without ever catching up in a burst.

    Args:
        rate: Bag seconds per wall second; 0 makes everything due at once.
        now_ns: Monotonic clock.
    """

    def __init__(self, rate: float, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._rate, self._now_ns = rate, now_ns
        self._bag_ns = self._wall_ns = 0

    def start(self, bag_ns: int) -> None:
        """Make ``bag_ns`` due now."""
        self._bag_ns, self._wall_ns = bag_ns, self._now_ns()

    def remaining_s(self, bag_ns: int) -> float:
        """Return the wall seconds until ``bag_ns`` is due; 0 or less when it is."""
        if self._rate == 0:
            return 0.0
        due_ns = self._wall_ns + (bag_ns - self._bag_ns) / self._rate
        return (due_ns - self._now_ns()) * 1e-9

    def bag_now_ns(self) -> int:
        """Return the bag time of this moment."""
        return self._bag_ns + int((self._now_ns() - self._wall_ns) * self._rate)

    def slip(self, bag_ns: int) -> float:
        """Make ``bag_ns`` due now if it is overdue, so that a stall delays all that follows.

        Returns:
            The seconds by which the replay fell behind the sensor.
        """
        late_s = -self.remaining_s(bag_ns)
        if self._rate == 0 or late_s <= 0:
            return 0.0
        self.start(bag_ns)
        return late_s


class Lockstep:
    """The clouds sent and not yet answered; a sender waits here for its consumer.

    An answer with stamp s settles the oldest cloud with that stamp and everything sent before it.
    An answer to a stamp that is not outstanding settles the clouds that are older.
    """

    def __init__(self) -> None:
        self._outstanding: deque[int] = deque()
        self._changed = threading.Condition()
        self.answered = 0

    def sent(self, stamp_ns: int) -> None:
        """Note a cloud that will be answered."""
        with self._changed:
            self._outstanding.append(stamp_ns)

    def answer(self, stamp_ns: int) -> None:
        """Note an answer, from any thread."""
        with self._changed:
            if stamp_ns in self._outstanding:
                while self._outstanding.popleft() != stamp_ns:
                    pass
                self.answered += 1
            else:
                while self._outstanding and self._outstanding[0] < stamp_ns:
                    self._outstanding.popleft()
            self._changed.notify_all()

    def wait(self, at_most: int, timeout_s: float, cancelled: threading.Event) -> int | None:
        """Wait until at most ``at_most`` clouds are without answer, or ``cancelled`` is set.

        Returns:
            None, or the oldest stamp without answer after ``timeout_s``; it is given up.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while len(self._outstanding) > at_most and not cancelled.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    return self._outstanding.popleft()
                self._changed.wait(min(left, 0.1))
        return None


@dataclass
class ReplayReport:
    """What was played: messages by topic, clouds, passes, and clouds that got no answer."""

    published: Counter[str] = field(default_factory=Counter)
    clouds: int = 0
    passes: int = 0
    unanswered_stamps_ns: list[int] = field(default_factory=list)
    behind_s: float = 0.0
    wall_s: float = 0.0

    def sentence(self) -> str:
        """Return the summary for people."""
        text = (
            f"Played {sum(self.published.values())} messages ({self.clouds} clouds) on "
            f"{len(self.published)} topics in {self.wall_s:.1f} s, "
            f"{self.passes} pass{'es' if self.passes != 1 else ''}"
        )
        if self.behind_s >= 0.1:
            text += f"; waited {self.behind_s:.1f} s for the consumer"
        if self.unanswered_stamps_ns:
            text += f"; {len(self.unanswered_stamps_ns)} clouds got no answer"
        return text + "."


class Playback:
    """Play a bag through callbacks: static transforms first, then everything in log-time order.

    Args:
        config: Rate, loop, lockstep and so on.
        publish: ``publish(topic, raw)`` sends one message.
        publish_clock: ``publish_clock(bag_ns)`` sends the time.
        warn: Takes one sentence.
    """

    def __init__(
        self,
        config: ReplayConfig,
        publish: Callable[[str, bytes], None],
        publish_clock: Callable[[int], None],
        warn: Callable[[str], None],
    ) -> None:
        self.config = config
        self.cancelled = threading.Event()
        self.lockstep = Lockstep()
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
            self.report.passes += 1
            limit = self.config.passes if self.config.loop else 1
            if limit and self.report.passes >= limit:
                break
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
            if is_cloud and config.max_clouds and clouds >= config.max_clouds:
                return
            if is_cloud:
                self._settle(config.lockstep_depth - 1)
            self._wait_until(now_ns)
            if self.cancelled.is_set():
                return
            if is_cloud and config.lockstep_topic:
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

    def _expect_answer(self, cloud: Message, stamp_of: Callable[[bytes], int]) -> None:
        try:
            self.lockstep.sent(stamp_of(cloud.raw))
        except InvalidFrame as error:  # played as it is, but nobody can answer it
            self._warn(f"The cloud logged at {cloud.log_time_ns} ns has no stamp: {error}")

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

    def _send(self, message: Message) -> None:
        self._publish(message.topic, message.raw)
        self.report.published[message.topic] += 1
