"""Does a precision find what float32 finds? Features stage by stage, boxes, average precision.

Nothing here knows a GPU: both precisions are given as something that makes features and something
that detects. ``core/gpu/stage_rows.py`` makes the features of the CUDA engine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.qualify_boxes import BoxTally, tally_boxes

Told = Callable[[str], None]
"""Called after each frame with its name."""
Detect = Callable[[torch.Tensor], Detections]
"""Boxes on the CPU for (N, 5) float32 points on the CPU."""


class Frame(Protocol):
    """One cloud to compare on."""

    @property
    def name(self) -> str:
        """Short name."""
        ...

    @property
    def points(self) -> torch.Tensor:
        """(N, 5) float32 x, y, z, intensity, time lag."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class StageRows:
    """Features of one stage.

    Args:
        coords_zyx: (N, 3) cells, in the order of the rows.
        features: (N, C).
    """

    coords_zyx: torch.Tensor
    features: torch.Tensor


Stages = Callable[[torch.Tensor], Mapping[str, StageRows]]
"""Rows by stage for points, valid until the next call; InvalidFrame where they do not fit."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a precision may do to the result.

    Args:
        feature_error: Largest error of a feature, of the largest feature of its stage and frame.
        center_m: Centres of matched boxes are at most so far apart.
        score: Scores of matched boxes differ by at most this; so far from a threshold, or from the
            score of an overlapping box, rounding decides.
        matched: Least share of boxes, of both precisions, with a partner in the other.
        agreeing: Least share that have one, or about which rounding decides.
        map_drop: Average precision that may be lost on scenes with ground truth.
    """

    feature_error: float = 0.02
    center_m: float = 0.1
    score: float = 0.03
    matched: float = 0.9
    agreeing: float = 0.98
    map_drop: float = 0.01

    def __post_init__(self) -> None:
        """Refuse what is negative or no number, and shares above 1."""
        for name, value in vars(self).items():
            if not 0 <= value < math.inf or (name in ("matched", "agreeing") and value > 1):
                wanted = "a share, 0 <= x <= 1" if name in ("matched", "agreeing") else "0 or more"
                raise ConfigError(f"Limit '{name}' must be {wanted}, got {value}.")


@dataclasses.dataclass(frozen=True)
class StageError:
    """How far the features of one stage are off.

    Args:
        largest: Largest difference, of the largest feature of its frame: the worst frame.
        rms: Root mean square of the differences, of that of the features: all frames.
    """

    largest: float
    rms: float


@dataclasses.dataclass(frozen=True)
class MeanAp:
    """Mean average precision on scenes with ground truth, over the classes that they have.

    Args:
        fp32: Of the reference.
        found: Of the precision in question.
        scenes: How many.
    """

    fp32: float
    found: float
    scenes: int


