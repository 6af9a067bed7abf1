"""Numbers that every batch needs on its device: copied there once, because each copy waits."""

from __future__ import annotations

import functools

import torch


@functools.cache
def constant(
    values: tuple[float, ...] | tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return (N,) values on a device; the same tensor each time, never to be written to."""
    return torch.tensor(values, dtype=dtype, device=device)


def constant_like(values: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    """Return (N,) values in the type and on the device of a tensor; see :func:`constant`."""
    return constant(values, like.dtype, like.device)
