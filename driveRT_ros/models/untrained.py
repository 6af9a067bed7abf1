"""Seeded random weights: they find nothing real, but exercise every part of the pipeline.

The scale follows He et al., "Delving deep into rectifiers", ICCV 2015, with four changes because no
batch norm has statistics yet:

- the weights from all inputs to one output add up to zero, as in weight standardization (Qiao et
  al., 2019): what all rows have in common then does not decide which classes light up;
- most of the variance of a submanifold kernel sits in its centre tap, so that activations hardly
  depend on how many neighbours are active, and residual branches start small;
- the point features are scaled to about unit variance by the first layer;
- the last heat layer has weights with a negative mean and the bias of CenterPoint, -2.19. With no
  other bias in the network the sign of ``heat - bias`` depends on the direction of a feature row,
  not on its length: a small share of the rows passes a threshold of 0.1 in any cloud.
"""

from __future__ import annotations

import math

import torch

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.models.graph import LayerSpec, build_graph
from driveRT_ros.models.weights import VoxelNeXtWeights

HEAT_BIAS = -2.19

_FEATURE_SCALE = (25.0, 25.0, 1.5, 25.0, 0.2)  # typical x, y, z, intensity, time lag of a cloud
_CENTRE_SHARE = 0.8
_RESIDUAL_GAIN = 0.3
_ACTIVE_TAPS = 6  # inputs that a strided kernel usually meets
_HEAT_GAIN = 8.0
_HEAT_RARITY = 4.8  # how many standard deviations below its bias the heat of a usual row lies
_OUT_STD = {"center": 0.05, "center_z": 0.05, "dim": 0.03, "rot": 1.0, "vel": 0.3}
_OUT_BIAS = {
    "center": (0.5, 0.5),  # the middle of the cell
    "center_z": (-1.0,),  # metres: what stands on the ground below a roof-mounted LiDAR
    "dim": (math.log(3.0), math.log(1.6), math.log(1.6)),
    "rot": (0.0, 0.0),
    "vel": (0.0, 0.0),
}


def untrained_weights(config: ModelConfig, seed: int) -> VoxelNeXtWeights:
    """Return weights that depend on the model and the seed alone, to the last bit.

    They are drawn uniformly: unlike normal numbers, these need no transcendental function, whose
    last bit differs between processors.

    Args:
        config: Channels and heads.
        seed: >= 0.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in build_graph(config).layers:
        shape = (layer.taps, layer.in_channels, layer.out_channels)
        # Uniform in [-sqrt(3), sqrt(3)): zero mean, unit variance.
        draw = torch.rand(shape, generator=generator, dtype=torch.float64)
        weight, bias = _scaled(layer, (2 * draw - 1) * math.sqrt(3.0))
        tensors[f"{layer.name}.weight"] = weight
        tensors[f"{layer.name}.bias"] = bias
    source = f"untrained, seed {seed}"
    return VoxelNeXtWeights(config=config, tensors=tensors, trained=False, source=source)


def _scaled(layer: LayerSpec, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give weights of unit variance the scale of their layer, and the bias that goes with it."""
    bias = torch.zeros(layer.out_channels, dtype=torch.float64)
    gain = math.sqrt(2.0 / layer.in_channels)
    branch = layer.name.split(".")[1] if layer.bn_eps is None else ""
    if layer.name != "conv_input":  # coordinates are no activations
        weight = weight - weight.mean(dim=1, keepdim=True)
    if branch == "hm":
        # The sum of n weights of unit variance has the standard deviation sqrt(n).
        mean = -_HEAT_RARITY / math.sqrt(layer.in_channels)
        return (weight + mean) * (gain * _HEAT_GAIN), bias + HEAT_BIAS
    if branch:
        return weight * _OUT_STD[branch], bias + bias.new_tensor(_OUT_BIAS[branch])
    if layer.op == "subm":
        others = math.sqrt((1.0 - _CENTRE_SHARE) / (layer.taps / 3))
        per_tap = torch.full((layer.taps, 1, 1), others, dtype=torch.float64)
        per_tap[layer.taps // 2] = math.sqrt(_CENTRE_SHARE)
        weight = weight * per_tap
    elif layer.op == "sparse":
        gain /= math.sqrt(_ACTIVE_TAPS)
    if layer.residual:
        gain *= _RESIDUAL_GAIN
    if layer.name == "conv_input":
        weight = weight / weight.new_tensor(_FEATURE_SCALE)[:, None]
    return weight * gain, bias
