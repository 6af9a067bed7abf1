"""Images of several cameras to sets of one instant, by header stamp; knows neither ROS nor threads.

A set takes at most one image of each camera, all within a window of time. It is complete when no
camera is left that could still deliver: each one is in it, was rejected for it, has moved past it,
or has been missing for a while. A set that is not complete closes after a timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Generic, TypeVar

from driveRT_ros.core.camera_config import SyncConfig
from driveRT_ros.core.camera_stream import LATE, OK, CameraStatus, CameraStream
from driveRT_ros.core.errors import ConfigError

Item = TypeVar("Item")

MAX_OPEN_SETS = 8
"""Sets that wait at the same time; one more closes the oldest."""
JUMP_NS = 1_000_000_000
"""A stream that goes back by more than this (or two sets' time) has started again."""

_REMEMBERED_SETS = 16


@dataclass(frozen=True)
class CameraSet(Generic[Item]):
    """What the cameras saw at one instant.

    Args:
        items: Image by camera, in the configured order; at least one.
        stamps_ns: Header stamp by camera, same keys.
        missing: Cameras that delivered nothing for this set.
        rejected: Reason by camera whose image could not be used.
    """

    items: Mapping[str, Item]
    stamps_ns: Mapping[str, int]
    missing: tuple[str, ...]
    rejected: Mapping[str, str]

    @property
    def stamp_ns(self) -> int:
        """Newest stamp of the set."""
        return max(self.stamps_ns.values())

    @property
    def span_ns(self) -> int:
        """Newest less oldest stamp."""
        return max(self.stamps_ns.values()) - min(self.stamps_ns.values())


@dataclass(eq=False)
class _Slots(Generic[Item]):
    """A set in the making, or the memory of one that has gone out."""

    opened_ns: int
    stamps_ns: dict[str, int] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)

    @property
    def first_ns(self) -> int:
        return min(self.stamps_ns.values())

    @property
    def last_ns(self) -> int:
        return max(self.stamps_ns.values())

    def gap_ns(self, camera: str, stamp_ns: int, window_ns: int) -> int | None:
        """Return how far a stamp lies from the others; None where it does not belong to them."""
        first, last = self.first_ns, self.last_ns
        if camera in self.stamps_ns or max(last, stamp_ns) - min(first, stamp_ns) > window_ns:
            return None
        return max(first - stamp_ns, stamp_ns - last, 0)


