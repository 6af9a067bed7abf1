"""Rotated IoU and suppression against a scalar clipping oracle."""

from __future__ import annotations

import math
import time

import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.nms import rotated_iou_bev, rotated_nms
from test.support import polygons


def box(x=0.0, y=0.0, length=4.0, width=2.0, yaw=0.0, z=0.0):
    return [x, y, z, length, width, 1.5, yaw, 0.0, 0.0]


def iou_of(a, b, dtype=torch.float64) -> float:
    return float(rotated_iou_bev(torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)))


def random_boxes(count: int, spread_m: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    boxes = torch.zeros(count, 9, dtype=torch.float64)
    boxes[:, :2] = (torch.rand(count, 2, generator=generator, dtype=torch.float64) - 0.5) * spread_m
    boxes[:, 3:6] = 0.3 + 5 * torch.rand(count, 3, generator=generator, dtype=torch.float64)
    boxes[:, 6] = 8 * (torch.rand(count, generator=generator, dtype=torch.float64) - 0.5)
    return boxes


def test_random_boxes_have_the_iou_of_the_clipping_oracle():
    a, b = random_boxes(40, 8.0, 1), random_boxes(50, 8.0, 2)
    oracle = [[polygons.iou(p, q) for q in b.tolist()] for p in a.tolist()]
    want = torch.tensor(oracle, dtype=torch.float64)
    assert (want > 0.01).sum() > 200  # the case is not trivial
    torch.testing.assert_close(rotated_iou_bev(a, b), want, rtol=0, atol=1e-12)
    single = rotated_iou_bev(a.float(), b.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, want.float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        pytest.param(box(), box(), 1.0, id="identical"),
        pytest.param(box(yaw=0.7), box(yaw=0.7), 1.0, id="identical and turned"),
        pytest.param(box(yaw=0.7), box(yaw=0.7 + math.pi), 1.0, id="identical, heading reversed"),
        pytest.param(box(), box(yaw=math.pi / 2), 4 / 12, id="crossed at a right angle"),
        pytest.param(box(length=2), box(length=2, yaw=math.pi / 2), 1.0, id="square turned by 90"),
        pytest.param(box(), box(x=4.0), 0.0, id="touching at an edge"),
        pytest.param(box(), box(x=4.0, y=2.0), 0.0, id="touching at a corner"),
        pytest.param(box(), box(x=2.0), 4 / 12, id="half overlapping on one line"),
        pytest.param(box(), box(length=1, width=1), 1 / 8, id="contained"),
        pytest.param(box(length=1, width=1, yaw=0.3), box(length=9, width=9), 1 / 81, id="inside"),
        pytest.param(
            box(), box(x=1.5, length=1, width=2), 2 / 8, id="contained, three edges shared"
        ),
        pytest.param(box(), box(x=100.0), 0.0, id="far apart"),
        pytest.param(box(), box(z=50.0), 1.0, id="height does not matter"),
        pytest.param(box(length=0, width=0), box(), 0.0, id="point in a box"),
        pytest.param(box(length=0, width=0), box(length=0, width=0), 0.0, id="two points"),
        pytest.param(box(width=0), box(), 0.0, id="line in a box"),
    ],
)
def test_special_positions_have_the_iou_worked_out_by_hand(a, b, want, dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert iou_of(a, b, dtype) == pytest.approx(want, abs=tolerance)
    assert iou_of(b, a, dtype) == pytest.approx(want, abs=tolerance)


def test_two_squares_at_45_degrees_share_the_regular_octagon():
    octagon = 8 * (math.sqrt(2) - 1)  # of a square of edge 2
    want = octagon / (8 - octagon)
    assert iou_of(box(length=2), box(length=2, yaw=math.pi / 4)) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("turn", [1e-12, 1e-9, 1e-7, 1e-5, math.pi / 2 - 1e-9])
def test_nearly_parallel_edges_do_not_break_the_area(turn):
    got = iou_of(box(length=2), box(length=2, yaw=turn))
    assert got == pytest.approx(polygons.iou(box(length=2), box(length=2, yaw=turn)), abs=1e-9)


def test_iou_does_not_depend_on_where_in_the_frame_the_boxes_are():
    near = iou_of(box(yaw=0.2), box(x=1.0, y=0.5, yaw=0.9))
    far = iou_of(box(x=5e4, y=-5e4, yaw=0.2), box(x=5e4 + 1.0, y=-5e4 + 0.5, yaw=0.9))
    assert far == pytest.approx(near, abs=1e-9)


@pytest.mark.parametrize("limit", [500, 7])
def test_greedy_choice_equals_the_oracle(limit):
    boxes = random_boxes(120, 20.0, 3)
    scores = torch.rand(120, generator=torch.Generator().manual_seed(4)).double()
    scores[10:20] = 0.5  # ties go by row
    kept = rotated_nms(boxes, scores, 0.2, limit)
    assert kept.tolist() == polygons.nms(boxes.tolist(), scores.tolist(), 0.2, limit)
    assert kept.dtype == torch.int64


def test_equal_scores_keep_the_lower_row():
    boxes = torch.tensor([box(x=9.0), box(), box(x=0.1), box(x=9.1)])
    assert rotated_nms(boxes, torch.full((4,), 0.5), 0.2, 83).tolist() == [0, 1]


def test_an_overlap_of_exactly_the_threshold_survives():
    boxes = torch.tensor([box(length=4, width=4), box(length=2, width=2)], dtype=torch.float64)
    scores = torch.tensor([0.9, 0.8])
    assert rotated_nms(boxes, scores, 0.25, 83).tolist() == [0, 1]
    assert rotated_nms(boxes, scores, 0.2499, 83).tolist() == [0]


def test_a_suppressed_box_suppresses_nothing():
    boxes = torch.tensor([box(x=0.0), box(x=1.5), box(x=3.0)], dtype=torch.float64)
    assert rotated_nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.2, 83).tolist() == [0, 2]


