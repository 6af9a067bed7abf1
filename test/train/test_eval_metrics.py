"""Average precision, errors and NDS: by hand, by construction, and against nuscenes-devkit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections
from driveRT_ros.train.eval_boxes import EvalSettings, attribute_of, eval_frame, without_racks
from driveRT_ros.train.evaluate import Evaluation, Evaluator
from driveRT_ros.train.matching import (
    ERRORS,
    RECALL_LEVELS,
    THRESHOLDS_M,
    Matches,
    OperatingPoint,
    curve,
    match,
    point_at_precision,
    point_at_score,
)
from test.support.evaluation import (
    LABEL,
    boxes_of,
    devkit_boxes,
    drawn_boxes,
    frame_of,
    joined,
    noisy,
)

CAR = LABEL["car"]


def evaluated(*pairs: tuple[Detections, Detections], **settings: float) -> Evaluation:
    """Return what pairs of detections and ground truth give, a frame each."""
    evaluator = Evaluator()
    for number, (found, truth) in enumerate(pairs):
        frame = eval_frame(frame_of(truth), found, str(number), settings=EvalSettings(**settings))
        evaluator.add(frame)
    return evaluator.result()


def car_of(evaluation: Evaluation):
    return evaluation.classes[CAR].overall


def scattered(count: int, name: str = "car") -> Detections:
    """Return objects 8 m apart, the nearest first, moving at their own speeds."""
    places = [(8.0 * i, 8.0 * j) for i in range(-4, 5) for j in range(-4, 5) if i or j]
    places.sort(key=lambda xy: math.hypot(*xy))
    rng = np.random.default_rng(0)
    rows = [(*places[k], 0.0, 4.0, 2.0, 1.5, 0.1 * k, *rng.normal(0, 5, 2)) for k in range(count)]
    return boxes_of(rows, name)


def test_perfect_detections_give_one_everywhere() -> None:
    truth = joined(*(scattered(6, name) for name in NUSCENES_CLASSES))
    result = evaluated((truth, truth))
    assert result.mean_ap == pytest.approx(1.0)
    assert result.nds == pytest.approx(1.0)
    assert all(error == pytest.approx(0.0) for error in result.errors.values())


def test_detections_three_metres_beside_hit_at_four_metres_only() -> None:
    truth = scattered(40)
    beside = boxes_of(truth.boxes.tolist())
    beside.boxes[:, 0] += 3.0
    scores = car_of(evaluated((beside, truth)))
    assert scores.ap[:3] == (0.0, 0.0, 0.0) and scores.ap[3] == pytest.approx(1.0)
    assert scores.errors["trans"] == 1.0  # nothing is hit at 2 m
    beside.boxes[:, 0] += 1.0  # 4 m from the next ones, too
    assert car_of(evaluated((beside, truth))).mean_ap == 0.0


def test_errors_are_what_was_put_in() -> None:
    truth = scattered(40)
    found = boxes_of(truth.boxes.tolist())
    found.boxes[:, 1] += 0.3
    found.boxes[:, 3] *= 0.5  # half as long: the common volume is half of the union
    found.boxes[:, 6] += 2 * math.pi - 0.2
    found.boxes[:, 7] += 0.6
    found.boxes[:, 8] -= 0.8
    errors = car_of(evaluated((found, truth))).errors
    wanted = {"trans": 0.3, "scale": 0.5, "orient": 0.2, "vel": 1.0}
    assert {name: errors[name] for name in wanted} == pytest.approx(wanted, abs=1e-5)


def test_noise_on_the_ground_truth_gives_the_share_of_hits_as_average_precision() -> None:
    truth, rng = scattered(80), np.random.default_rng(1)
    found = boxes_of(truth.boxes.tolist(), scores=(0.5 + rng.random(80) / 4).tolist())
    gap = rng.normal(0, 1.0, (80, 2)).astype(np.float32)
    found.boxes[:, :2] += torch.from_numpy(gap.clip(-2.5, 2.5))
    scores = car_of(evaluated((found, truth)))
    for threshold, ap in zip(THRESHOLDS_M, scores.ap):
        share = (np.hypot(*gap.clip(-2.5, 2.5).T) < threshold).mean()
        # hits and misses are mixed evenly over the scores: precision stays at the share of hits,
        # up to a recall of that share
        expected = max(share - 0.1, 0) / 0.9 * max(share - 0.1, 0) / 0.9
        assert ap == pytest.approx(expected, abs=0.12), threshold


def test_two_hits_and_a_miss_by_hand() -> None:
    # Scores 0.9 (hit), 0.8 (miss), 0.7 (hit) at two objects: recall 0.5, 0.5, 1 at precision
    # 1, 1/2, 2/3. Between recall 0.5 and 1 precision rises in a line from 1/2 to 2/3.
    truth = boxes_of([(0, 10), (0, 20)])
    found = boxes_of([(0, 10), (0, 30), (0, 20)], scores=[0.9, 0.8, 0.7])
    frame = eval_frame(frame_of(truth), found, "x")
    (matches,) = match(frame.found, frame.truth, CAR, (2.0,))
    ours = curve(matches)
    assert ours.precision[:50] == pytest.approx(1.0)
    assert ours.precision[50:] == pytest.approx(np.linspace(1 / 2, 2 / 3, 51))
    low, high = 39 * 0.9, (np.linspace(1 / 2, 2 / 3, 51) - 0.1).sum()
    assert ours.average_precision == pytest.approx((low + high) / 90 / 0.9)
    assert ours.max_recall == 1.0
    scores = matches.scores
    assert point_at_precision(matches, 0.5) == OperatingPoint(scores[2], 2, wrong=1, missed=0)
    assert point_at_precision(matches, 0.9) == OperatingPoint(scores[0], 1, wrong=0, missed=1)
    fixed = point_at_score(matches, 0.75)
    assert fixed == OperatingPoint(0.75, hits=1, wrong=1, missed=1)
    assert (fixed.recall, fixed.precision) == (0.5, 0.5)


def test_the_best_score_is_the_least_one_with_no_more_wrong_than_right_detections() -> None:
    """A strict reading would stop at the first wrong detection, and lose what comes after it."""
    truth = boxes_of([(0, 10), (0, 20), (0, 30)])
    places = [(20, 0), (0, 10), (20, 10), (0, 20), (20, 20), (20, 30), (0, 30)]
    found = boxes_of(places, scores=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    best = car_of(evaluated((found, truth))).best
    assert (best.hits, best.wrong, best.missed) == (2, 2, 1) and best.score == pytest.approx(0.6)
    assert evaluated((found, truth)).best == best  # cars are all there is


def test_detections_of_equal_scores_count_together() -> None:
    """A point that took only the first of them could not be had by any choice of score."""
    truth = boxes_of([(0, 10), (0, 20)])
    found = boxes_of([(20, 0), (20, 10), (20, 20), (0, 20), (0, 10)], scores=[0.5] * 4 + [0.9])
    best = car_of(evaluated((found, truth))).best
    assert (best.hits, best.wrong, best.missed) == (1, 0, 1) and best.score == pytest.approx(0.9)


def test_all_classes_together_have_one_score_and_hits_stay_within_their_class() -> None:
    truth = joined(boxes_of([(0, 10)]), boxes_of([(0, 20)], "truck"))
    found = joined(
        boxes_of([(0, 10), (0, 20)], scores=[0.9, 0.6]), boxes_of([(0, 20)], "truck", scores=[0.5])
    )
    result = evaluated((found, truth))
    assert (result.best.hits, result.best.wrong, result.best.missed) == (2, 1, 0)
    assert result.best.score == pytest.approx(0.5)
    assert (result.fixed.score, result.fixed.hits, result.fixed.wrong) == (0.3, 2, 1)


def test_every_box_counts_where_asked_for() -> None:
    truth = boxes_of([(0, 10), (0, 20), (0, 90)], num_points=[0, 3, 1])
    result = evaluated((truth, truth))
    assert (car_of(result).num_truth, car_of(result).best.wrong) == (1, 1)
    every = evaluated((truth, truth), every_box=True)
    assert (car_of(every).num_truth, every.best.hits, every.best.wrong) == (3, 3, 0)
    for settings in ({"min_points": 2}, {"max_range_m": 30.0}):
        with pytest.raises(ConfigError, match="every box counts"):
            EvalSettings(every_box=True, **settings)


def test_the_better_detection_takes_the_object_and_the_other_one_is_wrong() -> None:
    frame = eval_frame(
        frame_of(boxes_of([(0, 10)])), boxes_of([(0, 10), (0.4, 10)], scores=[0.5, 0.6]), "x"
    )
    (matches,) = match(frame.found, frame.truth, CAR, (2.0,))
    assert matches.hits.tolist() == [False, True]
    assert matches.errors[1, 0] == pytest.approx(0.4) and np.isnan(matches.errors[0]).all()


def test_a_distance_equal_to_the_threshold_is_no_hit() -> None:
    frame = eval_frame(frame_of(boxes_of([(0, 10)])), boxes_of([(2, 10)]), "x")
    assert [m.hits.tolist() for m in match(frame.found, frame.truth, CAR)] == [
        [False],
        [False],
        [False],
        [True],
    ]


def test_a_hit_across_the_border_of_two_ranges_counts_where_the_object_is() -> None:
    result = evaluated((boxes_of([(0, 10.5)]), boxes_of([(0, 9.5)])))
    near, next_one = result.classes[CAR].by_range[:2]
    assert (near.num_truth, near.num_found, near.ap[3]) == (1, 1, pytest.approx(1.0))
    assert (next_one.num_truth, next_one.num_found) == (0, 0)


def test_ranges_add_up_to_the_whole() -> None:
    truth = scattered(70)
    result = evaluated((noisy(np.random.default_rng(2), truth), truth))
    cars = result.classes[CAR]
    assert sum(s.num_truth for s in cars.by_range) == cars.overall.num_truth > 60
    assert sum(s.num_found for s in cars.by_range) == cars.overall.num_found


def test_boxes_beyond_the_range_of_their_class_do_not_count() -> None:
    truth = joined(boxes_of([(0, 49), (0, 51)]), boxes_of([(0, 39), (0, 41)], "pedestrian"))
    result = evaluated((truth, truth))
    assert car_of(result).num_truth == car_of(result).num_found == 1
    assert result.classes[LABEL["pedestrian"]].overall.num_truth == 1
    assert car_of(evaluated((truth, truth), max_range_m=45.0)).num_truth == 0


def test_the_range_is_measured_from_the_vehicle_in_the_world() -> None:
    pose = np.eye(4)
    pose[:2, 3] = 1000.0, -500.0
    truth = boxes_of([(0, 49)])
    frame = eval_frame(frame_of(truth, T_world_ego=pose), truth, "x")
    assert frame.truth.ranges_m == pytest.approx([49.0])
    assert frame.truth.boxes[0, :2] == pytest.approx([1000.0, -451.0])


def test_ground_truth_without_points_makes_a_detection_there_wrong() -> None:
    truth = boxes_of([(0, 10), (0, 20)], num_points=[5, 0])
    scores = car_of(evaluated((boxes_of([(0, 10), (0, 20)]), truth)))
    assert (scores.num_truth, scores.num_found) == (1, 2)


def test_ground_truth_with_too_few_points_is_neither_missed_nor_found() -> None:
    truth = boxes_of([(0, 10), (0, 20)], num_points=[50, 5])
    scores = car_of(evaluated((boxes_of([(0, 10), (0, 20)]), truth), min_points=10))
    assert (scores.num_truth, scores.num_found, scores.mean_ap) == (1, 1, pytest.approx(1.0))
    scores = car_of(evaluated((boxes_of([(0, 10)]), truth), min_points=10))
    assert (scores.num_truth, scores.mean_ap) == (1, pytest.approx(1.0))


def test_a_barrier_turned_around_is_the_same_barrier_and_a_cone_has_no_heading() -> None:
    def errors(name: str) -> dict[str, float]:
        truth = scattered(10, name)
        found = boxes_of(truth.boxes.tolist(), name)
        found.boxes[:, 6] += math.pi
        return evaluated((found, truth)).classes[LABEL[name]].overall.errors

    assert errors("barrier")["orient"] == pytest.approx(0.0, abs=1e-5)
    assert errors("car")["orient"] == pytest.approx(math.pi, abs=1e-5)
    assert math.isnan(errors("traffic_cone")["orient"]) and math.isnan(errors("barrier")["vel"])


def test_where_velocity_is_unknown_there_is_no_nds() -> None:
    truth = boxes_of([(0, 10, 0, 4, 2, 1.5, 0, math.nan, math.nan)])
    result = evaluated((truth, truth))
    assert math.isnan(result.errors["vel"]) and math.isnan(result.errors["attr"])
    assert math.isnan(result.nds)
    assert result.mean_ap == pytest.approx(0.1) and result.mean_ap_present == pytest.approx(1.0)


def test_no_detections_give_zero_and_no_frames_are_refused() -> None:
    result = evaluated((Detections.empty(), scattered(3)))
    assert result.mean_ap == 0.0 and result.nds == 0.0
    best = car_of(result).best
    assert math.isnan(best.score) and best.recall == 0.0 and math.isnan(best.precision)
    assert (best.hits, best.missed) == (0, 3)
    with pytest.raises(ConfigError, match="No frame with ground truth"):
        Evaluator().result()
    with pytest.raises(ConfigError, match="'x' has no ground truth"):
        eval_frame(frame_of(None), Detections.empty(), "x")


def test_speeds_suggest_attributes() -> None:
    assert attribute_of("car", 5.0) == "vehicle.moving"
    assert attribute_of("bicycle", 0.0) == "cycle.without_rider"
    assert attribute_of("pedestrian", 0.1) == "pedestrian.standing"
    assert attribute_of("barrier", 0.0) == "" and attribute_of("car", math.nan) == ""


def test_bicycles_in_a_rack_do_not_count() -> None:
    truth = joined(boxes_of([(0, 10), (0, 20)], "bicycle"), boxes_of([(1, 10)]))
    frame = eval_frame(frame_of(truth), truth, "x")
    racks = np.array([[0.0, 10.0, 0.0, 6.0, 1.0, 2.0, math.pi / 2]])
    left = without_racks(frame, racks)
    assert left.truth.boxes[:, 1].tolist() == left.found.boxes[:, 1].tolist() == [20.0, 10.0]


def test_a_tally_says_how_a_frame_went() -> None:
    truth = boxes_of([(0, 10), (0, 20), (0, 30)])
    found = boxes_of([(0, 10), (0, 40), (5, 5)], scores=[0.9, 0.5, 0.1])
    tally = Evaluator(0.3).add(eval_frame(frame_of(truth), found, "x"))
    assert (tally.hits, tally.missed, tally.wrong) == (1, 2, 1)


def test_curves_agree_with_nuscenes_devkit() -> None:
    algo = pytest.importorskip("nuscenes.eval.detection.algo", reason="nuscenes-devkit is absent")
    from nuscenes.eval.common.data_classes import EvalBoxes as DevkitBoxes
    from nuscenes.eval.common.utils import center_distance
    from nuscenes.eval.detection.data_classes import DetectionBox

    rng = np.random.default_rng(3)
    truths, founds, frames = DevkitBoxes(), DevkitBoxes(), []
    for number in range(12):
        truth = drawn_boxes(rng, 150)
        frame = eval_frame(frame_of(truth), noisy(rng, truth), str(number))
        frames.append(frame)
        truths.add_boxes(frame.token, devkit_boxes(frame.token, frame.truth, DetectionBox))
        founds.add_boxes(frame.token, devkit_boxes(frame.token, frame.found, DetectionBox))
    for label, name in enumerate(NUSCENES_CLASSES):
        parts = [match(f.found, f.truth, label) for f in frames]
        for at, threshold in enumerate(THRESHOLDS_M):
            theirs = algo.accumulate(truths, founds, name, center_distance, threshold)
            ours = curve(Matches.joined([p[at] for p in parts]))
            assert ours.average_precision == pytest.approx(algo.calc_ap(theirs, 0.1, 0.1))
            assert ours.precision == pytest.approx(theirs.precision)
            assert theirs.recall == pytest.approx(RECALL_LEVELS)
            for column, error in enumerate(ERRORS):
                wanted = algo.calc_tp(theirs, 0.1, f"{error}_err")
                assert ours.mean_errors[column] == pytest.approx(wanted, nan_ok=True), error


def test_map_and_nds_agree_with_nuscenes_devkit() -> None:
    module = "nuscenes.eval.detection.evaluate"
    devkit = pytest.importorskip(module, reason="nuscenes-devkit is absent")
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.common.data_classes import EvalBoxes as DevkitBoxes

    rng, evaluator = np.random.default_rng(4), Evaluator()
    theirs = object.__new__(devkit.DetectionEval)  # without a data set: boxes are given
    theirs.cfg, theirs.verbose = config_factory("detection_cvpr_2019"), False
    theirs.gt_boxes, theirs.pred_boxes = DevkitBoxes(), DevkitBoxes()
    for number in range(6):
        truth = drawn_boxes(rng, 200)
        frame = eval_frame(frame_of(truth), noisy(rng, truth), str(number))
        evaluator.add(frame)
        for side, boxes in ((theirs.gt_boxes, frame.truth), (theirs.pred_boxes, frame.found)):
            side.add_boxes(frame.token, devkit_boxes(frame.token, boxes, devkit.DetectionBox))
    metrics, _ = theirs.evaluate()
    ours = evaluator.result()
    assert ours.mean_ap == pytest.approx(metrics.mean_ap)
    assert ours.nds == pytest.approx(metrics.nd_score)
    for name, error in ours.errors.items():
        assert error == pytest.approx(metrics.tp_errors[f"{name}_err"]), name