class CameraSync(Generic[Item]):
    """Pairs the images of N cameras.

    Not thread-safe. Times of arrival come from the caller, on any clock that does not go back; a
    recording can be paired on its own time by passing log times. Sets go out in the order of their
    stamps, as far as the clocks of the cameras agree.

    Args:
        cameras: Names, in the order of the sets.
        config: Window, timeout and least number of cameras.
    """

    def __init__(self, cameras: Sequence[str], config: SyncConfig) -> None:
        self.cameras = tuple(cameras)
        self._window_ns = round(config.window_s * 1e9)
        self._timeout_ns = round(config.timeout_s * 1e9)
        self._min_cameras = config.min_cameras
        self._jump_ns = max(JUMP_NS, 2 * (self._window_ns + self._timeout_ns))
        self._streams = {name: CameraStream() for name in self.cameras}
        self._open: list[_Slots[Item]] = []
        self._gone: deque[_Slots[Item]] = deque(maxlen=_REMEMBERED_SETS)
        self._recent_spans_ns: deque[int] = deque(maxlen=_REMEMBERED_SETS)
        self.jumps = 0
        """Times that a stream went back in time and started again."""

    def push(self, camera: str, stamp_ns: int, item: Item, now_ns: int) -> list[CameraSet[Item]]:
        """Take an image and return the sets that are ready, oldest first.

        Args:
            camera: One of the configured names.
            stamp_ns: Its header stamp.
            item: The image, in any form.
            now_ns: Time of arrival.

        Raises:
            ConfigError: If no such camera is configured.
        """
        return self._arrived(camera, stamp_ns, [item], "", now_ns)

    def reject(self, camera: str, stamp_ns: int, reason: str, now_ns: int) -> list[CameraSet[Item]]:
        """Take note of an image that cannot be used, so that its set does not wait for it.

        Args:
            camera: One of the configured names.
            stamp_ns: Header stamp of the image.
            reason: Short sentence for people.
            now_ns: Time of arrival.

        Returns:
            Sets that are ready, oldest first.
        """
        return self._arrived(camera, stamp_ns, [], reason or "not usable", now_ns)

    def poll(self, now_ns: int) -> list[CameraSet[Item]]:
        """Return the sets that are ready, oldest first; call it while no images arrive."""
        ready: list[CameraSet[Item]] = []
        while len(self._open) > MAX_OPEN_SETS:
            ready += self._close(self._open[0])
        for slots in list(self._open):
            if slots in self._open and (
                now_ns - slots.opened_ns >= self._timeout_ns or self._is_complete(slots)
            ):
                ready += self._close(slots)
        return ready

    def next_timeout_ns(self) -> int | None:
        """Return the time at which :meth:`poll` has something to do, None while nothing waits."""
        return min((s.opened_ns + self._timeout_ns for s in self._open), default=None)

    def flush(self) -> list[CameraSet[Item]]:
        """Return what is left, as at the end of a recording."""
        return [ready for slots in list(self._open) for ready in self._close(slots)]

    def clear(self) -> None:
        """Forget images and stamps, as after a jump of time; counts stay."""
        self._open.clear()
        self._gone.clear()
        for stream in self._streams.values():
            stream.forget_time()

    def status(self, now_ns: int) -> tuple[CameraStatus, ...]:
        """Return how every camera is doing, in the configured order."""
        return tuple(
            stream.status(name, now_ns, self._jump_ns, self._skew_ns(name))
            for name, stream in self._streams.items()
        )

    def _skew_ns(self, name: str) -> int | None:
        """Return the newest stamp of a camera less the middle one of the others that are alive."""
        stamps_ns = [
            stream.last_stamp_ns
            for other, stream in self._streams.items()
            if other != name and stream.last_stamp_ns is not None and stream.is_expected
        ]
        mine_ns = self._streams[name].last_stamp_ns
        return mine_ns - median_low(stamps_ns) if stamps_ns and mine_ns is not None else None

    def _arrived(
        self, camera: str, stamp_ns: int, item: list[Item], reason: str, now_ns: int
    ) -> list[CameraSet[Item]]:
        stream = self._streams.get(camera)
        if stream is None:
            raise ConfigError(
                f"Camera '{camera}' is not configured; known are {', '.join(self.cameras)}."
            )
        ready = self._note_jump(stream, stamp_ns)
        stream.arrived(stamp_ns, now_ns, reason)
        slots = self._place(camera, stream, stamp_ns, now_ns, reason)
        if slots is not None:
            slots.stamps_ns[camera] = stamp_ns
            if reason:
                slots.rejected[camera] = reason
            else:
                slots.items[camera] = item[0]
        return ready + self.poll(now_ns)

    def _note_jump(self, stream: CameraStream, stamp_ns: int) -> list[CameraSet[Item]]:
        """Start again if a stream went far back; return sets that nobody can complete now."""
        last_ns, limit_ns = stream.last_stamp_ns, stamp_ns + self._jump_ns
        if last_ns is None or last_ns <= limit_ns:
            return []
        self.jumps += 1
        ended = [slots for slots in self._open if slots.first_ns > limit_ns]
        ready = [out for slots in ended for out in self._close(slots)]
        self._gone.clear()
        for other in self._streams.values():  # the others will follow
            if other.last_stamp_ns is not None and other.last_stamp_ns > limit_ns:
                other.forget_time()
        return ready

    def _place(
        self, camera: str, stream: CameraStream, stamp_ns: int, now_ns: int, reason: str
    ) -> _Slots[Item] | None:
        """Return the set that an image belongs to, a new one if need be; count it if to none."""
        if any(s.stamps_ns.get(camera) == stamp_ns for s in (*self._open, *self._gone)):
            stream.counts.duplicates += 1
            return None
        slots = self._nearest(camera, stamp_ns)
        if slots is not None and slots not in self._open:
            slots.stamps_ns[camera] = stamp_ns  # a second one with this stamp is a duplicate
            stream.gone(stamp_ns)
            stream.counts.late += 1
            if not reason:
                stream.set_state(LATE)
            return None
        if slots is None and stream.newest_ns is not None and stamp_ns <= stream.newest_ns:
            stream.counts.out_of_order += 1
            return None
        if slots is None:
            slots = _Slots(opened_ns=now_ns, stamps_ns={camera: stamp_ns})
            self._open.append(slots)
            self._open.sort(key=lambda s: s.first_ns)
        return slots

    def _nearest(self, camera: str, stamp_ns: int) -> _Slots[Item] | None:
        """Return the set nearest in time that lacks a camera; None where it should be a new one.

        A set that is about to come counts too: where sets come faster than the window is long, an
        image that starts the next one must not fill a gap in the one before.
        """
        sets = (*self._open, *self._gone)  # an open one wins a tie
        gaps = [(s.gap_ns(camera, stamp_ns, self._window_ns), s) for s in sets]
        fitting = [(gap, s) for gap, s in gaps if gap is not None]
        if not fitting:
            return None
        gap_ns, nearest = min(fitting, key=lambda pair: pair[0])
        if stamp_ns <= nearest.last_ns:
            return nearest
        period_ns = self._period_ns()
        if not self._recent_spans_ns or period_ns is None:
            return nearest if nearest in self._open else None
        usual_end_ns = nearest.first_ns + median_low(self._recent_spans_ns)
        behind_ns = min(gap_ns, max(stamp_ns - usual_end_ns, 0))
        ahead_ns = max(nearest.first_ns + period_ns - stamp_ns, 0)
        return nearest if behind_ns <= ahead_ns else None

    def _period_ns(self) -> int | None:
        """Return the usual time between two images of a camera, None where no camera had two."""
        periods = [s.period_ns for s in self._streams.values() if s.is_expected]
        known = [period for period in periods if period is not None]
        return median_low(known) if known else None

    def _is_complete(self, slots: _Slots[Item]) -> bool:
        return not any(self._may_come(name, slots) for name in self.cameras)

    def _may_come(self, name: str, slots: _Slots[Item]) -> bool:
        """Tell whether a camera may still deliver for a set."""
        stream = self._streams[name]
        if name in slots.stamps_ns or not stream.is_expected:
            return False
        last_ns = stream.last_stamp_ns
        return last_ns is None or last_ns <= slots.first_ns + self._window_ns

    def _close(self, slots: _Slots[Item]) -> list[CameraSet[Item]]:
        """Return a set if it is worth it, and before it the older ones that it has overtaken."""
        self._open.remove(slots)
        self._gone.append(_Slots(slots.opened_ns, dict(slots.stamps_ns)))
        for name, stamp_ns in slots.stamps_ns.items():
            self._streams[name].gone(stamp_ns)
        for stream in self._streams.values():
            if stream.last_seen_ns is None or stream.last_seen_ns < slots.opened_ns:
                stream.absent += 1
        # Half of those that are alive: fewer are strays of a camera whose clock is off.
        alive = sum(stream.is_expected for stream in self._streams.values())
        enough = len(slots.items) + len(slots.rejected) >= (alive + 1) // 2
        if not enough or len(slots.items) < self._min_cameras:
            for name in slots.items:
                self._streams[name].counts.unpaired += 1
                self._streams[name].set_state(LATE)
            return []
        ready: list[CameraSet[Item]] = []
        for older in [s for s in self._open if s.last_ns < slots.first_ns]:
            ready += self._close(older) if older in self._open else []
        self._recent_spans_ns.append(slots.last_ns - slots.first_ns)
        return [*ready, self._finished(slots)]

    def _finished(self, slots: _Slots[Item]) -> CameraSet[Item]:
        present = [name for name in self.cameras if name in slots.items]
        missing = tuple(name for name in self.cameras if name not in slots.stamps_ns)
        for name in present:
            self._streams[name].counts.used += 1
            self._streams[name].set_state(OK)
        for name in missing:
            self._streams[name].counts.missed += 1
        return CameraSet(
            items={name: slots.items[name] for name in present},
            stamps_ns={name: slots.stamps_ns[name] for name in present},
            missing=missing,
            rejected=dict(slots.rejected),
        )
