"""VoxelNeXt's sparse backbone on the GPU: exact FP32, no host synchronisation inside a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.cuda import Kernel, Launch
from driveRT_ros.core.gpu.domains import BEV_DILATED, BEV_UNION
from driveRT_ros.core.gpu.frame_maps import DomainBuffers, FrameMaps
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.core.tactics import ConvTactic
from driveRT_ros.models.graph import LayerSpec, build_graph

_THREADS = 256


class SparseBackbone:
    """Points to the bird's-eye-view rows that the heads share, as one list of bound launches.

    Args:
        config: Grid, capacities and channels.
        tensors: ``<layer>.weight`` (taps, in, out) and ``<layer>.bias`` of every layer, float32 on
            the device, batch norm folded in.
        device: CUDA device.
        plan: Tactics; by default those that need no search.

    Raises:
        ConfigError: If a tactic cannot run its layer.
        PlanMismatch: If the Plan belongs to another GPU.
    """

    def __init__(
        self,
        config: LidarConfig,
        tensors: Mapping[str, torch.Tensor],
        device: torch.device,
        plan: Plan | None = None,
    ) -> None:
        capability = torch.cuda.get_device_capability(device)
        self.plan = plan or default_plan(config.model.channels, capability)
        self.plan.check_device(torch.cuda.get_device_name(device))
        self.plan.check_layers(config.model.channels, capability)
        self.graph = build_graph(config.model)
        self.maps = FrameMaps(config, self.plan, device)
        self._tensors = tensors
        self._kernels: dict[tuple[object, ...], Kernel] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._partial = self._partial_sums()
        layers = [layer for level in self.graph.levels for layer in level] + list(self.graph.bev)
        self._tickets = self.maps.arena.zeroed(len(layers))
        self.stages: dict[str, list[Launch]] = {}
        self._bind_layers()

    @property
    def features(self) -> torch.Tensor:
        """(capacity, C) float32: rows of the result; ``maps.levels[7].counts[1]`` are in use."""
        return self._outputs[self.graph.bev[-1].name]

    def output(self, layer: str) -> torch.Tensor:
        """Return the rows that a layer wrote, in the row order of its level."""
        return self._outputs[layer]

    def run(
        self, stream: int | None = None, lap: Callable[[str], None] = lambda stage: None
    ) -> None:
        """Enqueue the whole frame that :meth:`FrameMaps.load` put in place.

        Args:
            stream: Handle of the CUDA stream; it must be torch's current one.
            lap: Called after the launches of ``maps``, ``voxelize`` and ``backbone``.
        """
        self.maps.arena.clear()
        for launch in self.maps.map_launches:
            launch(stream)
        lap("maps")
        for launch in self.maps.voxel_launches:
            launch(stream)
        lap("voxelize")
        for launches in self.stages.values():
            for launch in launches:
                launch(stream)
        lap("backbone")

    def reset_tickets(self) -> None:
        """Let the layers run once more on the maps of this frame: every launch draws its tiles."""
        self._tickets.zero_()

    def rows(self) -> SparseTensor:
        """Return the result of the last frame with its coordinates; waits for the GPU."""
        level = self.maps.levels[BEV_DILATED]
        rows = min(int(level.counts[1]), level.shape.row_capacity)
        zyx = level.coords_zyx[:rows]
        coords = torch.cat((torch.zeros_like(zyx[:, :1]), zyx), dim=1)
        return SparseTensor(self.features[:rows], coords, level.shape.shape_zyx)

    # ---- made once --------------------------------------------------------------------------

    def _partial_sums(self) -> torch.Tensor:
        """Return room for the sums of every group of the largest layer."""
        sizes = [1]
        for layer in (*(layer for level in self.graph.levels for layer in level), *self.graph.bev):
            shape = self.maps.domains[layer.map_key].shape
            if shape.groups > 1:
                sizes.append(shape.groups * shape.row_capacity * layer.out_channels)
        return self.maps.arena.empty(max(sizes), dtype=torch.float32)

    def _bind_layers(self) -> None:
        features, ticket = self.maps.features, 0
        for number, level in enumerate(self.graph.levels):
            for layer in level:
                features = self._bind(layer, features, number, ticket)
                ticket += 1
        merged = [self._outputs[level[-1].name] for level in self.graph.levels[3:]]
        features = self._bind_merge(merged)
        for layer in self.graph.bev:
            features = self._bind(layer, features, BEV_DILATED, ticket)
            ticket += 1

    def _bind(self, layer: LayerSpec, x: torch.Tensor, level: int, ticket: int) -> torch.Tensor:
        rows = self.maps.levels[level].shape.row_capacity
        out = self.maps.arena.empty(rows, layer.out_channels, dtype=torch.float32)
        weight = self._tensors[f"{layer.name}.weight"].contiguous()
        bias = self._tensors[f"{layer.name}.bias"].contiguous()
        residual = self._outputs[layer.residual] if layer.residual else None
        self._outputs[layer.name] = out
        if layer.name == self.graph.levels[0][0].name:
            self._bind_input(layer, x, weight, bias, out)
            return out
        domain, tactic = self.maps.domains[layer.map_key], self.plan.tactics[layer.map_key]
        last = tactic.groups == 1
        target = out if last else self._partial
        fields = {
            "x": x, "weight": weight, "bias": bias if last else None,
            "residual": residual if last else None, "out": target, "order": domain.order,
            "table": domain.table, "tile_mask": domain.tile_mask, "tile_rank": domain.tile_rank,
            "n_tiles": domain.counts, "ticket": self._tickets[ticket:],
            "group_taps": domain.shape.group_taps, "relu": int(last and layer.relu),
        }  # fmt: skip
        self._bind_conv(layer, tactic, domain, fields)
        if not last:
            self._bind_finish(layer, domain, bias, residual, out)
        return out

    def _bind_input(
        self,
        layer: LayerSpec,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        kernel = self._kernel(
            "input_conv", "input_conv", IN=layer.in_channels, OUT=layer.out_channels
        )
        fields = {"x": x, "weight": weight, "bias": bias, "out": out, "level": 0}
        value = struct_value("input_conv.cu", "InputConv", fields)
        self._add(layer.name, kernel, self.maps.multiprocessors * 8, 128, self._levels, value)

    def _bind_conv(
        self, layer: LayerSpec, tactic: ConvTactic, domain: DomainBuffers, fields: dict[str, object]
    ) -> None:
        sizes = (layer.in_channels, layer.out_channels, layer.taps)
        kernel = self._kernel(
            tactic.kernel, tactic.kernel, tactic.shared_bytes(*sizes), **tactic.defines(*sizes)
        )
        blocks = min(domain.shape.tile_capacity, self.maps.multiprocessors * tactic.min_blocks)
        value = struct_value("sparse_conv.cu", "Convolution", fields)
        self._add(layer.map_key, kernel, blocks, tactic.threads(layer.out_channels), value)

    def _bind_finish(
        self,
        layer: LayerSpec,
        domain: DomainBuffers,
        bias: torch.Tensor,
        residual: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        shape = domain.shape
        fields = {
            "part": self._partial, "mask": domain.mask, "bias": bias, "residual": residual,
            "out": out, "level": shape.out_level, "groups": shape.groups,
            "group_taps": shape.group_taps, "channels4": layer.out_channels // 4,
            "relu": int(layer.relu),
        }  # fmt: skip
        kernel = self._kernel("epilogue", "finish_groups")
        value = struct_value("epilogue.cu", "Finish", fields)
        blocks = self.maps.multiprocessors * 8
        self._add(layer.map_key, kernel, blocks, _THREADS, self._levels, value)

    def _bind_merge(self, merged: list[torch.Tensor]) -> torch.Tensor:
        channels = merged[0].shape[1]
        rows = self.maps.levels[BEV_UNION].shape.row_capacity
        out = self.maps.arena.empty(rows, channels, dtype=torch.float32)
        self._outputs["bev"] = out
        value = struct_value(
            "bev_merge.cu", "Merge", {"x": merged, "out": out, "channels4": channels // 4}
        )
        kernel = self._kernel("bev_merge", "bev_merge")
        blocks = self.maps.multiprocessors * 8
        self._add("bev", kernel, blocks, _THREADS, self._levels, value)
        return out

    @property
    def _levels(self) -> torch.Tensor:
        return self.maps.level_structs

    def _kernel(self, stem: str, name: str, shared_bytes: int = 0, **defines: object) -> Kernel:
        key = (stem, name, tuple(sorted(defines.items())))
        if key not in self._kernels:
            self._kernels[key] = Kernel(
                stem, name, defines, shared_bytes=shared_bytes, device=self.maps.device
            )
        return self._kernels[key]

    def _add(self, stage: str, kernel: Kernel, grid: int, block: int, *args: object) -> None:
        self.stages.setdefault(stage, []).append(kernel.bind(grid, block, *args))
