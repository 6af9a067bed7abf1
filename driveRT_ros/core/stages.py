"""What every pipeline needs around its stages: a clock, a device by name, a fingerprint."""

from __future__ import annotations

import time
import zlib

import torch

from driveRT_ros.core.errors import ConfigError


class StageClock:
    """Milliseconds between laps; on CUDA each lap waits for the device.

    Args:
        device: Where the stages run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stage_ms: dict[str, float] = {}
        self._last_s = self._now_s()

    def lap(self, stage: str) -> None:
        """Write down the time since the last lap under the name of a stage."""
        now_s = self._now_s()
        self.stage_ms[stage] = (now_s - self._last_s) * 1e3
        self._last_s = now_s

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def device_named(name: str | torch.device) -> torch.device:
    """Return a device that works: ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: If the name is unknown or the device cannot be used.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Parameter 'device' '{name}' cannot be used: {error}. Use 'cpu' or 'auto'."
        ) from None
    return device


def crc32(*tensors: torch.Tensor) -> int:
    """Return the CRC-32 of the bytes of the tensors, one after the other."""
    crc = 0
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        crc = zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), crc)
    return crc
