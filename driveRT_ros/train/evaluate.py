"""nuScenes mAP, NDS and errors of hits, by class and by range, frame after frame.

The frames come from anywhere: the simulator, a recording, a data set. Formulae and their source are
in :mod:`driveRT_ros.train.matching`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from driveRT_ros.core.boxes import VELOCITY, transform_boxes
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections, SceneFrame
from driveRT_ros.train.matching import (
    ERROR_THRESHOLD_M,
    ERRORS,
    THRESHOLDS_M,
    BoolArray,
    Curve,
    EvalBoxes,
    FloatArray,
    IntArray,
    Matches,
    curve,
    match,
    recall_at_precision,
)

HELD_OUT_SEED = 1_000_000
"""First seed of simulated scenes that training never uses: it stays below."""

CLASS_RANGE_M = {
    "car": 50.0,
    "truck": 50.0,
    "construction_vehicle": 50.0,
    "bus": 50.0,
    "trailer": 50.0,
    "barrier": 30.0,
    "motorcycle": 40.0,
    "bicycle": 40.0,
    "pedestrian": 40.0,
    "traffic_cone": 30.0,
}
"""Boxes count below this distance from the vehicle, as the nuScenes detection task has it."""

MAX_BOXES = 500
"""Most detections of one frame that the nuScenes detection task takes."""

RANGE_EDGES_M = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)
MOVING_MPS = 0.2
_ATTRIBUTES = {
    **dict.fromkeys(
        ("car", "truck", "construction_vehicle", "bus", "trailer"),
        ("vehicle.parked", "vehicle.moving"),
    ),
    **dict.fromkeys(("motorcycle", "bicycle"), ("cycle.without_rider", "cycle.with_rider")),
    "pedestrian": ("pedestrian.standing", "pedestrian.moving"),
}
_UNDEFINED = {"traffic_cone": ("orient", "vel", "attr"), "barrier": ("vel", "attr")}
_AP_WEIGHT = 5


@dataclasses.dataclass(frozen=True)
class EvalSettings:
    """What counts.

    Args:
        min_points: Ground truth with fewer LiDAR points is left out: neither missed nor found.
            Ground truth without a point does not count in any case, and a detection there is wrong.
        max_range_m: Boxes at this distance from the vehicle or beyond do not count, where the
            range of their class is longer.
    """

    min_points: int = 1
    max_range_m: float = math.inf

    def __post_init__(self) -> None:
        if self.min_points < 1:
            raise ConfigError(f"The least number of points must be 1, got {self.min_points}.")
        if not self.max_range_m > 0:
            raise ConfigError(f"The greatest range must be positive, got {self.max_range_m} m.")

    def range_m(self, name: str) -> float:
        """Return the distance below which boxes of a class count."""
        return min(CLASS_RANGE_M[name], self.max_range_m)


@dataclasses.dataclass(frozen=True, eq=False)
class EvalFrame:
    """The boxes of one frame in its world, or above the ground under the vehicle.

    Args:
        token: Name of the frame; a nuScenes sample token, or one that is made up.
        found: Detections, at most 500, the best ones.
        truth: Ground truth.
    """

    token: str
    found: EvalBoxes
    truth: EvalBoxes


def eval_frame(
    frame: SceneFrame,
    found: Detections,
    token: str,
    *,
    settings: EvalSettings | None = None,
    attributes: Sequence[str] | None = None,
) -> EvalFrame:
    """Return detections and ground truth of one frame as they are compared.

    Boxes are turned into the world where the pose is known, else into the frame of the vehicle:
    distances on the ground must not depend on how the sensor is tilted. The attribute of a
    detection follows from its speed; so does that of a ground truth whose source has none.

    Args:
        frame: With ground truth.
        found: Detections in the frame of its points.
        token: Name of the frame.
        settings: What counts.
        attributes: Annotated attribute of every ground truth, in their order.

    Raises:
        ConfigError: If the frame has no ground truth.
    """
    settings = settings or EvalSettings()
    if frame.ground_truth is None:
        raise ConfigError(f"Frame '{token}' has no ground truth to compare with.")
    ours = upright_boxes(frame, found)
    ours = ours.select(np.sort(np.argsort(-ours.scores, kind="stable")[:MAX_BOXES]))
    theirs = upright_boxes(frame, frame.ground_truth, attributes)
    points = frame.ground_truth.num_points
    if points is not None:
        count = points.numpy()[_usable(frame.ground_truth)]
        theirs = dataclasses.replace(theirs, ignored=count < settings.min_points)
        theirs = theirs.select(count > 0)
    limits = np.array([settings.range_m(name) for name in NUSCENES_CLASSES])
    ours, theirs = (b.select(b.ranges_m < limits[b.labels]) for b in (ours, theirs))
    return EvalFrame(token, ours, theirs)


def without_racks(frame: EvalFrame, racks: FloatArray) -> EvalFrame:
    """Return a frame without the bicycles and motorcycles in bicycle racks, as nuScenes has it.

    Args:
        frame: Boxes in the world.
        racks: (K, 7) x, y, z, l, w, h, yaw in the world.
    """
    ours, theirs = (b.select(~_in_racks(b, racks)) for b in (frame.found, frame.truth))
    return EvalFrame(frame.token, ours, theirs)


def _in_racks(boxes: EvalBoxes, racks: FloatArray) -> BoolArray:
    cycle = np.isin(boxes.labels, [NUSCENES_CLASSES.index(n) for n in ("bicycle", "motorcycle")])
    inside = np.zeros(len(boxes), bool)
    for x, y, z, length, width, height, yaw in racks:
        at = boxes.boxes[:, :3] - (x, y, z)
        ahead = at[:, 0] * math.cos(yaw) + at[:, 1] * math.sin(yaw)
        left = at[:, 1] * math.cos(yaw) - at[:, 0] * math.sin(yaw)
        gaps = np.abs(np.stack((ahead, left, at[:, 2]), axis=1))
        inside |= (gaps <= np.array((length, width, height)) / 2).all(axis=1)
    return cycle & inside


def _usable(boxes: Detections) -> IntArray:
    """Return the indices of boxes with a known class and a place."""
    known = np.array([name in NUSCENES_CLASSES for name in boxes.class_names], bool)
    finite = np.isfinite(boxes.boxes.numpy()[:, :7]).all(axis=1)
    return np.flatnonzero(known[boxes.labels.numpy()] & finite) if len(boxes) else np.zeros(0, int)


def upright_boxes(
    frame: SceneFrame, boxes: Detections, attributes: Sequence[str] | None = None
) -> EvalBoxes:
    """Return boxes in the world where the pose is known, else in the frame of the vehicle.

    Boxes of unknown classes, or without a finite place, are left out.

    Args:
        frame: Where they are.
        boxes: In the frame of its points.
        attributes: Of each box; None takes what its speed suggests.
    """
    T_up_ego = np.eye(4) if frame.T_world_ego is None else frame.T_world_ego
    keep = _usable(boxes)
    names = [boxes.class_names[i] for i in boxes.labels.numpy()[keep]]
    rows = transform_boxes(boxes.boxes[keep].double(), T_up_ego @ frame.T_ego_lidar).numpy()
    speeds = np.hypot(rows[:, VELOCITY][:, 0], rows[:, VELOCITY][:, 1])
    by_speed = [attribute_of(name, speed) for name, speed in zip(names, speeds)]
    return EvalBoxes(
        boxes=rows,
        labels=np.array([NUSCENES_CLASSES.index(name) for name in names], np.int64),
        scores=boxes.scores.numpy()[keep].astype(np.float64),
        ranges_m=np.hypot(*(rows[:, :2] - T_up_ego[:2, 3]).T),
        attributes=tuple(by_speed if attributes is None else (attributes[i] for i in keep)),
        ignored=np.zeros(len(keep), bool),
    )


def attribute_of(name: str, speed_mps: float) -> str:
    """Return the nuScenes attribute that a speed suggests; empty where there is none.

    Args:
        name: Class name.
        speed_mps: Speed over the ground; NaN where unknown.
    """
    if name not in _ATTRIBUTES or math.isnan(speed_mps):
        return ""
    return _ATTRIBUTES[name][int(speed_mps > MOVING_MPS)]


@dataclasses.dataclass(frozen=True)
class Scores:
    """How well one class is detected, everywhere or at some range.

    Args:
        num_truth: Ground truths.
        num_found: Detections of any score.
        ap: Average precision by threshold, in the order of ``THRESHOLDS_M``.
        errors: Mean errors of hits by name; NaN where the class has none by definition.
        recall: Greatest recall within 2 m with at most one false detection a hit.
        score: The least score of a detection at that recall; NaN where there is none.
    """

    num_truth: int
    num_found: int
    ap: tuple[float, ...]
    errors: dict[str, float]
    recall: float
    score: float

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
        knows_velocity: Whether any ground truth has a velocity.
        knows_attributes: Whether any ground truth has an attribute.
    """

    num_frames: int
    classes: tuple[ClassResult, ...]
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
        scores = [1.0 - min(1.0, error) for error in self.errors.values()]
        if any(math.isnan(score) for score in scores) or math.isnan(sum(self.errors.values())):
            return math.nan
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
        shown_score: Least score of a detection in a tally.

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
        classes = []
        for name, parts in zip(NUSCENES_CLASSES, self._parts):
            matches = [Matches.joined(p) for p in parts]
            overall, curves = _scores(name, matches)
            ranges = zip(RANGE_EDGES_M, RANGE_EDGES_M[1:])
            by_range = [_scores(name, [m.between(a, b) for m in matches])[0] for a, b in ranges]
            classes.append(ClassResult(name, overall, tuple(by_range), curves))
        return Evaluation(self.num_frames, tuple(classes), self._velocity, self._attributes)


def _at_least(boxes: EvalBoxes, score: float) -> EvalBoxes:
    sure: BoolArray = boxes.scores >= score
    return boxes.select(sure)


def _scores(name: str, matches: Sequence[Matches]) -> tuple[Scores, tuple[Curve, ...]]:
    """Return the scores of one class from its matches at each threshold, and the curves."""
    curves = tuple(curve(m) for m in matches)
    at = THRESHOLDS_M.index(ERROR_THRESHOLD_M)
    errors = dict(zip(ERRORS, map(float, curves[at].mean_errors)))
    errors |= dict.fromkeys(_UNDEFINED.get(name, ()), math.nan)
    recall, score = recall_at_precision(matches[at], 0.5)
    truth, found = len(matches[at].truth_ranges_m), len(matches[at].scores)
    ap = tuple(c.average_precision for c in curves)
    return Scores(truth, found, ap, errors, recall, score), curves
