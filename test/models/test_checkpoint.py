"""Checkpoint import: whole or not at all."""

from __future__ import annotations

import dataclasses
import json

import pytest
import safetensors.torch
import torch

from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models.checkpoint import load_openpcdet, load_weights, model_of, save_weights
from driveRT_ros.models.graph import build_graph
from driveRT_ros.models.layouts import detect_layout, stored_shape
from driveRT_ros.models.voxelnext import untrained_weights
from test.support import checkpoints

SMALL = ModelConfig(channels=(4, 6, 8, 10, 10, 10), heads=("car", "truck,bus"))


def small_state(**kwargs):
    return checkpoints.state_dict(SMALL.channels, (1, 2), **kwargs)


def saved(tmp_path, state, name="model.pth"):
    return checkpoints.write(tmp_path / name, state)


def test_the_official_names_give_every_layer_of_the_full_network(tmp_path):
    state = checkpoints.state_dict()
    assert len(state) == 542
    weights = load_openpcdet(saved(tmp_path, state), LidarConfig())
    assert weights.trained
    assert len(weights.tensors) == 2 * 104
    learnable = [k for k in state if k.endswith((".weight", ".bias"))]
    assert len(learnable) == 337
    assert sum(state[k].numel() for k in learnable) == 7_981_398


def test_folding_uses_both_epsilons_in_float64(tmp_path):
    state = small_state()
    tensors = load_openpcdet(saved(tmp_path, state), SMALL).tensors
    for layer, conv, norm, eps in [
        ("conv_out", "backbone_3d.conv_out.0", "backbone_3d.conv_out.1", 1e-3),
        ("shared_conv", "backbone_3d.shared_conv.0", "backbone_3d.shared_conv.1", 1e-5),
    ]:
        gain = (
            state[f"{norm}.weight"].double() / (state[f"{norm}.running_var"].double() + eps) ** 0.5
        )
        want = (
            state[f"{conv}.weight"].double()[3, 1, 2, 7] * gain[3]
        )  # out 3, y tap 1, x tap 2, in 7
        got = tensors[f"{layer}.weight"]
        assert got.dtype == torch.float64
        assert got[1 * 3 + 2, 7, 3].item() == pytest.approx(want.item(), rel=1e-14)


def test_a_kernel_keeps_its_z_y_x_order(tmp_path):
    state = small_state()
    key = "backbone_3d.conv1.0.conv1.weight"
    state[key] = torch.zeros_like(state[key])
    state[key][2, 0, 1, 2, 3] = 1.0  # out 2, kz 0, ky 1, kx 2, in 3
    weight = load_openpcdet(saved(tmp_path, state), SMALL).tensors["conv1.0.conv1.weight"]
    assert weight.nonzero().tolist() == [[(0 * 3 + 1) * 3 + 2, 3, 2]]


@pytest.mark.parametrize("layout", ["KRSC", "RSCK", "RSKC"])
def test_each_spconv_layout_is_told_from_the_shapes(tmp_path, layout):
    want = load_openpcdet(saved(tmp_path, small_state()), SMALL)
    path = saved(tmp_path, small_state(layout=layout), f"{layout}.pth")
    for asked in ("auto", layout):
        got = load_openpcdet(path, SMALL, layout=asked)
        assert got.sha256 == want.sha256
        assert layout in got.mapping[0]


def test_a_wrong_layout_by_name_is_refused_with_both_shapes(tmp_path):
    path = saved(tmp_path, small_state())
    with pytest.raises(CheckpointError, match=r"\(4, 3, 3, 3, 5\), expected \(3, 3, 3, 5, 4\)"):
        load_openpcdet(path, SMALL, layout="RSCK")
    with pytest.raises(CheckpointError, match="'KRCS' is unknown"):
        load_openpcdet(path, SMALL, layout="KRCS")


def test_shapes_that_fit_two_layouts_ask_for_the_layout():
    """Where inputs equal outputs in every layer, RSCK and RSKC look the same."""
    square = [x for x in build_graph(SMALL).layers if x.in_channels == x.out_channels]
    shapes = {x.name: stored_shape(x, "RSCK") for x in square}
    with pytest.raises(CheckpointError, match="RSCK and RSKC alike.*checkpoint_layout"):
        detect_layout(square, shapes)


def test_a_missing_key_of_any_kind_is_refused_by_name(tmp_path):
    state = small_state()
    for key in [k for k in state if k != "global_step"][::11]:
        short = {k: v for k, v in state.items() if k != key}
        with pytest.raises(CheckpointError) as caught:
            load_openpcdet(saved(tmp_path, short), SMALL)
        assert f"'{key}'" in str(caught.value)
        assert "misses 1 of" in str(caught.value)


