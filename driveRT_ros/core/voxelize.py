"""Voxelization with mean features: points to the rows of the first sparse level."""

from __future__ import annotations

import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_types import NUM_FEATURES, Voxels

__all__ = ["NUM_FEATURES", "Voxels", "voxelize"]


def voxelize(points: torch.Tensor, config: VoxelizationConfig) -> Voxels:
    """Average the points of each cell.

    The cell of a point is ``floor((p - minimum) / size)``, computed in the dtype of the points with
    one true division. The rules, the same on every device:

    - a point with NaN or Inf in any of its five features is dropped, never replaced;
    - a point outside the x, y range (bounds inclusive) or whose cell is outside the grid is
      dropped. So is a point so close below the maximum that rounding gives it the cell one past
      the last: it is not clamped, because the neighbouring float may lie on either side;
    - the first ``max_points_per_voxel`` points of a cell in input order are summed in that order;
    - the first ``max_voxels`` cells in order of first appearance are kept.

    Args:
        points: (N, 5 or more) float32 or float64: x, y, z in metres, intensity, time lag in
            seconds; further columns are ignored.
        config: Range, voxel size and capacities.

    Returns:
        The voxels; none for an empty cloud.

    Raises:
        InvalidFrame: If the points have another shape or dtype.

    Source: kept points and their order as in the mean VFE of SECOND and VoxelNeXt.
    """
    if points.ndim != 2 or points.shape[1] < NUM_FEATURES:
        raise InvalidFrame(
            "Points must be rows of x, y, z, intensity, time lag.",
            "points",
            tuple(points.shape),
            f"(N, {NUM_FEATURES})",
        )
    if points.dtype not in (torch.float32, torch.float64):
        raise InvalidFrame(
            "Half precision moves distant points into other voxels; convert to float32 first.",
            "points",
            points.dtype,
            "torch.float32 or torch.float64",
        )
    return Ops.for_device(points.device).voxelize(points, config)
