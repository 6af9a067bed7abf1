"""The network that learns and the detector that runs it agree."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.paths import share_path
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.reference.decode import decode_boxes
from driveRT_ros.models.checkpoint import load_weights, save_weights
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.module import VoxelNeXtModule, export_weights
from driveRT_ros.train.samples import unpack
from test.support.training import small_config, small_sample


def a_module(config, *, seed=0, by_table=None) -> VoxelNeXtModule:
    """Return a float64 network whose batch norms have statistics and scales of their own."""
    module = VoxelNeXtModule(config.model, seed, 0.5, by_table).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for layer in module.layers.values():
            if layer.norm is not None:
                layer.norm.weight.uniform_(0.7, 1.4, generator=generator)
                layer.norm.bias.normal_(0.0, 0.3, generator=generator)
            else:
                layer.weight.mul_(10)
    return module


def voxels_of(config, seeds):
    features, coords = [], []
    for number, seed in enumerate(seeds):
        cloud = torch.from_numpy(unpack(small_sample(seed).points)).double()
        frame = Ops.for_device("cpu").voxelize(cloud, config.voxelization)
        features.append(frame.features)
        coords.append(frame.coords_bzyx)
        coords[-1][:, 0] = number
    return torch.cat(features), torch.cat(coords), config.voxelization.sparse_shape_zyx


def said_of(module, features, coords, shape):
    return module(features, module.build_maps(coords, shape))


@pytest.mark.parametrize("by_table", [False, True])
def test_exported_weights_detect_what_the_module_says(tmp_path, by_table):
    config = small_config()
    module = a_module(config, by_table=by_table)
    module.train()
    said_of(
        module, *voxels_of(config, (1, 2, 3))
    )  # statistics that are not those of a fresh network
    module.eval()
    with torch.no_grad():
        found = said_of(module, *voxels_of(config, (4,)))

    path = tmp_path / "weights.safetensors"
    save_weights(path, export_weights(module, "test"))
    lidar = LidarConfig.from_dict(
        {
            **{k: v for k, v in config.lidar.to_dict().items() if k in ("voxelization", "model")},
            "post_process_params": {
                "score_thresholds": (0.0121,),
                "iou_nms_threshold": 1.0,
                "top_k": 10_000,
                "max_boxes_per_head": 1000,
                "center_range": (-99.0, -99.0, -99.0, 99.0, 99.0, 99.0),
            },
        }
    )
    pipeline = LidarPipeline(lidar, load_weights(path, lidar), "cpu", torch.float64)
    result = pipeline.process(torch.from_numpy(unpack(small_sample(4).points)).double())
    assert "untrained_weights" not in result.report.notes

    boxes, scores, labels, first = [], [], [], 0
    for branches, classes in zip(found.branches, config.model.classes_per_head):
        decoded = decode_boxes(
            branches, found.coords_bzyx[:, 2:4], config.voxelization.point_cloud_range[:2],
            config.voxelization.voxel_size[:2], 8,
        )  # fmt: skip
        for k in range(len(classes)):
            boxes.append(decoded)
            scores.append(branches["hm"][:, k].sigmoid())
            labels += [first + k] * len(decoded)
        first += len(classes)
    boxes, scores, labels = torch.cat(boxes), torch.cat(scores), torch.tensor(labels)
    over = scores > 0.0121
    assert 20 < over.sum() < len(over), "the case must not be trivial"
    assert len(result) == over.sum()
    for mine, theirs in ((boxes, result.boxes), (scores, result.scores)):
        by = lambda values, names, s: values[s.double().add(names * 10).argsort()]  # noqa: E731
        torch.testing.assert_close(
            by(mine[over], labels[over], scores[over]),
            by(theirs, result.labels, result.scores),
            rtol=1e-9,
            atol=1e-9,
        )


def test_frames_of_a_batch_do_not_see_each_other():
    config = small_config()
    module = a_module(config).eval()
    with torch.no_grad():
        both = said_of(module, *voxels_of(config, (5, 6)))
        alone = [said_of(module, *voxels_of(config, (seed,))) for seed in (5, 6)]
    joined = torch.cat([a.branches[1]["hm"] for a in alone])
    torch.testing.assert_close(both.branches[1]["hm"], joined, rtol=1e-10, atol=1e-10)
    assert both.coords_bzyx[:, 0].bincount().tolist() == [len(a.coords_bzyx) for a in alone]


def test_the_gradient_of_the_whole_network_equals_finite_differences():
    config = small_config()
    module = a_module(config)
    inputs = voxels_of(config, (7,))

    def loss() -> torch.Tensor:
        found = said_of(module, *inputs)
        return sum(v.sin().mean() for branches in found.branches for v in branches.values())

    module.train()
    loss().backward()
    generator = torch.Generator().manual_seed(3)
    names = ("conv_input", "conv2/0", "conv4/1/conv2", "conv6/2/conv1", "conv_out",
             "shared_conv", "head1/dim/hidden", "head2/hm/out")  # fmt: skip
    for name in names:
        weight = module.layers[name].weight
        direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            step = 1e-8  # few rows pass a corner of ReLU on the way
            weight += step * direction
            above = loss()
            weight -= 2 * step * direction
            below = loss()
            weight += step * direction
        slope = (above - below) / (2 * step)
        assert (weight.grad * direction).sum().item() == pytest.approx(slope.item(), rel=2e-4), name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_halves_give_the_gradients_of_doubles_and_the_same_bits_again(device):
    config = small_config()
    features, coords, shape = voxels_of(config, (1, 2))

    def gradients(module, rows, half):
        module.train()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            found = said_of(module, rows, coords.to(rows.device), shape)
        loss = sum(v.double().sin().mean() for b in found.branches for v in b.values())
        names, weights = zip(*module.named_parameters())
        return dict(zip(names, torch.autograd.grad(loss, weights)))

    exact = gradients(a_module(config, by_table=False), features, False)
    first, second = (
        gradients(
            a_module(config, by_table=True).float().to(device), features.float().to(device), True
        )
        for _ in range(2)
    )
    for name, want in exact.items():
        got = first[name].double().cpu()
        assert torch.equal(first[name], second[name]), name
        alike = torch.cosine_similarity(got.flatten(), want.flatten(), dim=0)
        if want.ndim > 1 and want.norm() > 1e-3:
            assert alike > 0.9, name


def test_the_seed_alone_decides_the_first_weights():
    config = small_config().model
    states = [VoxelNeXtModule(config, seed).state_dict() for seed in (0, 0, 1)]
    key = "layers.conv3/1/conv1.weight"
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0][key], states[2][key])


def test_making_a_network_leaves_the_global_random_state_alone():
    torch.manual_seed(1)
    want = torch.rand(1)
    torch.manual_seed(1)
    VoxelNeXtModule(small_config().model, 0)
    assert torch.equal(torch.rand(1), want)


def test_the_small_network_that_ships_fits_six_megabytes(tmp_path):
    config = TrainConfig.from_yaml(share_path("config/train_voxelnext_small.yaml"))
    assert config.model.channels == (16, 32, 64, 64, 64, 64)
    assert config.model.heads == ModelConfig().heads
    weights = export_weights(VoxelNeXtModule(config.model, 0), "test")
    save_weights(tmp_path / "w.safetensors", weights, dtype=torch.float16)
    assert 3e6 < (tmp_path / "w.safetensors").stat().st_size < 6e6


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("by_table", [False, True], ids=["taps", "table"])
def test_a_batch_of_no_voxel_or_one_gives_numbers_and_keeps_the_statistics_finite(by_table, device):
    config = small_config()
    features, coords, shape = voxels_of(config, (1,))
    for count in (0, 1):
        module = a_module(config, by_table=by_table).to(device).train()
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        found = said_of(module, features[:count].to(device), coords[:count].to(device), shape)
        said = [value for branches in found.branches for value in branches.values()]
        assert all(len(value) == len(found.coords_bzyx) for value in said)
        assert (len(found.coords_bzyx) > 0) == (count > 0)
        sum(value.sum() for value in said).backward()
        after = module.state_dict()
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
        same = all(torch.equal(before[name], tensor) for name, tensor in after.items())
        assert same == (count == 0), "nothing has no statistics"
