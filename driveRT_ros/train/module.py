"""VoxelNeXt as a module that learns: the same graph with batch norm unfolded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.reference.bev_merge import bev_merge
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.models.graph import BRANCHES, LayerSpec, Triple
from driveRT_ros.models.untrained import HEAT_BIAS
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS, Backbone
from driveRT_ros.models.weights import VoxelNeXtWeights, fold_batch_norm
from driveRT_ros.train.autograd import ConvMap, sparse_conv

FEATURE_SCALE = (25.0, 25.0, 1.5, 30.0, 0.25)
"""What point features are divided by: x, y, z in metres, intensity, time lag in seconds. The
weights of the first layer take the factor over when they are exported."""

_BRANCH_STD = 0.01
_BRANCH_BIAS = {"hm": (HEAT_BIAS,), "dim": (0.5, 0.0, 0.0), "center": (0.5, 0.5)}


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the heads say at every row of the bird's-eye view.

    Args:
        coords_bzyx: (N, 4) int32, z = 0; frame after frame.
        shape_zyx: Cells of the bird's-eye view.
        branches: For each head (N, channels) float32 or float64 of ``center``, ``center_z``,
            ``dim``, ``rot``, ``vel`` and ``hm``.
    """

    coords_bzyx: torch.Tensor
    shape_zyx: Triple
    branches: tuple[Mapping[str, torch.Tensor], ...]


