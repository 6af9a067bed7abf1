"""Bilinear resizing whose gradients repeat to the last bit on a GPU, too.

The gradient of torch adds up with atomics there, in any order. The interpolation is linear along
each axis, so its gradient is two products with small matrices.
"""

from __future__ import annotations

import torch
from torch import nn


def bilinear(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Resize maps; the corners stay where they are.

    Args:
        x: (B, C, H, W).
        size: Rows and columns of the result.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        resized: torch.Tensor = _Bilinear.apply(x, size)
        return resized
    return _interpolate(x, size)


class Upsample(nn.Module):
    """:func:`bilinear` to a fixed size.

    Args:
        size: Rows and columns of the result.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, C, H, W) to (B, C, *size)."""
        return bilinear(x, self.size)


def _interpolate(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return nn.functional.interpolate(x, size=size, mode="bilinear", align_corners=True)


class _Bilinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, size):  # type: ignore[no-untyped-def]
        ctx.shape = x.shape[2:]
        return _interpolate(x, size)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        rows, cols = (_shares(old, new, grad) for old, new in zip(ctx.shape, grad.shape[2:]))
        return rows.t() @ (grad @ cols), None


def _shares(old: int, new: int, like: torch.Tensor) -> torch.Tensor:
    """Return (new, old): how much of each old place is in each new one."""
    exact = torch.promote_types(like.dtype, torch.float32)
    at = torch.arange(new, device=like.device, dtype=exact) * ((old - 1) / max(new - 1, 1))
    distance = (at[:, None] - torch.arange(old, device=like.device, dtype=exact)).abs()
    return (1.0 - distance).clamp_min(0.0).to(like.dtype)
