"""Two precisions compared: features by stage, boxes one by one, and what exceeds its limit."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.plan import default_plan
from driveRT_ros.core.qualify import (
    Figures,
    Limits,
    MeanAp,
    StageError,
    StageRows,
    compare_detections,
    compare_stages,
)
from driveRT_ros.core.qualify_boxes import BoxTally, tally_boxes
from driveRT_ros.core.verdict import Verdict
from driveRT_ros.models.voxelnext import untrained_weights
from test.support.engine import street

CONFIG = LidarConfig()
NAMES = CONFIG.model.class_names
CAR, TRUCK, CRANE, PEDESTRIAN = 0, 1, 2, 8


def frames(*names: str):
    return [
        SimpleNamespace(name=name, points=torch.full((3, 5), float(len(name)))) for name in names
    ]


# ---- features -----------------------------------------------------------------------------------


def rows(factor: float = 1.0, count: int = 8) -> dict[str, StageRows]:
    coords = torch.arange(3 * count).view(count, 3)
    features = torch.arange(2.0 * count).view(count, 2) - 3
    return {"level1": StageRows(coords, features), "bev": StageRows(coords, factor * features)}


def changed(stages, name, **changes):
    return {**stages, name: dataclasses.replace(stages[name], **changes)}


def test_equal_features_have_no_error_and_all_frames_are_named():
    told = []
    errors, used, left_out = compare_stages(
        lambda points: rows(), lambda points: rows(), frames("a", "b"), told.append
    )
    assert errors == dict.fromkeys(("level1", "bev"), StageError(0.0, 0.0))
    assert [frame.name for frame in used] == told == ["a", "b"] and left_out == {}


def test_errors_are_of_the_largest_feature_and_of_the_root_mean_square():
    want = rows()
    off = want["bev"].features.clone()
    off[2, 1] += 0.6  # the largest feature is 12
    errors, _, _ = compare_stages(
        lambda points: want, lambda points: changed(want, "bev", features=off), frames("a")
    )
    assert errors["level1"] == StageError(0.0, 0.0)
    assert errors["bev"].largest == pytest.approx(0.6 / 12, rel=1e-5)
    mean = math.sqrt(float(want["bev"].features.square().sum()))
    assert errors["bev"].rms == pytest.approx(0.6 / mean, rel=1e-5)


def test_the_worst_frame_counts_relative_to_itself_and_small_ones_are_not_drowned():
    def scaled(points, by):
        return rows(1000.0 if points[0, 0] == 1 else 1.0), by

    def reference(points):
        return scaled(points, 0)[0]

    def found(points):
        made = reference(points)
        small = points[0, 0] == 2  # the frame of small features alone is off
        return changed(made, "bev", features=made["bev"].features + (1.2 if small else 0.0))

    errors, _, _ = compare_stages(reference, found, frames("a", "bb"))
    assert errors["bev"].largest == pytest.approx(0.1, rel=1e-5)
    assert errors["bev"].rms < 1e-3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_feature_that_is_not_finite_is_an_infinite_error_that_json_can_hold(value):
    off = rows()["bev"].features.clone()
    off[0, 0] = value
    errors, used, _ = compare_stages(
        lambda points: rows(), lambda points: changed(rows(), "bev", features=off), frames("a")
    )
    assert errors["bev"].largest == math.inf
    figures = Figures(("a",), errors, BoxTally(3, 3, 3))
    assert figures.faults(Limits())[0].startswith("features of 'bev' are off by inf")
    assert json.loads(json.dumps(figures.to_json(), allow_nan=False))["features"]["bev"] == {
        "largest": None,
        "rms": None,
    }


def test_other_rows_are_an_infinite_error_even_if_their_number_is_the_same():
    moved = changed(rows(), "level1", coords_zyx=rows()["level1"].coords_zyx + 1)
    errors, _, _ = compare_stages(lambda points: rows(), lambda points: moved, frames("a"))
    assert errors["level1"].largest == math.inf and errors["bev"].largest == 0


def test_half_precision_features_and_frames_without_rows_are_compared():
    def half(points):
        return {n: dataclasses.replace(r, features=r.features.half()) for n, r in rows().items()}

    errors, _, _ = compare_stages(lambda points: rows(), half, frames("a"))
    assert errors["bev"] == StageError(0.0, 0.0)  # small integers are halves
    none = rows(count=0)
    errors, used, _ = compare_stages(lambda points: none, lambda points: none, frames("a"))
    assert errors["bev"] == StageError(0.0, 0.0) and len(used) == 1


def test_frames_that_do_not_fit_are_left_out_by_name_and_none_at_all_is_an_error():
    def small(points):
        if points[0, 0] > 1:
            raise InvalidFrame("too many tiles")
        return rows()

    _, used, left_out = compare_stages(lambda points: rows(), small, frames("a", "bb"))
    assert [frame.name for frame in used] == ["a"] and left_out == {"bb": "too many tiles"}
    with pytest.raises(ConfigError, match="None of 1 frames.*too many tiles"):
        compare_stages(lambda points: rows(), small, frames("bb"))


# ---- boxes --------------------------------------------------------------------------------------


def boxes(*given: tuple[float, float, int, float]) -> Detections:
    """Return boxes of 4 x 2 m from x, y, class and score, the best first."""
    given = tuple(sorted(given, key=lambda box: -box[3]))
    values = [[x, y, 0.0, 4.0, 2.0, 1.5, 0.0, 0.0, 0.0] for x, y, _, _ in given]
    return Detections(
        torch.tensor(values).view(-1, 9),
        torch.tensor([score for *_, score in given]),
        torch.tensor([label for _, _, label, _ in given], dtype=torch.int64),
        NAMES,
    )


def tally(want: Detections, got: Detections, config: LidarConfig = CONFIG) -> BoxTally:
    return tally_boxes(want, got, config, center_m=0.1, score=0.02)


FAR = (30.0, 0.0, CAR, 0.8)


def test_the_same_boxes_in_any_order_are_all_matched():
    given = [(10.0 * n, 5.0, n % 5, 0.3 + 0.1 * n) for n in range(5)]
    result = tally(boxes(*given), boxes(*given))
    assert result == BoxTally(5, 5, 5)
    assert result.matched_share == result.agreeing_share == 1
    assert tally(boxes(), boxes()) == BoxTally()


@pytest.mark.parametrize(
    ("moved", "matched"),
    [
        ((0.0, 0.09, CAR, 0.51), 1),
        ((0.0, 0.11, CAR, 0.5), 0),
        ((0.0, 0.0, CAR, 0.53), 0),
        ((0.0, 0.0, TRUCK, 0.5), 0),
    ],
)
def test_a_partner_is_of_the_class_and_close_in_place_and_score(moved, matched):
    result = tally(boxes((0.0, 0.0, CAR, 0.5), FAR), boxes(moved, FAR))
    assert result.matched == 1 + matched
    assert result.unexplained == 2 * (1 - matched)
    if matched:
        assert result.center_m == pytest.approx(0.09) and result.score == pytest.approx(0.01)
    assert result.agreeing_share == 1 if matched else 0.5


def test_a_box_is_the_partner_of_one_and_of_the_closest():
    want = boxes((0.0, 0.0, CAR, 0.5), (0.0, 0.06, CAR, 0.5))
    got = boxes((0.0, 0.05, CAR, 0.5))
    result = tally(want, got)
    assert (result.matched, result.wanted, result.got) == (1, 2, 1)
    assert result.center_m == pytest.approx(0.01)
    assert result.matched_share == pytest.approx(2 / 3)


def test_rounding_decides_at_the_threshold_and_there_alone():
    result = tally(boxes((0.0, 0.0, CAR, 0.115), FAR), boxes(FAR, (9.0, 9.0, CAR, 0.11)))
    assert (result.near_limit, result.unexplained) == (2, 0)
    result = tally(boxes((0.0, 0.0, CAR, 0.125), FAR), boxes(FAR))
    assert (result.near_limit, result.unexplained) == (0, 1)


def test_each_class_has_its_own_threshold():
    limits = [0.1] * len(NAMES)
    limits[TRUCK] = 0.4
    config = LidarConfig.from_dict({"post_process_params.score_thresholds": limits})
    want = boxes((0.0, 0.0, TRUCK, 0.41), (20.0, 0.0, CAR, 0.41))
    result = tally(want, boxes(), config)
    assert (result.near_limit, result.unexplained) == (1, 1)


def test_the_last_place_of_a_full_head_is_a_threshold_too():
    config = LidarConfig.from_dict({"post_process_params.max_boxes_per_head": 2})
    sure = [(0.0, 0.0, CAR, 0.9), (10.0, 0.0, CAR, 0.5)]
    late = (20.0, 0.0, CAR, 0.495)
    want, got = boxes(sure[0], (20.0, 0.0, CAR, 0.505)), boxes(*sure)
    assert tally(want, got, config).unexplained == 0
    other_head = boxes(*sure, (20.0, 0.0, PEDESTRIAN, 0.495))
    assert tally(other_head, got, config).unexplained == 1
    assert tally(boxes(*sure, late), got, CONFIG).unexplained == 1  # no head is full


@pytest.mark.parametrize(
    ("winner", "ties"),
    [
        ((1.0, 0.0, CAR, 0.505), 2),  # overlaps, nearly as sure
        ((1.0, 0.0, CAR, 0.6), 1),  # surer by far: why did it not win before?
        ((4.5, 0.0, CAR, 0.505), 0),  # beside it
        ((1.0, 0.0, PEDESTRIAN, 0.505), 0),  # of another head
        ((0.15, 0.0, CAR, 0.505), 0),  # the same box, moved too far
    ],
)
def test_of_overlapping_boxes_with_nearly_equal_scores_either_may_stay(winner, ties):
    result = tally(boxes((0.0, 0.0, CAR, 0.5), FAR), boxes(winner, FAR))
    assert (result.ties, result.unexplained) == (ties, 2 - ties)


def test_where_boxes_are_not_suppressed_an_overlap_excuses_none():
    """Both boxes may stay where only heat of cells is compared: one of them is lost."""
    config = LidarConfig.from_dict({"post_process_params.selection": "max_pool"})
    result = tally(boxes((0.0, 0.0, CAR, 0.5)), boxes((1.0, 0.0, CAR, 0.505)), config)
    assert (result.ties, result.unexplained) == (0, 2)


def test_tallies_add_up_and_keep_the_worst_difference():
    total = BoxTally(3, 4, 2, 1, 1, 1, 0.05, 0.01) + BoxTally(1, 1, 1, 0, 0, 0, 0.02, 0.015)
    assert total == BoxTally(4, 5, 3, 1, 1, 1, 0.05, 0.015)
    assert total.to_json()["matched_share"] == pytest.approx(6 / 9)
    assert total.to_json()["agreeing_share"] == pytest.approx(8 / 9)


# ---- limits -------------------------------------------------------------------------------------

FINE = Figures(
    ("a",),
    {"level1": StageError(1e-3, 1e-4), "bev": StageError(5e-3, 1e-4)},
    BoxTally(100, 100, 98, 3, 0, 1),
    MeanAp(0.5, 0.495, 20),
)


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({}, []),
        ({"stages": {"level1": StageError(0.03, 0), "bev": StageError(0.01, 0)}}, ["'level1'"]),
        ({"stages": {"bev": StageError(math.inf, math.inf)}}, ["'bev' are off by inf"]),
        ({"boxes": BoxTally(100, 100, 89, 22)}, ["89.0 % of 100 + 100 boxes"]),
        ({"boxes": BoxTally(100, 100, 95, 0, 0, 10)}, ["95.0 % of 100 + 100 boxes have it or"]),
        ({"boxes": BoxTally(10, 0)}, ["0.0 % of 10 + 0 boxes have their like"]),
        ({"boxes": BoxTally()}, ["no frame has a detection"]),
        ({"mean_ap": MeanAp(0.5, 0.48, 20)}, ["from 0.500 to 0.480"]),
        ({"mean_ap": MeanAp(0.5, math.nan, 20)}, ["from 0.500 to nan"]),
        ({"mean_ap": None}, []),
        ({"mean_ap": MeanAp(0.5, 0.6, 20)}, []),
    ],
)
def test_what_exceeds_its_limit_is_named_with_figure_and_limit(changes, phrases):
    faults = dataclasses.replace(FINE, **changes).faults(Limits())
    assert len(faults) == len(phrases)
    assert all(phrase in fault for phrase, fault in zip(phrases, faults))


@pytest.mark.parametrize(
    ("name", "value"), [("feature_error", -1.0), ("score", math.nan), ("matched", 1.1)]
)
def test_a_limit_that_means_nothing_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"'{name}' must be"):
        Limits(**{name: value})


# ---- real detectors -----------------------------------------------------------------------------

SMALL = LidarConfig.from_dict(
    {
        "voxelization": {
            "point_cloud_range": [-9.6, -9.6, -3.0, 9.6, 9.6, 1.0],
            "voxel_size": [0.15, 0.15, 0.2],
        },
        "model.channels": [4, 8, 8, 16, 16, 16],
        "post_process_params.score_thresholds": [0.05],
    }
)


def test_float32_passes_beside_float64_and_other_weights_do_not():
    clouds = [
        SimpleNamespace(name=str(seed), points=street(1500, seed, edge_m=(9.0, 9.0)))
        for seed in (1, 2)
    ]
    exact = LidarPipeline(SMALL, None, "cpu", torch.float64)
    plain = LidarPipeline(SMALL, None, "cpu")
    total = compare_detections(exact.process, plain.process, clouds, SMALL, Limits())
    assert total.wanted > 40 and total.matched_share == total.agreeing_share == 1
    assert 0 < total.center_m < 1e-4
    weights = untrained_weights(SMALL.model, 0)
    rough = {n: 1.2 * t if "center" in n else t for n, t in weights.tensors.items()}
    other = LidarPipeline(SMALL, dataclasses.replace(weights, tensors=rough), "cpu")
    total = compare_detections(exact.process, other.process, clouds, SMALL, Limits())
    assert total.agreeing_share < 0.98
    assert dataclasses.replace(FINE, boxes=total).faults(Limits())


def test_a_frame_of_a_precision_that_was_not_qualified_says_so():
    pipeline, points = LidarPipeline(SMALL, None, "cpu"), street(300, 1, edge_m=(9.0, 9.0))
    assert "precision_not_qualified" not in pipeline.process(points).report.notes
    plan = default_plan((16,) * 6, (9, 0), "fp16")
    verdict = Verdict(True, (), {}, {}, "", "", plan.tactics_sha256(), "2026-11-30")
    for qualified, said in (({}, True), ({"fp16": verdict}, False)):
        pipeline.plan = dataclasses.replace(plan, qualified=qualified)
        assert ("precision_not_qualified" in pipeline.process(points).report.notes) == said
