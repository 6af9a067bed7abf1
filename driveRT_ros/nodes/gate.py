"""The gate between topics and the worker: pairs each cloud with its pose, and never waits.

A cloud whose transform is not there yet is parked. It goes on when the transform arrives, or is
dropped with a reason when its time is up. The gate is used from one thread and knows no ROS; live
topics and offline bags both drive it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.tf import Lookup
from driveRT_ros.nodes.timejump import Jump
from driveRT_ros.nodes.transforms import TransformIntake

PARKED_LIMIT = 200
"""Clouds parked at most in live mode; more would be a memory leak with a sensor's rate."""


class Gate(Protocol):
    """What pairs data with poses before they go to the worker."""

    def __len__(self) -> int:
        """Frames that wait for something."""

    def transforms(self, msg: Any, now_s: float, *, static: bool) -> None:
        """Take a TFMessage."""

    def clock_jumped(self, from_ns: int, to_ns: int) -> None:
        """Take a step back of the simulated clock."""

    def tick(self, now_s: float) -> None:
        """Drop what has waited too long; called regularly."""

    def flush(self) -> None:
        """Give up waiting: no more data will come."""

    def reconfigure(self, config: Any) -> None:
        """Take over a configuration changed at run time."""


@dataclass(frozen=True)
class GateActions:
    """What the gate makes others do.

    Args:
        forward: Takes ``(msg, T_world_lidar or None, arrived_s, T_ego_lidar or None)`` of a cloud
            that is complete.
        drop: Takes ``(header, code, sentence)`` of a cloud that does not go on.
        refuse: Takes the sentence about a transform that is not usable.
        jumped: Takes a jump of time; everything remembered from before it is worthless.
    """

    forward: Callable[[Any, np.ndarray | None, float, np.ndarray | None], None]
    drop: Callable[[Any, str, str], None]
    refuse: Callable[[str], None]
    jumped: Callable[[Jump], None]


@dataclass(frozen=True, eq=False)
class _Parked:
    msg: Any
    stamp_ns: int
    frame_id: str
    arrived_s: float


class CloudGate:
    """Pair clouds with poses.

    Args:
        config: ``densification_params`` and ``input``; without past frames no pose is needed, and
            ``bev.ego_frame_id``, which is looked up but never waited for.
        actions: Where the results go.
    """

    def __init__(self, config: LidarConfig, actions: GateActions) -> None:
        self._config, self._actions = config, actions
        self._needs_pose = config.densification_params.num_past_frames > 0
        self._intake = TransformIntake(actions.refuse, self._after_jump)
        self._parked: deque[_Parked] = deque()
        self._noticed: _Parked | None = None

    def __len__(self) -> int:
        return len(self._parked)

    def reconfigure(self, config: LidarConfig) -> None:
        """Use another ``bev.ego_frame_id`` from the next cloud on; the rest is as before."""
        self._config = config

    def cloud(self, msg: Any, now_s: float) -> None:
        """Take a PointCloud2.

        Args:
            msg: The message; only its header is read.
            now_s: Steady time in seconds.
        """
        stamp_ns = stamp_ns_of(msg.header.stamp)
        frame_id = msg.header.frame_id or self._config.input.default_frame_id
        self._intake.observe("clouds", stamp_ns)
        if not self._needs_pose or not frame_id:  # decoding refuses a cloud without a frame
            self._actions.forward(msg, None, now_s, self._T_ego_lidar(frame_id, stamp_ns))
            return
        self._parked.append(_Parked(msg, stamp_ns, frame_id, now_s))
        if not self._config.input.back_pressure and len(self._parked) > PARKED_LIMIT:
            header = self._parked.popleft().msg.header
            sentence = f"More than {PARKED_LIMIT} clouds wait for TF."
            self._actions.drop(header, "tf_overflow", sentence)
        self._release(now_s)

    def transforms(self, msg: Any, now_s: float, *, static: bool) -> None:
        """Take a TFMessage, and let go the clouds that it completes."""
        self._intake.take(msg, static=static)
        self._release(now_s)

    def clock_jumped(self, from_ns: int, to_ns: int) -> None:
        """Take a step back of the simulated clock."""
        self._intake.announced("/clock", from_ns, to_ns)

    def tick(self, now_s: float) -> None:
        """Drop what has waited too long; called regularly.

        A cloud whose time is up gets notice first and goes at the next tick. A busy process may
        find the tick and the transform waiting side by side, and takes the tick first.
        """
        self._release(now_s)
        while self._parked and self._parked[0] is self._noticed:
            self._drop_head(now_s)
            self._release(now_s)
        late = self._parked and self._waited_s(now_s) >= self._config.input.tf_timeout_s
        self._noticed = self._parked[0] if late else None

    def flush(self) -> None:
        """Drop what is still parked: no more data will come."""
        while self._parked:
            self.tick(float("inf"))

    def _release(self, now_s: float) -> None:
        """Let go what has its transform; later clouds wait behind the first that has not."""
        while self._parked:
            head, found = self._parked[0], self._lookup()
            if found.T_target_source is not None:
                self._parked.popleft()
                T_ego_lidar = self._T_ego_lidar(head.frame_id, head.stamp_ns)
                self._actions.forward(head.msg, found.T_target_source, head.arrived_s, T_ego_lidar)
            elif not found.may_come:
                self._drop_head(now_s)
            else:
                return

    def _drop_head(self, now_s: float) -> None:
        found, waited_s = self._lookup(), self._waited_s(now_s)
        head = self._parked.popleft()
        waited = f"waited {waited_s:.3f} s for it" if waited_s < math.inf else "waited in vain"
        self._actions.drop(
            head.msg.header,
            found.code,
            f"{found.reason} The cloud stamped {head.stamp_ns / 1e9:.6f} s {waited} and is "
            "dropped.",
        )

    def _lookup(self) -> Lookup:
        head, world = self._parked[0], self._config.densification_params.world_frame_id
        return self._intake.lookup(world, head.frame_id, head.stamp_ns)

    def _T_ego_lidar(self, frame_id: str, stamp_ns: int) -> np.ndarray | None:
        ego = self._config.bev.ego_frame_id
        return self._intake.lookup(ego, frame_id, stamp_ns).T_target_source

    def _waited_s(self, now_s: float) -> float:
        return now_s - self._parked[0].arrived_s

    def _after_jump(self, jump: Jump) -> None:
        stale = [p for p in self._parked if p.stamp_ns > jump.border_ns]
        self._parked = deque(p for p in self._parked if p.stamp_ns <= jump.border_ns)
        for parked in stale:
            self._actions.drop(
                parked.msg.header,
                "time_jump",
                f"The cloud stamped {parked.stamp_ns / 1e9:.6f} s waited for its transform when "
                "time jumped back.",
            )
        self._actions.jumped(jump)
