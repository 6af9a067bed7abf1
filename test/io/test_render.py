"""Pictures from above: what is drawn lands where it should, and nothing else changes."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from driveRT_ros.core.bev_grid import build_bev_grid
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import BevGrid, Detections, FrameReport
from driveRT_ros.io.bev_boxes import drawable
from driveRT_ros.io.bev_panel import PANEL_PX, Word, map_words, stamp_text
from driveRT_ros.io.bev_shapes import TRUTH
from driveRT_ros.io.bev_view import BevView, forward_yaw
from driveRT_ros.io.palette import (
    AMBER,
    CLASS_COLORS,
    class_color,
    class_color_unit,
    height_ramp,
    srgb_to_oklab,
)
from driveRT_ros.io.render import render_bev, render_bev_map
from test.support.pictures import boxes_of, car_at, changed, near, no_points, street

VIEW = BevView.around(50, size_px=500)  # 5 pixels a metre
Y_FORWARD = BevView.around(50, size_px=500, forward_yaw=math.pi / 2)
UNTRAINED = FrameReport(notes=("untrained_weights",))


def picture(*rows, view=VIEW, points=None, **kwargs):
    points = no_points() if points is None else points
    return render_bev_map(points, view, detections=boxes_of(*rows, **kwargs))


# --- where things land -------------------------------------------------------------------------


def test_with_x_forward_a_metre_ahead_is_up_and_a_metre_to_the_left_is_left():
    col, row = VIEW.to_pixels(np.array([10.0, 5.0]))
    assert (col, row) == pytest.approx((249.5 - 25, 249.5 - 50))


def test_with_y_forward_the_same_holds_for_a_sensor_turned_by_a_quarter():
    """In the LIDAR_TOP frame of nuScenes y is ahead and x is to the right."""
    col, row = Y_FORWARD.to_pixels(np.array([5.0, 10.0]))
    assert (col, row) == pytest.approx((249.5 + 25, 249.5 - 50))


def test_forward_yaw_is_the_direction_of_the_nose_in_the_frame_of_the_points():
    assert forward_yaw(np.eye(4)) == 0
    nuscenes = np.eye(4)  # lidar x is to the right (ego -y), lidar y is ahead (ego +x)
    nuscenes[:2, :2] = [[0, 1], [-1, 0]]
    assert forward_yaw(nuscenes) == pytest.approx(math.pi / 2)
    ahead_in_ego = nuscenes[:3, :3] @ [0, 1, 0]
    assert ahead_in_ego == pytest.approx([1, 0, 0])


@pytest.mark.parametrize("view", [VIEW, Y_FORWARD])
def test_a_box_draws_its_colour_around_its_place_and_nowhere_else(view):
    row = car_at(10, 5)
    empty, drawn = picture(view=view), picture(row, view=view)
    rows, cols = changed(empty, drawn)
    col, line = view.to_pixels(np.array([10.0, 5.0]))
    # Half the diagonal of 4 m by 2 m is 2.24 m; 6 pixels more for the heading tick and smoothing.
    reach = 2.24 * 5 + 6
    assert len(rows) > 100
    assert np.hypot(cols - col, rows - line).max() <= reach
    outline = near(drawn, class_color("car"), 90)
    assert len(outline) > 20
    assert np.hypot(*(outline - [col, line]).T).max() <= reach


def test_a_box_is_filled_with_translucent_colour():
    drawn, empty = picture(car_at(10, 5)), picture()
    col, row = np.rint(VIEW.to_pixels(np.array([9.3, 5.5]))).astype(int)
    inside, below = drawn[row, col].astype(int), empty[row, col].astype(int)
    expected = below + 0.28 * (np.array(class_color("car")) - below)
    assert inside == pytest.approx(expected, abs=2)


def test_the_length_of_a_box_points_along_its_yaw():
    """Length and width swapped, or yaw the wrong way round, gives another shape."""
    rows, cols = changed(picture(), picture(car_at(10, 5, yaw=math.radians(30))))
    offset = np.stack([cols, rows], axis=1) - VIEW.to_pixels(np.array([10.0, 5.0]))
    values, vectors = np.linalg.eigh(offset.T @ offset)
    col, row = vectors[:, 1]
    # Forward is up and left is left: heading 30 degrees to the left of ahead.
    assert values[1] > 2 * values[0]
    assert math.degrees(math.atan2(-col / -row, 1)) == pytest.approx(30, abs=6)


def test_the_heading_tick_sticks_out_at_the_front():
    rows, _ = changed(picture(), picture(car_at(10, 5)))
    _, centre = VIEW.to_pixels(np.array([10.0, 5.0]))
    assert centre - rows.min() > rows.max() - centre + 2


def test_a_velocity_arrow_ends_where_the_object_will_be_in_one_second():
    still, moving = picture(car_at(10, 5)), picture(car_at(10, 5, vx=0.0, vy=-12.0))
    rows, cols = changed(still, moving)
    tip_col, tip_row = VIEW.to_pixels(np.array([10.0, -7.0]))
    assert cols.max() == pytest.approx(tip_col, abs=2)
    assert np.abs(rows - tip_row).max() <= 8


@pytest.mark.parametrize("velocity", [(math.nan, math.nan), (math.inf, 0.0), (0.1, 0.1)])
def test_a_box_without_a_known_or_notable_velocity_has_no_arrow(velocity):
    assert np.array_equal(
        picture(car_at(10, 5)), picture(car_at(10, 5, vx=velocity[0], vy=velocity[1]))
    )


def test_a_point_lights_the_pixel_it_lies_in():
    empty = render_bev_map(no_points(), VIEW)
    point = np.array([[20, -5, 0, 1, 0]], np.float32)
    for view in (VIEW, Y_FORWARD):
        rows, cols = changed(render_bev_map(no_points(), view), render_bev_map(point, view))
        col, row = view.to_pixels(np.array([20.0, -5.0]))
        assert len(rows) == 1
        assert abs(cols[0] - col) <= 0.5 and abs(rows[0] - row) <= 0.5
    assert np.array_equal(empty, render_bev_map(np.array([[99, 0, 0, 1, 0]], np.float32), VIEW))


def test_an_occupied_cell_is_drawn_where_the_grid_puts_it():
    """A transposed or mirrored grid would show up under the wrong points."""
    config = LidarConfig.from_dict(
        {"voxelization.point_cloud_range": [-50, -30, -5, 50, 30, 3], "bev.resolution_m": 1.0}
    )
    points = np.array([[20.5, -5.5, -1.8, 9, 0], [20.5, -5.5, 0.5, 9, 0]], np.float32)
    grid = build_bev_grid(points, config)
    for view in (VIEW, Y_FORWARD):
        empty = render_bev_map(no_points(), view)
        rows, cols = changed(empty, render_bev_map(no_points(), view, grid=grid, config=config))
        col, row = view.to_pixels(np.array([20.5, -5.5]))
        assert 9 <= len(rows) <= 36  # one cell of 5 by 5 pixels
        assert np.abs(cols - col).max() <= 3.5 and np.abs(rows - row).max() <= 3.5


def test_height_colours_run_from_dark_to_light():
    ground, top = (
        render_bev(np.array([[20, 10, z, 0, 0]], np.float32), VIEW, value_range=(-2, 2))
        for z in (-2.0, 2.0)
    )
    assert top[:, :500].astype(int).sum() > ground[:, :500].astype(int).sum()


def test_older_points_are_fainter():
    now, then = (
        render_bev_map(np.array([[20, 10, 0, 0, lag]], np.float32), VIEW).astype(int).sum()
        for lag in (0.0, 0.45)
    )
    nothing = render_bev_map(no_points(), VIEW).astype(int).sum()
    assert nothing < then < now


# --- ground truth, legend, banner --------------------------------------------------------------


def test_ground_truth_is_white_and_dashed_and_detections_are_neither():
    boxes = boxes_of(car_at(10.1, 5.1))  # its edges run through pixel centres
    truth = render_bev(no_points(), VIEW, ground_truth=boxes)[:, :500]
    found = render_bev(no_points(), VIEW, detections=boxes)[:, :500]
    edge = VIEW.to_pixels(np.stack([np.linspace(8.1, 12.1, 200), np.full(200, 6.1)], axis=1))
    col, row = np.rint(edge).astype(int).T
    bright = truth[row, col].min(axis=1) > 120
    assert 0.3 < bright.mean() < 0.9
    assert np.diff(bright.astype(int)).any()
    near_box = np.s_[190:212, 215:235]
    assert len(near(truth[near_box], TRUTH)) and not len(near(found[near_box], TRUTH))
    assert len(near(found[near_box], class_color("car"))) > len(near(truth, class_color("car")))


def test_ground_truth_without_points_is_dimmer():
    seen, unseen = (
        render_bev(no_points(), VIEW, ground_truth=boxes_of(car_at(10, 5), num_points=[n]))
        for n in (7, 0)
    )
    assert seen[190:212, 215:235].max() > 200 > unseen[190:212, 215:235].max()


def test_the_legend_shows_bright_swatches_of_the_classes_present_only():
    boxes = boxes_of(car_at(10, 5), car_at(20, 5), names=["bus", "bicycle"])
    swatches = render_bev(no_points(), VIEW, detections=boxes)[:, 520:532]
    for name in CLASS_COLORS:
        swatch = near(swatches, class_color(name), 0)  # 12 by 12 pixels where it is bright
        assert (len(swatch) >= 144) == (name in ("bus", "bicycle")), name


def test_the_banner_appears_for_untrained_weights_alone():
    for report, wanted in ((UNTRAINED, True), (FrameReport(), False)):
        full = render_bev(no_points(), VIEW, detections=boxes_of(report=report))
        assert (len(near(full[:, :500], AMBER, 0)) > 2000) == wanted
    told = render_bev(no_points(), VIEW, untrained=True)
    assert len(near(told[:, :500], AMBER, 0)) > 2000


def test_the_small_picture_gets_an_amber_frame_for_untrained_weights():
    quick = picture(report=UNTRAINED)
    assert (quick[0] == AMBER).all() and (quick[:, -1] == AMBER).all()
    assert not (picture()[0] == AMBER).all()


def test_labels_do_not_cover_each_other_or_the_banner():
    scores = [Word(100.0, y, "0.90", 11) for y in (100.0, 104.0, 130.0, 40.0)]
    texts = [(w.x, w.y) for w in map_words(VIEW, scores, (slice(30, 50), slice(90, 200)))]
    assert (100.0, 100.0) in texts and (100.0, 130.0) in texts
    assert (100.0, 104.0) not in texts and (100.0, 40.0) not in texts


def test_stamps_are_shown_to_the_millisecond_without_rounding_up():
    assert stamp_text(1_532_402_927_647_951_000) == "2018-07-24  03:28:47.647 UTC"
    assert stamp_text(12_345_999_999) == "t = 12.345 s"


# --- sizes, empties, faults --------------------------------------------------------------------


def test_the_full_picture_is_the_map_with_the_panel_at_its_right():
    full = render_bev(street(), BevView.around(54, size_px=960), detections=boxes_of())
    assert full.shape == (960, 960 + PANEL_PX, 3) and full.dtype == np.uint8


def test_a_map_that_is_flatter_than_the_panel_is_padded_to_one_size_for_all_frames():
    view = BevView.of_range([0, -10, -3, 80, 10, 1], size_px=800, forward_yaw=math.pi / 2)
    assert (view.width_px, view.height_px) == (800, 200)
    bare = render_bev(no_points(), view)
    boxes = boxes_of(car_at(10, 5), report=FrameReport(stage_ms={"decode": 1.0, "total": 2.0}))
    full = render_bev(no_points(), view, detections=boxes, ground_truth=boxes, title="flat")
    assert bare.shape == full.shape == (860, 800 + PANEL_PX, 3)


def test_a_panel_grows_until_its_last_line_shows():
    stages = {f"stage_{i}": float(i) for i in range(50)}
    full = render_bev(no_points(), VIEW, latency_ms={**stages, "total": 1225.0})
    assert full.shape[0] > 1000
    assert full[-32:, 500:].max() > 200  # the total


def test_the_default_views_show_the_whole_range():
    config = LidarConfig.from_dict(
        {"voxelization.point_cloud_range": [0, -30, -5, 80, 30, 3], "bev.resolution_m": 0.5}
    )
    assert render_bev_map(no_points(), config=config).shape == (640, 480, 3)
    assert render_bev(no_points(), config=config).shape == (960, 720 + PANEL_PX, 3)


def test_the_default_view_finds_the_nose_by_the_mounting_of_the_sensor():
    T_ego_lidar = np.eye(4)
    T_ego_lidar[:2, :2] = [[0, 1], [-1, 0]]
    point = np.array([[0, 30, 0, 0, 0]], np.float32)  # ahead, for this mounting
    rows, cols = changed(
        render_bev_map(no_points(), T_ego_lidar=T_ego_lidar),
        render_bev_map(point, T_ego_lidar=T_ego_lidar),
    )
    assert (rows < 200).all() and np.abs(cols - 360).max() <= 1


def test_nothing_at_all_still_gives_a_picture():
    """Zero detections must not fail anywhere on the way to the screen."""
    nothing = Detections.empty()
    full = render_bev(no_points(), VIEW, detections=nothing, ground_truth=nothing)
    quick = render_bev_map(no_points(), VIEW, detections=nothing)
    assert full.shape[1] == 500 + PANEL_PX
    assert np.array_equal(quick, render_bev_map(no_points(), VIEW))


def test_an_empty_grid_draws_nothing():
    grid = BevGrid({"max_height": np.zeros((0, 0)), "min_height": np.zeros((0, 0))}, 1.0, (0, 0))
    assert np.array_equal(
        render_bev_map(no_points(), VIEW, grid=grid), render_bev_map(no_points(), VIEW)
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, math.nan), (1, math.inf), (3, 1e22), (4, 0.0), (5, -1.0), (6, math.nan), (0, 1e30)],
)
def test_a_broken_box_is_left_out_of_the_picture_and_counted(column, value):
    """Non-finite or absurd boxes from a broken head must not reach the screen."""
    good, bad = car_at(10, 5), car_at(-20, -8)
    bad[column] = value
    both = boxes_of(good, bad)
    assert drawable(both).skipped == 1
    assert np.array_equal(render_bev_map(no_points(), VIEW, detections=both), picture(good))
    full = render_bev(no_points(), VIEW, detections=both)
    clean = render_bev(no_points(), VIEW, detections=boxes_of(good))
    assert not np.array_equal(full[:, 500:], clean[: len(full), 500:])  # the panel says so


@pytest.mark.parametrize("score", [181.0, math.nan, -0.5, math.inf])
def test_a_score_that_is_no_probability_is_left_out_and_counted(score):
    boxes = boxes_of(car_at(10, 5), car_at(20, 5), scores=[score, 0.5])
    kept = drawable(boxes)
    assert kept.skipped == 1 and kept.scores.tolist() == [0.5]


def test_boxes_below_the_least_score_are_hidden_but_not_counted_as_broken():
    kept = drawable(boxes_of(car_at(10, 5), car_at(20, 5), scores=[0.1, 0.5]), min_score=0.3)
    assert len(kept) == 1 and kept.skipped == 0


def test_the_surest_box_is_drawn_on_top():
    overlapping = [car_at(10.1, 5.1), car_at(10.1, 5.1)]  # edges run through pixel centres
    first, second = (
        picture(*overlapping, names=["car", "bus"], scores=scores)
        for scores in ([0.9, 0.2], [0.2, 0.9])
    )
    assert len(near(first, class_color("car"), 30)) > 20 > len(near(first, class_color("bus"), 30))
    assert len(near(second, class_color("bus"), 30)) > 20


def test_a_label_beyond_the_class_names_is_drawn_grey_with_its_number():
    boxes = dataclasses.replace(boxes_of(car_at(10, 5)), labels=torch.tensor([42]))
    assert drawable(boxes).names == ("class 42",)
    render_bev(no_points(), VIEW, detections=boxes)


def test_points_that_are_not_finite_change_nothing():
    bad = np.array([[math.nan, 0, 0, 0, 0], [math.inf, 1, 0, 0, 0], [5, 5, math.nan, 0, 0]])
    with_bad = np.concatenate([street(), bad.astype(np.float32)])
    assert np.array_equal(render_bev_map(street(), VIEW), render_bev_map(with_bad, VIEW))


def test_the_same_frame_gives_the_same_bytes_as_array_and_as_tensor():
    boxes = boxes_of(car_at(10, 5, vx=3.0), car_at(-20, 5), names=["car", "bus"])
    grid = build_bev_grid(street(), LidarConfig())
    first, second = (
        render_bev(points, VIEW, detections=boxes, ground_truth=boxes, grid=grid, title="t")
        for points in (street(), torch.from_numpy(street()))
    )
    assert first.tobytes() == second.tobytes()
    quick = [render_bev_map(street(), VIEW, detections=boxes, grid=grid) for _ in range(2)]
    assert quick[0].tobytes() == quick[1].tobytes()
    assert quick[0].flags.c_contiguous


def test_points_and_boxes_given_are_not_written_to():
    points, boxes = street(), boxes_of(car_at(10, 5))
    before = points.tobytes(), boxes.boxes.numpy().tobytes()
    render_bev(points, VIEW, detections=boxes)
    assert before == (points.tobytes(), boxes.boxes.numpy().tobytes())


def test_an_unknown_colour_source_and_a_missing_column_are_refused():
    with pytest.raises(ConfigError, match="'height' or 'intensity', got 'ring'"):
        render_bev(street(), VIEW, color_by="ring")
    with pytest.raises(ConfigError, match="need column 3"):
        render_bev(street()[:, :3], VIEW, color_by="intensity")
    with pytest.raises(ConfigError, match="1 to 8192 pixels a side"):
        BevView.around(50, size_px=100_000)
    with pytest.raises(ConfigError, match="either pixels_per_m or size_px"):
        BevView.of_range([0, 0, 0, 1, 1, 1])


# --- palette -----------------------------------------------------------------------------------


def test_every_two_classes_are_told_apart_by_colour():
    lab = srgb_to_oklab(np.array(list(CLASS_COLORS.values())) / 255)
    distance = np.linalg.norm(lab[:, None] - lab[None], axis=2) + np.eye(len(lab))
    assert distance.min() > 0.08


def test_class_colours_stand_out_against_the_colours_of_points():
    lab = srgb_to_oklab(np.array(list(CLASS_COLORS.values())) / 255)
    ramp = srgb_to_oklab(height_ramp() / 255)
    assert np.linalg.norm(lab[:, None] - ramp[None], axis=2).min() > 0.08


def test_the_height_ramp_is_even_and_only_gets_lighter():
    lab = srgb_to_oklab(height_ramp()[::15] / 255)  # coarse steps: 8-bit rounding averages out
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    assert steps.max() / steps.min() < 1.35
    assert (np.diff(lab[:, 0]) > 0).all()


def test_marker_colours_are_the_colours_of_the_picture():
    assert np.array(class_color_unit("bus")) * 255 == pytest.approx(class_color("bus"))
    assert class_color("unheard_of") == class_color("also_unheard_of")
