"""From the maps of a detection head to boxes, by hand-made maps with known answers."""

from __future__ import annotations

import math

import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.models.center_head import CenterDecoder

ROWS, COLS, STEP = 20, 30, 0.5
DARK = -8.0


def config(**post: object) -> CameraConfig:
    return CameraConfig.from_dict(
        {
            "model": {
                "grid": {"x_range_m": [-5, 10], "y_range_m": [-4, 6], "resolution_m": STEP},
                "network": {"heads": ["car,truck", "pedestrian"]},
            },
            "post_process_params": post,
        }
    )


def empty_maps(classes: int) -> dict[str, torch.Tensor]:
    maps = {
        name: torch.zeros(1, channels, ROWS, COLS)
        for name, channels in (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2))
    }
    maps["rot"][:, 1] = 1.0  # cosine
    maps["heatmap"] = torch.full((1, classes, ROWS, COLS), DARK)
    return maps


def put(maps: dict, row: int, col: int, label: int, score: float, **values: tuple) -> None:
    maps["heatmap"][0, label, row, col] = math.log(score / (1 - score))
    for name, value in values.items():
        maps[name][0, :, row, col] = torch.tensor(value)


def detect(
    config: CameraConfig, heads: list[dict]
) -> tuple[torch.Tensor, torch.Tensor, list, dict]:
    decoder = CenterDecoder(config, Ops.for_device("cpu").rotated_nms)
    proposals, dropped = decoder.propose(heads)
    found = decoder.suppress(proposals)
    return found.boxes, found.scores, found.labels.tolist(), dropped


def test_one_peak_becomes_the_box_that_its_maps_describe():
    first, second = empty_maps(2), empty_maps(1)
    put(
        first, 7, 21, 1, 0.8,
        reg=(0.25, 0.75), height=(-0.4,), rot=(math.sin(2.0), math.cos(2.0)), vel=(3.0, -1.0),
        dim=(math.log(8.0), math.log(2.5), math.log(3.0)),
    )  # fmt: skip
    boxes, scores, labels, _ = detect(config(), [first, second])
    # x follows the column and y the row, each from the lower corner of the grid.
    expected = [-5 + 21.25 * STEP, -4 + 7.75 * STEP, -0.4, 8.0, 2.5, 3.0, 2.0, 3.0, -1.0]
    torch.testing.assert_close(boxes, torch.tensor([expected]))
    torch.testing.assert_close(scores, torch.tensor([0.8]))
    assert labels == [1]


def test_labels_count_on_over_the_heads():
    first, second = empty_maps(2), empty_maps(1)
    put(first, 3, 3, 0, 0.5)
    put(second, 15, 25, 0, 0.9)
    _, scores, labels, _ = detect(config(), [first, second])
    assert labels == [0, 2]
    torch.testing.assert_close(scores, torch.tensor([0.5, 0.9]))


def test_each_class_has_its_own_threshold():
    first, second = empty_maps(2), empty_maps(1)
    put(first, 3, 3, 0, 0.3)
    put(first, 10, 10, 1, 0.3)
    put(second, 15, 25, 0, 0.3)
    post = config(score_thresholds=[0.2, 0.4, 0.25])
    assert detect(post, [first, second])[2] == [0, 2]


def overlapping_pair() -> list[dict]:
    """Return two cars of 4 x 2 m whose centres lie 3 m apart: an overlap of 1 / 7."""
    first = empty_maps(2)
    size = (math.log(4.0), math.log(2.0), 0.0)
    put(first, 10, 10, 0, 0.9, dim=size)
    put(first, 10, 16, 0, 0.6, dim=size)
    return [first, empty_maps(1)]


@pytest.mark.parametrize(
    ("threshold", "factors", "kept"),
    [
        (0.2, [1.0], 2),
        (0.1, [1.0], 1),
        # Measured at three quarters of their size they only touch.
        (0.1, [0.75], 2),
        # Measured at twice their size they overlap by 5 / 11.
        (0.4, [2.0, 1.0, 1.0], 1),
        (0.4, [1.0, 2.0, 2.0], 2),
    ],
)
def test_overlaps_are_measured_at_the_size_that_the_class_asks_for(threshold, factors, kept):
    post = config(iou_nms_threshold=threshold, nms_size_factors=factors)
    boxes, scores, _, _ = detect(post, overlapping_pair())
    assert len(boxes) == kept
    assert scores[0] == pytest.approx(0.9)
    # The size that comes out is the one that was found.
    torch.testing.assert_close(boxes[:, 3:5], torch.tensor([[4.0, 2.0]]).expand(kept, 2))


def test_peaks_stay_where_boxes_overlap_and_shoulders_go():
    maps = overlapping_pair()
    put(maps[0], 11, 11, 0, 0.8)  # beside the first, less sure
    post = config(iou_nms_threshold=0.1, selection="max_pool")
    _, scores, _, _ = detect(post, maps)
    assert scores.tolist() == pytest.approx([0.9, 0.6])


def test_faulty_boxes_are_counted_by_reason():
    first, second = empty_maps(2), empty_maps(1)
    put(first, 3, 3, 0, 0.5, dim=(math.nan, 0.0, 0.0))
    put(first, 6, 6, 0, 0.5, dim=(9.0, 0.0, 0.0))
    put(first, 9, 9, 0, 0.5, height=(50.0,))
    first["heatmap"][0, 0, 0, 0] = math.nan
    boxes, _, _, dropped = detect(config(), [first, second])
    assert len(boxes) == 0
    assert dropped["non_finite_boxes"] == 1
    assert dropped["implausible_boxes"] == 1
    assert dropped["out_of_range_boxes"] == 1
    assert dropped["non_finite_heat"] == 1


def test_more_candidates_than_asked_for_are_counted():
    first = empty_maps(2)
    for index in range(5):
        put(first, 2 + 3 * index, 4, 0, 0.5 + 0.05 * index)
    boxes, scores, _, dropped = detect(config(top_k=3), [first, empty_maps(1)])
    assert len(boxes) == 3
    assert dropped["over_top_k_candidates"] == 2
    torch.testing.assert_close(scores, torch.tensor([0.7, 0.65, 0.6]))


def test_half_precision_maps_are_decoded_in_float32():
    first, second = empty_maps(2), empty_maps(1)
    put(first, 19, 29, 0, 0.75, reg=(0.5, 0.5))
    half = [{name: m.half() for name, m in head.items()} for head in (first, second)]
    boxes, _, _, _ = detect(config(), half)
    assert boxes.dtype == torch.float32
    torch.testing.assert_close(boxes[0, :2], torch.tensor([9.75, 5.75]))


def test_quiet_maps_give_no_boxes_in_the_usual_shapes():
    boxes, scores, labels, dropped = detect(config(), [empty_maps(2), empty_maps(1)])
    assert boxes.shape == (0, 9)
    assert scores.shape == (0,)
    assert labels == []
    assert not any(dropped.values())
