"""A pipeline that goes on after its GPU failed, for both perception nodes.

A GPU fault costs the frame that it hit. Then the pipeline is built anew, and the next frame tries
it. Where the GPU fails some frames in a row, frames go to the CPU, and the GPU is tried again
later and later. Where the CUDA context is lost, which no process survives with a GPU, they stay
there; or nothing is processed any more, and the node that sees :attr:`DeviceGuard.ending` ends.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from driveRT_ros.core.device_faults import DeviceFault, device_fault, first_line, keep
from driveRT_ros.core.errors import DeviceError
from driveRT_ros.nodes.health import ERROR, WARN, Health

MAX_FAILURES = 3
"""Frames that the GPU may fail in a row before the CPU takes over."""

FIRST_WAIT_S, LAST_WAIT_S = 10.0, 300.0
"""When the GPU is tried again after that; each time the wait doubles."""

FALLBACK, LOST = "device_fallback", "device_lost"
"""Kinds of the faults that stay in the diagnostics: until the GPU works, and for good."""


class DeviceGuard:
    """Stand in for the pipeline that a handler calls; one thread uses it at a time.

    Errors still come out of :meth:`process`, whose caller counts and reports the frame.

    Args:
        pipeline: Built and warm. On a CPU, nothing is guarded.
        make: Returns such a pipeline for a configuration.
        health: Told what the frames run on, and of a fallback as long as it lasts.
        logger: A ROS logger.
        clock: Steady time in seconds.

    Attributes:
        ending: Why the node is to end, or "".
    """

    def __init__(
        self,
        pipeline: Any,
        make: Callable[[Any], Any],
        health: Health,
        logger: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._health, self._logger, self._clock = make, health, logger, clock
        self._config, self._device = pipeline.config, pipeline.device
        self._pipeline = pipeline  # None where it has to be built first
        self._stand_in: Any = None
        self._failures, self._lost = 0, False
        self._wait_s, self._retry_s = FIRST_WAIT_S, 0.0
        self.ending = ""
        health.runs_on(str(self._device))

    @property
    def map_builds(self) -> int:
        """See :class:`~driveRT_ros.core.camera_pipeline.CameraPipeline`."""
        return int((self._pipeline or self._stand_in).map_builds)

    def process(self, *args: Any, **options: Any) -> Any:
        """Process a frame as the pipeline does.

        Raises:
            Exception: As the pipeline raises; or DeviceError where the node is to end.
        """
        pipeline = self._usable()
        self._health.runs_on(str(pipeline.device))
        try:
            found = pipeline.process(*args, **options)
        except Exception as error:
            if pipeline is self._pipeline:
                self._take_note(error)
            raise
        if pipeline is self._pipeline and self._failures:
            self._recovered()
        return found

    def reconfigured(self, config: Any) -> DeviceGuard:
        """Go on with another configuration; a GPU that fails at it is built anew later."""
        self._config = config
        try:
            if self._stand_in is not None:  # first, because the GPU may fail at it
                self._stand_in = self._stand_in.reconfigured(_on_cpu(config))
            if self._pipeline is not None:
                self._pipeline = self._pipeline.reconfigured(config)
        except Exception as error:
            fault = self._take_note(error)
            if fault is None:
                raise
            sentence = f"The GPU failed while parameters changed, {first_line(error)}."
            self._health.fault(fault.reason, ERROR, sentence, self._clock())
        return self

    def _usable(self) -> Any:
        """Return the pipeline, built anew where it has to be, or what stands in for it."""
        if self.ending:
            raise DeviceError(self.ending)
        if self._pipeline is not None:
            return self._pipeline
        fallen = self._lost or self._failures >= MAX_FAILURES
        if fallen and (self._lost or self._clock() < self._retry_s):
            return self._on_stand_in()
        try:
            self._pipeline = self._rebuilt()
        except Exception as error:
            fault = self._take_note(error)
            if fault is None or not fallen or self.ending:
                raise
        return self._pipeline or self._on_stand_in()

    def _rebuilt(self) -> Any:
        self._logger.info(f"Building the pipeline on device '{self._device}' again.")
        _free_memory()
        try:
            pipeline = self._make(dataclasses.replace(self._config, device=str(self._device)))
            pipeline.warm_up()
        except Exception as error:
            if device_fault(error):
                raise
            raise DeviceError(f"{first_line(error)}.") from error  # it was fine before
        return pipeline

    def _on_stand_in(self) -> Any:
        if self._stand_in is None:
            self._stand_in = self._make(_on_cpu(self._config))
            if not self._lost:
                _free_memory()  # other processes may need it; last, because it may fail, too
        return self._stand_in

    def _take_note(self, error: Exception) -> DeviceFault | None:
        """Drop the pipeline where an error is a fault of its GPU, and decide how to go on."""
        fault = device_fault(error)
        if fault is None or self._device.type != "cuda":
            return None
        if not fault.context_lost:
            try:  # it may be but the first sign of a worse one, as where a library call fails
                torch.cuda.synchronize(self._device)
            except RuntimeError as worse:
                fault, error = device_fault(worse) or fault, worse
        wreck, self._pipeline = self._pipeline, None
        self._failures += 1
        if fault.context_lost:
            keep(wreck, error)  # its traceback holds what was in work
            self._give_up(error)
        elif self._failures >= MAX_FAILURES:
            self._fall_back(error)
        return fault

    def _fall_back(self, error: Exception) -> None:
        self._retry_s = self._clock() + self._wait_s
        sentence = (
            f"The GPU failed {self._failures} times in a row, last with {first_line(error)}. "
            f"Frames go to the CPU, which is slow; the GPU is tried again after {self._wait_s:g} s."
        )
        self._wait_s = min(2 * self._wait_s, LAST_WAIT_S)
        self._health.fault(FALLBACK, WARN, sentence, self._clock(), until_cleared=True)

    def _give_up(self, error: Exception) -> None:
        self._lost = True
        sentence = (
            f"CUDA is lost to this process after {first_line(error)}. Only a restart of the node "
            "brings the GPU back"
        )
        if self._config.on_device_loss == "exit":
            sentence += ", so it ends."
        else:
            sentence += (
                "; until then frames go to the CPU, which is slow. Where something starts the "
                "node again when it ends, set 'on_device_loss' to 'exit'."
            )
        self._health.cleared(FALLBACK)
        self._health.fault(LOST, ERROR, sentence, self._clock(), until_cleared=True)
        if self._config.on_device_loss == "exit":  # last: whoever sees it finds the fault as well
            self.ending = sentence

    def _recovered(self) -> None:
        self._failures, self._wait_s, self._stand_in = 0, FIRST_WAIT_S, None
        self._health.cleared(FALLBACK)
        self._logger.info(f"Frames are processed on device '{self._device}' again.")


def _free_memory() -> None:
    gc.collect()  # what refers to itself goes only now
    torch.cuda.empty_cache()


def _on_cpu(config: Any) -> Any:
    """Return a configuration of the same model that a CPU can run."""
    return dataclasses.replace(config, device="cpu", precision="fp32", plan_path="")
