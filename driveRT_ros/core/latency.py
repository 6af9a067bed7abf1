"""Rolling latency percentiles and deadline misses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PERCENTILES = (50, 95, 99)
TOTAL = "total"


@dataclass(frozen=True)
class LatencySummary:
    """Percentiles of one stage over the window, in milliseconds; NaN where nothing was measured."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the nearest-rank percentile: the least value with ``percent`` % at or below it.

    Nearest rank always returns a time that was measured, also for a handful of frames.

    Args:
        values: Measurements in any order.
        percent: In (0, 100].

    Returns:
        One of the values, or NaN where there are none.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(percent / 100.0 * len(ordered)), 1) - 1]


class LatencyTracker:
    """Keep the last ``window`` frames' milliseconds by stage, and count missed deadlines.

    Args:
        window: Frames kept.
        deadline_ms: A frame whose total is greater missed its deadline.
    """

    def __init__(self, window: int, deadline_ms: float) -> None:
        self.deadline_ms = deadline_ms
        self.window = window
        self._stages: dict[str, deque[float]] = {}
        self._late_since_s: float | None = None
        self.last_ms: Mapping[str, float] = {}

    def add(self, stage_ms: Mapping[str, float], now_s: float) -> None:
        """Record one frame.

        Args:
            stage_ms: Milliseconds by stage; ``total`` is compared with the deadline.
            now_s: When it ended, in seconds of a clock that never goes back.
        """
        for stage, value in stage_ms.items():
            self._stages.setdefault(stage, deque(maxlen=self.window)).append(float(value))
        self.last_ms = dict(stage_ms)
        total_ms = stage_ms.get(TOTAL, 0.0)
        if total_ms <= self.deadline_ms:
            self._late_since_s = None
        elif self._late_since_s is None:
            # The late stretch begins where this frame began, not where it ended.
            self._late_since_s = now_s - total_ms / 1e3

    def consecutive_delay_ms(self, now_s: float) -> float:
        """Return for how long every frame has missed its deadline; 0 after a timely one."""
        return 0.0 if self._late_since_s is None else max(now_s - self._late_since_s, 0.0) * 1e3

    @property
    def deadline_misses(self) -> int:
        """Frames of the window that took longer than the deadline."""
        return sum(value > self.deadline_ms for value in self._stages.get(TOTAL, ()))

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages measured so far, in order of first appearance."""
        return tuple(self._stages)

    def summary(self, stage: str = TOTAL) -> LatencySummary:
        """Return count, p50, p95, p99 and maximum of one stage over the window."""
        values = sorted(self._stages.get(stage, ()))  # once: sorting what is sorted costs little
        p50, p95, p99 = (percentile(values, p) for p in PERCENTILES)
        return LatencySummary(len(values), p50, p95, p99, max(values, default=math.nan))

    def clear(self) -> None:
        """Forget every frame, as after a jump of the clock."""
        self._stages.clear()
        self._late_since_s = None
        self.last_ms = {}
