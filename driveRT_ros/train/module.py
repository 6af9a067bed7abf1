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
from driveRT_ros.core.sparse_types import CoordMap, SparseTensor
from driveRT_ros.models.graph import BRANCHES, LayerSpec, Triple
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS, Backbone, FrameMaps
from driveRT_ros.models.weights import VoxelNeXtWeights, fold_batch_norm
from driveRT_ros.train.autograd import sparse_conv
from driveRT_ros.train.constants import constant
from driveRT_ros.train.tables import BatchTables, TableMap, build_tables

FEATURE_SCALE = (25.0, 25.0, 1.5, 30.0, 0.25)
"""What point features are divided by: x, y, z in metres, intensity, time lag in seconds. The
weights of the first layer take the factor over when they are exported."""

_BRANCH_STD = 0.01
_HEAT_BIAS = -4.6
"""Score 0.01: hardly a row holds an object, and first steps need not learn that.

Source: Lin et al., "Focal loss for dense object detection", ICCV 2017.
"""
_BRANCH_BIAS = {"hm": (_HEAT_BIAS,), "dim": (0.5, 0.0, 0.0), "center": (0.5, 0.5)}


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
        conv_map: CoordMap | TableMap,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (num_out, C_out); the 1x1 layers of the heads run side by side instead.

        Args:
            rows: (num_in, C_in).
            conv_map: Pairs or tables.
            residual: (num_out, C_out), added before the ReLU.
        """
        out = _normalized(self.norm, sparse_conv(rows, self.weight, conv_map))
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
    """Return batch-normalized rows."""
    mean, var = norm.running_mean, norm.running_var
    return _batch_norm(norm, rows, norm.weight, norm.bias, mean, var)


def _batch_norm(
    like: nn.BatchNorm1d,
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
) -> torch.Tensor:
    """Normalize rows as ``like`` does; fewer than two rows have no statistics of their own."""
    learn = like.training and len(rows) > 1
    if rows.is_cuda and len(rows):
        # By name: batch_norm hands up to 131,070 rows to cuDNN, which is made for images.
        return torch.native_batch_norm(
            rows, weight, bias, mean, var, learn, like.momentum, like.eps
        )[0]
    return functional.batch_norm(rows, mean, var, weight, bias, learn, like.momentum, like.eps)


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

    @torch.no_grad()
    def build_maps(
        self, coords_bzyx: torch.Tensor, shape_zyx: Triple, frames: int | None = None
    ) -> BatchTables | FrameMaps:
        """Return every map of a batch; no weight decides them.

        Args:
            coords_bzyx: (N, 4) int32, unique, frame after frame.
            shape_zyx: Cells of the voxel grid.
            frames: Of the batch; None asks the coordinates.
        """
        table = coords_bzyx.is_cuda if self.by_table is None else self.by_table
        if table:
            return build_tables(self.graph, coords_bzyx, shape_zyx, frames)
        return self._maps.build_maps(coords_bzyx, shape_zyx)

    def head_cells(self, maps: BatchTables | FrameMaps) -> tuple[torch.Tensor, Triple]:
        """Return (M, 4) int32 rows of the heads and the cells of the bird's-eye view."""
        if isinstance(maps, BatchTables):
            return maps.coords_bzyx, maps.shape_zyx
        last = maps.by_key[self.graph.bev[-1].map_key]
        return last.out_coords_bzyx, last.out_shape_zyx

    def forward(self, features: torch.Tensor, maps: BatchTables | FrameMaps) -> Predictions:
        """Return what all heads say of a batch of frames.

        Args:
            features: (N, 5) mean point features of the voxels of all frames.
            maps: From :meth:`build_maps`, of the cells of these voxels.
        """
        rows = features / self.feature_scale.to(features.dtype)
        if isinstance(maps, BatchTables):
            levels = self._run_levels(rows[maps.order], maps.by_key)
            rows = maps.merge(torch.cat(levels))
        else:
            levels = [
                SparseTensor(rows, maps.level_coords[n - 1], maps.level_shapes[n - 1])
                for n, rows in zip(MERGED_LEVELS, self._run_levels(rows, maps.by_key))
            ]
            rows = bev_merge(levels, MERGE_SCALES).features
        rows = self._run(self.graph.bev, rows, maps.by_key)
        return Predictions(*self.head_cells(maps), self._heads(rows))

    def _run_levels(
        self, rows: torch.Tensor, maps: Mapping[str, CoordMap | TableMap]
    ) -> list[torch.Tensor]:
        """Return the rows of the levels that are merged."""
        merged = []
        for number, level in enumerate(self.graph.levels, start=1):
            rows = self._run(level, rows, maps)
            if number in MERGED_LEVELS:
                # Halves of different heights are added up in float32.
                merged.append(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        return merged

    def _run(
        self,
        specs: tuple[LayerSpec, ...],
        rows: torch.Tensor,
        maps: Mapping[str, CoordMap | TableMap],
    ) -> torch.Tensor:
        outputs: dict[str, torch.Tensor] = {}
        for spec in specs:
            residual = outputs[spec.residual] if spec.residual else None
            layer = self.layers[_key(spec.name)]
            rows = outputs[spec.name] = layer(rows, maps[spec.map_key], residual)
        return rows

    def _heads(self, rows: torch.Tensor) -> tuple[Mapping[str, torch.Tensor], ...]:
        """Run the branches of all heads side by side: one product in, one product out."""
        names = [*(branch for branch, _ in BRANCHES), "hm"]
        heads = range(len(self.config.classes_per_head))
        keys = [f"head{head}/{name}" for head in heads for name in names]
        hidden = self._hidden([self.layers[f"{key}/hidden"] for key in keys], rows)
        outs = [self.layers[f"{key}/out"] for key in keys]
        width = -(-max(layer.weight.shape[2] for layer in outs) // 8) * 8  # whole words of halves
        zeros = outs[0].weight.new_zeros(outs[0].weight.shape[1], width)
        weights, biases = [], []
        sizes = [layer.weight.shape[2] for layer in outs]
        for layer, size in zip(outs, sizes):
            weights += [layer.weight.flatten(0, 1), zeros[:, size:]]
            biases += [layer.bias, zeros[0, size:]]
        weight = torch.cat(weights, dim=1).view(-1, len(keys), width).transpose(0, 1)
        bias = torch.cat(biases).view(len(keys), 1, width)
        said = torch.bmm(hidden, weight).to(bias.dtype) + bias
        used = tuple(k * width + column for k, size in enumerate(sizes) for column in range(size))
        columns = constant(used, torch.int64, said.device)
        # One split, not many slices: each slice had a gradient as large as all of them.
        parts = said.transpose(0, 1).flatten(1).index_select(1, columns).split(sizes, dim=1)
        size = len(names)
        return tuple(dict(zip(names, parts[k * size : (k + 1) * size])) for k in heads)

    def _hidden(self, layers: list[Layer], rows: torch.Tensor) -> torch.Tensor:
        """Return (layers, N, C): what the hidden layers of all branches make of the same rows."""
        norms = [layer.norm for layer in layers]
        size = norms[0].num_features
        out = rows @ torch.cat([layer.weight.flatten(0, 1) for layer in layers], dim=1)
        means, variances = ([getattr(n, k) for n in norms] for k in ("running_mean", "running_var"))
        mean, var = torch.cat(means), torch.cat(variances)
        weight, bias = torch.cat([n.weight for n in norms]), torch.cat([n.bias for n in norms])
        out = _batch_norm(norms[0], out, weight, bias, mean, var)
        if norms[0].training:
            torch._foreach_copy_(means, list(mean.split(size)))
            torch._foreach_copy_(variances, list(var.split(size)))
        return functional.relu(out).view(len(rows), len(layers), size).transpose(0, 1)


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
