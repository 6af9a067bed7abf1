"""The picture of what cameras see: footprints, coverage, layers, images around the map."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import BevGrid, Detections, FrameReport
from driveRT_ros.io.camera_panel import camera_panel
from driveRT_ros.io.camera_view import (
    LAYER_COLORS,
    SEEN_ONCE,
    SEEN_TWICE,
    camera_color,
    footprint,
    render_camera_map,
)
from driveRT_ros.io.palette import AMBER
from test.support.camera_rig import NAMES, frame, project

CONFIG = CameraConfig()


def result(notes: tuple[str, ...] = (), **layers: np.ndarray) -> Detections:
    zeros = np.zeros((180, 180), np.float32)
    bev = BevGrid({"cameras": zeros, **layers}, 0.6, (-54.0, -54.0))
    found = Detections.empty(report=FrameReport(notes=notes))
    return Detections(found.boxes, found.scores, found.labels, found.class_names, found.report, bev)


@pytest.mark.parametrize("name", NAMES)
def test_corners_of_a_footprint_project_onto_the_borders_of_the_image(name: str) -> None:
    camera = frame(name)
    outline = footprint(camera, CONFIG)
    height = camera.T_ego_camera[2, 3]
    pixels, depth = project(camera, np.column_stack([outline, np.full(4, height)]))
    np.testing.assert_allclose(depth, [1.0, 60.0, 60.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(pixels[:, 0], [0.0, 0.0, 1600.0, 1600.0], atol=1e-6)


def test_footprint_ends_where_the_crop_of_the_network_ends() -> None:
    config = CameraConfig.from_dict({"model.image.resize": 0.88})  # 1408 columns, 704 are used
    pixels, _ = project(frame("CAM_FRONT"), np.column_stack([footprint(frame("CAM_FRONT"), config),
                                                             np.full(4, 1.51)]))  # fmt: skip
    np.testing.assert_allclose(pixels[:, 0], [400.0, 400.0, 1200.0, 1200.0], atol=1.0)


def test_cells_are_brighter_the_more_cameras_see_them_and_lie_nose_up() -> None:
    cameras = np.zeros((180, 180), np.float32)
    cameras[90:, 150], cameras[:90, 150] = 1, 2  # ahead: left once, right twice
    picture = render_camera_map(result(cameras=cameras), [], CONFIG)
    assert picture.shape == (720, 720, 3)
    row = 720 - (150 * 4 + 2)  # ahead is up
    assert tuple(picture[row, 100]) == SEEN_ONCE and tuple(picture[row, 600]) == SEEN_TWICE


def test_layers_are_drawn_in_their_colour_as_strong_as_they_are_probable() -> None:
    vehicle = np.full((180, 180), np.nan, np.float32)
    vehicle[100:110, 150:160] = 1.0
    picture = render_camera_map(result(vehicle=vehicle), [], CONFIG)
    row, col = 720 - (155 * 4 + 2), 720 - (105 * 4 + 2)
    assert tuple(picture[row, col]) == LAYER_COLORS["vehicle"]
    weak = render_camera_map(result(vehicle=vehicle * 0.1), [], CONFIG)
    assert tuple(weak[row, col]) != LAYER_COLORS["vehicle"] and weak[row, col].max() < 60


def test_the_road_lies_under_what_stands_on_it_in_any_order_of_the_network() -> None:
    road = np.ones((180, 180), np.float32)
    vehicle = np.zeros((180, 180), np.float32)
    vehicle[100:110, 150:160] = 1.0
    picture = render_camera_map(result(vehicle=vehicle, drivable_area=road), [], CONFIG)
    assert tuple(picture[720 - (155 * 4 + 2), 720 - (105 * 4 + 2)]) == LAYER_COLORS["vehicle"]
    assert tuple(picture[720 - (100 * 4 + 2), 100]) == LAYER_COLORS["drivable_area"]


def test_untrained_weights_have_an_amber_frame() -> None:
    picture = render_camera_map(result(("untrained_weights",)), [], CONFIG)
    assert tuple(picture[0, 300]) == AMBER
    assert tuple(render_camera_map(result(), [], CONFIG)[0, 300]) != AMBER


def test_result_without_the_coverage_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="cameras"):
        render_camera_map(Detections.empty(), [], CONFIG)


def test_colours_of_cameras_differ() -> None:
    colors = np.array([camera_color(i, 6) for i in range(6)], int)
    apart = np.abs(colors[:, None] - colors[None]).sum(axis=2)[~np.eye(6, dtype=bool)]
    assert apart.min() > 60


@pytest.mark.parametrize("count", [0, 1, 2, 6, 7])
def test_images_go_in_two_rows_around_the_map(count: int) -> None:
    map_ = np.full((720, 720, 3), 200, np.uint8)
    images = [(f"c{i}", np.full((90, 160, 3), 100, np.uint8)) for i in range(count)]
    panel = camera_panel(map_, images)
    assert panel.shape == (960, 720, 3)
    assert (panel == 200).all(axis=2).sum() > 250_000
    top, bottom = ((panel[rows] == 100).all(axis=2).any() for rows in (slice(90), slice(-40, None)))
    assert (top, bottom) == (count > 0, count > 1)


def test_missing_image_and_map_leave_their_places_empty() -> None:
    panel = camera_panel(None, [("a", None), ("b", np.full((9, 16, 3), 255, np.uint8))])
    assert panel[480:600, 100:600].mean() < 30
    assert panel[-100:, 300:420].mean() > 200
