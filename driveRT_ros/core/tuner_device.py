"""What a search of Plans asks of a GPU, and when it takes a tactic for better."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from driveRT_ros.core.errors import ConfigError, DriveRTError
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.tactics import ConvTactic

TOLERANCE = {"fp32": 1e-5, "fp32x3": 1e-5, "tf32": 1e-2, "fp16": 2e-2}
"""Largest error of a precision, relative to the largest float64 value of the layer."""

Faults = (DriveRTError, RuntimeError)
"""What a candidate may raise: ours, and those of torch (out of memory, CUDA errors)."""


HELD_OUT = "held-out frames"
"""What :data:`Progress` is told instead of a domain while whole frames are compared."""


class Frame(Protocol):
    """One cloud to tune on."""

    @property
    def name(self) -> str:
        """Short name, unique among the frames."""
        ...

    @property
    def points(self) -> torch.Tensor:
        """(N, 5) float32 x, y, z, intensity, time lag."""
        ...


class TuningDevice(Protocol):
    """What the search asks of a GPU. Every method may raise one of ``Faults``."""

    def prepare(self, domain: str, tactics: Sequence[ConvTactic]) -> None:
        """Compile ahead, side by side; a fault shows when the tactic is checked."""

    def overflow(self, frame: Frame) -> Mapping[str, tuple[int, int]]:
        """Return what of a frame does not fit, with what fits: such a frame cannot be used."""

    def check(self, domain: str, tactic: ConvTactic, frame: Frame) -> float:
        """Return the largest error of the domain's layers, relative to float64; NaN is wrong."""

    def time_pair(
        self, domain: str, a: ConvTactic, b: ConvTactic, frame: Frame
    ) -> tuple[float, float]:
        """Return microseconds of the domain under two tactics, measured in turns."""

    def time_frame(self, plan: Plan, frame: Frame) -> float:
        """Return microseconds of a whole frame."""

    def difference(self, a: Plan, b: Plan, frame: Frame) -> float:
        """Return the largest difference of two Plans' features, relative to the largest one."""

    def lost_after(self, fault: Exception) -> Exception | None:
        """Return the error of a device that no longer works after a fault, None where it does.

        What lies on a lost device is kept with the fault: freeing it may end the process.
        """


@dataclasses.dataclass(frozen=True)
class Settings:
    """When a tactic is better.

    Args:
        min_gain: Share of the time that a tactic must save to replace another.
        worst_loss: Share that the slowest quarter of the held-out frames may lose.
        time_limit_s: The search of candidates ends after this; 0 for no limit.
    """

    min_gain: float = 0.02
    worst_loss: float = 0.02
    time_limit_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse shares outside [0, 1) and negative times."""
        for name in ("min_gain", "worst_loss"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"'{name}' is a share, 0 <= x < 1, got {value}.")
        if not self.time_limit_s >= 0:
            raise ConfigError(f"'time_limit_s' must not be negative, got {self.time_limit_s}.")


Progress = Callable[[str, int, int], None]
"""Called before each candidate and each held-out frame with the domain (or :data:`HELD_OUT`), the
number and how many there are."""