@dataclasses.dataclass(frozen=True)
class Figures:
    """All that was measured of one precision.

    Args:
        frames: Names of the frames compared.
        stages: Error by stage.
        boxes: Detections of all frames.
        mean_ap: None where the weights are not trained, or it was not asked for.
        left_out: Why a frame was not compared, by name.
    """

    frames: tuple[str, ...]
    stages: Mapping[str, StageError]
    boxes: BoxTally
    mean_ap: MeanAp | None = None
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def faults(self, limits: Limits) -> tuple[str, ...]:
        """Return what exceeds its limit, one phrase each; nothing where the precision passes."""
        out = []
        name, worst = max(self.stages.items(), key=lambda stage: stage[1].largest)
        if not worst.largest <= limits.feature_error:
            out.append(
                f"features of '{name}' are off by {worst.largest:.1e} of the largest one, "
                f"{limits.feature_error:.1e} is allowed"
            )
        boxes = self.boxes
        counts = f"{boxes.wanted} + {boxes.got} boxes"
        if not boxes.wanted + boxes.got:
            out.append("no frame has a detection, so that none could be compared")
        if not boxes.matched_share >= limits.matched:
            out.append(
                f"{100 * boxes.matched_share:.1f} % of {counts} have their like in the other "
                f"precision, {100 * limits.matched:.1f} % are needed"
            )
        if not boxes.agreeing_share >= limits.agreeing:
            out.append(
                f"{100 * boxes.agreeing_share:.1f} % of {counts} have it or lack it by rounding "
                f"alone, {100 * limits.agreeing:.1f} % are needed"
            )
        if self.mean_ap is not None:
            drop = self.mean_ap.fp32 - self.mean_ap.found
            if not drop <= limits.map_drop:
                out.append(
                    f"mAP falls from {self.mean_ap.fp32:.3f} to {self.mean_ap.found:.3f}, a drop "
                    f"of {limits.map_drop:.3f} is allowed"
                )
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what is not finite is None."""
        return {
            "frames": list(self.frames),
            "left_out": dict(self.left_out),
            "features": {
                name: {key: _finite(value) for key, value in dataclasses.asdict(stage).items()}
                for name, stage in self.stages.items()
            },
            "boxes": self.boxes.to_json(),
            "mean_ap": None if self.mean_ap is None else dataclasses.asdict(self.mean_ap),
        }


def compare_stages(
    reference: Stages, found: Stages, frames: Sequence[Frame], told: Told = lambda name: None
) -> tuple[dict[str, StageError], list[Frame], dict[str, str]]:
    """Compare the features of two precisions.

    Args:
        reference: Float32 or better.
        found: The precision in question.
        frames: What both get.
        told: See :data:`Told`.

    Returns:
        Errors by stage, in their order; the frames compared; why a frame was left out, by name.

    Raises:
        ConfigError: If no frame could be compared.
    """
    largest: dict[str, float] = {}
    squares: dict[str, tuple[float, float]] = {}
    used: list[Frame] = []
    left_out: dict[str, str] = {}
    for frame in frames:
        try:
            want, got = reference(frame.points), found(frame.points)
        except InvalidFrame as error:
            left_out[frame.name] = str(error)
        else:
            used.append(frame)
            for name, rows in want.items():
                worst, off, size = _difference(rows, got[name])
                largest[name] = max(largest.get(name, 0.0), worst)
                before = squares.get(name, (0.0, 0.0))
                squares[name] = (before[0] + off, before[1] + size)
        told(frame.name)
    if not used:
        raise ConfigError(f"None of {len(frames)} frames can be compared: {left_out}.")
    errors = {
        name: StageError(largest[name], math.sqrt(off / size) if size else math.sqrt(off))
        for name, (off, size) in squares.items()
    }
    return errors, used, left_out


def _difference(want: StageRows, got: StageRows) -> tuple[float, float, float]:
    """Return the largest relative error, and sums of squares of the differences and features.

    Other rows, and features that are not finite, are an infinite error.
    """
    if not torch.equal(want.coords_zyx, got.coords_zyx):
        return math.inf, math.inf, 1.0
    if not want.features.numel():
        return 0.0, 0.0, 0.0
    exact = want.features.double()
    off = (got.features.double() - exact).abs()
    worst = float(off.max())
    if not math.isfinite(worst):
        return math.inf, math.inf, 1.0
    largest = float(exact.abs().max()) or 1.0
    return worst / largest, float(off.square().sum()), float(exact.square().sum())


def compare_detections(
    reference: Detect,
    found: Detect,
    frames: Sequence[Frame],
    config: LidarConfig,
    limits: Limits,
    told: Told = lambda name: None,
) -> BoxTally:
    """Compare the boxes of two precisions.

    Args:
        reference: Float32 or better.
        found: The precision in question.
        frames: What both get.
        config: Thresholds and heads of both.
        limits: How close is the same.
        told: See :data:`Told`.
    """
    total = BoxTally()
    for frame in frames:
        want, got = reference(frame.points), found(frame.points)
        total += tally_boxes(want, got, config, limits.center_m, limits.score)
        told(frame.name)
    return total


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) else None
