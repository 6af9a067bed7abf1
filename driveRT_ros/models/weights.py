"""The weights of a network as a value, and the folding of batch norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.models.strict import tensors_sha256


@dataclass(frozen=True, eq=False)
class VoxelNeXtWeights:
    """Weights with batch norm folded in.

    Args:
        config: Channels and heads they belong to.
        tensors: ``<layer>.weight`` (taps, in, out) and ``<layer>.bias`` (out,), floating point, on
            the CPU, for every layer of the graph.
        trained: False for seeded random weights.
        source: Where they came from: a path, or the seed.
        mapping: How checkpoint keys became layers, one line each; empty where nothing was mapped.
    """

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    trained: bool
    source: str
    mapping: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Hash of names, shapes and values rounded to float32: equal in every file format."""
        return tensors_sha256(self.tensors)

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
