"""Merge of the last three backbone levels into one bird's-eye-view level, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.reference.coordmap import cell_keys, cells_of_keys
from driveRT_ros.core.reference.segments import group_rows, sum_groups
from driveRT_ros.core.sparse_types import SparseTensor


def bev_merge(levels: Sequence[SparseTensor], scales: Sequence[int] = (1, 2, 4)) -> SparseTensor:
    """Drop z and add up the rows that share a bird's-eye-view cell.

    A row at (y, x) of a level with scale s lands on cell (s * y, s * x). The order of the additions
    is fixed: the levels as given, within a level z ascending.

    Args:
        levels: Sparse tensors of equal channel count, finest first.
        scales: Cells of the first level per cell of each level.

    Returns:
        Rows in ascending (b, y, x) order on a grid of one z cell and the first level's y, x.

    Raises:
        ConfigError: If a level reaches beyond the first level's grid.
    """
    first = levels[0]
    _, ny, nx = first.spatial_shape_zyx
    flat_shape = (1, ny, nx)
    keys, heights, offset = [], [], 0
    for level, scale in zip(levels, scales):
        if any((n - 1) * scale >= m for n, m in zip(level.spatial_shape_zyx[1:], (ny, nx))):
            raise ConfigError(
                f"A level of {level.spatial_shape_zyx} cells at scale {scale} does not fit the "
                f"bird's-eye-view grid of {(ny, nx)} cells."
            )
        b, z, y, x = level.coords_bzyx.long().unbind(1)
        flat = torch.stack((b, torch.zeros_like(z), y * scale, x * scale), dim=1)
        keys.append(cell_keys(flat, flat_shape))
        heights.append(z + offset)
        offset += level.spatial_shape_zyx[0]

    by_height = torch.cat(heights).argsort(stable=True)
    groups = group_rows(torch.cat(keys)[by_height])
    features = torch.cat([level.features for level in levels])
    order = by_height[groups.order]
    return SparseTensor(
        features=sum_groups(features, order, groups.starts, groups.counts),
        coords_bzyx=cells_of_keys(groups.keys, flat_shape),
        spatial_shape_zyx=flat_shape,
        batch_size=first.batch_size,
    )