def test_541_of_542_keys_are_refused(tmp_path):
    state = checkpoints.state_dict()
    del state["backbone_3d.conv5.2.bn2.running_var"]
    with pytest.raises(CheckpointError, match=r"misses 1 of 541.*'backbone_3d.conv5.2.bn2.runn"):
        load_openpcdet(saved(tmp_path, state), LidarConfig())


def test_an_extra_key_is_refused_by_name(tmp_path):
    state = {**small_state(), "dense_head.heads_list.0.iou.1.bias": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"nothing expects: 'dense_head.heads_list.0.iou"):
        load_openpcdet(saved(tmp_path, state), SMALL)


def test_a_checkpoint_of_other_heads_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"misses 54 of.*and 46 more"):
        load_openpcdet(
            saved(tmp_path, small_state()),
            ModelConfig(channels=SMALL.channels, heads=("car", "truck,bus", "barrier")),
        )


def test_a_wrong_shape_is_refused_with_both_shapes(tmp_path):
    state = small_state()
    key = "backbone_3d.conv3.1.bn1.running_mean"
    state[key] = torch.zeros(9)
    with pytest.raises(CheckpointError, match=rf"'{key}' has shape \(9,\), expected \(8,\)"):
        load_openpcdet(saved(tmp_path, state), SMALL)
    with pytest.raises(CheckpointError, match=r"'backbone_3d.conv_input.0.weight' has shape .*16"):
        load_openpcdet(saved(tmp_path, small_state()), ModelConfig(heads=SMALL.heads))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(tmp_path, value):
    state = small_state()
    state["backbone_3d.conv_out.0.weight"][0, 0, 0, 0] = value
    with pytest.raises(CheckpointError, match=r"'backbone_3d.conv_out.0.weight' holds 1 values"):
        load_openpcdet(saved(tmp_path, state), SMALL)


def test_a_negative_variance_and_integer_weights_are_refused(tmp_path):
    state = small_state()
    state["backbone_3d.conv_out.1.running_var"][2] = -1.0
    with pytest.raises(CheckpointError, match="conv_out.1.running_var' holds negative"):
        load_openpcdet(saved(tmp_path, state), SMALL)
    state = small_state()
    state["backbone_3d.conv_out.1.bias"] = torch.zeros(10, dtype=torch.int64)
    with pytest.raises(CheckpointError, match=r"is torch.int64, expected floating point"):
        load_openpcdet(saved(tmp_path, state), SMALL)


class Payload:
    """Something a pickle can carry that is not a tensor."""


def test_a_pickle_that_could_run_code_is_refused(tmp_path):
    path = tmp_path / "payload.pth"
    torch.save({"model_state": small_state(), "extra": Payload()}, path)
    with pytest.raises(CheckpointError, match=r"holds '[\w.]+Payload', .* run code") as error:
        load_openpcdet(path, SMALL)
    assert "weights_only" not in str(error.value), "advice to open it all the same"


def test_files_that_are_no_checkpoint_are_refused(tmp_path):
    empty = tmp_path / "empty.pth"
    empty.write_bytes(b"")
    words = tmp_path / "words.pth"
    words.write_bytes(b"hello")
    text = tmp_path / "text.pth"
    text.write_text("not a checkpoint")
    other = tmp_path / "other.pth"
    torch.save({"state_dict": small_state()}, other)
    nested, flat = tmp_path / "nested.pth", tmp_path / "flat.pth"
    torch.save({"model_state": {"a": 3}}, nested)
    torch.save([torch.zeros(1)], flat)
    for path, part in [
        (tmp_path / "absent.pth", "absent.pth' does not exist"),
        (tmp_path, "is a folder"),
        (words, "cannot be read"),
        (empty, "cannot be read"),
        (text, "text.pth"),
        (other, "no entry 'model_state' of tensors; it holds 'state_dict'"),
        (flat, "it holds a list"),
        (nested, "'a' in .* is int, not a tensor"),
    ]:
        with pytest.raises(CheckpointError, match=part):
            load_openpcdet(path, SMALL)
    with pytest.raises(CheckpointError, match="absent.safetensors' does not exist"):
        load_weights(tmp_path / "absent.safetensors", SMALL)


def test_the_mapping_names_every_layer_its_epsilon_and_the_file(tmp_path):
    weights = load_openpcdet(saved(tmp_path, small_state()), SMALL)
    layers = build_graph(SMALL).layers
    assert len(weights.mapping) == len(layers) + 2
    assert "SHA-256" in weights.mapping[0]
    assert weights.mapping[1] == (
        "backbone_3d.conv_input.0 (4, 3, 3, 3, 5) + backbone_3d.conv_input.1 (eps 0.001)"
        " -> conv_input (27, 5, 4)"
    )
    assert weights.mapping[-1] == "ignored: global_step"


