"""Bird's-eye-view outputs as messages: occupancy, named layers, picture."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
from geometry_msgs.msg import Point, Pose
from grid_map_msgs.msg import GridMap
from nav_msgs.msg import OccupancyGrid
from sensor_msgs.msg import Image
from std_msgs.msg import Float32MultiArray, MultiArrayDimension

from driveRT_ros.core.frame import BevGrid


def occupancy_grid(header: Any, grid: BevGrid, occupied: np.ndarray) -> OccupancyGrid:
    """Encode occupancy.

    Args:
        header: Header of the cloud.
        grid: Gives resolution and origin.
        occupied: (rows, cols) int8, 0..100, or -1 where unknown; row = y, column = x, which is
            the order of the message.
    """
    msg = OccupancyGrid(header=header)
    msg.info.map_load_time = header.stamp
    msg.info.resolution = float(grid.resolution_m)
    msg.info.height, msg.info.width = occupied.shape
    x0, y0 = grid.origin_xy
    msg.info.origin = Pose(position=Point(x=float(x0), y=float(y0)))
    msg.data = _packed("b", np.ascontiguousarray(occupied, np.int8))
    return msg


def grid_map(header: Any, grid: BevGrid) -> GridMap:
    """Encode all layers as grid_map stores them.

    A grid_map matrix has its first index along -x and its second along -y, both counted from the
    corner with the greatest x and y, and is stored column by column. Column by column over
    reversed axes is the reverse of our row-major layers.

    Source: grid_map_core (index (0, 0) is the greatest x and y), grid_map_ros (layout labels).
    """
    rows, cols = grid.shape
    msg = GridMap(header=header)
    msg.info.resolution = float(grid.resolution_m)
    msg.info.length_x, msg.info.length_y = cols * grid.resolution_m, rows * grid.resolution_m
    x0, y0 = grid.origin_xy
    center = Point(x=x0 + msg.info.length_x / 2, y=y0 + msg.info.length_y / 2)
    msg.info.pose = Pose(position=center)
    for name, layer in grid.layers.items():
        data = Float32MultiArray()
        data.layout.dim = [
            MultiArrayDimension(label="column_index", size=rows, stride=rows * cols),
            MultiArrayDimension(label="row_index", size=cols, stride=cols),
        ]
        flipped = np.ascontiguousarray(layer[::-1, ::-1], np.float32)
        data.data = _packed("f", flipped)
        msg.layers.append(name)
        msg.data.append(data)
    return msg


def rgb_image(header: Any, picture: np.ndarray) -> Image:
    """Encode a (height, width, 3) uint8 RGB picture."""
    height, width, _ = picture.shape
    msg = Image(header=header, height=height, width=width, encoding="rgb8", step=3 * width)
    msg.data = _packed("B", np.ascontiguousarray(picture))
    return msg


def _packed(typecode: str, values: np.ndarray) -> array.array[Any]:
    """Return the container that rclpy copies as a block; it reads others value by value."""
    out: array.array[Any] = array.array(typecode)
    out.frombytes(memoryview(values.reshape(-1)).cast("B"))
    return out
