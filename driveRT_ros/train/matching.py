"""Detections against ground truth as the nuScenes detection task counts them: the formulae alone.

Source: the nuScenes detection task (Caesar et al., "nuScenes: a multimodal dataset for autonomous
driving", CVPR 2020, section 3.1, and its configuration ``detection_cvpr_2019``). A detection hits
the nearest ground truth of its class that no better detection has hit, if their centres are less
than a threshold apart on the ground. Precision, confidence and the running means of the errors of
hits are read at 101 levels of recall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.boxes import CENTER, SIZE_LWH, VELOCITY, YAW
from driveRT_ros.core.frame import NUSCENES_CLASSES

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

THRESHOLDS_M = (0.5, 1.0, 2.0, 4.0)
ERROR_THRESHOLD_M = 2.0
"""The threshold at which the errors of hits are taken."""
MIN_RECALL, MIN_PRECISION = 0.1, 0.1
ERRORS = ("trans", "scale", "orient", "vel", "attr")
"""Centre distance (m), 1 - IoU of aligned boxes, heading (rad), velocity (m/s), 1 - accuracy."""
RECALL_LEVELS = np.linspace(0.0, 1.0, 101)
_FIRST = round(100 * MIN_RECALL) + 1


@dataclass(frozen=True, eq=False)
class EvalBoxes:
    """Boxes of one frame in an upright frame (z up), of detections or of ground truth.

    Args:
        boxes: (M, 9) float64, columns as in :mod:`driveRT_ros.core.boxes`; velocity NaN: unknown.
        labels: (M,) int64 index into ``NUSCENES_CLASSES``.
        scores: (M,) float64.
        ranges_m: (M,) float64 distance of the centre from the vehicle, on the ground.
        attributes: M names of the nuScenes attribute; empty where unknown.
        ignored: (M,) bool; an ignored ground truth is neither missed nor found, and a detection at
            it does not count. An ignored detection counts only as a hit.
    """

    boxes: FloatArray
    labels: IntArray
    scores: FloatArray
    ranges_m: FloatArray
    attributes: tuple[str, ...]
    ignored: BoolArray

    def __len__(self) -> int:
        return len(self.boxes)

    def select(self, keep: BoolArray | IntArray) -> EvalBoxes:
        """Return some of the boxes, by mask or by index."""
        index = np.arange(len(self))[keep]
        return EvalBoxes(
            self.boxes[index],
            self.labels[index],
            self.scores[index],
            self.ranges_m[index],
            tuple(self.attributes[i] for i in index),
            self.ignored[index],
        )


@dataclass(frozen=True, eq=False)
class Matches:
    """What became of the detections of one class at one threshold.

    Args:
        scores: (n,) float64 of every detection that counts, frame by frame.
        ranges_m: (n,) float64: that of the ground truth for a hit, else its own.
        errors: (n, 5) float64 in the order of :data:`ERRORS`; NaN for a miss or where unknown.
        hits: (n,) bool.
        truth_ranges_m: (t,) float64 of every ground truth that counts, found or not.
        truth_found: (t,) bool.
    """

    scores: FloatArray
    ranges_m: FloatArray
    errors: FloatArray
    hits: BoolArray
    truth_ranges_m: FloatArray
    truth_found: BoolArray

    @staticmethod
    def joined(parts: Sequence[Matches]) -> Matches:
        """Return the matches of several frames, in their order."""
        if not parts:
            nothing, never = np.zeros(0), np.zeros(0, bool)
            return Matches(nothing, nothing, np.zeros((0, len(ERRORS))), never, nothing, never)
        names = ("scores", "ranges_m", "errors", "hits", "truth_ranges_m", "truth_found")
        return Matches(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))

    def between(self, low_m: float, high_m: float) -> Matches:
        """Return those at a range in [low, high); a hit is where its ground truth is."""
        mine = (self.ranges_m >= low_m) & (self.ranges_m < high_m)
        theirs = (self.truth_ranges_m >= low_m) & (self.truth_ranges_m < high_m)
        return Matches(
            self.scores[mine],
            self.ranges_m[mine],
            self.errors[mine],
            self.hits[mine],
            self.truth_ranges_m[theirs],
            self.truth_found[theirs],
        )


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision and errors at the 101 levels of recall.

    Args:
        precision: (101,) float64, 0 beyond the greatest recall.
        confidence: (101,) float64 score at which that recall is reached, 0 beyond.
        errors: (101, 5) float64 mean errors of all hits with at least that score.
        num_truth: Ground truths.
    """

    precision: FloatArray
    confidence: FloatArray
    errors: FloatArray
    num_truth: int

    @property
    def average_precision(self) -> float:
        """Mean precision above 0.1, scaled to 0..1, over the recalls above 0.1."""
        above = np.maximum(self.precision[_FIRST:] - MIN_PRECISION, 0.0)
        return float(above.mean() / (1.0 - MIN_PRECISION))

    @property
    def max_recall(self) -> float:
        """Greatest level of recall that is reached."""
        return float(RECALL_LEVELS[self._last])

    @property
    def mean_errors(self) -> FloatArray:
        """(5,) errors averaged over the recalls above 0.1 that are reached; 1 where none is."""
        if self._last < _FIRST:
            return np.ones(len(ERRORS))
        return self.errors[_FIRST : self._last + 1].mean(axis=0)

    @property
    def _last(self) -> int:
        reached = np.flatnonzero(self.confidence)
        return int(reached[-1]) if len(reached) else 0


