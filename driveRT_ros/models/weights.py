"""The weights of a network as a value, and the folding of batch norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.models.stored import Weights


@dataclass(frozen=True, eq=False)
class VoxelNeXtWeights(Weights):
    """Weights with batch norm folded in.

    ``tensors`` are ``<layer>.weight`` (taps, in, out) and ``<layer>.bias`` (out,) of every layer of
    the graph.
    """

    config: ModelConfig

    def to(self, device: torch.device | str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the tensors on one device, rounded once to one dtype."""
        return {name: t.to(device=device, dtype=dtype) for name, t in self.tensors.items()}


def fold_batch_norm(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge an inference-time batch norm into the convolution before it.

    ``weight' = weight * g`` and ``bias' = (bias - mean) * g + shift`` with
    ``g = scale / sqrt(variance + eps)``.

    Args:
        weight: (taps, in, out).
        bias: (out,) or None.
        scale: (out,), called ``weight`` in torch.
        shift: (out,), called ``bias`` in torch.
        mean: (out,) running mean.
        variance: (out,) running variance, >= 0.
        eps: Epsilon of this batch norm.

    Returns:
        Weight and bias in float64, whatever the dtype given.
    """
    gain = scale.double() / torch.sqrt(variance.double() + eps)
    start = torch.zeros_like(gain) if bias is None else bias.double()
    return weight.double() * gain, (start - mean.double()) * gain + shift.double()
