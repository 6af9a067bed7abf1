"""Never running ahead of a consumer that answers what it is sent; knows no ROS."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection


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


class SetLockstep:
    """The images sent and not yet answered, of several streams that are answered together.

    An answer carries the newest stamp of its set. A sender waits only where every stream has an
    image outstanding: then a set is complete, and an answer will come. Where a stream is dead or
    slower, nobody waits, and after an answer that did not come nobody waits any more.

    Args:
        streams: Their names.
    """

    def __init__(self, streams: Collection[str]) -> None:
        self._streams = frozenset(streams)
        self._outstanding: dict[str, int] = {}
        self._changed = threading.Condition()
        self._waits = bool(streams)
        self.answered = 0

    def __contains__(self, stream: str) -> bool:
        return stream in self._streams

    def sent(self, stream: str, stamp_ns: int) -> None:
        """Note an image."""
        with self._changed:
            self._outstanding[stream] = stamp_ns

    def answer(self, stamp_ns: int) -> None:
        """Note the answer to a set, or that it is dropped, from any thread."""
        with self._changed:
            self.answered += 1
            whole = self._is_complete and stamp_ns in self._outstanding.values()
            for stream, sent_ns in list(self._outstanding.items()):
                # An image that was refused may be newer than the set that went without it.
                if sent_ns <= stamp_ns or whole:
                    del self._outstanding[stream]
            self._changed.notify_all()

    def wait(self, timeout_s: float, cancelled: threading.Event) -> bool:
        """Wait until a complete set is answered, or ``cancelled`` is set; False on timeout."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._waits and self._is_complete:
                left = deadline - time.monotonic()
                if cancelled.is_set() or left <= 0:
                    self._waits = cancelled.is_set()
                    return self._waits
                self._changed.wait(min(left, 0.1))
        return True

    @property
    def _is_complete(self) -> bool:
        return self._outstanding.keys() == self._streams
