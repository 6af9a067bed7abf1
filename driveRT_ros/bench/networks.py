"""The network in plain torch, as oracle and as peer, and the check of every candidate against it.

All implementations run stage by stage under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from driveRT_ros.bench.timing import Mark, unmarked
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_conv import SparseTensor
from driveRT_ros.core.tuner_device import TOLERANCE
from driveRT_ros.models.graph import Graph, LayerSpec
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS, Backbone

MAPS, VOXELS, BEV = "maps", "voxel features", "bev"
MAPS_AND_VOXELS = f"{MAPS} + {VOXELS}"
Rows = tuple[torch.Tensor, torch.Tensor]
"""Features and (N, 3) z, y, x of the rows of a stage."""
PEER_TOLERANCE = {**TOLERANCE, "fp32": 1e-4, "fp16": 5e-2}
"""Largest error of a peer, relative to the largest float64 value of the stage: some add up in half
precision, which is theirs to choose."""


class Network(Protocol):
    """One implementation of the network."""

    version: str

    def load(self, voxels: Rows) -> None:
        """Take the features and (N, 4) coordinates b, z, y, x of a frame."""

    def run(self, mark: Mark = unmarked) -> None:
        """Enqueue the frame, calling ``mark`` at the start of every stage."""

    def outputs(self) -> dict[str, Rows]:
        """Return what every stage of the last run wrote."""


def stages_of(graph: Graph) -> dict[str, list[LayerSpec]]:
    """Return the layers of each stage: a stage shares a map, but the input layer is its own."""
    stages: dict[str, list[LayerSpec]] = {}
    first = graph.levels[0][0].name
    for level in (*graph.levels, graph.bev):
        for layer in level:
            stages.setdefault(first if layer.name == first else layer.map_key, []).append(layer)
    return stages


# ---- the network in plain torch -----------------------------------------------------------------


class TorchNetwork:
    """The reference network: gather, product and scatter, one tap at a time.

    Args:
        config: Grid and channels.
        tensors: Folded weights on the device, float64 for an oracle.
    """

    version = torch.__version__

    def __init__(self, config: LidarConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self._ops = Ops.for_device(next(iter(tensors.values())).device)
        self._backbone = Backbone(config.model, tensors, self._ops)
        self._tensors, self._shape = tensors, config.voxelization.sparse_shape_zyx
        self._outputs: dict[str, Rows] = {}

    def load(self, voxels: Rows) -> None:
        """Take the features and (N, 4) coordinates of a frame."""
        self._features = voxels[0].to(next(iter(self._tensors.values())).dtype)
        self._coords = voxels[1]

    def run(self, mark: Mark = unmarked) -> None:
        """See :class:`Network`."""
        torch.backends.cuda.matmul.allow_tf32 = False
        graph = self._backbone.graph
        mark(MAPS)
        self.maps = maps = self._backbone.build_maps(self._coords, self._shape)
        stages = {layer.name: stage for stage, of in stages_of(graph).items() for layer in of}
        x, stage, out = self._features, "", {}
        self._outputs = {}
        levels = []
        for number, level in enumerate((*graph.levels, graph.bev)):
            if number == len(graph.levels):
                mark(BEV)
                merged = self._ops.bev_merge([levels[n - 1] for n in MERGED_LEVELS], MERGE_SCALES)
                x, self._outputs[BEV] = merged.features, _rows(merged)
            for layer in level:
                if stages[layer.name] != stage:
                    mark(stage := stages[layer.name])
                x = out[layer.name] = self._layer(layer, x, out)
                coords = maps.by_key[layer.map_key].out_coords_bzyx
                self._outputs[stage] = (x, coords[:, 1:])
            levels.append(SparseTensor(x, coords, maps.by_key[layer.map_key].out_shape_zyx))

    def _layer(
        self, layer: LayerSpec, x: torch.Tensor, out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        return self._ops.gather_gemm_scatter(
            x,
            self._tensors[f"{layer.name}.weight"],
            self.maps.by_key[layer.map_key],
            bias=self._tensors[f"{layer.name}.bias"],
            residual=out[layer.residual] if layer.residual else None,
            relu=layer.relu,
        )

    def outputs(self) -> dict[str, Rows]:
        """See :class:`Network`."""
        return self._outputs


def _rows(x: SparseTensor) -> Rows:
    return x.features, x.coords_bzyx[:, 1:]


# ---- the check -------------------------------------------------------------------------


def errors(got: Mapping[str, Rows], want: Mapping[str, Rows]) -> dict[str, float]:
    """Return the largest error of every stage relative to its largest float64 value.

    Rows may come in any order; where the rows themselves differ the error is infinite.
    """
    found = {}
    for stage, (features, coords) in want.items():
        mine, my_coords = got[stage]
        if len(my_coords) != len(coords):
            found[stage] = float("inf")
            continue
        a, b = _in_order(my_coords), _in_order(coords)
        if not torch.equal(my_coords[a].long(), coords[b].long()):
            found[stage] = float("inf")
            continue
        scale = float(features.abs().max()) if len(coords) else 1.0
        error = (mine[a].double() - features[b]).abs().max() if len(coords) else torch.zeros(())
        found[stage] = float(error) / (scale or 1.0)
    return found


def _in_order(coords_zyx: torch.Tensor) -> torch.Tensor:
    z, y, x = coords_zyx.long().unbind(1)
    return ((z << 20 | y) << 20 | x).argsort()


def failure(found: Mapping[str, float], tolerance: float) -> str:
    """Return why errors are too large, or an empty text; NaN never passes."""
    bad = {stage: value for stage, value in found.items() if not value <= tolerance}
    if not bad:
        return ""
    stage, value = next(iter(bad.items()))
    return f"error {value:.1e} in stage {stage} is above {tolerance:.0e}"
