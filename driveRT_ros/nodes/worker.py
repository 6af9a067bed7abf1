"""The one thread that detects, so that callbacks never wait for the network."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import DeviceError, InvalidFrame
from driveRT_ros.core.frame import FrameReport
from driveRT_ros.nodes.handler import LidarHandler
from driveRT_ros.nodes.health import ERROR, WARN, Health
from driveRT_ros.nodes.mailbox import Batch, Mailbox, Work
from driveRT_ros.nodes.publish import Outputs

NOTE_TEXT = {
    "intensity_missing": "The clouds have no intensity; input.default_intensity stands in for it.",
    "intensity_out_of_range": "Intensities exceed input.intensity_clip; set input.intensity_scale.",
    "intensity_looks_like_0_to_1": "Intensities look like 0..1; set input.intensity_scale to 255.",
    "stamp_zero": "The clouds are stamped 0; the driver should stamp them.",
    "default_frame_id": "The clouds name no frame; input.default_frame_id stands in for it.",
    "faulty_head_output": "The network gives numbers that are not usable; check the weights.",
}
"""What a note of a frame means for the user; other notes are only listed in the diagnostics."""


class Worker:
    """Take clouds from the mailbox, detect, publish; a fault costs its frame and no more.

    Args:
        mailbox: Where clouds come from; closing it ends the thread.
        handler: Used by this thread only.
        outputs: Where results go.
        health: Where counts and faults go.
        logger: A ROS logger.
    """

    def __init__(
        self, mailbox: Mailbox, handler: LidarHandler, outputs: Outputs, health: Health, logger: Any
    ) -> None:
        self._mailbox, self._handler, self._outputs = mailbox, handler, outputs
        self._health, self._logger = health, logger
        self._next_config: LidarConfig | None = None
        # A daemon, because a library call cannot be cut: see ManagedNode.close and stop.exit_now.
        self._thread = threading.Thread(target=self._run, name="detect", daemon=True)
        self._thread.start()

    def reconfigure(self, config: LidarConfig) -> None:
        """Use another configuration from the next frame on."""
        self._next_config = config

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the frame in work; return False where that takes longer."""
        self._mailbox.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._mailbox.take()) is not None:
            self._do(batch)

    def _do(self, batch: Batch) -> None:
        config, self._next_config = self._next_config, None
        if config is not None:
            self._guard(lambda: self._handler.reconfigure(config))
        for work in batch.passed_over:
            if self._guard(lambda work=work: self._remember(work), work):
                self._drop(work, "superseded")
        self._guard(lambda: self._detect(batch.work), batch.work)

    def _remember(self, work: Work) -> None:
        if work.after_jump:
            self._handler.forget()
        self._handler.remember(work.msg, work.T_world_lidar)

    def _detect(self, work: Work) -> None:
        if work.after_jump:
            self._handler.forget()
        wanted = self._outputs.wanted()
        result = self._handler.handle(work.msg, work.T_world_lidar, wanted, work.T_ego_lidar)
        self._outputs.publish(result)
        report, now_s = result.found.report, time.monotonic()
        new_notes = self._health.processed(result.cloud, report, result.stage_ms, now_s)
        for note in new_notes:
            if note in NOTE_TEXT:
                self._logger.warning(NOTE_TEXT[note])
        if report.overflow:
            self._health.fault("engine_overflow", WARN, _overflow_text(report), now_s)
        self._outputs.publish_debug(result, self._health)

    def _drop(self, work: Work | None, code: str) -> None:
        self._health.dropped(code)
        if work is not None:
            self._outputs.publish_dropped(work.msg.header)

    def _guard(self, step: Callable[[], None], work: Work | None = None) -> bool:
        now_s = time.monotonic()
        try:
            step()
        except InvalidFrame as error:
            self._drop(work, error.code)
            key = f"invalid {error.code}"
            self._health.fault(key, WARN, f"A cloud is dropped: {error}", now_s)
        except Exception as error:  # whatever it is, the next frame may work
            code = _error_code(error)
            self._drop(work, code)
            sentence = f"A cloud is dropped, {type(error).__name__}: {error}"
            self._health.fault(code, ERROR, sentence, now_s)
            self._logger.debug(traceback.format_exc())
        else:
            return True
        return False


def _error_code(error: Exception) -> str:
    """Return the key by which drops for this reason are counted."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out_of_device_memory"
    return "device_error" if isinstance(error, DeviceError) else "inference_error"


def _overflow_text(report: FrameReport) -> str:
    needed = ", ".join(f"{n} {name} of {room}" for name, (n, room) in report.overflow.items())
    return (
        f"A cloud needs more room than the GPU engine has ({needed}) and took the slow reference "
        "path; raise voxelization.max_voxels, or input.point_capacity for points."
    )
