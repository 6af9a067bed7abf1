"""The same network built from spconv, or from spconv-triton, with the same folded weights.

Coordinate maps are reused through ``indice_key`` as in VoxelNeXt, ReLU is fused where the package
can, residuals are added by torch. A candidate that cannot run says why.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from driveRT_ros.bench.contenders import Peer
from driveRT_ros.bench.networks import BEV, MAPS, Rows, stages_of
from driveRT_ros.bench.timing import Mark, unmarked
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.models.graph import LayerSpec, build_graph
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS

PRECISIONS = ("fp32", "tf32", "fp16")
ALGORITHMS = ("MaskImplicitGemm", "Native")
_PAIR_FUNCTIONS = ("get_indice_pairs", "get_indice_pairs_implicit_gemm")


class PairMarks:
    """Marks the time in which a package builds index pairs, wherever a layer asks for them."""

    def __init__(self, ops: ModuleType) -> None:
        self.mark: Mark = unmarked
        self.stage = ""
        for name in _PAIR_FUNCTIONS:
            setattr(ops, name, self._marked(getattr(ops, name)))

    def _marked(self, build: Any) -> Any:
        @functools.wraps(build)
        def marked(*args: Any, **kwargs: Any) -> Any:
            self.mark(MAPS)
            pairs = build(*args, **kwargs)
            self.mark(self.stage)
            return pairs

        return marked

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        if stage != self.stage:
            self.stage = stage
            self.mark(stage)


@functools.cache
def package(name: str) -> tuple[ModuleType, PairMarks, str]:
    """Import ``spconv`` or ``spconv_triton`` once; return it, its marks and its version."""
    module = importlib.import_module(f"{name}.pytorch")
    ops = importlib.import_module(f"{name}.pytorch.ops")
    version = "unknown"
    for distribution in (name.replace("_", "-"), "spconv-cu126"):
        try:
            version = importlib.metadata.version(distribution)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return module, PairMarks(ops), version


class SpconvNetwork:
    """The network of one package in one precision with one algorithm, on one frame at a time.

    Args:
        package_name: ``spconv`` or ``spconv_triton``.
        precision: ``fp32``, ``tf32`` or ``fp16``.
        algorithm: Name in the package's ``ConvAlgo``.
        config: Grid and channels.
        tensors: Folded weights, float32, on the device.
        pad_input: Pad the point features to this many channels; 0 for none.
    """

    def __init__(
        self,
        package_name: str,
        precision: str,
        algorithm: str,
        config: LidarConfig,
        tensors: Mapping[str, torch.Tensor],
        pad_input: int = 0,
    ) -> None:
        self._spconv, self._pairs, self.version = package(package_name)
        self._package, self.precision, self.algorithm = package_name, precision, algorithm
        self.config = config
        self._dtype = torch.float16 if precision == "fp16" else torch.float32
        self._graph = build_graph(config.model)
        self._shape = list(config.voxelization.sparse_shape_zyx)
        self._pad = pad_input
        names = stages_of(self._graph)
        self._stage = {layer.name: stage for stage, layers in names.items() for layer in layers}
        self._fused: set[str] = set()
        self._layers = {
            layer.name: self._module(layer, tensors)
            for level in (*self._graph.levels, self._graph.bev)
            for layer in level
        }
        self._tuners = _new_tuners() if package_name == "spconv" else {}
        self._outputs: dict[str, Rows] = {}

    def load(self, voxels: Rows) -> None:
        """Take the features and (N, 4) coordinates of a frame."""
        features = voxels[0]
        if self._pad:
            features = torch.nn.functional.pad(features, (0, self._pad - features.shape[1]))
        self._features = features.to(self._dtype).contiguous()
        self._coords = voxels[1].int().contiguous()

    def _module(self, layer: LayerSpec, tensors: Mapping[str, torch.Tensor]) -> Any:
        kind = ("SubMConv" if layer.op == "subm" else "SparseConv") + f"{layer.dims}d"
        kernel = list(layer.kernel_zyx[3 - layer.dims :])
        weight = tensors[f"{layer.name}.weight"]
        c_in = layer.in_channels
        if self._pad and layer.name == self._graph.levels[0][0].name:
            weight = torch.nn.functional.pad(weight, (0, 0, 0, self._pad - c_in))
            c_in = self._pad
        constants = importlib.import_module(f"{self._package}.core")
        options: dict[str, Any] = {} if layer.op == "subm" else {
            "stride": list(layer.stride_zyx[3 - layer.dims :])
        }  # fmt: skip
        module = getattr(self._spconv, kind)(
            c_in, layer.out_channels, kernel, padding=[k // 2 for k in kernel], bias=True,
            indice_key=layer.map_key, algo=getattr(constants.ConvAlgo, self.algorithm), **options,
        )  # fmt: skip
        stored = weight.permute(2, 0, 1).reshape(module.weight.shape)  # out, taps, in
        module.weight.data = stored.contiguous()
        module.bias.data = tensors[f"{layer.name}.bias"].clone()
        if layer.relu and not layer.residual and self.algorithm != "Native":
            module.act_type = _activation(self._package).ReLU
            self._fused.add(layer.name)
        return module.to("cuda", self._dtype).eval()

    def run(self, mark: Mark = unmarked) -> None:
        """Enqueue the frame, calling ``mark`` at the start of every stage."""
        self._use_settings()
        self._pairs.mark, self._pairs.stage = mark, ""
        x = self._spconv.SparseConvTensor(self._features, self._coords, self._shape, 1)
        levels, self._outputs = [], {}
        for level in self._graph.levels:
            x = self._run_layers(level, x)
            levels.append(x)
        self._pairs.enter(BEV)
        x = self._merged([levels[n - 1] for n in MERGED_LEVELS])
        self._outputs[BEV] = (x.features, _zyx(x.indices))
        self._run_layers(self._graph.bev, x)
        self._pairs.mark = unmarked

    def _run_layers(self, layers: tuple[LayerSpec, ...], x: Any) -> Any:
        out: dict[str, Any] = {}
        for layer in layers:
            stage = self._stage[layer.name]
            self._pairs.enter(stage)
            x = self._layers[layer.name](x)
            if layer.residual:
                x = x.replace_feature(x.features.add_(out[layer.residual].features).relu_())
            elif layer.relu and layer.name not in self._fused:
                x = x.replace_feature(x.features.relu_())
            out[layer.name] = x
            self._outputs[stage] = (x.features, _zyx(x.indices))
        return x

    def _merged(self, levels: list[Any]) -> Any:
        """Sum the levels over each bird's-eye cell, with the fewest torch operations."""
        ny, nx = levels[0].spatial_shape[1:]
        keys = [
            (x.indices[:, 2].long() * nx + x.indices[:, 3]) * scale
            for x, scale in zip(levels, MERGE_SCALES)
        ]
        cells, place = torch.unique(torch.cat(keys), return_inverse=True)
        features = torch.cat([x.features for x in levels])
        total = features.new_zeros(len(cells), features.shape[1]).index_add_(0, place, features)
        y = torch.div(cells, nx, rounding_mode="floor")
        indices = torch.stack((torch.zeros_like(y), y, cells - y * nx), dim=1).int()
        return self._spconv.SparseConvTensor(total, indices, [ny, nx], 1)

    def outputs(self) -> dict[str, Rows]:
        """Return what every stage of the last run wrote."""
        return self._outputs

    def _use_settings(self) -> None:
        tf32 = self.precision == "tf32"
        importlib.import_module(f"{self._package}.constants").SPCONV_ALLOW_TF32 = tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for name, tuner in self._tuners.items():
            setattr(importlib.import_module("spconv.pytorch.ops"), name, tuner)


