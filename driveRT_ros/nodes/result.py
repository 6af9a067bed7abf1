"""What a handler makes of one frame, whatever the sensor; knows neither nodes nor topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from driveRT_ros.core.frame import Detections

FINGERPRINT = "frame_fingerprint"
"""Wanted like an output: what identifies the result of a frame."""

STAGES = ("decode", "preprocess", "inference", "postprocess", "publish", "total")
"""What ``FrameResult.stage_ms`` holds; ``publish`` and ``total`` grow while messages go out.

Where a GPU decodes, ``decode`` is the time of the host alone; that of the GPU is in ``inference``.
So is what the host does for the next cloud meanwhile, which counts again in the ``decode``,
``preprocess`` and ``total`` of that one: the total of a cloud is all that was done for it.
"""


@dataclass
class FrameResult:
    """Everything about one processed frame.

    Args:
        stamp_ns: Stamp of every message.
        found: Detections, in the frame of the messages.
        messages: Message by output name, those that were wanted, in the order of publishing;
            detections as serialized bytes.
        stage_ms: Milliseconds by stage (:data:`STAGES`).
        left_out: Parts of the frame that were not used, by reason.
        notes: Short keys of what was assumed or went wrong.
        reached: Values of which the greatest are remembered, by name.
        faults: Sentence by kind of fault; the frame has its results nevertheless. Publishing adds
            the outputs that could not be encoded.
        cloud: The PointCloud2 it was made of; None from other sensors.
    """

    stamp_ns: int
    found: Detections
    messages: Mapping[str, Any]
    stage_ms: dict[str, float]
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reached: Mapping[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    cloud: Any = None


class Messages(Mapping[str, Any]):
    """Messages by output name, each made when it is first asked for, and kept.

    Whoever publishes them one after the other sends the first before the second is made.

    Args:
        encoders: What makes each, in the order of publishing.
    """

    def __init__(self, encoders: Mapping[str, Callable[[], Any]]) -> None:
        self._encoders, self._made = encoders, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._encoders[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._encoders  # as Mapping has it, this would make the message

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoders)

    def __len__(self) -> int:
        return len(self._encoders)


class Stopwatch:
    """Milliseconds since the last lap, and since the start."""

    def __init__(self) -> None:
        self._start = self._lap = time.perf_counter()

    def lap_ms(self) -> float:
        """Return the time since the last call."""
        last, self._lap = self._lap, time.perf_counter()
        return (self._lap - last) * 1e3

    def total_ms(self) -> float:
        """Return the time from the start to the last lap."""
        return (self._lap - self._start) * 1e3
