"""Strict import of OpenPCDet checkpoints, and our own format: safetensors with its config inside.

A checkpoint is taken whole or not at all. Every tensor that the graph expects must be there once,
with the shape it expects, and finite; a tensor that nothing expects is an error too, because it
means the checkpoint belongs to another network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models.graph import LayerSpec, build_graph
from driveRT_ros.models.layouts import LAYOUTS, detect_layout, stored_shape, to_taps
from driveRT_ros.models.stored import FileFormat
from driveRT_ros.models.strict import (
    check_tensor,
    compare_keys,
    file_sha256,
    read_pickle,
)
from driveRT_ros.models.weights import VoxelNeXtWeights, fold_batch_norm

FORMAT: FileFormat[VoxelNeXtWeights] = FileFormat("driveRT_ros.voxelnext", "1")
save_weights = FORMAT.write

_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")
_COUNTER = "num_batches_tracked"
_IGNORED = frozenset({"global_step"})


def load_weights(
    path: str | Path, config: LidarConfig | ModelConfig, *, layout: str = "auto"
) -> VoxelNeXtWeights:
    """Load a ``.safetensors`` file of ours, or an OpenPCDet ``.pth``, by suffix.

    Args:
        path: The file.
        config: The model it must be for.
        layout: See :func:`load_openpcdet`; our own format needs none.

    Raises:
        CheckpointError: If the file cannot be read or is not this model.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".safetensors":
        return _load_safetensors(Path(path), _model(config))
    if suffix in (".pth", ".pt"):
        return load_openpcdet(path, config, layout=layout)
    raise CheckpointError(
        f"'{path}' has the suffix '{suffix}'; weights are '.safetensors' files, or '.pth' of "
        "OpenPCDet."
    )


def model_of(path: Path) -> ModelConfig:
    """Return the model that a ``.safetensors`` file of ours is for.

    Raises:
        CheckpointError: If it cannot be read, or is not ours.
    """
    return FORMAT.model(path, ModelConfig)


def load_openpcdet(
    path: str | Path, config: LidarConfig | ModelConfig, *, layout: str = "auto"
) -> VoxelNeXtWeights:
    """Import a VoxelNeXt checkpoint of OpenPCDet and fold its batch norms in float64.

    Args:
        path: A file written by ``torch.save`` with the entry ``model_state``. It is opened without
            running code from it.
        config: Channels and heads it must have.
        layout: ``KRSC``, ``RSCK``, ``RSKC``, or ``auto`` to tell from the shapes.

    Returns:
        Float64 weights, trained, with one line of ``mapping`` a layer.

    Raises:
        CheckpointError: If the file cannot be opened safely, misses or adds keys, or holds a tensor
            of another shape or with values that are not finite.
    """
    if layout != "auto" and layout not in LAYOUTS:
        raise CheckpointError(
            f"Layout '{layout}' is unknown; use 'auto' or one of {', '.join(LAYOUTS)}."
        )
    path, model = Path(path), _model(config)
    state, _ = read_pickle(path, "model_state")
    layers = build_graph(model).layers
    _check_keys(path, layers, state)
    if layout == "auto":
        shapes = {x.name: tuple(state[f"{x.conv_key}.weight"].shape) for x in layers}
        layout = detect_layout(layers, shapes)
    tensors: dict[str, torch.Tensor] = {}
    mapping = [f"{path.name}: layout {layout}, {len(state)} keys, SHA-256 {file_sha256(path)}"]
    for layer in layers:
        weight, bias = _import_layer(layer, state, layout)
        tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"] = weight, bias
        norm = f" + {layer.bn_key} (eps {layer.bn_eps:g})" if layer.bn_eps is not None else ""
        stored = tuple(state[f"{layer.conv_key}.weight"].shape)
        mapping.append(f"{layer.conv_key} {stored}{norm} -> {layer.name} {tuple(weight.shape)}")
    ignored = sorted(_IGNORED & set(state))
    mapping.append(f"ignored: {', '.join(ignored) or 'nothing'}")
    return VoxelNeXtWeights(
        config=model, tensors=tensors, trained=True, source=str(path), mapping=tuple(mapping)
    )


def _load_safetensors(path: Path, model: ModelConfig) -> VoxelNeXtWeights:
    tensors, trained = FORMAT.read(path, model)
    expected = {
        f"{layer.name}.{part}": shape
        for layer in build_graph(model).layers
        for part, shape in (
            ("weight", (layer.taps, layer.in_channels, layer.out_channels)),
            ("bias", (layer.out_channels,)),
        )
    }
    compare_keys(path, set(expected), set(tensors))
    for name, shape in expected.items():
        check_tensor(name, tensors[name], shape)
    return VoxelNeXtWeights(config=model, tensors=tensors, trained=trained, source=str(path))


def _model(config: LidarConfig | ModelConfig) -> ModelConfig:
    return config.model if isinstance(config, LidarConfig) else config


def _expected_keys(layer: LayerSpec) -> list[str]:
    keys = [f"{layer.conv_key}.weight"]
    if layer.bias:
        keys.append(f"{layer.conv_key}.bias")
    if layer.bn_eps is not None:
        keys += [f"{layer.bn_key}.{part}" for part in (*_BATCH_NORM, _COUNTER)]
    return keys


def _check_keys(
    path: Path, layers: tuple[LayerSpec, ...], state: Mapping[str, torch.Tensor]
) -> None:
    expected = {key for layer in layers for key in _expected_keys(layer)}
    compare_keys(path, expected, set(state) - _IGNORED)


def _import_layer(
    layer: LayerSpec, state: Mapping[str, torch.Tensor], layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the folded float64 weight (taps, in, out) and bias (out,) of one layer."""
    key = f"{layer.conv_key}.weight"
    check_tensor(key, state[key], stored_shape(layer, layout), f" ({layout})")
    weight = to_taps(state[key].double(), layer, layout).contiguous()
    vector = (layer.out_channels,)
    bias = None
    if layer.bias:
        bias = state[f"{layer.conv_key}.bias"]
        check_tensor(f"{layer.conv_key}.bias", bias, vector)
    if layer.bn_eps is None:
        plain = weight.new_zeros(vector) if bias is None else bias.double()
        return weight, plain
    for part in _BATCH_NORM:
        check_tensor(f"{layer.bn_key}.{part}", state[f"{layer.bn_key}.{part}"], vector)
    scale, shift, mean, variance = (state[f"{layer.bn_key}.{part}"] for part in _BATCH_NORM)
    if bool((variance < 0).any()):
        raise CheckpointError(f"'{layer.bn_key}.running_var' holds negative values.")
    return fold_batch_norm(weight, bias, scale, shift, mean, variance, layer.bn_eps)
