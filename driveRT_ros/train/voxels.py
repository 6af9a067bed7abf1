"""Voxels of all frames of a batch at once: what one frame gets, for fewer launches and waits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.core.reference.coordmap import cells_of_keys, prove_key_range
from driveRT_ros.core.reference.segments import Groups, group_rows
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
    counts = torch.tensor(point_counts).to(points.device, non_blocking=True)
    frames = torch.arange(len(point_counts), device=points.device)
    frame = frames.repeat_interleave(counts, output_size=len(points))
    values = points[:, :NUM_FEATURES]
    cells_xyz, inside = point_cells(values[:, :3], config)
    kept = (inside & values.isfinite().all(dim=1)).nonzero().squeeze(1)
    values, frame = values.index_select(0, kept), frame.index_select(0, kept)
    x, y, z = cells_xyz.index_select(0, kept).long().unbind(1)
    grid_zyx = config.grid_xyz[::-1]
    nz, ny, nx = grid_zyx
    prove_key_range(torch.tensor([[len(point_counts) - 1, 0, 0, 0]]), grid_zyx)
    groups = group_rows(((frame * nz + z) * ny + y) * nx + x)
    coords = cells_of_keys(groups.keys, grid_zyx)
    edges = torch.arange(len(point_counts) + 1, device=points.device) * (nz * ny * nx)
    mine = _within_capacity(groups, torch.searchsorted(groups.keys, edges), config.max_voxels)
    starts, counts = groups.starts, groups.counts
    if mine is not None:
        starts, counts, coords = starts[mine], counts[mine], coords[mine]
    used = counts.clamp(max=config.max_points_per_voxel)
    sums = _sum_groups(values, groups.order, starts, used, config.max_points_per_voxel)
    return sums / used.to(sums.dtype).unsqueeze(1), coords


def _within_capacity(groups: Groups, edges: torch.Tensor, max_voxels: int) -> torch.Tensor | None:
    """Return the cells among the first of their frame to appear, ascending; None for all.

    Args:
        groups: Cells.
        edges: (B + 1,) int64 the first cell of each frame, and the end.
        max_voxels: Capacity of a frame.
    """
    if int(edges.diff().max()) <= max_voxels:
        return None
    # The first point of a cell stands at its start, and frames follow one another.
    appearance = groups.order[groups.starts].argsort()
    rank = torch.arange(len(appearance), device=edges.device)
    frame = torch.searchsorted(edges, rank, right=True) - 1
    return appearance[rank - edges[frame] < max_voxels].sort().values


def _sum_groups(
    values: torch.Tensor, order: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor, most: int
) -> torch.Tensor:
    """Return what ``sum_groups`` does, to the last bit, with one wait instead of one a rank.

    Args:
        values: (N, C).
        order: Rows of ``values``, group after group.
        starts: (G,) first position in ``order`` of each group.
        counts: (G,) rows to add from there, at least 1.
        most: The greatest count there may be.
    """
    # Fullest first: those with a row of some rank are then the first so many.
    ascending, groups = counts.sort(stable=True)
    groups, starts = groups.flip(0), starts[groups.flip(0)]
    ranks = torch.arange(1, most, device=counts.device)
    sizes = (len(counts) - torch.searchsorted(ascending, ranks, right=True)).tolist()
    total = values.index_select(0, order[starts])
    for rank, size in enumerate(sizes, start=1):
        if size == 0:
            break
        total[:size] += values.index_select(0, order[starts[:size] + rank])
    return torch.empty_like(total).index_copy_(0, groups, total)
