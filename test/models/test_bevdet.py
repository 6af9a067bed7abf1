"""Import of BEVDet-R50 checkpoints: everything is used, every fault is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig, bevdet_r50
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models.bevdet import load_bevdet
from driveRT_ros.models.layers import fold_norms
from driveRT_ros.models.lss_weights import load_camera_weights, save_camera_weights
from test.support import bevdet

DEPTH_NET = "img_view_transformer.depth_net.weight"


def small_model() -> CameraModelConfig:
    """Return the published network on a small input and grid: the same weights fit."""
    model = bevdet_r50().model
    return replace(
        model,
        image=replace(model.image, size_hw=(64, 96)),
        grid=replace(model.grid, x_range_m=(-12.8, 12.8), y_range_m=(-6.4, 6.4)),
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A complete checkpoint of random values, as the training framework writes it."""
    state = bevdet.random_state(3)
    path = tmp_path_factory.mktemp("bevdet") / "epoch_20_ema.pth"
    meta = {"epoch": 20, "iter": 87880, "CLASSES": list(bevdet.CLASSES)}
    torch.save({"meta": meta, "state_dict": state, "optimizer": {"state": {}}}, path)
    return path, state


def write(tmp_path: Path, change: Callable[[dict], None], **beside: object) -> Path:
    """Write a checkpoint of constants after one change to its state dict."""
    state = bevdet.constants(bevdet.shapes())
    change(state)
    path = tmp_path / "changed.pth"
    torch.save({"state_dict": state, **beside}, path)
    return path


def test_every_tensor_is_taken_and_every_key_accounted_for(checkpoint):
    path, state = checkpoint
    weights = load_bevdet(path, bevdet_r50())
    learned = {name for name in state if not name.endswith("num_batches_tracked")}
    assert len(weights.tensors) == len(learned)
    assert weights.trained
    assert sorted(t.sum().item() for t in weights.tensors.values()) == sorted(
        state[name].sum().item() for name in learned
    )
    named = {line.split(" ")[0] for line in weights.mapping[1:-1]}
    assert named == learned
    assert weights.mapping[-1] == f"ignored: {len(state) - len(learned)} 'num_batches_tracked'"


def test_the_imported_network_computes_what_the_description_says(checkpoint):
    path, state = checkpoint
    model = small_model()
    network = load_bevdet(path, model).network()
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(1, 2, 3, 64, 96, generator=generator)
    pooled = torch.randn(1, 1, 16, 32, 64, generator=generator)
    reader = bevdet.Reader(state)
    with torch.no_grad():
        depth, context = network.lift(images)
        maps = network.read(pooled)
        expected_depth, expected_context = reader.lift(images[0], bins=59)
        (expected_maps,) = reader.heads(pooled[:, 0].permute(0, 3, 1, 2))
    torch.testing.assert_close(depth[0], expected_depth, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        context[0], expected_context.permute(0, 2, 3, 1), atol=1e-4, rtol=1e-4
    )
    assert expected_depth.std() > 1e-3, "a constant would not tell a wrong graph"
    for name, expected in expected_maps.items():
        torch.testing.assert_close(maps.heads[0][name], expected, atol=1e-4, rtol=1e-4)
        assert expected.std() > 1e-3
    assert maps.segmentation.shape == (1, 0, 16, 32)


