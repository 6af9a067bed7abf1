"""Never running ahead of a consumer that answers each cloud; knows no ROS."""

from __future__ import annotations

import threading
import time
from collections import deque


class Lockstep:
    """The clouds sent and not yet answered; a sender waits here for its consumer.

    An answer with stamp s settles the oldest cloud with that stamp and everything sent before it.
    An answer to a stamp that is not outstanding settles the clouds that are older. A cloud that the
    consumer drops is settled alone: it may overtake the answer to an older one.
    """

    def __init__(self) -> None:
        self._outstanding: deque[int] = deque()
        self._changed = threading.Condition()
        self.answered = self.dropped = 0

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

    def drop(self, stamp_ns: int) -> None:
        """Note that the consumer has dropped a cloud, from any thread."""
        with self._changed:
            self.dropped += 1
            if stamp_ns in self._outstanding:
                self._outstanding.remove(stamp_ns)
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