def test_rows_that_are_not_finite_are_never_kept():
    """A faulty head must not push its NaN to the top of the list."""
    boxes = torch.tensor([box(), box(x=20.0), box(x=40.0), box(x=60.0)])
    boxes[1, 3] = math.inf
    scores = torch.tensor([math.nan, 0.9, math.inf, 0.2])
    assert rotated_nms(boxes, scores, 0.2, 83).tolist() == [3]


@pytest.mark.parametrize("count", [0, 1])
def test_no_box_and_one_box_are_ordinary(count):
    boxes = torch.zeros(count, 9)
    assert rotated_nms(boxes, torch.ones(count), 0.2, 83).tolist() == list(range(count))
    assert rotated_iou_bev(boxes, torch.zeros(3, 9)).shape == (count, 3)


def test_more_boxes_than_one_block_are_all_compared():
    apart = torch.zeros(2500, 9)
    apart[:, 0] = torch.arange(2500) * 10.0
    apart[:, 3:6] = 2.0
    twice = torch.cat((apart, apart))
    scores = torch.linspace(1.0, 0.1, 5000)
    assert rotated_nms(twice, scores, 0.2, 5000).tolist() == list(range(2500))


def test_six_heads_of_500_boxes_that_all_overlap_stay_fast():
    heads = [random_boxes(500, 3.0, seed).float() for seed in range(6)]
    scores = torch.rand(500, generator=torch.Generator().manual_seed(0))
    rotated_nms(heads[0], scores, 0.2, 83)
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        for boxes in heads:
            rotated_nms(boxes, scores, 0.9, 83)
        best = min(best, time.process_time() - start)
    assert best < 5.0  # about 0.1 s of the processor; the limit leaves room for a slow one


def test_wrong_shapes_are_refused_with_the_shape():
    with pytest.raises(ConfigError, match=r"\(3, 5\)"):
        rotated_iou_bev(torch.zeros(3, 5), torch.zeros(3, 7))
    with pytest.raises(ConfigError, match="one value for each of the 3 boxes"):
        rotated_nms(torch.zeros(3, 7), torch.zeros(2), 0.2, 83)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        rotated_nms(torch.zeros(3, 7), torch.zeros(3), 0.2, 0)
