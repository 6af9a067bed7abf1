"""nuScenes mAP, NDS and errors of hits, by class and by range, frame after frame.

The frames come from anywhere: the simulator, a recording, a data set. Formulae and their source are
in :mod:`driveRT_ros.train.matching`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from driveRT_ros.core.boxes import VELOCITY
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.train.config import FIRST_TRAINING_SEED
from driveRT_ros.train.eval_boxes import EvalFrame
from driveRT_ros.train.matching import (
    ERROR_THRESHOLD_M,
    ERRORS,
    THRESHOLDS_M,
    BoolArray,
    Curve,
    EvalBoxes,
    Matches,
    OperatingPoint,
    curve,
    match,
    point_at_precision,
    point_at_score,
)

HELD_OUT_SEED = FIRST_TRAINING_SEED - 100_000
"""First seed of simulated scenes to evaluate on."""

RANGE_EDGES_M = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)
_UNDEFINED = {"traffic_cone": ("orient", "vel", "attr"), "barrier": ("vel", "attr")}
_AP_WEIGHT = 5
_AT = THRESHOLDS_M.index(ERROR_THRESHOLD_M)
_ENOUGH = 0.5
"""Precision of an operating point: at most one wrong detection a hit."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """How well one class is detected, everywhere or at some range.

    Args:
        num_truth: Ground truths.
        num_found: Detections of any score.
        ap: Average precision by threshold, in the order of ``THRESHOLDS_M``.
        errors: Mean errors of hits by name; NaN where the class has none by definition.
        best: At the least score with at most one wrong detection a hit, within 2 m. The score is
            chosen on these very frames, for each class and range anew.
        fixed: At the score that was asked for, within 2 m.
    """

    num_truth: int
    num_found: int
    ap: tuple[float, ...]
    errors: dict[str, float]
    best: OperatingPoint
    fixed: OperatingPoint

    @property
    def mean_ap(self) -> float:
        """Average precision, averaged over the thresholds."""
        return float(np.mean(self.ap))


@dataclasses.dataclass(frozen=True, eq=False)
class ClassResult:
    """One class.

    Args:
        name: Class name.
        overall: At any range.
        by_range: Between the neighbours of ``RANGE_EDGES_M``.
        curves: One a threshold.
    """

    name: str
    overall: Scores
    by_range: tuple[Scores, ...]
    curves: tuple[Curve, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """All classes over all frames.

    Args:
        num_frames: Frames compared.
        classes: In the order of ``NUSCENES_CLASSES``.
        best: Of all classes together, as that of one class; one score for all.
        fixed: Likewise.
        knows_velocity: Whether any ground truth has a velocity.
        knows_attributes: Whether any ground truth has an attribute.
    """

    num_frames: int
    classes: tuple[ClassResult, ...]
    best: OperatingPoint
    fixed: OperatingPoint
    knows_velocity: bool
    knows_attributes: bool

    @property
    def mean_ap(self) -> float:
        """nuScenes mAP: over ten classes and four thresholds; a class without truth counts 0."""
        return float(np.mean([c.overall.mean_ap for c in self.classes]))

    @property
    def mean_ap_present(self) -> float:
        """The same over the classes that have ground truth; NaN where none has."""
        present = [c.overall.mean_ap for c in self.classes if c.overall.num_truth]
        return float(np.mean(present)) if present else math.nan

    @property
    def errors(self) -> dict[str, float]:
        """Errors averaged over the classes that have them; NaN where the truth does not tell."""
        return self._mean_errors(self.classes)

    @property
    def errors_present(self) -> dict[str, float]:
        """The same over the classes that have ground truth."""
        return self._mean_errors([c for c in self.classes if c.overall.num_truth])

    @property
    def nds(self) -> float:
        """nuScenes detection score; NaN where velocity or attributes are unknown."""
        errors = list(self.errors.values())
        if any(map(math.isnan, errors)):
            return math.nan
        scores = [1.0 - min(1.0, error) for error in errors]
        return (_AP_WEIGHT * self.mean_ap + sum(scores)) / (_AP_WEIGHT + len(scores))

    def _mean_errors(self, classes: Sequence[ClassResult]) -> dict[str, float]:
        unknown = {"vel": not self.knows_velocity, "attr": not self.knows_attributes}
        out = {}
        for name in ERRORS:
            values = np.array([c.overall.errors[name] for c in classes])
            some = len(values) and not np.isnan(values).all() and not unknown.get(name, False)
            out[name] = float(np.nanmean(values)) if some else math.nan
        return out


@dataclasses.dataclass(frozen=True)
class Tally:
    """How one frame went at 2 m.

    Args:
        hits: Ground truths that are found.
        missed: Ground truths that are not.
        wrong: Detections that are none, of a score of at least that asked for.
    """

    hits: int
    missed: int
    wrong: int


class Evaluator:
    """Compare frames one after the other; only scores and errors are kept.

    Args:
        shown_score: Least score of a detection in a tally, and at the fixed operating point.

    Attributes:
        num_frames: Frames so far.
    """

    def __init__(self, shown_score: float = 0.3) -> None:
        self._shown_score = shown_score
        self._parts: list[list[list[Matches]]] = [
            [[] for _ in THRESHOLDS_M] for _ in NUSCENES_CLASSES
        ]
        self.num_frames = 0
        self._velocity = self._attributes = False

    def add(self, frame: EvalFrame) -> Tally:
        """Take one frame and say how it went."""
        hits = missed = wrong = 0
        for label in range(len(NUSCENES_CLASSES)):
            found = match(frame.found, frame.truth, label)
            for parts, part in zip(self._parts[label], found):
                parts.append(part)
            shown = match(_at_least(frame.found, self._shown_score), frame.truth, label, (2.0,))[0]
            hits += int(shown.truth_found.sum())
            missed += int((~shown.truth_found).sum())
            wrong += int((~shown.hits).sum())
        self.num_frames += 1
        counted = ~frame.truth.ignored
        self._velocity |= bool(np.isfinite(frame.truth.boxes[counted][:, VELOCITY]).any())
        self._attributes |= any(frame.truth.attributes)
        return Tally(hits, missed, wrong)

    def result(self) -> Evaluation:
        """Return what all frames so far give.

        Raises:
            ConfigError: If there was none.
        """
        if not self.num_frames:
            raise ConfigError("No frame with ground truth was compared; there is nothing to say.")
        classes, least = [], self._shown_score
        for name, parts in zip(NUSCENES_CLASSES, self._parts):
            matches = [Matches.joined(p) for p in parts]
            overall, curves = _scores(name, matches, least)
            ranges = zip(RANGE_EDGES_M, RANGE_EDGES_M[1:])
            near = ([m.between(a, b) for m in matches] for a, b in ranges)
            by_range = tuple(_scores(name, some, least)[0] for some in near)
            classes.append(ClassResult(name, overall, by_range, curves))
        every = Matches.joined([m for parts in self._parts for m in parts[_AT]])
        return Evaluation(
            self.num_frames,
            tuple(classes),
            point_at_precision(every, _ENOUGH),
            point_at_score(every, least),
            self._velocity,
            self._attributes,
        )


def _at_least(boxes: EvalBoxes, score: float) -> EvalBoxes:
    sure: BoolArray = boxes.scores >= score
    return boxes.select(sure)


def _scores(
    name: str, matches: Sequence[Matches], score: float
) -> tuple[Scores, tuple[Curve, ...]]:
    """Return the scores of one class from its matches at each threshold, and the curves."""
    curves = tuple(curve(m) for m in matches)
    near = matches[_AT]
    errors = dict(zip(ERRORS, map(float, curves[_AT].mean_errors)))
    errors |= dict.fromkeys(_UNDEFINED.get(name, ()), math.nan)
    scores = Scores(
        num_truth=len(near.truth_ranges_m),
        num_found=len(near.scores),
        ap=tuple(c.average_precision for c in curves),
        errors=errors,
        best=point_at_precision(near, _ENOUGH),
        fixed=point_at_score(near, score),
    )
    return scores, curves