class Layer(nn.Module):
    """One convolution of the graph, with batch norm, residual and ReLU where it has them.

    Args:
        spec: The layer.
        momentum: Of the running statistics of its batch norm.
        generator: Draws the weights.
    """

    def __init__(self, spec: LayerSpec, momentum: float, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        shape = (spec.taps, spec.in_channels, spec.out_channels)
        branch = spec.name.split(".")[1] if spec.bn_eps is None else ""
        # He et al. 2015; about half of the taps meet a row.
        fan_in = spec.in_channels * max(spec.taps / 2, 1)
        std = _BRANCH_STD if branch else (2.0 / fan_in) ** 0.5
        self.weight = nn.Parameter(torch.randn(shape, generator=generator) * std)
        # Before batch norm a bias would be redundant: the mean takes it away again.
        self.norm, self.bias = None, None
        if spec.bn_eps is not None:
            self.norm = nn.BatchNorm1d(spec.out_channels, eps=spec.bn_eps, momentum=momentum)
        else:
            start = torch.tensor(_BRANCH_BIAS.get(branch, (0.0,)))
            self.bias = nn.Parameter(torch.zeros(spec.out_channels) + start)

    def forward(
        self,
        rows: torch.Tensor,
        conv_map: ConvMap | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (num_out, C_out).

        Args:
            rows: (num_in, C_in).
            conv_map: Pairs; None for a 1x1 layer.
            residual: (num_out, C_out), added before the ReLU.
        """
        if conv_map is None:
            out = rows @ self.weight[0]
        else:
            out = sparse_conv(rows, self.weight, conv_map)
        if self.bias is not None:
            return out.to(self.bias.dtype) + self.bias
        out = _normalized(self.norm, out)
        if residual is not None:
            out = out + residual
        return functional.relu(out) if self.spec.relu else out

    def folded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the float64 weight (taps, in, out) and bias (out,) without batch norm."""
        weight = self.weight.detach().double().cpu()
        if self.norm is None:
            return weight, self.bias.detach().double().cpu()
        norm = {name: value.detach().cpu() for name, value in self.norm.state_dict().items()}
        return fold_batch_norm(
            weight, None, norm["weight"], norm["bias"],
            norm["running_mean"], norm["running_var"], self.norm.eps,
        )  # fmt: skip


def _normalized(norm: nn.BatchNorm1d, rows: torch.Tensor) -> torch.Tensor:
    """Return batch-normalized rows; fewer than two rows have no statistics of their own."""
    learn = norm.training and len(rows) > 1
    return functional.batch_norm(
        rows, norm.running_mean, norm.running_var, norm.weight, norm.bias,
        training=learn, momentum=norm.momentum, eps=norm.eps,
    )  # fmt: skip


class VoxelNeXtModule(nn.Module):
    """The whole network.

    Args:
        config: Channels and heads.
        seed: Of the weights.
        momentum: Of the running statistics of batch norm.
        by_table: How to convolve; None decides by the device, see :mod:`.autograd`.
    """

    def __init__(
        self,
        config: ModelConfig,
        seed: int,
        momentum: float = 0.03,
        by_table: bool | None = None,
    ) -> None:
        super().__init__()
        self.config, self.by_table = config, by_table
        # The reference operators serve every device, and the merge is differentiable.
        self._maps = Backbone(config, {}, Ops.for_device("cpu"))
        self.graph = self._maps.graph
        generator = torch.Generator().manual_seed(seed)
        # A module name may hold no dot.
        self.layers = nn.ModuleDict(
            {_key(spec.name): Layer(spec, momentum, generator) for spec in self.graph.layers}
        )
        self.register_buffer("feature_scale", torch.tensor(FEATURE_SCALE), persistent=False)

    def forward(
        self, features: torch.Tensor, coords_bzyx: torch.Tensor, shape_zyx: Triple
    ) -> Predictions:
        """Return what all heads say of a batch of frames.

        Args:
            features: (N, 5) mean point features of the voxels of all frames.
            coords_bzyx: (N, 4) int32, unique, frame after frame.
            shape_zyx: Cells of the voxel grid.
        """
        with torch.no_grad():
            maps = self._maps.build_maps(coords_bzyx, shape_zyx)
        table = features.is_cuda if self.by_table is None else self.by_table
        by_key = {key: ConvMap(pairs, table) for key, pairs in maps.by_key.items()}
        rows = features / self.feature_scale.to(features.dtype)
        levels = []
        for level, coords, shape in zip(self.graph.levels, maps.level_coords, maps.level_shapes):
            rows = self._run(level, rows, by_key)
            # Halves of different heights are added up in float32.
            exact = rows.to(torch.promote_types(rows.dtype, torch.float32))
            levels.append(SparseTensor(exact, coords, shape))
        merged = bev_merge([levels[n - 1] for n in MERGED_LEVELS], MERGE_SCALES)
        rows = self._run(self.graph.bev, merged.features, by_key)
        last = maps.by_key[self.graph.bev[-1].map_key]
        return Predictions(last.out_coords_bzyx, last.out_shape_zyx, self._heads(rows))

    def _run(
        self, specs: tuple[LayerSpec, ...], rows: torch.Tensor, maps: Mapping[str, ConvMap]
    ) -> torch.Tensor:
        outputs: dict[str, torch.Tensor] = {}
        for spec in specs:
            residual = outputs[spec.residual] if spec.residual else None
            layer = self.layers[_key(spec.name)]
            rows = outputs[spec.name] = layer(rows, maps[spec.map_key], residual)
        return rows

    def _heads(self, rows: torch.Tensor) -> tuple[Mapping[str, torch.Tensor], ...]:
        heads = []
        for head in range(len(self.config.classes_per_head)):
            branches = {}
            for name in (*(branch for branch, _ in BRANCHES), "hm"):
                hidden = self.layers[_key(f"head{head}.{name}.hidden")](rows)
                branches[name] = self.layers[_key(f"head{head}.{name}.out")](hidden)
            heads.append(branches)
        return tuple(heads)


def _key(name: str) -> str:
    return name.replace(".", "/")


def export_weights(module: VoxelNeXtModule, source: str) -> VoxelNeXtWeights:
    """Return what the detector runs: batch norm folded in float64.

    Args:
        module: The network; its running statistics are what is folded.
        source: Where the weights come from, for reports.
    """
    tensors: dict[str, torch.Tensor] = {}
    for spec in module.graph.layers:
        weight, bias = module.layers[_key(spec.name)].folded()
        if spec.name == module.graph.levels[0][0].name:
            weight = weight / module.feature_scale.double().cpu()[:, None]
        tensors[f"{spec.name}.weight"], tensors[f"{spec.name}.bias"] = weight, bias
    return VoxelNeXtWeights(config=module.config, tensors=tensors, trained=True, source=source)