def test_our_format_returns_what_was_saved(tmp_path):
    weights = load_weights(saved(tmp_path, small_state()), SMALL)
    path = tmp_path / "model.safetensors"
    save_weights(path, weights)
    again = load_weights(path, SMALL)
    assert again.trained
    assert again.config == SMALL
    assert set(again.tensors) == set(weights.tensors)
    assert all(torch.equal(again.tensors[k], weights.tensors[k]) for k in weights.tensors)
    assert again.sha256 == weights.sha256
    assert (again.source, again.name) == (str(path), "model.safetensors")
    assert untrained_weights(SMALL, 0).name == "untrained, seed 0"


def test_rounding_to_float32_keeps_the_identity_of_the_weights(tmp_path):
    weights = untrained_weights(SMALL, 3)
    path = tmp_path / "half.safetensors"
    save_weights(path, weights, dtype=torch.float32)
    again = load_weights(path, LidarConfig.from_dict({"model": SMALL.to_dict()}))
    assert not again.trained
    assert again.tensors["conv_input.weight"].dtype == torch.float32
    assert again.sha256 == weights.sha256


def test_our_format_of_another_model_is_refused_by_field(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, untrained_weights(SMALL, 0))
    wider = ModelConfig(channels=(4, 6, 8, 12, 12, 12), heads=SMALL.heads)
    with pytest.raises(CheckpointError, match=r"model.channels = \(4, 6, 8, 10, 10, 10\)"):
        load_weights(path, wider)
    with pytest.raises(CheckpointError, match=r"model.heads = \('car', 'truck,bus'\)"):
        load_weights(path, ModelConfig(channels=SMALL.channels, heads=("car", "bus,truck")))


def test_a_file_says_where_ahead_is_for_its_weights_and_an_older_one_means_along_y(tmp_path):
    path = tmp_path / "model.safetensors"
    x_ahead = dataclasses.replace(SMALL, forward_yaw_deg=0.0)
    save_weights(path, untrained_weights(x_ahead, 0))
    assert model_of(path) == x_ahead and load_weights(path, x_ahead).config == x_ahead
    with pytest.raises(CheckpointError, match=r"model.forward_yaw_deg = 0.0, .* asks for 90.0"):
        load_weights(path, SMALL)
    tensors = safetensors.torch.load_file(path)
    older = {name: value for name, value in SMALL.to_dict().items() if name != "forward_yaw_deg"}
    header = {"format": "driveRT_ros.voxelnext", "version": "1", "trained": "true"}
    safetensors.torch.save_file(tensors, path, metadata={**header, "model": json.dumps(older)})
    assert model_of(path) == SMALL and load_weights(path, SMALL).config == SMALL


def test_damaged_files_of_our_format_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, untrained_weights(SMALL, 0))
    tensors = safetensors.torch.load_file(path)
    header = {
        "format": "driveRT_ros.voxelnext",
        "version": "1",
        "model": json.dumps(SMALL.to_dict()),
        "trained": "true",
        "source": "",
    }

    def refused(part, tensors=tensors, **changes):
        kept = {k: v for k, v in {**header, **changes}.items() if v is not None}
        safetensors.torch.save_file(tensors, path, metadata=kept)
        with pytest.raises(CheckpointError, match=part):
            load_weights(path, SMALL)

    refused("format and version", version="99")
    refused("unusable header", model=None)
    refused("unusable header", model="{")
    refused("unusable header", model='{"chanels": [1]}')
    refused("entry 'trained' is '1', expected 'true' or 'false'", trained="1")
    refused("misses 1 of 112", {k: v for k, v in tensors.items() if k != "conv_out.bias"})
    refused(r"'conv_out.bias' has shape \(11,\)", {**tensors, "conv_out.bias": torch.zeros(11)})
    refused("NaN", {**tensors, "conv_out.bias": torch.full((10,), torch.nan)})
    refused("is torch.float8", {**tensors, "conv_out.bias": torch.zeros(10).to(torch.float8_e5m2)})
    path.write_bytes(b"\0" * 100)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load_weights(path, SMALL)


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="suffix '.onnx'"):
        load_weights(tmp_path / "model.onnx", SMALL)
    with pytest.raises(CheckpointError, match="written as '.safetensors'"):
        save_weights(tmp_path / "model.pth", untrained_weights(SMALL, 0))
