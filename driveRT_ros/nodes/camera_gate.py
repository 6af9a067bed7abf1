"""The gate between camera topics and the worker: pairs images, then each with its calibration.

A set whose calibration or transform is not there yet is parked. It goes on when they arrive, or
without the cameras that lack them when its time is up; such a camera is not waited for again until
it has them. The gate is used from one thread and knows no ROS; live topics and offline bags both
drive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_stream import CameraStatus
from driveRT_ros.core.camera_sync import JUMP_NS, CameraSet, CameraSync
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.camera_calibration import Calibrations, Lack
from driveRT_ros.nodes.image_set import CameraActions, ImageSet
from driveRT_ros.nodes.timejump import Jump
from driveRT_ros.nodes.transforms import TransformIntake

PARKED_LIMIT = 20
"""Sets parked at most in live mode."""


@dataclass(frozen=True, eq=False)
class _Parked:
    paired: CameraSet[Any]
    since_s: float


class CameraGate:
    """Pair images with each other and with calibrations.

    Args:
        config: Cameras, ``sync`` and ``input``.
        actions: Where the results go.
        rectified: By camera, whether its images are undistorted already.
    """

    def __init__(
        self, config: CameraConfig, actions: CameraActions, rectified: Iterable[bool]
    ) -> None:
        self._config, self._actions = config, actions
        self._sync: CameraSync[Any] = CameraSync(config.cameras, config.sync)
        self._intake = TransformIntake(actions.refuse, self._after_jump)
        self._calibrations = Calibrations(config, rectified, self._intake.lookup)
        self._parked: deque[_Parked] = deque()
        self._noticed: _Parked | None = None
        self._given_up: set[str] = set()
        self._last_ns: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def reconfigure(self, config: CameraConfig) -> None:
        """Nothing of the gate changes at run time."""

    def status(self, now_ns: int) -> tuple[CameraStatus, ...]:
        """Return how every camera is doing."""
        return self._sync.status(now_ns)

    def image(self, camera: str, msg: Any, now_s: float, now_ns: int) -> None:
        """Take an Image or CompressedImage; only its header is read.

        Args:
            camera: Its name.
            msg: The message.
            now_s: Steady time in seconds, for waiting.
            now_ns: Time on the clock by which images are paired.
        """
        stamp_ns = stamp_ns_of(msg.header.stamp)
        self._observe(camera, stamp_ns)
        wrong = self._calibrations.refused(camera, stamp_ns)
        if wrong is not None:
            self._actions.reject(camera, wrong.code, wrong.sentence)
            ready = self._sync.reject(camera, stamp_ns, wrong.sentence, now_ns)
        else:
            ready = self._sync.push(camera, stamp_ns, msg, now_ns)
        self._park(ready, now_s)

    def camera_info(self, camera: str, msg: Any, now_s: float) -> InvalidFrame | None:
        """Take a CameraInfo; return what is wrong with it where that is new."""
        wrong = self._calibrations.take(camera, msg)
        self._release(now_s)
        return wrong

    def transforms(self, msg: Any, now_s: float, *, static: bool) -> None:
        """Take a TFMessage, and let go the sets that it completes."""
        self._intake.take(msg, static=static)
        self._release(now_s)

    def clock_jumped(self, from_ns: int, to_ns: int) -> None:
        """Take a step back of the simulated clock."""
        self._intake.announced("/clock", from_ns, to_ns)

    def poll(self, now_s: float, now_ns: int) -> None:
        """Let go the sets that have waited long enough for more cameras; called regularly."""
        self._park(self._sync.poll(now_ns), now_s)

    def stands_still(self, now_s: float) -> None:
        """Let go the sets that wait for more cameras: their clock has stopped."""
        self._park(self._sync.flush(), now_s)

    def tick(self, now_s: float) -> None:
        """Let go what has waited too long for its calibration; called regularly.

        A set whose time is up gets notice first and goes at the next tick: a busy process may find
        the tick and the transform waiting side by side, and takes the tick first.
        """
        self._release(now_s)
        while self._parked and self._parked[0] is self._noticed:
            self._let_go()
            self._release(now_s)
        timeout_s = self._config.input.tf_timeout_s
        late = self._parked and now_s - self._parked[0].since_s >= timeout_s
        self._noticed = self._parked[0] if late else None

    def give_up(self) -> None:
        """Wait no longer for calibrations: what is not there by now does not come."""
        while self._parked:
            self._let_go()

    def flush(self) -> None:
        """Let go everything: no more data will come."""
        self._park(self._sync.flush(), 0.0)
        self.give_up()

    def _park(self, ready: list[CameraSet[Any]], now_s: float) -> None:
        self._parked.extend(_Parked(paired, now_s) for paired in ready)
        if not self._config.input.back_pressure:
            while len(self._parked) > PARKED_LIMIT:
                self._let_go()
        self._release(now_s)

    def _release(self, now_s: float) -> None:
        """Let go what is complete; later sets wait behind the first that is not."""
        while self._parked and not self._waited_for(self._parked[0].paired):
            self._let_go()

    def _waited_for(self, paired: CameraSet[Any]) -> bool:
        """Tell whether a camera of a set may still get what it lacks."""
        for camera, msg in paired.items.items():
            found = self._calibrations.of(camera, msg, paired.stamps_ns[camera])
            if not isinstance(found, Lack):
                self._given_up.discard(camera)
            elif found.may_come and camera not in self._given_up:
                return True
        return False

    def _let_go(self) -> None:
        parked = self._parked.popleft()
        paired, images = parked.paired, {}
        refused: dict[str, str] = dict(paired.rejected)
        code = "no_usable_image"
        for camera, msg in paired.items.items():
            found = self._calibrations.of(camera, msg, paired.stamps_ns[camera])
            if not isinstance(found, Lack):
                images[camera] = found
                continue
            code, refused[camera] = found.code, found.sentence
            self._given_up.add(camera)
            self._actions.reject(camera, code, found.sentence)
        ego = self._config.input.ego_frame_id
        out = ImageSet(paired.stamp_ns, ego, images, refused)
        if images:
            self._actions.forward(out, parked.since_s)
        else:
            reasons = " ".join(dict.fromkeys(refused.values()))
            self._actions.drop(out.header, code, f"No image of a set can be used. {reasons}")

    def _observe(self, camera: str, stamp_ns: int) -> None:
        """Look for jumps of time; an image that is a little out of order is none."""
        last_ns = self._last_ns.get(camera, stamp_ns)
        if stamp_ns >= last_ns or last_ns - stamp_ns > JUMP_NS:
            self._last_ns[camera] = stamp_ns
            self._intake.observe(camera, stamp_ns)

    def _after_jump(self, jump: Jump) -> None:
        open_sets = self._sync.flush()
        self._sync.clear()
        self._last_ns.clear()
        self._calibrations.time_jumped()
        parked = [*self._parked, *(_Parked(paired, 0.0) for paired in open_sets)]
        self._parked.clear()
        ego = self._config.input.ego_frame_id
        for old in parked:
            self._actions.drop(
                ImageSet(old.paired.stamp_ns, ego, {}).header,
                "time_jump",
                f"The set stamped {old.paired.stamp_ns / 1e9:.6f} s waited when time jumped back.",
            )
        self._actions.jumped(jump)