def match(
    found: EvalBoxes, truth: EvalBoxes, label: int, thresholds_m: Sequence[float] = THRESHOLDS_M
) -> list[Matches]:
    """Match the boxes of one class in one frame.

    Args:
        found: Detections.
        truth: Ground truth in the same frame.
        label: The class.
        thresholds_m: Distances below which a detection hits.

    Returns:
        One entry a threshold; detections in the order given.
    """
    found, truth = found.select(found.labels == label), truth.select(truth.labels == label)
    gap = truth.boxes[None, :, :2] - found.boxes[:, None, :2]
    distance = np.hypot(gap[..., 0], gap[..., 1])
    counted = np.flatnonzero(~truth.ignored)
    period = np.pi if _is_barrier(label) else 2 * np.pi
    out = []
    for threshold in thresholds_m:
        partner = _assign(distance[:, counted], ranking(found.scores), threshold)
        hits = partner >= 0
        nearest_ignored = distance[:, truth.ignored].min(axis=1, initial=np.inf)
        kept = hits | ((nearest_ignored >= threshold) & ~found.ignored)
        partner = np.where(hits, counted[partner] if len(counted) else -1, -1)
        errors = np.full((len(found), len(ERRORS)), np.nan)
        errors[hits] = pair_errors(found.select(hits), truth.select(partner[hits]), period)
        ranges = found.ranges_m.copy()
        ranges[hits] = truth.ranges_m[partner[hits]]
        was_found = np.isin(counted, partner[hits])
        out.append(
            Matches(
                found.scores[kept],
                ranges[kept],
                errors[kept],
                hits[kept],
                truth.ranges_m[counted],
                was_found,
            )
        )
    return out


def ranking(scores: FloatArray) -> IntArray:
    """Return the order from best to worst; of equal scores the later one goes first."""
    return np.lexsort((np.arange(len(scores)), scores))[::-1]


def pair_errors(found: EvalBoxes, truth: EvalBoxes, period: float) -> FloatArray:
    """Return the (n, 5) errors of n hits.

    Args:
        found: n detections.
        truth: n ground truths.
        period: Turn after which a box looks the same, in radians.
    """
    gap = (found.boxes - truth.boxes)[:, CENTER]
    sizes = np.maximum(np.stack((found.boxes[:, SIZE_LWH], truth.boxes[:, SIZE_LWH])), 0.0)
    common = sizes.min(axis=0).prod(axis=1)
    union = sizes.prod(axis=2).sum(axis=0) - common
    turn = (truth.boxes[:, YAW] - found.boxes[:, YAW] + period / 2) % period - period / 2
    speed = (found.boxes - truth.boxes)[:, VELOCITY]
    wrong = [
        np.nan if not theirs else float(ours != theirs)
        for ours, theirs in zip(found.attributes, truth.attributes)
    ]
    return np.stack(
        (
            np.hypot(gap[:, 0], gap[:, 1]),
            1.0 - common / np.maximum(union, 1e-12),
            np.abs(turn),
            np.hypot(speed[:, 0], speed[:, 1]),
            np.array(wrong, np.float64).reshape(-1),
        ),
        axis=1,
    )


