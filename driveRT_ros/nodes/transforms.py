"""Transform messages into the buffer, and the jumps of time that their stamps reveal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.tf import Lookup, TransformBuffer
from driveRT_ros.nodes.timejump import Jump, JumpDetector


class TransformIntake:
    """The transforms of one node; used from one thread.

    Args:
        refuse: Takes the sentence about a transform that is not usable.
        jumped: Takes a jump of time, after transforms from before it are forgotten.
    """

    def __init__(self, refuse: Callable[[str], None], jumped: Callable[[Jump], None]) -> None:
        self._refuse, self._jumped = refuse, jumped
        self._buffer, self._detector = TransformBuffer(), JumpDetector()

    def take(self, msg: Any, *, static: bool) -> None:
        """Take a TFMessage."""
        for transform in msg.transforms:
            parent, child = transform.header.frame_id, transform.child_frame_id
            stamp_ns = stamp_ns_of(transform.header.stamp)
            if not static:
                self.observe(f"transform {parent} -> {child}", stamp_ns)
            t, q = transform.transform.translation, transform.transform.rotation
            try:
                self._buffer.insert(
                    parent, child, stamp_ns, (t.x, t.y, t.z), (q.x, q.y, q.z, q.w), static=static
                )
            except InvalidFrame as error:
                self._refuse(f"Transform {parent} -> {child}: {error}")

    def observe(self, source: str, stamp_ns: int) -> None:
        """Take the stamp of a stream whose stamps never decrease, except when time jumps back."""
        self._handle(self._detector.observe(source, stamp_ns))

    def announced(self, source: str, from_ns: int, to_ns: int) -> None:
        """Take a jump that a source reports itself, such as the simulated clock."""
        self._handle(self._detector.announced(source, from_ns, to_ns))

    def lookup(self, target: str, source: str, stamp_ns: int) -> Lookup:
        """Return T_target_source at exactly this stamp, or why there is none."""
        return self._buffer.lookup(target, source, stamp_ns)

    def _handle(self, jump: Jump | None) -> None:
        if jump is not None:
            self._buffer.forget_newer(jump.border_ns)
            self._jumped(jump)
