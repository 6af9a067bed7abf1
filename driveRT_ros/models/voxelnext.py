"""VoxelNeXt: the runner that takes voxels to the bird's-eye-view rows shared by the heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_types import CoordMap, SparseTensor
from driveRT_ros.models.graph import LayerSpec, Triple, build_graph
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.models.weights import VoxelNeXtWeights

__all__ = ["Backbone", "FrameMaps", "VoxelNeXtWeights", "untrained_weights"]

MERGED_LEVELS = (4, 5, 6)
MERGE_SCALES = (1, 2, 4)


@dataclass(frozen=True, eq=False)
class FrameMaps:
    """All coordinate maps of one frame.

    Args:
        by_key: Maps by the key that layers name.
        level_coords: (N, 4) int32 rows b, z, y, x of each backbone level.
        level_shapes: Cells z, y, x of each level.
    """

    by_key: Mapping[str, CoordMap]
    level_coords: tuple[torch.Tensor, ...]
    level_shapes: tuple[Triple, ...]


class Backbone:
    """The sparse part of the network on one device in one dtype.

    Args:
        config: Channels.
        tensors: Folded weights on the device.
        ops: The operators to run.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor], ops: Ops) -> None:
        self.graph = build_graph(config)
        self._tensors = tensors
        self._ops = ops

    def build_maps(self, coords_bzyx: torch.Tensor, shape_zyx: Triple) -> FrameMaps:
        """Return every coordinate map of the frame; they depend on coordinates alone.

        Args:
            coords_bzyx: (N, 4) int32, unique.
            shape_zyx: Cells of the voxel grid.
        """
        maps: dict[str, CoordMap] = {}
        coords, shape = coords_bzyx, shape_zyx
        levels = []
        for level in self.graph.levels:
            for layer in level:
                if layer.map_key not in maps:
                    maps[layer.map_key] = self._map(layer, coords, shape)
                coords = maps[layer.map_key].out_coords_bzyx
                shape = maps[layer.map_key].out_shape_zyx
            levels.append((coords, shape))
        # Merging rows of zero channels gives the merged coordinates.
        rows = [SparseTensor(c.new_zeros(len(c), 0).float(), c, s) for c, s in levels]
        merged = self._merge(rows)
        coords, shape = merged.coords_bzyx, merged.spatial_shape_zyx
        for layer in self.graph.bev:
            maps[layer.map_key] = self._map(layer, coords, shape)
            coords = maps[layer.map_key].out_coords_bzyx
        return FrameMaps(maps, tuple(c for c, _ in levels), tuple(s for _, s in levels))

    def run(self, features: torch.Tensor, maps: FrameMaps) -> SparseTensor:
        """Return the features that the heads share.

        Args:
            features: (N, 5) mean point features of the voxels the maps were built from.
            maps: Result of :meth:`build_maps`.

        Returns:
            (M, C) rows on the bird's-eye-view grid, z = 1.
        """
        levels = []
        for level, coords, shape in zip(self.graph.levels, maps.level_coords, maps.level_shapes):
            features = self._run_layers(level, features, maps)
            levels.append(SparseTensor(features, coords, shape))
        merged = self._merge(levels)
        features = self._run_layers(self.graph.bev, merged.features, maps)
        last = maps.by_key[self.graph.bev[-1].map_key]
        return SparseTensor(features, last.out_coords_bzyx, last.out_shape_zyx)

    def first_level(
        self, features: torch.Tensor, coords_bzyx: torch.Tensor, shape_zyx: Triple
    ) -> torch.Tensor:
        """Return (N, C) features of the first level, whose rows are those of the voxels.

        Args:
            features: (N, 5) mean point features.
            coords_bzyx: (N, 4) int32, unique.
            shape_zyx: Cells of the voxel grid.
        """
        level = self.graph.levels[0]
        one = self._map(level[0], coords_bzyx, shape_zyx)  # all layers of the level share it
        maps = FrameMaps({level[0].map_key: one}, (coords_bzyx,), (shape_zyx,))
        return self._run_layers(level, features, maps)

    def _map(self, layer: LayerSpec, coords: torch.Tensor, shape: Triple) -> CoordMap:
        if layer.op == "subm":
            return self._ops.submanifold_map(coords, shape, layer.kernel_zyx, (1, 1, 1))
        return self._ops.strided_map(
            coords, shape, layer.kernel_zyx, layer.stride_zyx, layer.padding_zyx, (1, 1, 1)
        )

    def _merge(self, levels: list[SparseTensor]) -> SparseTensor:
        return self._ops.bev_merge([levels[n - 1] for n in MERGED_LEVELS], MERGE_SCALES)

    def _run_layers(
        self, layers: tuple[LayerSpec, ...], features: torch.Tensor, maps: FrameMaps
    ) -> torch.Tensor:
        outputs: dict[str, torch.Tensor] = {}
        for layer in layers:
            features = outputs[layer.name] = self._ops.gather_gemm_scatter(
                features,
                self._tensors[f"{layer.name}.weight"],
                maps.by_key[layer.map_key],
                bias=self._tensors[f"{layer.name}.bias"],
                residual=outputs[layer.residual] if layer.residual else None,
                relu=layer.relu,
            )
        return features
