"""The one thread that detects, so that callbacks never wait for the network."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from driveRT_ros.core.device_faults import device_fault, first_line
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.nodes.health import ERROR, WARN, Health
from driveRT_ros.nodes.mailbox import Batch, Mailbox, Work
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.result import FrameResult


class Handler(Protocol):
    """What turns frames into results; see :class:`driveRT_ros.nodes.handler.LidarHandler`."""

    noun: str
    notes_text: Mapping[str, str]

    def reconfigure(self, config: Any) -> None:
        """Go on with another configuration of the same model."""

    def forget(self) -> None:
        """Forget past frames."""

    def remember(self, item: Any) -> None:
        """Take a frame into the history, where there is one."""

    def handle(self, item: Any, wanted: Collection[str]) -> FrameResult:
        """Process one frame."""


class Worker:
    """Take frames from the mailbox, process, publish; a fault costs its frame and no more.

    Args:
        mailbox: Where frames come from; closing it ends the thread.
        handler: Used by this thread only.
        outputs: Where results go.
        health: Where counts and faults go.
        logger: A ROS logger.
    """

    def __init__(
        self, mailbox: Mailbox, handler: Handler, outputs: Outputs, health: Health, logger: Any
    ) -> None:
        self._mailbox, self._handler, self._outputs = mailbox, handler, outputs
        self._health, self._logger = health, logger
        self._lead = f"A {handler.noun} is dropped"
        self._wanted_config: Any = None
        self._config: Any = None  # of the handler, where it was changed
        # A daemon, because a library call cannot be cut: see ManagedNode.close and stop.exit_now.
        self._thread = threading.Thread(target=self._run, name="detect", daemon=True)
        self._thread.start()

    def reconfigure(self, config: Any) -> None:
        """Use another configuration from the next frame on."""
        self._wanted_config = config

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the frame in work; return False where that takes longer."""
        self._mailbox.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._mailbox.take()) is not None:
            self._do(batch)

    def _do(self, batch: Batch) -> None:
        self._reconfigure()
        for work in batch.passed_over:
            if self._guard(lambda work=work: self._remember(work), work):
                self._drop(work, "superseded")
        self._guard(lambda: self._detect(batch.work), batch.work)

    def _reconfigure(self) -> None:
        config = self._wanted_config  # each thread writes one of the two: no change can be lost
        if config is self._config:
            return
        self._config = config
        try:
            self._handler.reconfigure(config)
        except Exception as error:  # no frame is lost: the next one meets what was there before
            sentence = f"Changed parameters are not in effect, {type(error).__name__}: {error}"
            self._health.fault("reconfigure", ERROR, sentence, time.monotonic())
            self._logger.debug(traceback.format_exc())

    def _remember(self, work: Work) -> None:
        if work.after_jump:
            self._handler.forget()
        self._handler.remember(work.item)

    def _detect(self, work: Work) -> None:
        if work.after_jump:
            self._handler.forget()
        wanted = self._outputs.wanted()
        result = self._handler.handle(work.item, wanted)
        self._outputs.publish(result)
        now_s = time.monotonic()
        for note in self._health.processed(result, now_s):
            if note in self._handler.notes_text:
                self._logger.warning(self._handler.notes_text[note])
        for key, sentence in result.faults.items():
            self._health.fault(key, WARN, sentence, now_s)
        self._outputs.publish_debug(result, self._health)

    def _drop(self, work: Work, code: str) -> None:
        self._health.dropped(code)
        self._outputs.publish_dropped(work.item.header)

    def _guard(self, step: Callable[[], None], work: Work) -> bool:
        now_s = time.monotonic()
        try:
            step()
        except InvalidFrame as error:
            self._drop(work, error.code)
            key = f"invalid {error.code}"
            self._health.fault(key, WARN, f"{self._lead}: {error}", now_s)
        except Exception as error:  # whatever it is, the next frame may work
            fault = device_fault(error)
            code = fault.reason if fault else "inference_error"
            what = first_line(error) + "." if fault else f"{type(error).__name__}: {error}"
            self._drop(work, code)
            self._health.fault(code, ERROR, f"{self._lead} ({_stamp(work)}), {what}", now_s)
            self._logger.debug(traceback.format_exc())
        else:
            return True
        return False


def _stamp(work: Work) -> str:
    stamp = work.item.header.stamp
    return f"stamp {stamp.sec}.{stamp.nanosec:09d}"
