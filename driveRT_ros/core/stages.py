"""What every pipeline needs around its stages: a clock, a device by name, a fingerprint."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch

from driveRT_ros.core.errors import ConfigError


class StageClock:
    """Milliseconds between laps.

    On CUDA a lap leaves an event in the current stream and does not wait: the time is what passed
    on the device, the waiting for the host included.

    Args:
        device: Where the stages run.
        meanwhile: What the host does once a frame is enqueued, before it waits for the device.
    """

    def __init__(self, device: torch.device, meanwhile: Callable[[], None] | None = None) -> None:
        self._device, self._meanwhile = device, meanwhile
        self._stages: list[str] = []
        self._marks: list[Any] = [self._mark()]

    def lap(self, stage: str) -> None:
        """End a stage; where a name comes again, its times add up."""
        self._stages.append(stage)
        self._marks.append(self._mark())

    def waits(self) -> None:
        """Tell that the host is about to wait; the first time, it does ``meanwhile`` before."""
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()

    @property
    def stage_ms(self) -> dict[str, float]:
        """Milliseconds by stage, in the order of their first laps; on CUDA this waits, once."""
        times: dict[str, float] = {}
        for stage, lap_ms in zip(self._stages, self._laps_ms()):
            times[stage] = times.get(stage, 0.0) + lap_ms
        return times

    def _mark(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter() * 1e3
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _laps_ms(self) -> list[float]:
        pairs = list(zip(self._marks, self._marks[1:]))
        if self._device.type != "cuda":
            return [end - start for start, end in pairs]
        self._marks[-1].synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


def device_named(name: str | torch.device) -> torch.device:
    """Return a device that works, with its index: ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: If the name is unknown or the device cannot be used.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(name)):
        raise ConfigError(
            f"Parameter 'device' must be 'auto', 'cpu', 'cuda' or 'cuda:N', got '{name}'."
        )
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Parameter 'device' '{name}' cannot be used: {error}. Use 'cpu' or 'auto'."
        ) from None


def crc32(*tensors: torch.Tensor, start: int = 0) -> int:
    """Return the CRC-32 of the bytes of the tensors, one after the other.

    Args:
        tensors: Of any dtype, on any device.
        start: CRC-32 of the bytes before them.
    """
    crc = start
    for tensor in tensors:
        if not tensor.numel():  # strides of nothing may be anything
            continue
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        crc = zlib.crc32(plain.view(torch.uint8).numpy(), crc)
    return crc
