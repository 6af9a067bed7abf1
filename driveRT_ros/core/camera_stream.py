"""How the stream of one camera is doing: counts, state and time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median_low

OK, LATE, MISSING, REJECTED = "ok", "late", "missing", "rejected"
"""States of a camera, see :class:`CameraStatus`."""

PATIENCE = 2
"""After so many sets in a row without a sign of a camera, sets no longer wait for it."""
STEPS = 7
"""Times between images whose middle one is a camera's period: three lost images do not matter."""


@dataclass
class CameraCounts:
    """What became of the images of one camera since the start.

    Args:
        received: Images that arrived, rejected ones included.
        used: Images that went out in a set.
        late: Images that arrived after their set was closed.
        unpaired: Images dropped with a set of too few cameras.
        rejected: Images that could not be used.
        duplicates: Images with a stamp that was there before.
        out_of_order: Images older than one before, without a set to join.
        missed: Sets that went out without this camera.
    """

    received: int = 0
    used: int = 0
    late: int = 0
    unpaired: int = 0
    rejected: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    missed: int = 0


@dataclass(frozen=True)
class CameraStatus:
    """How one camera is doing.

    Args:
        name: Camera.
        state: ``ok``; ``late`` (its last image came after its set was closed, or fitted no other
            camera); ``rejected`` (its last image could not be used, see ``reason``); ``missing``
            (silent).
        reason: Why the last image was rejected; empty in other states.
        counts: Since the start.
        last_stamp_ns: Stamp of the newest arrival; None before the first.
        skew_ns: That stamp less the middle one of the other cameras; None without others.
    """

    name: str
    state: str
    reason: str
    counts: CameraCounts
    last_stamp_ns: int | None
    skew_ns: int | None


@dataclass
class CameraStream:
    """The stream of one camera, as the synchroniser sees it.

    Args:
        counts: Since the start.
        state: What became of the newest image whose fate is known.
        reason: Why it was rejected.
        last_stamp_ns: Its stamp; None before the first and after a jump of time.
        last_seen_ns: When it arrived.
        newest_ns: Newest stamp in a set that has closed; None after a jump of time.
        absent: Sets in a row during which nothing arrived.
        steps_ns: Last times from one stamp to the next.
    """

    counts: CameraCounts = field(default_factory=CameraCounts)
    state: str = OK
    reason: str = ""
    last_stamp_ns: int | None = None
    last_seen_ns: int | None = None
    newest_ns: int | None = None
    absent: int = 0
    steps_ns: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS))

    @property
    def is_expected(self) -> bool:
        """Whether sets wait for this camera."""
        return self.absent < PATIENCE

    @property
    def period_ns(self) -> int | None:
        """The usual time from one stamp to the next; None before the second."""
        return median_low(self.steps_ns) if self.steps_ns else None

    def arrived(self, stamp_ns: int, now_ns: int, reason: str) -> None:
        """Take note of an image, with the reason if it is rejected."""
        self.counts.received += 1
        if self.last_stamp_ns is not None and stamp_ns > self.last_stamp_ns:
            self.steps_ns.append(stamp_ns - self.last_stamp_ns)
        self.last_stamp_ns, self.last_seen_ns, self.absent = stamp_ns, now_ns, 0
        if reason:
            self.counts.rejected += 1
            self.set_state(REJECTED, reason)

    def set_state(self, state: str, reason: str = "") -> None:
        """Describe the newest image."""
        self.state, self.reason = state, reason

    def gone(self, stamp_ns: int) -> None:
        """Note the stamp of an image whose set has closed."""
        self.newest_ns = stamp_ns if self.newest_ns is None else max(stamp_ns, self.newest_ns)

    def forget_time(self) -> None:
        """Forget stamps, as after a jump of time."""
        self.newest_ns = self.last_stamp_ns = None

    def status(self, name: str, now_ns: int, silence_ns: int, skew_ns: int | None) -> CameraStatus:
        """Return the state for people.

        Args:
            name: Camera.
            now_ns: On the clock of the arrivals.
            silence_ns: A camera that has said nothing for longer is missing.
            skew_ns: Stamp against the other cameras.
        """
        seen_ns = self.last_seen_ns
        silent = seen_ns is None or now_ns - seen_ns > silence_ns or not self.is_expected
        return CameraStatus(
            name=name,
            state=MISSING if silent else self.state,
            reason="" if silent else self.reason,
            counts=replace(self.counts),
            last_stamp_ns=self.last_stamp_ns,
            skew_ns=skew_ns,
        )
