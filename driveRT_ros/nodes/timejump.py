"""One time going backwards, seen by many sources, is one jump."""

from __future__ import annotations

from dataclasses import dataclass

LEAD_NS = 1_000_000_000
"""Transforms are stamped at most this far ahead of the clouds that they belong to."""


@dataclass(frozen=True)
class Jump:
    """Time went back from ``from_ns`` to ``to_ns``, first seen by ``source``."""

    source: str
    from_ns: int
    to_ns: int

    @property
    def border_ns(self) -> int:
        """What lies after this belongs to the time before the jump.

        Data of the new pass may run a little ahead of the stamp that revealed the jump, hence the
        lead; in a shorter jump, the middle is as far as possible from either side.
        """
        return self.to_ns + min((self.from_ns - self.to_ns) // 2, LEAD_NS)


class JumpDetector:
    """Tell a backward jump from a stream of stamps, once for all sources together.

    When a bag starts again, clock, transforms and clouds all go back, in an order that nobody
    guarantees. The first one reveals the jump; a source that still stands in the old time is then
    allowed to follow without a second alarm.
    """

    def __init__(self) -> None:
        self._newest_ns: dict[str, int] = {}

    def observe(self, source: str, stamp_ns: int) -> Jump | None:
        """Note a stamp; return the jump if this one reveals it.

        Args:
            source: Name of a stream whose own stamps never decrease, such as ``clock``.
            stamp_ns: Stamp of its newest message.
        """
        last_ns = self._newest_ns.get(source)
        self._newest_ns[source] = stamp_ns
        if last_ns is None or stamp_ns >= last_ns:
            return None
        return self._follow(Jump(source, last_ns, stamp_ns))

    def announced(self, source: str, from_ns: int, to_ns: int) -> Jump | None:
        """Take a jump that a source reports itself; return it unless it is already known."""
        jump = Jump(source, from_ns, to_ns)
        if all(newest_ns <= jump.border_ns for newest_ns in self._newest_ns.values()):
            return None
        return self._follow(jump)

    def _follow(self, jump: Jump) -> Jump:
        for other, newest_ns in list(self._newest_ns.items()):
            if newest_ns > jump.border_ns:
                del self._newest_ns[other]
        return jump
