"""Which topics to record and in which order to write; knows no ROS, so it is tested without."""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, param


@dataclass(frozen=True)
class RecorderConfig(Config):
    """Everything the recorder node takes."""

    bag_path: str = param("", "The rosbag2 folder to write; it must not exist yet.")
    topics: tuple[str, ...] = param(
        ("*",),
        "Topics to record: a name, a pattern ('/lidar_node/output/*'), or 'name:type', which is "
        "kept in the bag even if nothing is heard.",
    )
    storage: str = param("mcap", "Storage of the bag.", choices=("mcap", "sqlite3"))
    until_topic: str = param("", "Stop after until_count messages of this topic.")
    until_count: int = param(0, "Messages of until_topic after which to stop; 0 never.", ge=0)
    queue_depth: int = param(1000, "History depth of every subscription.", ge=1, le=100_000)
    canonical: bool = param(
        True,
        "Write zeros where the middleware leaves chance between fields: equal messages then are "
        "equal bytes. Switch off for many large messages that are not compared.",
    )
    hold_s: float = param(
        1.0,
        "Messages wait this long, so that they can be written in order of log time, then topic.",
        unit="s",
        ge=0.0,
        le=60.0,
    )
    autostart: bool = param(True, "Configure and activate at start.")


@dataclass(frozen=True)
class TopicFilter:
    """The parsed list of topics: names with a type, and patterns.

    Args:
        typed: Type name by topic, for entries ``name:type``.
        patterns: Entries that are names or shell-style patterns.
    """

    typed: Mapping[str, str]
    patterns: tuple[str, ...]

    @staticmethod
    def parse(entries: Sequence[str]) -> TopicFilter:
        """Parse entries of the parameter ``topics``.

        Raises:
            ConfigError: On an entry that is neither a name, a pattern nor ``name:type``.
        """
        typed, patterns = {}, []
        for entry in entries:
            name, colon, type_name = entry.partition(":")
            if not (name.startswith("/") or name == "*") or (colon and type_name.count("/") != 2):
                raise ConfigError(
                    f"Parameter 'topics' has the entry '{entry}'; write '/name', '/pattern/*' or "
                    "'/name:package/msg/Type'."
                )
            if colon:
                typed[name] = type_name
            else:
                patterns.append(name)
        return TopicFilter(typed, tuple(patterns))

    def wants(self, topic: str) -> bool:
        """Tell whether ``topic`` is to be recorded."""
        return topic in self.typed or any(fnmatch.fnmatchcase(topic, p) for p in self.patterns)

    def named(self) -> list[str]:
        """Return the topics that are named outright, without a wildcard."""
        return [*self.typed, *(p for p in self.patterns if not set("*?[") & set(p))]


JUMP_NS = 1_000_000_000
"""A log time that goes back by more than this is a bag that starts again."""


class ReorderBuffer:
    """Write messages by log time, then topic, then arrival, however they interleave on the wire.

    Messages of one frame leave a node within milliseconds on many topics, and the order in which
    they are heard is chance; held for a while, they can be sorted. Where a looping bag sends time
    back, what is held is written first. What is heard before simulated time has begun (log time 0)
    gets the first log time that is known.

    Args:
        write: ``write(topic, raw, log_time_ns)``.
        hold_s: How long a message is held.
    """

    def __init__(self, write: Callable[[str, bytes, int], None], hold_s: float) -> None:
        self._write, self._hold_s = write, hold_s
        self._held: list[tuple[int, str, int, float, bytes]] = []
        self._untimed: list[tuple[str, bytes]] = []
        self._newest_ns = 0
        self._arrivals = 0

    def add(self, topic: str, raw: bytes, log_time_ns: int, now_s: float) -> None:
        """Take one message.

        Args:
            topic: Topic name.
            raw: The serialized message.
            log_time_ns: Integer nanoseconds, 0 where it is not known.
            now_s: Steady time of arrival.
        """
        if log_time_ns <= 0:
            log_time_ns = self._newest_ns
        if not log_time_ns:
            self._untimed.append((topic, raw))
            return
        self._date(log_time_ns, now_s)
        if log_time_ns < self._newest_ns - JUMP_NS:
            self.flush()
            self._newest_ns = log_time_ns
        self._newest_ns = max(self._newest_ns, log_time_ns)
        self._push(topic, raw, log_time_ns, now_s)

    def write_old(self, now_s: float) -> None:
        """Write what has been held long enough."""
        while self._held and now_s - self._held[0][3] >= self._hold_s:
            self._pop()

    def flush(self) -> None:
        """Write everything that is held."""
        self._date(0, 0.0)
        while self._held:
            self._pop()

    def _date(self, log_time_ns: int, now_s: float) -> None:
        for topic, raw in self._untimed:
            self._push(topic, raw, log_time_ns, now_s)
        self._untimed.clear()

    def _push(self, topic: str, raw: bytes, log_time_ns: int, now_s: float) -> None:
        heapq.heappush(self._held, (log_time_ns, topic, self._arrivals, now_s, raw))
        self._arrivals += 1

    def _pop(self) -> None:
        log_time_ns, topic, _, _, raw = heapq.heappop(self._held)
        self._write(topic, raw, log_time_ns)
