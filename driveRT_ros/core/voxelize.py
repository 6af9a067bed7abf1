"""Voxelization with mean features: points to the rows of the first sparse level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.ops import Ops

NUM_FEATURES = 5
"""x, y, z, intensity, time lag."""


@dataclass(frozen=True, eq=False)
class Voxels:
    """Occupied cells in order of first appearance; the tensors share their first dimension V.

    Args:
        features: (V, 5) mean x, y, z, intensity, time lag of the points kept, in their dtype.
        coords_bzyx: (V, 4) int32 batch (always 0), z, y, x.
        num_points: (V,) int32 points averaged, 1 to ``max_points_per_voxel``.
        dropped: Counts of what was left out. ``non_finite_points``, ``out_of_range_points``,
            ``over_capacity_points`` (beyond ``max_points_per_voxel``) and
            ``over_capacity_voxel_points`` (in voxels beyond ``max_voxels``) add up with
            ``num_points`` to the input; ``over_capacity_voxels`` counts those voxels.
    """

    features: torch.Tensor
    coords_bzyx: torch.Tensor
    num_points: torch.Tensor
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.coords_bzyx)


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
