"""Regions of a KITTI image without labels: which detections fall into them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.boxes import corners
from driveRT_ros.io.dont_care import NEAR_M, DontCare
from driveRT_ros.io.kitti import frames_and_regions
from test.io.test_kitti import label, write_frame
from test.support.evaluation import boxes_of, joined

# The camera sits at the origin and looks along +x; a pixel is 0.01 rad.
P = np.array([[50.0, -100, 0, 0], [20, 0, -100, 0], [1, 0, 0, 0]])
CAR_20_M_AHEAD = (20.0, 0.0, 0.0)


def holds(rectangles, found, size_wh=None) -> list[bool]:
    regions = np.array(rectangles, float).reshape(-1, 4)
    return DontCare(regions, P, size_wh).holds(found, np.eye(4)).tolist()


def rectangle_of(row, size_wh=None) -> np.ndarray:
    regions = DontCare(np.zeros((0, 4)), P, size_wh)
    return regions._projected(boxes_of([row]), np.eye(4))[0]


def test_the_rectangle_of_a_box_holds_its_corners_and_no_more() -> None:
    row = (20.0, 3.0, -1.0, 4.0, 2.0, 1.5, 0.4)
    places = corners(torch.tensor([row + (0.0, 0.0)]).double())[0].numpy()
    pixels = 100 * np.stack((-places[:, 1], -places[:, 2])) / places[:, 0] + [[50], [20]]
    expected = [*pixels.min(axis=1), *pixels.max(axis=1)]
    np.testing.assert_allclose(rectangle_of(row), expected, atol=1e-4)
    cut = rectangle_of(row, (40, 26))
    np.testing.assert_allclose(cut, np.clip(expected, 0, [40, 26, 40, 26]), atol=1e-4)


def test_a_box_beside_the_camera_fills_what_is_in_front_of_the_image_plane() -> None:
    left, top, right, bottom = rectangle_of((1.0, 3.0, 0.0, 4.0, 2.0, 1.5, 0.0))
    assert right == pytest.approx(50 - 100 * 2.0 / 3.0)  # its right side, seen furthest away
    assert left == pytest.approx(50 - 100 * 4.0 / NEAR_M)
    assert (top, bottom) == pytest.approx((20 - 75 / NEAR_M, 20 + 75 / NEAR_M))
    assert rectangle_of((-5.0, 0.0, 0.0)).tolist() == [0.0] * 4


def test_a_region_holds_a_box_by_the_share_that_its_class_asks_for() -> None:
    """Seven tenths of a vehicle, half of anything else, as the devkit of KITTI has it."""
    row = (*CAR_20_M_AHEAD, 4.0, 2.0, 2.0)
    left, top, right, bottom = rectangle_of(row)
    found = joined(boxes_of([row]), boxes_of([row], "pedestrian"), boxes_of([row], "bicycle"))
    for share, expected in ((0.72, [True] * 3), (0.68, [False, True, True]), (0.48, [False] * 3)):
        region = (left, top, left + share * (right - left), bottom)
        assert holds([region], found) == expected
    halves = [(left, top, (left + right) / 2, bottom), ((left + right) / 2, top, right, bottom)]
    assert holds(halves, boxes_of([row])) == [False], "no single region holds it"


def test_without_regions_or_behind_the_camera_nothing_is_held() -> None:
    everything = (-1e9, -1e9, 1e9, 1e9)
    assert holds([], boxes_of([CAR_20_M_AHEAD])) == [False]
    assert holds([everything], boxes_of([CAR_20_M_AHEAD, (-20, 0, 0)])) == [True, False]
    assert holds([everything], boxes_of([])) == []
    assert holds([everything], boxes_of([(float("nan"), 0, 0), (20, 0, 0)])) == [False, True]


def test_the_border_of_the_image_cuts_a_box_before_its_share_is_taken() -> None:
    row = (4.0, 2.0, 0.0)
    left, top, right, bottom = rectangle_of(row)
    assert left < 0 < right
    inside = (0.0, -100.0, right, 100.0)
    assert holds([inside], boxes_of([row])) == [False]
    assert holds([inside], boxes_of([row]), (100, 40)) == [True]


def test_frames_bring_the_regions_of_their_labels(tmp_path) -> None:
    text = "DontCare -1 -1 -10 {} 100 {} 140 -1 -1 -1 -1000 -1000 -1000 -10\n"
    write_frame(tmp_path, text.format(5, 9) + label("Car", 0, 1, 9, 0) + text.format(70, 80.5))
    write_frame(tmp_path, "", 1, image=True)
    (first, regions), (second, none) = frames_and_regions(tmp_path)
    assert regions.rectangles.tolist() == [[5, 100, 9, 140], [70, 100, 80.5, 140]]
    assert regions.size_wh is None and none.size_wh == (124, 37)
    assert len(first.ground_truth) == 1 and len(none.rectangles) == 0
    # P2 of the calibration, of a point 20 m ahead, 3 m to the right, 0.5 m above the LiDAR
    pixel = regions.P_image_ego @ first.T_ego_lidar @ (20.0, -3.0, 0.5, 1.0)
    np.testing.assert_allclose(pixel, (700 * 3 + 600 * 20 + 70, 700 * -0.4 + 180 * 20, 20))


def test_real_labels_lie_outside_of_real_regions(data_dir) -> None:
    """What is labelled is no DontCare; a car in the middle of one is held."""
    read = list(frames_and_regions(data_dir / "lidar" / "kitti_object"))
    assert [len(regions.rectangles) for _, regions in read] == [0, 4, 0]
    for frame, regions in read:
        assert not regions.holds(frame.ground_truth, frame.T_ego_lidar).any()
    frame, regions = read[1]
    left, top, right, bottom = regions.rectangles[0]
    P = regions.P_image_ego @ frame.T_ego_lidar
    ray = np.linalg.solve(P[:, :3], 60.0 * np.array([(left + right) / 2, (top + bottom) / 2, 1.0]))
    assert regions.holds(boxes_of([ray]), frame.T_ego_lidar).tolist() == [True]
