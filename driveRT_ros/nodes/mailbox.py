"""Where frames wait for the worker: newest wins (live), or every one in order (replay)."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

LEND_S = 0.005
"""How long :meth:`Mailbox.put` keeps its thread still for a worker that it wakes up, at most."""


@dataclass(frozen=True)
class Work:
    """One frame on its way to the worker.

    Args:
        item: What the handler takes; its ``header`` names it.
        arrived_s: Steady time of arrival, in seconds.
        after_jump: Whether time went back since the frame before: the history ends here.
    """

    item: Any
    arrived_s: float
    after_jump: bool = False


@dataclass(frozen=True)
class Batch:
    """What the worker does next: take ``passed_over`` into the history, then process ``work``."""

    work: Work
    passed_over: tuple[Work, ...] = field(default=())


class Mailbox:
    """Hand work from the executor thread to the worker thread.

    Live (``keep_all`` false), only the newest frame is processed. The ones it passes over still
    enter the sweep history, so that a slow frame does not thin out the next one; of those no more
    than ``history`` are held.

    A worker that is woken up has the interpreter to itself until its frame is with the device: the
    thread of the executor, which would go on with its own affairs for half a millisecond, holds
    still so long. It would else delay the frame at its start and at each call that lets go of the
    interpreter.

    Args:
        keep_all: Lose nothing and keep the order; the sender must wait for answers itself.
        history: Past sweeps that the pipeline uses.
    """

    def __init__(self, *, keep_all: bool, history: int) -> None:
        self._keep_all, self._capacity = keep_all, history + 1
        self._pending: deque[Work] = deque()
        self._claimed: deque[Work] = deque()  # at most one, before those pending
        self._jumped = self._closed = self._busy = False
        self._waits = self._lent = False  # the worker for a frame, a sender for the worker
        self._changed = threading.Condition()

    def put(self, item: Any, arrived_s: float) -> list[Work]:
        """Add a frame; return the older ones that had to go for it, history and all.

        Where the worker has nothing else to do, this waits until it looks for what comes next, as
        it does once its frame is with the device, or for :data:`LEND_S`.
        """
        with self._changed:
            self._pending.append(Work(item, arrived_s, self._jumped))
            self._jumped = False
            if self._waits:
                self._waits, self._lent = False, True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._lent, LEND_S)
                self._lent = False
                return []
            if self._keep_all or len(self._pending) <= self._capacity:
                return []
            gone = self._pending.popleft()
            if gone.after_jump:
                self._pending[0] = dataclasses.replace(self._pending[0], after_jump=True)
            return [gone]

    def time_jumped(self) -> list[Work]:
        """Mark that time went back; return the waiting frames that this made worthless."""
        with self._changed:
            gone: list[Work] = []
            if not self._keep_all:
                gone = [*self._claimed, *self._pending]
                self._claimed.clear()
                self._pending.clear()
            self._jumped = True
            return gone

    def claim(self) -> Any:
        """Return the item that the next :meth:`take` begins with, and hold it; None without one.

        Whether it is processed or passed over shows then. One whose history ends before it is not
        told ahead; and where time goes back, what comes first afterwards is another one, whose
        history does.
        """
        with self._changed:
            self._give_back()
            if not self._claimed and self._pending and not self._pending[0].after_jump:
                self._claimed.append(self._pending.popleft())
            return self._claimed[0].item if self._claimed else None

    def take(self) -> Batch | None:
        """Wait for work and return it, or None once the mailbox is closed."""
        with self._changed:
            self._busy = self._lent = False
            self._changed.notify_all()
            self._waits = not (self._claimed or self._pending)
            self._changed.wait_for(lambda: self._closed or self._claimed or self._pending)
            self._waits = False
            if self._closed:
                return None
            self._busy = True
            if self._keep_all:
                return Batch((self._claimed or self._pending).popleft())
            *passed_over, newest = *self._claimed, *self._pending
            self._claimed.clear()
            self._pending.clear()
            return Batch(newest, tuple(passed_over))

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is pending or in work; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or not (self._claimed or self._pending or self._busy),
                timeout_s,
            )

    def close(self) -> list[Work]:
        """Let the worker go home; return what waits and is not processed any more."""
        with self._changed:
            gone = [*self._claimed, *self._pending]
            self._claimed.clear()
            self._pending.clear()
            self._closed = True
            self._waits = self._lent = False
            self._changed.notify_all()
            return gone

    def _give_back(self) -> None:
        """Let the thread go on that holds still in :meth:`put`."""
        if self._lent:
            self._lent = False
            self._changed.notify_all()
