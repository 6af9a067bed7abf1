"""The inputs of an active camera node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_stream import CameraStatus
from driveRT_ros.io.camera import is_rectified_topic
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.camera_book import CameraBook
from driveRT_ros.nodes.camera_gate import CameraGate
from driveRT_ros.nodes.camera_handler import CameraHandler, outputs_of
from driveRT_ros.nodes.health import WARN, Health
from driveRT_ros.nodes.image_set import CameraActions, ImageSet
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.session import Session
from driveRT_ros.nodes.timejump import Jump

IMAGE, INFO = "~/input/image{}", "~/input/camera_info{}"
KINDS = {"raw": Image, "compressed": CompressedImage}

STANDSTILL_S = 15.0
"""Sets are not waited for on a simulated clock that stands still this long: whoever moves it may
itself be waiting for their result; a detector on a busy machine may hold it up for seconds."""


class CameraSession(Session):
    """Pair images with each other and with calibrations, and hand sets to the worker.

    Args:
        node: Owner of the topics.
        config: As configured.
        handler: Looks at sets.
        health: Where counts and faults go.
        book: Where it is written which images were used.
        rectified: By camera, whether its images are undistorted; empty asks the names of topics.
    """

    def __init__(
        self,
        node: ManagedNode,
        config: CameraConfig,
        handler: CameraHandler,
        health: Health,
        book: CameraBook,
        rectified: Sequence[bool] = (),
    ) -> None:
        self._book = book
        self._newest_ns = 0
        self._clock_ns, self._clock_moved_s, self._noticed = 0, time.monotonic(), False
        self.now_ns: int | None = None
        """Time by which images are paired; None takes the clock of the node."""
        numbers = range(len(config.cameras))
        self._rectified = list(rectified) or [
            is_rectified_topic(node.resolve_topic_name(IMAGE.format(i))) for i in numbers
        ]
        outputs = Outputs(node, outputs_of(config), handler.noun)
        super().__init__(node, config, handler, health, outputs, history=0, moving=True)
        kind = KINDS[config.input.transport]
        topics = [
            self.listen(kind, IMAGE.format(i), partial(self.image, name), "image")
            for i, name in enumerate(config.cameras)
        ]
        for i, name in enumerate(config.cameras):
            self.listen(CameraInfo, INFO.format(i), partial(self.camera_info, name), "camera info")
        self.topic = "', '".join(topics)

    def make_gate(self, config: CameraConfig) -> Any:
        """Return the gate of images."""
        actions = CameraActions(self._posed, self._unusable, self.reject, self.refuse, self._jumped)
        return CameraGate(config, actions, self._rectified)

    def image(self, camera: str, msg: Image | CompressedImage) -> None:
        """Take an image of a camera."""
        self._newest_ns = max(self._newest_ns, stamp_ns_of(msg.header.stamp))
        self._gate.image(camera, msg, time.monotonic(), self._pairing_ns())
        self._health.reached("waiting_for_transform", len(self._gate))

    def camera_info(self, camera: str, msg: CameraInfo) -> None:
        """Take a calibration of a camera."""
        now_s = time.monotonic()
        wrong = self._gate.camera_info(camera, msg, now_s)
        if wrong is not None:
            self._health.fault(f"camera_info {camera}", WARN, f"{camera}: {wrong}", now_s)

    def reject(self, camera: str, code: str, sentence: str) -> None:
        """Count and report an image that does not go on with its set."""
        self._book.rejected(camera, code, sentence)
        with self._health.lock:
            self._health.state.left_out[f"images.{code}"] += 1
        self._health.fault(f"image {camera} {code}", WARN, sentence, time.monotonic())

    def give_up(self) -> None:
        """Wait no longer for calibrations and transforms, only for other cameras."""
        self._gate.give_up()

    def cameras(self) -> tuple[CameraStatus, ...]:
        """Return how the stream of every camera is doing."""
        status: tuple[CameraStatus, ...] = self._gate.status(self._pairing_ns())
        return status

    def _posed(self, item: ImageSet, paired_s: float) -> None:
        self._health.received()
        self.forward(item, paired_s)

    def _unusable(self, header: Any, code: str, sentence: str) -> None:
        self._health.received()
        self.drop(header, code, sentence)

    def _jumped(self, jump: Jump) -> None:
        self._newest_ns = 0
        self.time_jumped(jump)

    def _check_parked(self) -> None:
        """Let go what waits in vain.

        Nothing goes that was not overdue one look ago already: a busy process finds this timer and
        the images that are missing waiting side by side, and takes the timer first.
        """
        now_s, now_ns = time.monotonic(), self._pairing_ns()
        if self.now_ns is not None or now_ns != self._clock_ns:
            known_ns = now_ns if self.now_ns is not None else min(self._clock_ns, now_ns)
            self._clock_ns, self._clock_moved_s, self._noticed = now_ns, now_s, False
        else:
            known_ns, noticed = now_ns, self._noticed
            self._noticed = now_s - self._clock_moved_s >= STANDSTILL_S
            if noticed and self._noticed:
                self._gate.stands_still(now_s)
        self._gate.poll(now_s, known_ns)
        self._gate.tick(now_s)

    def _pairing_ns(self) -> int:
        if self.now_ns is not None:
            return self.now_ns
        if not self._node.get_parameter("use_sim_time").value:
            return time.monotonic_ns()
        # Before the first message on /clock, simulated time is 0.
        return max(self._node.get_clock().now().nanoseconds, self._newest_ns)
