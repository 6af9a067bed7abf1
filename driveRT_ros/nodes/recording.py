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
    reorder_window_s: float = param(
        5.0,
        "Messages this close in log time are written in order of log time, then topic.",
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


class ReorderBuffer:
    """Write messages by log time, then topic, then arrival, however they interleave on the wire.

    Messages of one frame leave a node within milliseconds on many topics, and the order in which
    they are heard is chance. They are held until the log time has moved on by a window. A log time
    that goes back by more than the window is a looping bag: what is held is written first. What is
    heard before simulated time has begun (log time 0) gets the first log time that is known.

    Args:
        write: ``write(topic, raw, log_time_ns)``.
        window_ns: Hold time in log time, nanoseconds.
    """

    def __init__(self, write: Callable[[str, bytes, int], None], window_ns: int) -> None:
        self._write, self._window_ns = write, window_ns
        self._held: list[tuple[int, str, int, bytes]] = []
        self._untimed: list[tuple[str, bytes]] = []
        self._newest_ns = 0
        self._arrivals = 0

    def add(self, topic: str, raw: bytes, log_time_ns: int) -> None:
        """Take one message, and write those that became old enough."""
        if log_time_ns <= 0:
            log_time_ns = self._newest_ns
        if not log_time_ns:
            self._untimed.append((topic, raw))
            return
        self._date(log_time_ns)
        if log_time_ns < self._newest_ns - self._window_ns:
            self.flush()
            self._newest_ns = log_time_ns
        self._newest_ns = max(self._newest_ns, log_time_ns)
        self._push(topic, raw, log_time_ns)
        while self._held and self._held[0][0] < self._newest_ns - self._window_ns:
            self._pop()

    def flush(self) -> None:
        """Write everything that is held."""
        self._date(0)
        while self._held:
            self._pop()

    def _date(self, log_time_ns: int) -> None:
        for topic, raw in self._untimed:
            self._push(topic, raw, log_time_ns)
        self._untimed.clear()

    def _push(self, topic: str, raw: bytes, log_time_ns: int) -> None:
        heapq.heappush(self._held, (log_time_ns, topic, self._arrivals, raw))
        self._arrivals += 1

    def _pop(self) -> None:
        log_time_ns, topic, _, raw = heapq.heappop(self._held)
        self._write(topic, raw, log_time_ns)
