"""Voxelization in plain torch; ``core/voxelize.py`` states the rules."""

from __future__ import annotations

import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.reference.coordmap import cell_keys, cells_of_keys
from driveRT_ros.core.reference.segments import group_rows, sum_groups
from driveRT_ros.core.sparse_types import NUM_FEATURES, Voxels


def voxelize(points: torch.Tensor, config: VoxelizationConfig) -> Voxels:
    """Average the points of each cell.

    Args:
        points: (N, 5 or more) float32 or float64.
        config: Range, voxel size and capacities.
    """
    values = points[:, :NUM_FEATURES]
    finite = values.isfinite().all(dim=1)
    cells_xyz, inside = point_cells(values[:, :3], config)
    kept = (inside & finite).nonzero().squeeze(1)
    values = values.index_select(0, kept)

    grid_zyx = config.grid_xyz[::-1]
    x, y, z = cells_xyz.index_select(0, kept).long().unbind(1)
    keys = cell_keys(torch.stack((torch.zeros_like(x), z, y, x), dim=1), grid_zyx)
    groups = group_rows(keys)

    # A stable sort leaves the first point of a cell at its start.
    appearance = groups.order[groups.starts].argsort()
    mine = appearance[: config.max_voxels]
    counts = groups.counts[mine]
    used = counts.clamp(max=config.max_points_per_voxel)
    sums = sum_groups(values, groups.order, groups.starts[mine], used)

    num_finite, num_stored = int(finite.sum()), int(counts.sum())
    return Voxels(
        features=sums / used.to(sums.dtype).unsqueeze(1),
        coords_bzyx=cells_of_keys(groups.keys[mine], grid_zyx),
        num_points=used.int(),
        dropped={
            "non_finite_points": len(points) - num_finite,
            "out_of_range_points": num_finite - len(kept),
            "over_capacity_points": num_stored - int(used.sum()),
            "over_capacity_voxels": len(groups.keys) - len(mine),
            "over_capacity_voxel_points": len(kept) - num_stored,
        },
    )


def point_cells(xyz: torch.Tensor, config: VoxelizationConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cell of each point as floats (N, 3), and whether it is on the grid (N,)."""
    low = xyz.new_tensor(config.point_cloud_range[:3])
    high = xyz.new_tensor(config.point_cloud_range[3:])
    grid = xyz.new_tensor(config.grid_xyz)
    # The divisor is a tensor because CUDA turns division by a scalar into a multiplication by its
    # reciprocal, which moves points on a cell edge. Comparing floats, before any cast to integer,
    # is exact and safe for coordinates no integer can hold.
    cells = ((xyz - low) / xyz.new_tensor(config.voxel_size)).floor()
    on_grid = ((cells >= 0) & (cells < grid)).all(dim=1)
    xy = xyz[:, :2]
    in_range = ((xy >= low[:2]) & (xy <= high[:2])).all(dim=1)
    return cells, on_grid & in_range
