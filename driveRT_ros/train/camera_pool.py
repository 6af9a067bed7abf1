"""Pooling for training: a map of its own for each frame of a batch, and gradients that repeat.

The operator that inference uses (``core/pool_op.py``) has one map for all frames of a batch and
adds up gradients of features in any order on a GPU. Here every frame is augmented in its own way,
and a run must give the same bits when it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driveRT_ros.core.camera_config import CameraModelConfig
from driveRT_ros.core.camera_rig import frustum_shape, pool_grid
from driveRT_ros.core.reference.bev_pool import point_cells, points_of


@dataclass(frozen=True, eq=False)
class BatchMap:
    """Which frustum points of B frames fall into which cells.

    Args:
        cells: (B N, D, H W) int64 index into (B, Z, Y, X) as one list; points outside have the
            number behind the last.
        order: (P,) int64 the points inside, grouped by cell: index into (B, N, D, H, W).
        pixels: (P,) int64 index of the pixel of each into (B, N, H, W).
        starts: (B Z Y X,) int64 first point of each cell.
    """

    cells: torch.Tensor
    order: torch.Tensor
    pixels: torch.Tensor
    starts: torch.Tensor

    @staticmethod
    @torch.no_grad()
    def build(coefficients: torch.Tensor, model: CameraModelConfig) -> BatchMap:
        """Find the cell of every point.

        Args:
            coefficients: (B, N, 24) float64, on the device of the map.
            model: Depths, grid and image size.
        """
        batch, cameras = coefficients.shape[:2]
        grid = pool_grid(model)
        points = points_of(coefficients.flatten(0, 1), frustum_shape(model))
        own = point_cells(points, grid, model.grid.rounding).flatten(2)
        per_frame = grid.shape_zyx[0] * grid.shape_zyx[1] * grid.shape_zyx[2]
        total = batch * per_frame
        first = torch.arange(batch, device=own.device).repeat_interleave(cameras) * per_frame
        cells = torch.where(own >= 0, own + first[:, None, None], total)
        ordered, order = cells.flatten().sort(stable=True)
        inside = int((ordered < total).sum())
        ordered, order = ordered[:inside].contiguous(), order[:inside]
        depths, area = own.shape[1:]
        pixels = order // (depths * area) * area + order % area
        starts = torch.searchsorted(ordered, torch.arange(total, device=own.device))
        return BatchMap(cells, order, pixels, starts)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, depth, context, found):  # type: ignore[no-untyped-def]
        """Return (cells, C): the points of a cell are added in their order."""
        ctx.save_for_backward(depth, context)
        ctx.found = found
        weights = depth.reshape(-1)[found.order]
        rows = context.reshape(-1, context.shape[-1])
        return torch.nn.functional.embedding_bag(
            found.pixels, rows, found.starts, mode="sum", per_sample_weights=weights
        )

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        """Return gradients depth by depth: no two of a depth add to the same place."""
        depth, context = ctx.saved_tensors
        cells = ctx.found.cells
        channels = context.shape[-1]
        padded = torch.cat((grad, grad.new_zeros(1, channels)))
        rows = context.reshape(-1, channels)
        weights = depth.reshape(cells.shape)
        d_depth, d_rows = torch.empty_like(weights), torch.zeros_like(rows)
        for d in range(cells.shape[1]):
            of_point = padded[cells[:, d].reshape(-1)]
            d_depth[:, d] = (of_point * rows).sum(1).view(len(cells), -1)
            d_rows.addcmul_(of_point, weights[:, d].reshape(-1, 1))
        return d_depth.view(depth.shape), d_rows.view(context.shape), None


def batch_pool(
    depth: torch.Tensor, context: torch.Tensor, found: BatchMap, shape_zyx: tuple[int, int, int]
) -> torch.Tensor:
    """Sum depth x context in every cell of every frame.

    Args:
        depth: (B, N, D, H, W) float32 or float64.
        context: (B, N, H, W, C), likewise.
        found: The map.
        shape_zyx: Cells of one frame.

    Returns:
        (B, Z, Y, X, C).
    """
    pooled: torch.Tensor = _Pool.apply(depth.contiguous(), context.contiguous(), found)
    return pooled.view(len(depth), *shape_zyx, context.shape[-1])
