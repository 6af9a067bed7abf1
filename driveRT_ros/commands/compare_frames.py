"""Two recordings frame by frame: what is missing, and the first stage in which they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from driveRT_ros.commands.recorded_frames import (
    FrameKey,
    FrameRecord,
    RecordedFrames,
    frame_name,
)
from driveRT_ros.core.fingerprint import DETECTIONS_MSG, first_difference, in_order, stage_words
from driveRT_ros.io.bag import BagMessage


@dataclass(frozen=True)
class Difference:
    """The first stage in which one frame differs.

    Args:
        key: The frame.
        index: Its place among the frames of the first recording.
        stage: A stage of the fingerprint.
        detail: The two values.
    """

    key: FrameKey
    index: int
    stage: str
    detail: str


@dataclass
class Comparison:
    """What two recordings have in common and what not.

    Args:
        a: The first recording.
        b: The second one.
        compared: Frames in both.
        unequal: First difference of every frame that differs, in order.
        missing_in_a: Frames of ``b`` alone.
        missing_in_b: Frames of ``a`` alone.
        equal_stages: Frames by stage that are equal in it.
        unequal_stages: Frames by stage that differ in it.
        incomparable: Frames in both that have nothing in common to compare.
    """

    a: RecordedFrames
    b: RecordedFrames
    compared: int = 0
    unequal: list[Difference] = field(default_factory=list)
    missing_in_a: list[FrameKey] = field(default_factory=list)
    missing_in_b: list[FrameKey] = field(default_factory=list)
    equal_stages: Counter[str] = field(default_factory=Counter)
    unequal_stages: Counter[str] = field(default_factory=Counter)
    incomparable: list[FrameKey] = field(default_factory=list)

    @property
    def stages(self) -> list[str]:
        """Stages that were compared, in order."""
        return in_order([*self.equal_stages, *self.unequal_stages])

    @property
    def equal(self) -> bool:
        """Whether every frame is in both, and equal."""
        return not (self.unequal or self.missing_in_a or self.missing_in_b or self.incomparable)

    def sentences(self) -> list[str]:
        """Return the verdict, and what else a person should know."""
        if self.equal:
            whole = not (self.a.damage or self.b.damage)
            verdict = "Equal" if whole else "Equal as far as fingerprints and unharmed messages go"
            return [f"{verdict}: {self.compared} frames of {self.a.name} and {self.b.name}."]
        return [f"Different: {text}." for _, text in sorted(self._texts())]

    def _texts(self) -> Iterator[tuple[FrameKey, str]]:
        """Yield the first frame of each kind of difference."""
        if self.unequal:
            first = self.unequal[0]
            yield (
                first.key,
                f"{frame_name(first.index, first.key)}, differs first in its "
                f"{stage_words(first.stage)} ({first.detail}); {len(self.unequal)} of "
                f"{self.compared} frames differ",
            )
        for keys, holder, lacking in (
            (self.missing_in_b, self.a, self.b),
            (self.missing_in_a, self.b, self.a),
        ):
            if keys:
                name = frame_name(holder.index(keys[0]), keys[0])
                yield keys[0], f"{name}, is missing in {lacking.name} ({len(keys)} such frames)"
        if self.incomparable:
            key = self.incomparable[0]
            name = frame_name(self.a.index(key), key)
            yield key, f"{name}, has nothing recorded on both sides ({len(self.incomparable)} such)"


def compare(a: RecordedFrames, b: RecordedFrames) -> Comparison:
    """Compare two recordings by the fingerprints, else by the detections of their frames.

    Where each holds the frames of one node, the names of the nodes do not matter.
    """
    if len(a.nodes) == len(b.nodes) == 1 and a.nodes != b.nodes:
        a, b = _nameless(a), _nameless(b)
    found = Comparison(a, b)
    found.missing_in_b = [key for key in a.frames if key not in b.frames]
    found.missing_in_a = [key for key in b.frames if key not in a.frames]
    places = a.indices()
    for key, mine in a.frames.items():
        if key in b.frames:
            found.compared += 1
            _compare_frame(found, places[key], key, mine, b.frames[key])
    return found


def _nameless(recorded: RecordedFrames) -> RecordedFrames:
    return replace(
        recorded, frames={key._replace(node=""): f for key, f in recorded.frames.items()}
    )


def _compare_frame(
    found: Comparison, index: int, key: FrameKey, mine: FrameRecord, other: FrameRecord
) -> None:
    a, b = mine.stages or {}, other.stages or {}
    stages = [stage for stage in a if stage in b]
    for stage in stages:
        (found.equal_stages if a[stage] == b[stage] else found.unequal_stages)[stage] += 1
    first = first_difference(a, b)
    detail = f"CRC-32 {a[first]:08x} and {b[first]:08x}" if first else ""
    both = mine.detections is not None and other.detections is not None
    if both and DETECTIONS_MSG not in stages:
        fields = message_difference(mine.detections, other.detections)
        (found.unequal_stages if fields else found.equal_stages)[DETECTIONS_MSG] += 1
        if fields and not first:
            first, detail = DETECTIONS_MSG, fields
    elif not stages:
        found.incomparable.append(key)
    if first:
        found.unequal.append(Difference(key, index, first, detail))


def message_difference(a: BagMessage, b: BagMessage) -> str:
    """Return the first field in which two messages differ, with both values, or ""."""
    if a.raw == b.raw:
        return ""
    try:
        return _difference(a.deserialize(), b.deserialize(), "")
    except Exception as error:  # damaged bytes may raise anything
        return f"a message cannot be read: {error}"


def _difference(a: Any, b: Any, path: str) -> str:
    if hasattr(a, "__dataclass_fields__"):
        names = [name for name in a.__dataclass_fields__ if not name.startswith("__")]
        parts = ((getattr(a, n), getattr(b, n), f"{path}.{n}" if path else n) for n in names)
    elif isinstance(a, list | tuple | np.ndarray):
        if len(a) != len(b):
            return f"{path} has {len(a)} and {len(b)} elements"
        parts = ((x, y, f"{path}[{k}]") for k, (x, y) in enumerate(zip(a, b)))
    else:
        nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
        return "" if a == b or nan else f"{path} is {a!r} and {b!r}"
    return next((text for x, y, p in parts if (text := _difference(x, y, p))), "")