def _zyx(indices: torch.Tensor) -> torch.Tensor:
    """Return the (N, 3) coordinates of (N, 4) or, with z = 0, (N, 3) indices."""
    if indices.shape[1] == 4:
        return indices[:, 1:]
    return torch.cat((torch.zeros_like(indices[:, :1]), indices[:, 1:]), dim=1)


def _activation(package_name: str) -> Any:
    if package_name == "spconv":
        return importlib.import_module("cumm.tensorview").gemm.Activation
    return importlib.import_module(f"{package_name}.compat").tv.gemm.Activation


def _new_tuners() -> dict[str, Any]:
    """Return tuners of their own: spconv remembers choices without asking whether TF32 was allowed.

    Sharing one would let the FP32 run decide which kernels the TF32 run uses.
    """
    algo = importlib.import_module("spconv.algo")
    core = algo.algocore
    gemm = [core.get_gemm_algo_desp_from_param(p) for p in algo.ALL_NATIVE_PARAMS]
    conv = [core.get_conv_algo_desp_from_param(p) for p in algo.ALL_IMPGEMM_PARAMS]
    return {"GEMM_CPP": type(algo.GEMM_CPP)(gemm), "CONV_CPP": type(algo.CONV_CPP)(conv)}


def spconv_peers(
    package_name: str,
    precisions: Iterable[str],
    algorithms: Iterable[str],
    config: LidarConfig,
    tensors: Mapping[str, torch.Tensor],
) -> Iterator[Peer]:
    """Yield the candidates of one package, ``spconv`` or ``spconv_triton``."""
    for precision, algorithm in itertools.product(precisions, algorithms):
        name = f"{package_name.replace('_', '-')} {precision} {algorithm}"
        make = functools.partial(SpconvNetwork, package_name, precision, algorithm, config, tensors)
        # Five channels of half precision fit no kernel of some packages.
        fallback = {"input padded to 8 channels": {"pad_input": 8}} if precision == "fp16" else {}
        yield Peer(name, precision, make, fallback)
