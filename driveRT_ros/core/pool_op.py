"""``drivert::bev_pool``: pooling as an operator of torch, with a fake kernel and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.pool_types import MAP_ARRAYS, ScatterMap
from driveRT_ros.core.reference import bev_pool as reference


@torch.library.custom_op("drivert::bev_pool", mutates_args=())
def pool_op(
    depth: torch.Tensor,
    context: torch.Tensor,
    ranks: Sequence[torch.Tensor],
    work: Sequence[torch.Tensor],
    grid_shape_zyx: Sequence[int],
    tactic: str,
    scale: float,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Pool; ``ranks`` are the five arrays of a map, ``work`` is what ``tactic`` works off."""
    scatter_map = _map_of(depth, ranks, grid_shape_zyx)
    if not depth.is_cuda:
        how = {"scale": scale, "out_dtype": out_dtype}
        return reference.bev_pool(depth, context, scatter_map, **how)
    from driveRT_ros.core.gpu.bev_pool import bind  # needs a driver

    chosen = PoolTactic.from_json(tactic)
    shape = (len(depth), *grid_shape_zyx, context.shape[-1])
    out = torch.zeros(shape, dtype=out_dtype, device=depth.device)
    if chosen.kind != "tiles" and not depth[0].is_contiguous():
        depth = depth.contiguous()
    launch = chosen.launch(depth, context, out, scatter_map, chosen.work_of(work), scale)
    bind(launch, depth.device)()
    return out


@pool_op.register_fake
def _pool_fake(
    depth: torch.Tensor,
    context: torch.Tensor,
    ranks: Sequence[torch.Tensor],
    work: Sequence[torch.Tensor],
    grid_shape_zyx: Sequence[int],
    tactic: str,
    scale: float,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    shape = (depth.shape[0], *grid_shape_zyx, context.shape[-1])
    return torch.empty(shape, dtype=out_dtype, device=depth.device)


def _map_of(
    depth: torch.Tensor, ranks: Sequence[torch.Tensor], grid_shape_zyx: Sequence[int]
) -> ScatterMap:
    n, d, h, w = depth.shape[1:]
    nz, ny, nx = grid_shape_zyx
    return ScatterMap(
        **dict(zip(MAP_ARRAYS, ranks)),
        counts=torch.tensor([len(ranks[0]), len(ranks[3])], dtype=torch.int32),
        grid_shape_zyx=(nz, ny, nx),
        frustum_shape=(n, d, h, w),
    )


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    depth, context, ranks, work, _, _, scale, _ = inputs
    ctx.save_for_backward(depth, context, *ranks[:3])
    ctx.scale, ctx.lists = scale, (len(ranks), len(work))


def _pool_backward(ctx, grad):  # type: ignore[no-untyped-def]
    """Return the gradients of both inputs: context . grad and depth * grad of every point."""
    depth, context, rank_depth, rank_feat, rank_bev = ctx.saved_tensors
    channels = context.shape[-1]
    grad = grad.reshape(len(depth), -1, channels) * ctx.scale
    d_depth, d_context = torch.zeros_like(depth), torch.zeros_like(context)
    for b in range(len(depth)):
        of_point = grad[b, rank_bev.long()]
        features = context[b].reshape(-1, channels)[rank_feat.long()].to(grad.dtype)
        d_depth[b].view(-1)[rank_depth.long()] = (of_point * features).sum(1).to(depth.dtype)
        products = of_point * depth[b].reshape(-1)[rank_depth.long(), None].to(grad.dtype)
        flat = products.new_zeros(context[b].numel() // channels, channels)
        d_context[b] = flat.index_add_(0, rank_feat.long(), products).view_as(context[b])
    no_gradients = [[None] * length for length in ctx.lists]
    return d_depth, d_context, *no_gradients, None, None, None, None


pool_op.register_autograd(_pool_backward, setup_context=_save_for_backward)
