"""Grids and pictures as messages: orientation, layout, and time to encode."""

from __future__ import annotations

import time

import numpy as np
import pytest
from std_msgs.msg import Header

from driveRT_ros.core.frame import BevGrid
from driveRT_ros.nodes import grids

HEADER = Header(frame_id="lidar")


def one_cell(x: float, y: float) -> tuple[BevGrid, np.ndarray]:
    """Return a grid of 200 x 120 cells of 0.5 m with one marked cell, and its row and column."""
    layer = np.full((120, 200), np.nan, np.float32)
    row, col = int((y + 30) / 0.5), int((x + 50) / 0.5)
    layer[row, col] = 1.0
    return BevGrid({"mark": layer}, 0.5, (-50.0, -30.0)), np.array((row, col))


def test_occupied_cell_ahead_and_right_is_found_there_in_the_message() -> None:
    # A grid filled column by column would be transposed in every viewer.
    grid, (row, col) = one_cell(x=20.0, y=-5.0)
    occupied = np.where(np.isnan(grid.layers["mark"]), -1, 100).astype(np.int8)
    msg = grids.occupancy_grid(HEADER, grid, occupied)
    assert (msg.info.width, msg.info.height) == (200, 120)
    index = list(msg.data).index(100)
    assert divmod(index, msg.info.width) == (row, col)
    center_x = msg.info.origin.position.x + (index % msg.info.width + 0.5) * msg.info.resolution
    center_y = msg.info.origin.position.y + (index // msg.info.width + 0.5) * msg.info.resolution
    assert abs(center_x - 20.0) <= 0.25 and abs(center_y + 5.0) <= 0.25
    assert msg.info.origin.orientation.w == 1.0


@pytest.mark.parametrize(("x", "y"), [(20.0, -5.0), (-50.0, -30.0), (49.9, 29.9)])
def test_grid_map_counts_its_indices_from_the_greatest_x_and_y(x: float, y: float) -> None:
    grid, _ = one_cell(x, y)
    msg = grids.grid_map(HEADER, grid)
    [data] = msg.data
    columns, rows = data.layout.dim
    assert (columns.label, columns.size, columns.stride) == ("column_index", 120, 24_000)
    assert (rows.label, rows.size, rows.stride) == ("row_index", 200, 200)
    matrix = np.asarray(data.data).reshape(rows.size, columns.size, order="F")
    [(i, j)] = np.argwhere(matrix == 1.0)
    # As grid_map computes positions: from the centre, half a length up, index and a half down.
    center, info = msg.info.pose.position, msg.info
    assert abs(center.x + info.length_x / 2 - (i + 0.5) * info.resolution - x) <= 0.25 + 1e-9
    assert abs(center.y + info.length_y / 2 - (j + 0.5) * info.resolution - y) <= 0.25 + 1e-9
    assert np.isnan(matrix).sum() == matrix.size - 1


def test_large_grids_and_pictures_are_encoded_as_blocks() -> None:
    # Bytes or a list would be checked value by value: 6 million of them take half a second. The
    # limit is in time of this thread alone, and leaves room: a block takes a few milliseconds.
    layer = np.zeros((1440, 1440), np.float32)
    grid = BevGrid({"a": layer}, 0.075, (-54.0, -54.0))
    encoders = (
        lambda: grids.occupancy_grid(HEADER, grid, np.zeros((1440, 1440), np.int8)),
        lambda: grids.grid_map(HEADER, grid),
        lambda: grids.rgb_image(HEADER, np.zeros((1440, 1440, 3), np.uint8)),
    )
    for encode in encoders:
        times_ms = []
        for _ in range(10):
            start_s = time.thread_time()
            encode()
            times_ms.append((time.thread_time() - start_s) * 1e3)
        assert min(times_ms) < 100.0
