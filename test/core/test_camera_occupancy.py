"""Occupancy from layers of probability and from boxes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_occupancy import camera_occupancy
from driveRT_ros.core.camera_pipeline import CAMERAS_LAYER
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import BevGrid, Detections

ROWS, COLS, STEP = 20, 30, 0.5
ORIGIN_XY = (-5.0, -4.0)


def result(*boxes: tuple, scores: tuple = (), **layers: np.ndarray) -> Detections:
    layers.setdefault(CAMERAS_LAYER, np.ones((ROWS, COLS), np.float32))
    return Detections(
        boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 9),
        scores=torch.tensor(scores, dtype=torch.float32),
        labels=torch.zeros(len(boxes), dtype=torch.int64),
        bev=BevGrid(layers, STEP, ORIGIN_XY),
    )


def layer(value: float = 0.0) -> np.ndarray:
    return np.full((ROWS, COLS), value, np.float32)


def test_the_greatest_named_layer_counts_in_percent():
    vehicle, pedestrian, road = layer(0.104), layer(), layer(1.0)
    pedestrian[3, 4] = 0.62
    got = camera_occupancy(
        result(vehicle=vehicle, pedestrian=pedestrian, drivable_area=road), CameraConfig()
    )
    assert got.dtype == np.int8
    assert got[3, 4] == 62
    assert got[0, 0] == 10
    assert got.max() == 62, "the drivable area is no obstacle"


def test_cells_that_no_camera_sees_are_unknown():
    cameras, vehicle = layer(1.0), layer(0.5)
    cameras[5:] = 0
    vehicle[5:] = np.nan
    got = camera_occupancy(result(vehicle=vehicle, cameras=cameras), CameraConfig())
    assert (got[:5] == 50).all()
    assert (got[5:] == -1).all()


def test_a_box_fills_the_cells_it_covers():
    # Centre (0, 1), 4 m along x and 2 m along y: columns 6..13, rows 8..11.
    box = (0.0, 1.0, 0.0, 4.0, 2.0, 1.5, 0.0, 0.0, 0.0)
    got = camera_occupancy(result(box, scores=(0.8,)), CameraConfig())
    inside = np.zeros((ROWS, COLS), bool)
    inside[8:12, 6:14] = True
    assert (got[inside] == 80).all()
    grown = np.zeros((ROWS, COLS), bool)
    grown[7:13, 5:15] = True
    assert (got[~grown] == 0).all()


def test_a_turned_box_is_long_where_it_points():
    box = (2.0, 1.0, 0.0, 6.0, 1.0, 1.5, np.pi / 2, 0.0, 0.0)
    rows, cols = np.nonzero(camera_occupancy(result(box, scores=(0.5,)), CameraConfig()) == 50)
    assert np.ptp(rows) >= 11
    assert np.ptp(cols) <= 3


@pytest.mark.parametrize("scores", [(0.9, 0.4), (0.4, 0.9)])
def test_the_better_of_two_boxes_counts(scores):
    box = (0.0, 1.0, 0.0, 4.0, 2.0, 1.5, 0.0, 0.0, 0.0)
    got = camera_occupancy(result(box, box, scores=scores), CameraConfig())
    assert got[10, 10] == 90


def test_a_box_and_a_layer_count_as_the_greater_of_both():
    box = (0.0, 1.0, 0.0, 4.0, 2.0, 1.5, 0.0, 0.0, 0.0)
    vehicle = layer(0.6)
    vehicle[10, 10] = 0.95
    got = camera_occupancy(result(box, scores=(0.8,), vehicle=vehicle), CameraConfig())
    assert got[10, 10] == 95
    assert got[9, 9] == 80
    assert got[0, 0] == 60


def test_a_box_at_the_edge_fills_what_lies_on_the_grid():
    box = (ORIGIN_XY[0], ORIGIN_XY[1], 0.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0)
    got = camera_occupancy(result(box, scores=(0.7,)), CameraConfig())
    assert (got[:2, :2] == 70).all()
    assert (got[4:, 4:] == 0).all()


def test_a_result_without_layers_is_refused():
    with pytest.raises(ConfigError, match="'cameras'"):
        camera_occupancy(Detections.empty(), CameraConfig())
