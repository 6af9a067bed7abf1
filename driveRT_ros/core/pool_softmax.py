"""Depth logits in place of depths: the softmax over the bins of a pixel, inside of pooling.

A pass over the logits leaves two numbers a pixel; the pooling kernels make each weight from its
logit and them, so that the weights are never written and read again.
"""

from __future__ import annotations

import math

import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.pool_tactics import FORMATS, PoolLaunch

_THREADS, _LANES = 256, 8  # of a block and of a pixel, as in kernels/depth_softmax.cu


def new_norms(logits: torch.Tensor) -> torch.Tensor:
    """Return room for (largest logit, 1 / sum) of every pixel.

    Args:
        logits: (B, N, D, H, W).

    Returns:
        (B, N, H, W, 2) float32.
    """
    batch, n, _, h, w = logits.shape
    return torch.zeros((batch, n, h, w, 2), dtype=torch.float32, device=logits.device)


def norms_launch(
    logits: torch.Tensor, norms: torch.Tensor, present: torch.Tensor | None = None
) -> PoolLaunch:
    """Return the launch that fills the norms.

    Args:
        logits: (B, N, D, H, W) float32 or float16, of any strides.
        norms: Of :func:`new_norms`.
        present: (N,) float32, multiplies the weights of each camera; None leaves them alone.

    Raises:
        ConfigError: If logits or ``present`` have another type, or there are too many logits.
    """
    batch, n, bins, h, w = logits.shape
    if FORMATS.get(logits.dtype, 2) > 1:
        raise ConfigError(f"Depth logits must be float32 or float16, got {logits.dtype}.")
    if present is not None and (present.dtype, present.device) != (torch.float32, logits.device):
        raise ConfigError(
            f"'present' must be float32 on '{logits.device}', got {present.dtype} on "
            f"'{present.device}'."
        )
    if logits[0].numel() >= 2**31 or max(logits.stride()[1:]) >= 2**31:
        raise ConfigError(f"Depth logits of shape {tuple(logits.shape)} exceed 31 bits.")
    pixels = n * h * w
    axes = ("camera", "bin", "row", "column")
    fields = {
        **{
            "logits": logits.data_ptr(),
            "present": present,
            "norms": norms,
            "batch": logits.stride(0),
        },
        **{"bins": bins, "rows": h, "cols": w, "pixels": pixels},
        **dict(zip(axes, logits.stride()[1:])),
    }
    kept = (logits, norms) if present is None else (logits, norms, present)
    return PoolLaunch(
        stem="depth_softmax",
        name="softmax_norms",
        grid=(math.ceil(pixels * _LANES / _THREADS), batch, 1),
        block=_THREADS,
        defines={"DEPTHS": FORMATS[logits.dtype]},
        parameters=struct_value("depth_softmax.cu", "Softmax", fields),
        keep=kept,
    )
