"""A pipeline on a GPU that is not there, which fails as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.frame import Detections, FrameReport

GPU = torch.device("cuda", 0)


def out_of_memory() -> Exception:
    return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def refused() -> Exception:
    return DeviceError("CUDA error 1 (invalid argument) while launching 'rank_tiles'.", 1)


def lost() -> Exception:
    return RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for it.")


FAULTS = {"memory": out_of_memory, "refused": refused, "lost": lost}


class FailingGpu:
    """Take one word a call out of a script: a fault, or anything else for a frame without boxes.

    Args:
        config: As given.
        script: Shared by all pipelines of a run: names out of :data:`FAULTS`, ``ok``, or an error.
    """

    def __init__(self, config: Any, script: Iterator[Any]) -> None:
        self.config, self.device, self._script = config, GPU, script
        self.weights = SimpleNamespace(trained=True, source="test", sha256="0")
        self.map_builds = 0
        self.warm = False

    def warm_up(self) -> None:
        self.warm = True

    def reconfigured(self, config: Any) -> FailingGpu:
        fail(next(self._script))
        self.config = config
        return self

    def process(self, frame: Any, **_: bool) -> Detections:
        assert self.warm
        fail(next(self._script))
        return Detections.empty(report=FrameReport(num_points=len(frame)))


def fail(word: Any) -> None:
    """Raise what a word of the script stands for, if anything."""
    if isinstance(word, Exception):
        raise word
    if word in FAULTS:
        raise FAULTS[word]()
