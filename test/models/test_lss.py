"""The camera network: shapes, wiring, seeds, and its own file format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import safetensors
import torch
from torch import nn

from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig, bevdet_r50
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models.layers import BasicBlock, ConvModule, fold_norms
from driveRT_ros.models.lss import BACKBONES
from driveRT_ros.models.lss_weights import (
    CameraWeights,
    expected_shapes,
    load_camera_weights,
    save_camera_weights,
    untrained_camera_weights,
)


def model(**network: object) -> CameraModelConfig:
    """Return a small model of the default kind."""
    return CameraModelConfig.from_dict(
        {
            "image": {"size_hw": [64, 96]},
            "depth": {"max_m": 20.0},
            "grid": {"x_range_m": [-9, 9], "y_range_m": [-6, 6], "resolution_m": 0.6},
            "network": {
                "neck_channels": 16,
                "context_channels": 8,
                "bev_channels": [8, 8, 16],
                "bev_out_channels": 8,
                "head_channels": 8,
                **network,
            },
        }
    )


def images(config: CameraModelConfig, cameras: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(1, cameras, 3, *config.image.size_hw, generator=generator)


def test_lifted_shapes_and_depths_that_add_up_to_one():
    config = model()
    network = untrained_camera_weights(config, 0).network()
    with torch.no_grad():
        depth, context = network.lift(images(config))
    assert depth.shape == (1, 3, 19, 4, 6)
    assert context.shape == (1, 3, 4, 6, 8)
    assert depth.is_contiguous()
    assert context.is_contiguous()
    assert (depth > 0).all()
    torch.testing.assert_close(depth.sum(2), torch.ones(1, 3, 4, 6))


def test_logits_are_handed_on_without_a_copy_and_their_softmax_is_the_depth():
    config = model()
    network = untrained_camera_weights(config, 0).network()
    with torch.no_grad():
        logits, context = network.lift_logits(images(config))
        depth, lifted = network.lift(images(config))
    assert logits.untyped_storage().data_ptr() == context.untyped_storage().data_ptr()
    assert logits.min() < 0, "not yet weights"
    assert torch.equal(logits.softmax(dim=2), depth)
    assert torch.equal(context, lifted)


@pytest.mark.parametrize("z_cells", [1, 2])
@pytest.mark.parametrize("heads", [(), ("car,truck", "pedestrian")])
def test_every_output_covers_the_grid(z_cells, heads):
    config = model(heads=heads)
    config = replace(config, grid=replace(config.grid, z_cells=z_cells))
    network = untrained_camera_weights(config, 0).network()
    with torch.no_grad():
        maps = network.read(torch.randn(2, z_cells, 20, 30, 8))
    assert maps.segmentation.shape == (2, 3, 20, 30)
    assert [head["heatmap"].shape for head in maps.heads] == [
        (2, len(h.split(",")), 20, 30) for h in heads
    ]
    for head in maps.heads:
        assert {name: m.shape[1] for name, m in head.items() if name != "heatmap"} == {
            "reg": 2,
            "height": 1,
            "dim": 3,
            "rot": 2,
            "vel": 2,
        }


def test_rows_stay_rows_and_columns_stay_columns():
    # A bump in one corner of the pooled view must change the outputs most in that corner.
    config = model()
    network = untrained_camera_weights(config, 0).network()
    flat = torch.zeros(1, 1, 20, 30, 8)
    bump = flat.clone()
    bump[:, :, 2:4, 25:28] = 50.0
    with torch.no_grad():
        change = (network.read(bump).segmentation - network.read(flat).segmentation).abs()
    row, col = divmod(int(change[0].sum(0).argmax()), 30)
    assert row <= 8
    assert col >= 20


def test_cells_above_each_other_are_not_mixed_up():
    config = replace(model(), grid=replace(model().grid, z_cells=2))
    network = untrained_camera_weights(config, 0).network()
    pooled = torch.randn(1, 2, 20, 30, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got = network.read(pooled).segmentation
        bev = torch.cat((pooled[:, 0], pooled[:, 1]), dim=-1).permute(0, 3, 1, 2)
        expected = network.segmentation(network.bev_neck(*network.bev_backbone(bev)))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_one_camera_does_not_look_at_another(backbone):
    config = model(backbone=backbone)
    network = untrained_camera_weights(config, 0).network()
    batch = images(config)
    changed = batch.clone()
    changed[0, 1] = 0
    with torch.no_grad():
        before, after = network.lift(batch), network.lift(changed)
    for a, b in zip(before, after):
        torch.testing.assert_close(a[0, [0, 2]], b[0, [0, 2]])
        assert not torch.allclose(a[0, 1], b[0, 1])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_features_are_of_stride_16_and_32(backbone):
    network = untrained_camera_weights(model(backbone=backbone), 0).network()
    with torch.no_grad():
        fine, coarse = network.backbone(torch.randn(1, 3, 64, 96))
    assert fine.shape == (1, network.backbone.out_channels[0], 4, 6)
    assert coarse.shape == (1, network.backbone.out_channels[1], 2, 3)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_folding_batch_norms_changes_nothing_but_rounding(backbone):
    config = model(backbone=backbone, heads=("car",))
    weights = untrained_camera_weights(config, 0)
    generator = torch.Generator().manual_seed(9)
    # Statistics as after training: at their start values a wrong folding would not show.
    tensors = {
        name: t + 0.3 * torch.rand(t.shape, generator=generator) if t.ndim == 1 else t
        for name, t in weights.tensors.items()
    }
    network = replace(weights, tensors=tensors).network()
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    pooled = torch.randn(1, 1, 20, 30, 8, generator=generator)
    with torch.no_grad():
        before = (*network.lift(images(config)), network.read(pooled).segmentation)
        assert fold_norms(network) == norms
        after = (*network.lift(images(config)), network.read(pooled).segmentation)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    for a, b in zip(before, after):
        scale = float(a.abs().max())
        torch.testing.assert_close(a / scale, b / scale, atol=1e-5, rtol=1e-4)


def test_a_norm_without_a_convolution_before_it_is_left_alone():
    block = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), ConvModule(4, 4, 3, norm=False)).eval()
    assert fold_norms(block) == 0
    assert fold_norms(BasicBlock(4, 4).eval()) == 2


def test_weights_depend_on_the_seed_and_the_model_alone():
    state = torch.get_rng_state()
    first, again = untrained_camera_weights(model(), 0), untrained_camera_weights(model(), 0)
    assert torch.equal(state, torch.get_rng_state()), "the global generator is not ours to use"
    assert first.sha256 == again.sha256
    assert untrained_camera_weights(model(), 1).sha256 != first.sha256
    assert not first.trained
    assert first.source == "untrained, seed 0"


def test_building_the_network_leaves_the_global_generator_alone():
    weights = untrained_camera_weights(model(), 0)
    state = torch.get_rng_state()
    weights.network()
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_untrained_activations_neither_vanish_nor_explode(backbone):
    config = model(backbone=backbone)
    network = untrained_camera_weights(config, 0).network()
    with torch.no_grad():
        depth, context = network.lift(images(config))
    assert 0.05 < context.std() < 20
    assert depth.max() < 0.99


def test_the_default_model_is_small_and_the_preset_is_bevdet_sized():
    def learned(config: CameraConfig) -> float:
        sizes = expected_shapes(config.model)
        counted = (s for n, s in sizes.items() if not n.endswith(("running_mean", "running_var")))
        return sum(torch.Size(s).numel() for s in counted) / 1e6

    assert 4 < learned(CameraConfig()) < 6
    assert 40 < learned(bevdet_r50()) < 50


@pytest.fixture
def saved(tmp_path) -> tuple[object, CameraWeights]:
    weights = untrained_camera_weights(model(), 0)
    path = tmp_path / "weights.safetensors"
    save_camera_weights(path, weights)
    return path, weights


def test_a_saved_file_gives_every_bit_back(saved):
    path, weights = saved
    again = load_camera_weights(path, model())
    assert again.config == weights.config
    assert again.trained is False
    assert again.tensors.keys() == weights.tensors.keys()
    assert all(torch.equal(again.tensors[name], t) for name, t in weights.tensors.items())


def test_a_file_may_be_rounded_when_it_is_written(tmp_path):
    weights = untrained_camera_weights(model(), 0)
    path = tmp_path / "half.safetensors"
    save_camera_weights(path, weights, dtype=torch.float16)
    again = load_camera_weights(path, model())
    name = "depth_net.weight"
    assert again.tensors[name].dtype == torch.float16
    torch.testing.assert_close(
        again.tensors[name].float(), weights.tensors[name], atol=1e-3, rtol=1e-3
    )
    assert again.network().depth_net.weight.dtype == torch.float32


def test_the_header_of_a_file_tells_its_model(saved):
    path, weights = saved
    with safetensors.safe_open(str(path), framework="pt") as file:
        header = file.metadata()
    assert CameraModelConfig.from_dict(json.loads(header["model"])) == weights.config
    assert header["format"] == "driveRT_ros.lss"


@pytest.mark.parametrize(
    ("group", "field", "value"),
    [
        ("depth", "step_m", 2.0),
        ("image", "mean", (1.0, 1.0, 1.0)),
        ("grid", "resolution_m", 0.3),
        ("network", "segmentation", ("vehicle",)),
    ],
)
def test_a_file_of_another_model_is_refused_by_parameter(saved, group, field, value):
    path, _ = saved
    other = replace(model(), **{group: replace(getattr(model(), group), **{field: value})})
    with pytest.raises(CheckpointError, match=f"model.{group}.{field}"):
        load_camera_weights(path, other)


def test_a_file_with_another_set_of_tensors_is_refused_by_name(tmp_path):
    weights = untrained_camera_weights(model(), 0)
    path = tmp_path / "less.safetensors"
    less = {name: t for name, t in weights.tensors.items() if name != "depth_net.bias"}
    save_camera_weights(path, replace(weights, tensors=less))
    with pytest.raises(CheckpointError, match="misses 1 of .*depth_net.bias"):
        load_camera_weights(path, model())
    save_camera_weights(path, replace(weights, tensors={**less, "depth_net.bias": torch.ones(3)}))
    with pytest.raises(CheckpointError, match=r"'depth_net.bias' has shape \(3,\)"):
        load_camera_weights(path, model())


@pytest.mark.parametrize("name", ["weights.bin", "weights"])
def test_other_suffixes_are_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="safetensors"):
        load_camera_weights(tmp_path / name, model())
    with pytest.raises(CheckpointError, match="safetensors"):
        save_camera_weights(tmp_path / name, untrained_camera_weights(model(), 0))