def curve(matches: Matches) -> Curve:
    """Return precision, confidence and errors over recall."""
    num_truth, order = len(matches.truth_ranges_m), ranking(matches.scores)
    hits, scores = matches.hits[order], matches.scores[order]
    if not num_truth or not hits.any():
        zero = np.zeros(len(RECALL_LEVELS))
        return Curve(zero, zero, np.ones((len(RECALL_LEVELS), len(ERRORS))), num_truth)
    recall, precision = raw_curve(matches)
    precision = np.interp(RECALL_LEVELS, recall, precision, right=0)
    confidence = np.interp(RECALL_LEVELS, recall, scores, right=0)
    # np.interp needs rising places, and confidence falls with recall
    places, known = confidence[::-1], scores[hits][::-1]
    means = [
        np.interp(places, known, _running_mean(column)[::-1])[::-1]
        for column in matches.errors[order][hits].T
    ]
    return Curve(precision, confidence, np.stack(means, axis=1), num_truth)


def raw_curve(matches: Matches) -> tuple[FloatArray, FloatArray]:
    """Return recall and precision after each detection, the best first."""
    hits = matches.hits[ranking(matches.scores)]
    right = np.cumsum(hits)
    return right / max(len(matches.truth_ranges_m), 1), right / np.arange(1, len(hits) + 1)


@dataclass(frozen=True)
class OperatingPoint:
    """What is found where every detection of at least some score counts.

    Args:
        score: That score; NaN where no detection is good enough.
        hits: Ground truths that are found.
        wrong: Detections that are none.
        missed: Ground truths that are not found.
    """

    score: float
    hits: int
    wrong: int
    missed: int

    @property
    def recall(self) -> float:
        """Share of the ground truths that are found; 0 where there is none."""
        return self.hits / max(self.hits + self.missed, 1)

    @property
    def precision(self) -> float:
        """Share of the detections that are right; NaN where there is none."""
        return self.hits / (self.hits + self.wrong) if self.hits + self.wrong else math.nan


def point_at_precision(matches: Matches, precision: float) -> OperatingPoint:
    """Return the point of the greatest recall at a precision of at least this."""
    truths, scores = len(matches.truth_ranges_m), matches.scores[ranking(matches.scores)]
    # Detections of equal scores count together.
    last = np.diff(scores, append=-np.inf) < 0
    enough = np.flatnonzero(last & (raw_curve(matches)[1] >= precision))
    if not len(enough) or not truths:
        return OperatingPoint(math.nan, 0, 0, truths)
    return point_at_score(matches, float(scores[enough[-1]]))


def point_at_score(matches: Matches, score: float) -> OperatingPoint:
    """Return the point of a score that was chosen before."""
    hits = matches.hits[matches.scores >= score]
    found = int(hits.sum())
    return OperatingPoint(score, found, len(hits) - found, len(matches.truth_ranges_m) - found)


def _assign(distance: FloatArray, order: IntArray, threshold_m: float) -> IntArray:
    """Return the ground truth that each detection hits, -1 for none; the best one chooses first."""
    free = np.ones(distance.shape[1], bool)
    partner = np.full(len(distance), -1, np.int64)
    if not distance.size:
        return partner
    for index in order:
        row = np.where(free, distance[index], np.inf)
        nearest = int(row.argmin())
        if row[nearest] < threshold_m:
            partner[index] = nearest
            free[nearest] = False
    return partner


def _running_mean(values: FloatArray) -> FloatArray:
    """Return means of the values so far, without unknown ones; 1 where all are unknown."""
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    count = np.cumsum(known)
    return np.where(count > 0, np.nancumsum(values) / np.maximum(count, 1), 0.0)


def _is_barrier(label: int) -> bool:
    return NUSCENES_CLASSES[label] == "barrier"