def test_folding_batch_norms_changes_nothing_but_rounding(checkpoint):
    path, _ = checkpoint
    network = load_bevdet(path, small_model()).network()
    images = torch.randn(1, 1, 3, 64, 96, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = network.lift(images)
        # 53 in ResNet-50, 12 in the encoder, 3 in its neck, 7 in the head.
        assert fold_norms(network) == 75
        after = network.lift(images)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
    for a, b in zip(before, after):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_wider_published_variants_import_with_their_configuration(tmp_path):
    # Earlier files of the same generation have 512 neck channels, some 80 context channels.
    path = tmp_path / "wide.pth"
    torch.save({"state_dict": bevdet.constants(bevdet.shapes(neck=512, context=80))}, path)
    model = bevdet_r50().model
    wide = replace(model, network=replace(model.network, neck_channels=512, context_channels=80))
    assert load_bevdet(path, wide).tensors["depth_net.weight"].shape == (139, 512, 1, 1)
    with pytest.raises(CheckpointError, match="expected"):
        load_bevdet(path, model)


def test_several_heads_import_with_their_configuration(tmp_path):
    path = tmp_path / "heads.pth"
    torch.save({"state_dict": bevdet.constants(bevdet.shapes(heads=(1, 2)))}, path)
    model = bevdet_r50().model
    two = replace(model, network=replace(model.network, heads=("car", "truck,bus")))
    tensors = load_bevdet(path, two).tensors
    assert tensors["detection.task_heads.1.heatmap.1.bias"].shape == (2,)
    with pytest.raises(CheckpointError, match="2 keys|keys that nothing expects"):
        load_bevdet(path, model)


def test_the_suffix_chooses_the_importer(checkpoint):
    path, _ = checkpoint
    assert load_camera_weights(path, bevdet_r50()).sha256 == load_bevdet(path, bevdet_r50()).sha256


def test_an_imported_checkpoint_survives_our_own_format(checkpoint, tmp_path):
    path, _ = checkpoint
    weights = load_bevdet(path, bevdet_r50())
    ours = tmp_path / "bevdet.safetensors"
    save_camera_weights(ours, weights)
    again = load_camera_weights(ours, bevdet_r50())
    assert again.sha256 == weights.sha256
    assert again.trained


def set_to(key: str, value: torch.Tensor) -> Callable[[dict], None]:
    return lambda state: state.__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("img_backbone.layer3.5.bn3.weight"), "layer3.5.bn3.weight"),
        (lambda s: s.pop("pts_bbox_head.task_heads.0.vel.1.bias"), "task_heads.0.vel.1.bias"),
        (set_to("img_backbone.fc.weight", torch.zeros(1)), "'img_backbone.fc.weight'"),
        (set_to("aux_head.weight", torch.zeros(1)), "1 keys that nothing expects"),
        # A name of ours is no name of theirs: nothing may slip through the renaming.
        (set_to("backbone.conv1.weight", torch.zeros(1)), "'backbone.conv1.weight'"),
        (set_to("img_backbone.conv1.weight", torch.zeros(64, 3, 3, 3)), "(64, 3, 7, 7)"),
        (set_to(DEPTH_NET, torch.zeros(139, 256, 1, 1)), "expected (123, 256, 1, 1)"),
        (set_to("img_backbone.bn1.bias", torch.full((64,), torch.nan)), "64 values that are NaN"),
        (set_to("img_backbone.bn1.running_var", torch.full((64,), -1.0)), "negative values"),
        (set_to("img_backbone.bn1.bias", torch.zeros(64, dtype=torch.int64)), "torch.int64"),
        (set_to("img_backbone.bn1.bias", "text"), "is str, not a tensor"),
        (
            set_to("img_view_transformer.depthnet.weight", torch.zeros(1)),
            "first generation of BEVDet",
        ),
    ],
)
def test_a_faulty_checkpoint_is_refused_with_the_key_named(tmp_path, change, said):
    path = write(tmp_path, change)
    with pytest.raises(CheckpointError) as error:
        load_bevdet(path, bevdet_r50())
    assert said in str(error.value)


def test_other_classes_than_asked_for_are_refused(tmp_path):
    shuffled = [*bevdet.CLASSES[1:], bevdet.CLASSES[0]]
    path = write(tmp_path, lambda state: None, meta={"CLASSES": shuffled})
    with pytest.raises(CheckpointError, match="was trained for the classes"):
        load_bevdet(path, bevdet_r50())


def test_a_model_of_another_kind_is_refused_by_parameter(tmp_path):
    path = write(tmp_path, lambda state: None)
    with pytest.raises(CheckpointError, match="model.network.backbone"):
        load_bevdet(path, CameraConfig())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"model": {}}, "no entry 'state_dict' of tensors; it holds 'model'"),
        ([1, 2], "no entry 'state_dict'"),
        (b"not a pickle", "cannot be read as a checkpoint|holds more than tensors"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused_in_a_sentence(tmp_path, content, said):
    path = tmp_path / "other.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=said):
        load_bevdet(path, bevdet_r50())
