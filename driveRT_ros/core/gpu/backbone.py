"""VoxelNeXt's sparse backbone on the GPU, with no host synchronisation inside a frame.

The Plan says how each layer computes. In precision ``fp16`` the features between layers are
float16; products of the first layer, sums of tap groups and the rows of the result are float32 in
every precision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.cuda import Branch, Kernel, Launch
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.gpu.domains import BEV_DILATED, BEV_UNION
from driveRT_ros.core.gpu.frame_maps import FrameMaps
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.kernel_builds import (
    KernelBuild,
    input_build,
    layer_builds,
    merge_build,
    writes_half,
)
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.models.graph import LayerSpec, build_graph

_THREADS = 256


class SparseBackbone:
    """Points to the bird's-eye-view rows that the heads share, as one list of bound launches.

    Args:
        config: Grid, capacities and channels.
        tensors: ``<layer>.weight`` (taps, in, out) and ``<layer>.bias`` of every layer, float32 on
            the device, batch norm folded in.
        device: CUDA device.
        plan: Tactics and precision; by default float32 and what needs no search.

    Raises:
        ConfigError: If a tactic cannot run its layer, or a tensor is missing or does not fit.
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
        self._layers = [layer for level in self.graph.levels for layer in level]
        self._layers += self.graph.bev
        self._tensors = tensors
        self._check_tensors(device)
        self.maps = FrameMaps(config, self.plan, device)
        self._packed: list[torch.Tensor] = []  # kernels hold addresses alone
        self._kernels: dict[tuple[KernelBuild, str, int], Kernel] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._partial = self._partial_sums()
        self._tickets = self.maps.arena.zeroed(len(self._layers))
        self._branch = Branch(device)
        self._whole = True
        self.stages: dict[str, list[Launch]] = {}
        self._bind_layers()

    @property
    def features(self) -> torch.Tensor:
        """(capacity, C) float32: rows of the result; ``maps.levels[7].counts[1]`` are in use."""
        return self._outputs[self.graph.bev[-1].name]

    def output(self, layer: str) -> torch.Tensor:
        """Return the rows that a layer wrote, in the row order of its level.

        They are float16 in precision ``fp16``, but for the last layer.
        """
        return self._outputs[layer]

    def enqueue(self, points: torch.Tensor) -> None:
        """Enqueue a whole frame, kernel by kernel.

        Args:
            points: (N, 5), as :meth:`FrameMaps.load` takes them.

        Raises:
            InvalidFrame: As :meth:`FrameMaps.load`.
        """
        self.maps.load(points)
        self.run()

    def compute(self, points: torch.Tensor, name: str = "The cloud") -> None:
        """Run a whole frame that must fit; waits for the GPU.

        Args:
            points: (N, 5), as :meth:`FrameMaps.load` takes them.
            name: What the points are, for people.

        Raises:
            InvalidFrame: If it exceeds the capacities: neither rows nor times would mean anything.
        """
        self.enqueue(points)
        overflow = self.maps.overflow()
        if overflow:
            raise InvalidFrame(f"{name} exceeds the capacities of the engine: {overflow}.")

    def run(
        self, stream: int | None = None, lap: Callable[[str], None] = lambda stage: None
    ) -> None:
        """Enqueue the whole frame that :meth:`FrameMaps.load` put in place.

        Args:
            stream: Handle of the CUDA stream; it must be torch's current one.
            lap: Called after the launches of ``maps``, which include voxel features and the first
                layer, and of ``backbone``.
        """
        self.run_maps(stream)
        lap("maps")
        self.run_layers(stream)
        lap("backbone")

    def run_maps(self, stream: int | None = None) -> None:
        """Enqueue the first half of :meth:`run`."""
        maps, first = self.maps, next(iter(self.stages.values()))
        if not self._whole:
            maps.arena.restore()
        self._whole = False
        maps.arena.clear()
        for launch in maps.level_launches:
            launch(stream)
        # Voxels and the first layer need level 1 alone. Neither they nor the maps fill the GPU.
        beside = self._branch.fork()
        try:
            for launch in (*maps.voxel_launches, *first):
                launch(beside)
            with self._branch.current():
                maps.count_used()
            for launch in maps.map_launches[len(maps.level_launches) :]:
                launch(stream)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # what went wrong first is what counts
                self._branch.join()  # the next frame must not overtake what is on its way there
            raise
        self._branch.join()
        self._whole = True  # what is filled between frames is full again

    def run_layers(self, stream: int | None = None) -> None:
        """Enqueue the second half of :meth:`run`; once for each first half."""
        for launches in list(self.stages.values())[1:]:
            for launch in launches:
                launch(stream)

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

    def _check_tensors(self, device: torch.device) -> None:
        for layer in self._layers:
            shapes = {
                "weight": (layer.taps, layer.in_channels, layer.out_channels),
                "bias": (layer.out_channels,),
            }
            for kind, shape in shapes.items():
                name = f"{layer.name}.{kind}"
                tensor = self._tensors.get(name)
                if tensor is None:
                    raise ConfigError(f"Tensor '{name}' is missing from the weights.")
                if (tuple(tensor.shape), tensor.dtype) != (shape, torch.float32):
                    raise ConfigError(
                        f"Tensor '{name}' must be {shape} float32, got {tuple(tensor.shape)} "
                        f"{tensor.dtype}."
                    )
                if tensor.device != device:
                    raise ConfigError(
                        f"Tensor '{name}' must be on {device}, is on {tensor.device}; move it."
                    )

    def _is_partial(self, layer: LayerSpec) -> bool:
        """Tell whether a layer leaves float32 sums of groups to the epilogue."""
        return self.plan.tactics[layer.map_key].groups > 1

    def _partial_sums(self) -> torch.Tensor:
        """Return room for the sums of every group of the largest layer."""
        sizes = [1]
        for layer in filter(self._is_partial, self._layers[1:]):
            shape = self.maps.domains[layer.map_key].shape
            sizes.append(shape.groups * shape.row_capacity * layer.out_channels)
        return self.maps.arena.empty(max(sizes), dtype=torch.float32)

    def _bind_layers(self) -> None:
        features, ticket = self.maps.features, iter(self._tickets.split(1))
        for number, level in enumerate(self.graph.levels):
            for layer in level:
                features = self._bind(layer, features, number, next(ticket))
        merged = [self._outputs[level[-1].name] for level in self.graph.levels[3:]]
        features = self._bind_merge(merged)
        for layer in self.graph.bev:
            features = self._bind(layer, features, BEV_DILATED, next(ticket))

    def _bind(
        self, layer: LayerSpec, x: torch.Tensor, level: int, ticket: torch.Tensor
    ) -> torch.Tensor:
        """Bind the launches of one layer; return its output."""
        rows = self.maps.levels[level].shape.row_capacity
        half = writes_half(self.plan.precision, layer.map_key)
        out = self.maps.arena.empty(
            rows, layer.out_channels, dtype=torch.float16 if half else torch.float32
        )
        residual = self._outputs[layer.residual] if layer.residual else None
        self._outputs[layer.name] = out
        if layer is self._layers[0]:
            self._bind_input(layer, x, out)
        else:
            tactic = self.plan.tactics[layer.map_key]
            sizes = (layer.in_channels, layer.out_channels, layer.taps)
            convolution, *finish = layer_builds(self.plan.precision, layer.map_key, tactic, sizes)
            self._bind_conv(convolution, layer, x, residual, out, ticket)
            for build in finish:
                self._bind_finish(build, layer, residual, out)
        return out

    def _bias(self, layer: LayerSpec) -> torch.Tensor:
        return self._keep(self._tensors[f"{layer.name}.bias"].contiguous())

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._packed.append(tensor)
        return tensor

    def _bind_input(self, layer: LayerSpec, x: torch.Tensor, out: torch.Tensor) -> None:
        kernel = self._kernel(input_build(self.plan.precision, layer.out_channels))
        weight = self._keep(self._tensors[f"{layer.name}.weight"].contiguous())
        fields = {"x": x, "weight": weight, "bias": self._bias(layer), "out": out, "level": 0}
        value = struct_value("input_conv.cu", "InputConv", fields)
        self._add(layer.name, kernel, self.maps.multiprocessors * 8, 128, self._levels, value)

    def _bind_conv(
        self,
        build: KernelBuild,
        layer: LayerSpec,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        ticket: torch.Tensor,
    ) -> None:
        domain, tactic = self.maps.domains[layer.map_key], self.plan.tactics[layer.map_key]
        sizes = (layer.in_channels, layer.out_channels, layer.taps)
        partial = self._is_partial(layer)
        weight, scale = tactic.pack(self._tensors[f"{layer.name}.weight"])
        fields: dict[str, object] = {
            "x": x, "weight": self._keep(weight), "bias": None if partial else self._bias(layer),
            "residual": None if partial else residual, "out": self._partial if partial else out,
            "order": domain.order, "table": domain.table, "tile_mask": domain.tile_mask,
            "tile_rank": domain.tile_rank, "n_tiles": domain.counts, "ticket": ticket,
            "group_taps": domain.shape.group_taps, "relu": int(layer.relu and not partial),
        }  # fmt: skip
        if tactic.kind == "tensor_cores":
            fields |= {"x_scale": 1.0, "out_scale": 1.0 / scale}
        kernel = self._kernel(build, shared_bytes=tactic.shared_bytes(*sizes))
        blocks = min(
            -(-domain.shape.tile_capacity // tactic.tiles_per_block),
            self.maps.multiprocessors * tactic.min_blocks,
        )
        value = struct_value(*tactic.parameters, fields)
        self._add(layer.map_key, kernel, blocks, tactic.threads(layer.out_channels), value)

    def _bind_finish(
        self,
        build: KernelBuild,
        layer: LayerSpec,
        residual: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        domain = self.maps.domains[layer.map_key]
        fields = {
            "part": self._partial, "mask": domain.mask, "bias": self._bias(layer),
            "residual": residual, "out": out,
            "group_taps": domain.shape.group_taps, "relu": int(layer.relu),
        }  # fmt: skip
        kernel = self._kernel(build, "finish_groups")
        value = struct_value("epilogue.cu", "Finish", fields)
        blocks = self.maps.multiprocessors * 8
        level = self.maps.level_values[domain.shape.out_level]
        self._add(layer.map_key, kernel, blocks, _THREADS, level, value)

    def _bind_merge(self, merged: list[torch.Tensor]) -> torch.Tensor:
        channels, dtype = merged[0].shape[1], merged[0].dtype
        rows = self.maps.levels[BEV_UNION].shape.row_capacity
        out = self.maps.arena.empty(rows, channels, dtype=dtype)
        self._outputs["bev"] = out
        value = struct_value(
            "bev_merge.cu", "Merge", {"x": merged, "out": out, "channels4": channels // 4}
        )
        kernel = self._kernel(merge_build(self.plan.precision))
        blocks = self.maps.multiprocessors * 8
        self._add("bev", kernel, blocks, _THREADS, self._levels, value)
        return out

    @property
    def _levels(self) -> torch.Tensor:
        return self.maps.level_structs

    def _kernel(self, build: KernelBuild, name: str = "", shared_bytes: int = 0) -> Kernel:
        """Return a kernel by its name, by default that of its source."""
        key = (build, name or build.stem, shared_bytes)
        if key not in self._kernels:
            how = {"shared_bytes": shared_bytes, "device": self.maps.device}
            self._kernels[key] = Kernel(build.stem, key[1], dict(build.defines), **how)
        return self._kernels[key]

    def _add(self, stage: str, kernel: Kernel, grid: int, block: int, *args: object) -> None:
        # The second launch of all is the first after the branch.
        dependent = sum(map(len, self.stages.values())) != 1
        launch = kernel.bind(grid, block, *args, dependent=dependent)
        self.stages.setdefault(stage, []).append(launch)
