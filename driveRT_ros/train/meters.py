"""How long steps take and what they give, between two lines of the log."""

from __future__ import annotations

import time

import torch


class StepClock:
    """Measures waiting and working between two lines of the log.

    Args:
        frames: Of a step.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._waited_s = self._total_s = self.longest_s = 0.0
        self._steps = 0
        self._last = {"wait_share": 0.0, "frames_per_s": 0.0}

    def reset(self) -> None:
        """Begin another line; until its first step the old rates hold."""
        self._last = self.rates()
        self._waited_s = self._total_s = 0.0
        self._steps = 0

    def start(self) -> None:
        """Begin a step, by waiting for its batch."""
        self._mark = time.monotonic()

    def waited(self) -> None:
        """The batch is there."""
        self._got = time.monotonic()
        self._waited_s += self._got - self._mark

    def stepped(self) -> None:
        """The step is done."""
        now = time.monotonic()
        self._total_s += now - self._mark
        self.longest_s = max(self.longest_s * 0.95, now - self._mark)
        self._steps += 1

    def rates(self) -> dict[str, float]:
        """Return the share of time spent waiting and the frames a second."""
        if not self._steps:
            return self._last
        return {
            "wait_share": self._waited_s / self._total_s,
            "frames_per_s": self._steps * self._frames / self._total_s,
        }


class Means:
    """Means of what the steps between two lines of the log returned."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._count = 0

    def add(self, parts: dict[str, torch.Tensor]) -> None:
        """Take in what a step returned."""
        self._count += 1
        for name, value in parts.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def take(self) -> dict[str, float]:
        """Return the means, and begin anew."""
        means = {name: float(total) / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
        return means
