"""All transforms of a recording at once: what an offline reader needs of /tf and /tf_static."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from driveRT_ros.io.messages import stamp_ns_of, transform_of
from driveRT_ros.io.rigid import interpolate


class BagPoses:
    """Transforms by child frame; each frame has one parent."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._static: dict[str, np.ndarray] = {}
        self._moving: dict[str, list[tuple[int, np.ndarray]]] = {}

    def add(self, message: Any, *, static: bool) -> None:
        """Take a tf2_msgs/msg/TFMessage.

        Raises:
            InvalidFrame: If a transform is not rigid.
        """
        for item in message.transforms:
            child, pose = item.child_frame_id.lstrip("/"), transform_of(item.transform)
            self._parent[child] = item.header.frame_id.lstrip("/")
            if static:
                self._static[child] = pose
            else:
                samples = self._moving.setdefault(child, [])
                bisect.insort(samples, (stamp_ns_of(item.header.stamp), pose), key=lambda s: s[0])

    def lookup(self, ancestor: str, frame: str, stamp_ns: int) -> np.ndarray | None:
        """Return T_ancestor_frame (4, 4), or None where it is not recorded around the stamp.

        Between two samples it is interpolated; outside of them it is unknown.
        """
        T_current_frame, current = np.eye(4), frame.lstrip("/")
        for _ in range(len(self._parent) + 1):  # a loop ends too
            if current == ancestor:
                return T_current_frame
            step = self._step(current, stamp_ns)
            if step is None:
                return None
            T_current_frame, current = step @ T_current_frame, self._parent[current]
        return None

    def _step(self, child: str, stamp_ns: int) -> np.ndarray | None:
        """Return T_parent_child."""
        if child in self._static:
            return self._static[child]
        samples = self._moving.get(child, [])
        after = bisect.bisect_left(samples, stamp_ns, key=lambda s: s[0])
        if after == len(samples):
            return None
        after_ns, T_after = samples[after]
        if after_ns == stamp_ns:
            return T_after
        if after == 0:
            return None
        before_ns, T_before = samples[after - 1]
        return interpolate(T_before, T_after, (stamp_ns - before_ns) / (after_ns - before_ns))
