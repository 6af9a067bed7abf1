"""A transform buffer in plain Python: interpolating, bounded, and able to forget.

It never waits and never substitutes the latest transform for the one at the stamp: a lookup either
gives the transform or says why not and whether waiting can help.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.rigid import interpolate, inverse, rigid

HISTORY_NS = 10_000_000_000
TF_MISSING, TF_FUTURE, TF_PAST = "tf_missing", "tf_future", "tf_past"


@dataclass(frozen=True)
class Lookup:
    """The answer to a lookup.

    Args:
        T_target_source: (4, 4) float64 from source to target frame, or None.
        code: Empty on success, else ``tf_missing``, ``tf_future`` or ``tf_past``.
        reason: Sentence that names the frames and times; empty on success.
    """

    T_target_source: np.ndarray | None
    code: str = ""
    reason: str = ""

    @property
    def may_come(self) -> bool:
        """Whether a later message can still answer this lookup."""
        return self.code in (TF_MISSING, TF_FUTURE)


@dataclass
class _Link:
    """History of one parent-child pair; ``stamps_ns`` ascends, ``T_parent_child`` runs along."""

    parent: str
    static: bool
    stamps_ns: list[int] = field(default_factory=list)
    T_parent_child: list[np.ndarray] = field(default_factory=list)

    def insert(self, stamp_ns: int, T: np.ndarray, history_ns: int) -> None:
        at = bisect.bisect_left(self.stamps_ns, stamp_ns)
        if at < len(self.stamps_ns) and self.stamps_ns[at] == stamp_ns:
            self.T_parent_child[at] = T  # a repeated stamp replaces; it is not an error
            return
        self.stamps_ns.insert(at, stamp_ns)
        self.T_parent_child.insert(at, T)
        old = bisect.bisect_left(self.stamps_ns, self.stamps_ns[-1] - history_ns)
        del self.stamps_ns[:old], self.T_parent_child[:old]

    def at(self, stamp_ns: int) -> np.ndarray:
        """Interpolate; the caller has checked that the stamp lies within the history."""
        if self.static:
            return self.T_parent_child[0]
        right = bisect.bisect_left(self.stamps_ns, stamp_ns)
        if self.stamps_ns[right] == stamp_ns:
            return self.T_parent_child[right]
        start, end = self.stamps_ns[right - 1], self.stamps_ns[right]
        before, after = self.T_parent_child[right - 1 : right + 1]
        return interpolate(before, after, (stamp_ns - start) / (end - start))


class TransformBuffer:
    """Transforms by child frame, 10 s of history each; used from one thread.

    Args:
        history_ns: Samples older than the newest of the same pair by more are forgotten.
    """

    def __init__(self, history_ns: int = HISTORY_NS) -> None:
        self._history_ns = history_ns
        self._links: dict[str, _Link] = {}

    def insert(
        self,
        parent: str,
        child: str,
        stamp_ns: int,
        xyz: tuple[float, ...],
        quat_xyzw: tuple[float, ...],
        *,
        static: bool = False,
    ) -> None:
        """Store T_parent_child at a stamp (a static one holds at any time).

        Raises:
            InvalidFrame: If a frame is empty or its own parent, or a number is not usable.
        """
        parent, child = parent.lstrip("/"), child.lstrip("/")
        if not parent or not child or parent == child:
            raise InvalidFrame(
                "A transform needs two different frame names; fix its publisher.",
                "child_frame_id",
                child,
                f"a frame other than {parent!r}",
                code="tf_invalid",
            )
        T_parent_child = rigid(xyz, quat_xyzw)
        link = self._links.get(child)
        if link is None or link.parent != parent or static or link.static:
            link = self._links[child] = _Link(parent, static)
        link.insert(stamp_ns, T_parent_child, self._history_ns)

    def lookup(self, target: str, source: str, stamp_ns: int) -> Lookup:
        """Return T_target_source at exactly this stamp, or why there is none."""
        target, source = target.lstrip("/"), source.lstrip("/")
        up_source, up_target = self._ancestors(source), self._ancestors(target)
        common = next((frame for frame in up_source if frame in up_target), None)
        if common is None:
            unknown = [f for f in (target, source) if not self._known(f)]
            what = f"frame {unknown[0]!r} is unknown" if unknown else "they are not connected"
            return Lookup(None, TF_MISSING, f"No transform from {source} to {target}: {what}.")
        chain = up_source[: up_source.index(common)], up_target[: up_target.index(common)]
        for child in (*chain[0], *chain[1]):
            problem = self._out_of_history(child, stamp_ns)
            if problem is not None:
                return problem
        T_common_source, T_common_target = (self._compose(c, stamp_ns) for c in chain)
        return Lookup(inverse(T_common_target) @ T_common_source)

    def forget_newer(self, stamp_ns: int) -> None:
        """Drop every moving pair whose newest sample lies after the stamp (see timejump.py)."""
        for child, link in list(self._links.items()):
            if not link.static and link.stamps_ns[-1] > stamp_ns:
                del self._links[child]

    def clear(self) -> None:
        """Forget every transform."""
        self._links.clear()

    def _known(self, frame: str) -> bool:
        return frame in self._links or any(link.parent == frame for link in self._links.values())

    def _ancestors(self, frame: str) -> list[str]:
        out = [frame]
        while out[-1] in self._links and len(out) <= len(self._links):  # a loop ends too
            out.append(self._links[out[-1]].parent)
        return out

    def _compose(self, children: list[str], stamp_ns: int) -> np.ndarray:
        T_parent_frame = np.eye(4)
        for child in children:
            T_parent_frame = self._links[child].at(stamp_ns) @ T_parent_frame
        return T_parent_frame

    def _out_of_history(self, child: str, stamp_ns: int) -> Lookup | None:
        link = self._links[child]
        oldest, newest = link.stamps_ns[0], link.stamps_ns[-1]
        if link.static or oldest <= stamp_ns <= newest:
            return None
        late = stamp_ns > newest
        bound, order, edge = (newest, "after", "newest") if late else (oldest, "before", "oldest")
        return Lookup(
            None,
            TF_FUTURE if late else TF_PAST,
            f"Transform {link.parent} -> {child} is not known at {stamp_ns / 1e9:.6f} s: that is "
            f"{abs(stamp_ns - bound) / 1e9:.6f} s {order} the {edge} one, {bound / 1e9:.6f} s.",
        )
