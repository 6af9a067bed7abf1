"""What a node knows about its own state: counts, drops by reason, last faults, latency."""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from driveRT_ros.core.config import DiagnosticsConfig
from driveRT_ros.core.frame import FrameReport
from driveRT_ros.core.latency import LatencyTracker
from driveRT_ros.nodes.result import FrameResult

HOLD_S = 5.0
"""A fault stays in the diagnostics this long after it last happened, to be seen by people."""

OK, WARN, ERROR, STALE = range(4)
"""Levels as diagnostic_msgs/DiagnosticStatus counts them."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault: its level, the sentence of the latest one, and when that was."""

    level: int
    sentence: str
    at_s: float


@dataclass
class _State:
    received: int = 0
    lost: int = 0
    processed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Fault] = field(default_factory=dict)
    high_water: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    last_report: FrameReport = field(default_factory=FrameReport)
    time_jumps: int = 0
    device: str = ""


class Health:
    """Counts and faults of a node; every method may be called from any thread.

    Args:
        config: Deadline and window.
        logger: A ROS logger; faults are logged once in a while.
    """

    def __init__(self, config: DiagnosticsConfig, logger: Any) -> None:
        self._logger = logger
        self.lock = threading.RLock()
        self.state = _State()
        self.latency = LatencyTracker(config.latency_window, config.max_allowed_processing_time_ms)
        self._logged_s: dict[str, float] = {}
        self._seen_notes: set[str] = set()

    def reconfigure(self, config: DiagnosticsConfig) -> None:
        """Take over another deadline or window; another window starts empty."""
        with self.lock:
            if config.latency_window != self.latency.window:
                self.latency = LatencyTracker(config.latency_window, 0.0)
            self.latency.deadline_ms = config.max_allowed_processing_time_ms

    def received(self) -> None:
        """Count a frame that arrived."""
        with self.lock:
            self.state.received += 1

    def lost(self, count: int) -> None:
        """Count frames that the middleware knows it has not delivered."""
        with self.lock:
            self.state.lost += count

    def processed(self, result: FrameResult, now_s: float) -> tuple[str, ...]:
        """Count a frame whose results went out; return the notes that appear for the first time."""
        with self.lock:
            state = self.state
            state.processed += 1
            state.last_report = result.found.report
            state.left_out.update(result.left_out)
            state.notes = result.notes
            self.latency.add(result.stage_ms, now_s)
            for name, value in result.reached.items():
                self.reached(name, value)
            new = tuple(note for note in state.notes if note not in self._seen_notes)
            self._seen_notes.update(new)
            return new

    def runs_on(self, device: str) -> None:
        """Note where frames are processed."""
        with self.lock:
            self.state.device = device

    def dropped(self, reason: str, count: int = 1) -> None:
        """Count frames that got no result."""
        with self.lock:
            self.state.dropped[reason] += count

    def fault(
        self, key: str, level: int, sentence: str, now_s: float, *, until_cleared: bool = False
    ) -> None:
        """Note a fault, and log it unless its kind was logged a moment ago.

        Args:
            key: Kind of fault; a newer one of the same kind replaces it.
            level: WARN or ERROR.
            sentence: What happened and what to do.
            now_s: Steady time in seconds.
            until_cleared: Keep it, and log it once, until :meth:`cleared`.
        """
        with self.lock:
            self.state.faults[key] = Fault(level, sentence, math.inf if until_cleared else now_s)
            if now_s - self._logged_s.get(key, -math.inf) < HOLD_S:
                return
            self._logged_s[key] = math.inf if until_cleared else now_s
        if level == ERROR:  # two lines, because rclpy remembers the severity of a calling line
            self._logger.error(sentence)
        else:
            self._logger.warning(sentence)

    def cleared(self, key: str) -> None:
        """Take back a fault that is known to be over."""
        with self.lock:
            self.state.faults.pop(key, None)
            self._logged_s.pop(key, None)

    def faults(self, now_s: float) -> list[Fault]:
        """Return the faults of the last seconds, worst first; older ones are forgotten."""
        with self.lock:
            for key, fault in list(self.state.faults.items()):
                if now_s - fault.at_s > HOLD_S:
                    del self.state.faults[key]
            return sorted(self.state.faults.values(), key=lambda f: (-f.level, -f.at_s))

    def reached(self, name: str, value: int) -> None:
        """Raise a high-water mark."""
        with self.lock:
            self.state.high_water[name] = max(self.state.high_water.get(name, 0), value)

    def time_jumped(self) -> None:
        """Count a jump of time; latencies from before it are forgotten."""
        with self.lock:
            self.state.time_jumps += 1
            self.latency.clear()
