"""The occupancy that follows from what the cameras saw."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.core.bev_grid import UNKNOWN
from driveRT_ros.core.boxes import bev_corners
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CAMERAS_LAYER
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import Detections

_FRACTION_BITS = 8  # of a cell, in which OpenCV takes corners


def camera_occupancy(result: Detections, config: CameraConfig) -> npt.NDArray[np.int8]:
    """Return how probably something stands in each cell, in percent.

    It is the greatest probability of the layers that ``bev.occupancy_layers`` names and of the
    boxes that touch the cell. 0 says that none of those was seen there, not that the ground is
    free of everything else.

    Args:
        result: Of :class:`driveRT_ros.core.camera_pipeline.CameraPipeline`.
        config: ``bev.occupancy_layers``; names that the network does not give are left out.

    Returns:
        (rows, cols) int8, 0..100, and -1 where no camera sees the cell; ``ravel()`` is the
        ``data`` of nav_msgs/OccupancyGrid.

    Raises:
        ConfigError: If the result has no layers.
    """
    bev = result.bev
    if bev is None or CAMERAS_LAYER not in bev.layers:
        raise ConfigError(
            f"The occupancy needs the layer '{CAMERAS_LAYER}' of the camera pipeline, got "
            f"{list(bev.layers) if bev else None}."
        )
    probability = _box_scores(result)
    for name in config.bev.occupancy_layers:
        if name in bev.layers:
            np.fmax(probability, bev.layers[name], out=probability)
    percent = np.round(probability * 100).astype(np.int8)
    return np.where(bev.layers[CAMERAS_LAYER] > 0, percent, np.int8(UNKNOWN))


def _box_scores(result: Detections) -> npt.NDArray[np.float32]:
    """Return the best score of the boxes that touch each cell, 0 where none does."""
    assert result.bev is not None
    scores = np.zeros(result.bev.shape, np.float32)
    # Cell (row, col) is the pixel whose centre OpenCV has at (col, row).
    cells = (bev_corners(result.boxes).numpy() - result.bev.origin_xy) / result.bev.resolution_m
    pixels = np.round((cells - 0.5) * 2**_FRACTION_BITS).astype(np.int32)
    # The best one is drawn last.
    for index in np.argsort(result.scores.numpy(), kind="stable"):
        cv2.fillConvexPoly(scores, pixels[index], float(result.scores[index]), shift=_FRACTION_BITS)
    return scores
