"""Voxels of all frames of a batch at once: what one frame gets, for fewer launches and waits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.reference.coordmap import cell_keys, cells_of_keys
from driveRT_ros.core.reference.segments import Groups, group_rows, sum_groups
from driveRT_ros.core.reference.voxelize import point_cells
from driveRT_ros.core.sparse_types import NUM_FEATURES


def voxelize_batch(
    points: torch.Tensor, point_counts: Sequence[int], config: VoxelizationConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average the points of each cell of each frame.

    Args:
        points: (N, 5) float32 or float64, frame after frame.
        point_counts: Points of each frame.
        config: Range, voxel size and capacities of a frame.

    Returns:
        (V, 5) mean features and (V, 4) int32 frame, z, y, x; the rows that ``voxelize`` gives for
        each frame, to the last bit, but in ascending order of their cells.
    """
    counts = torch.tensor(point_counts, device=points.device)
    frames = torch.arange(len(point_counts), device=points.device)
    frame = frames.repeat_interleave(counts, output_size=len(points))
    values = points[:, :NUM_FEATURES]
    cells_xyz, inside = point_cells(values[:, :3], config)
    kept = (inside & values.isfinite().all(dim=1)).nonzero().squeeze(1)
    values, frame = values.index_select(0, kept), frame.index_select(0, kept)
    x, y, z = cells_xyz.index_select(0, kept).long().unbind(1)
    grid_zyx = config.grid_xyz[::-1]
    groups = group_rows(cell_keys(torch.stack((frame, z, y, x), dim=1), grid_zyx))
    coords = cells_of_keys(groups.keys, grid_zyx)
    mine = _within_capacity(groups, coords[:, 0].long(), len(point_counts), config.max_voxels)
    starts, counts = groups.starts, groups.counts
    if mine is not None:
        starts, counts, coords = starts[mine], counts[mine], coords[mine]
    used = counts.clamp(max=config.max_points_per_voxel)
    sums = sum_groups(values, groups.order, starts, used)
    return sums / used.to(sums.dtype).unsqueeze(1), coords


def _within_capacity(
    groups: Groups, frame: torch.Tensor, frames: int, max_voxels: int
) -> torch.Tensor | None:
    """Return the cells among the first of their frame to appear, ascending; None for all."""
    counts = torch.bincount(frame, minlength=frames)
    if len(frame) == 0 or int(counts.max()) <= max_voxels:
        return None
    # The first point of a cell stands at its start, and frames follow one another.
    appearance = groups.order[groups.starts].argsort()
    rank = torch.arange(len(frame), device=frame.device)
    rank = rank - (counts.cumsum(0) - counts)[frame[appearance]]
    return appearance[rank < max_voxels].sort().values
