"""Bag time on the clock of the wall; knows no ROS."""

from __future__ import annotations

import time
from collections.abc import Callable


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
