"""The camera model learns, stops and goes on, and what it writes is what the camera node reads."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
import yaml

from driveRT_ros.cli import main
from driveRT_ros.core.bev_pool import bev_pool
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.camera_rig import frustum_shape, pool_grid
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.core.frame import BevGrid
from driveRT_ros.core.pool_types import CameraGeometry
from driveRT_ros.core.reference.bev_pool import build_scatter_map
from driveRT_ros.models.lss_weights import load_camera_weights
from driveRT_ros.models.resample import bilinear
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.train.camera_data import CameraBatches, changed, unchanged
from driveRT_ros.train.camera_eval import IoUCounts, draw_scene, render_scene
from driveRT_ros.train.camera_frames import NO_DEPTH
from driveRT_ros.train.camera_loop import CAMERA, CameraTrainer
from driveRT_ros.train.camera_module import depth_loss, depth_truth, segmentation_loss
from driveRT_ros.train.camera_pool import BatchMap, batch_pool
from driveRT_ros.train.camera_targets import Truth
from driveRT_ros.train.data import Place
from driveRT_ros.train.log import read_log
from driveRT_ros.train.loop import WEIGHTS
from driveRT_ros.train.state import newest_state, read_state
from test.support.camera_training import TREE, rendered, small_camera_config

CPU = torch.device("cpu")


# ---- pooling and resizing -----------------------------------------------------------------------


def batch_of_maps(dtype=torch.float32):
    """Return the map of two frames, and depths and features of them that need gradients."""
    model = small_camera_config().model
    batch = changed(rendered(), small_camera_config(), (0, 1))
    generator = torch.Generator().manual_seed(0)
    shape = (2, 6, model.depth.bins, *model.image.feature_size_hw)
    depth = torch.rand(shape, generator=generator, dtype=dtype).requires_grad_()
    context = torch.randn((2, 6, *shape[3:], 5), generator=generator, dtype=dtype).requires_grad_()
    return model, batch, depth, context


def test_pooling_of_a_batch_is_that_of_its_frames_with_the_same_gradients():
    model, batch, depth, context = batch_of_maps()
    pooled = batch_pool(
        depth, context, BatchMap.build(batch.coefficients, model), model.grid.shape_zyx
    )
    weights = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1))
    mine = torch.autograd.grad((pooled * weights).sum(), (depth, context))
    for b, (sample, position) in enumerate(zip(rendered(), (0, 1))):
        one = changed([sample], small_camera_config(), [position])
        geometry = CameraGeometry(sample.K, sample.T_ego_camera)
        object.__setattr__(geometry, "coefficients", lambda c=one: c.coefficients[0].numpy())
        found = build_scatter_map(geometry, frustum_shape(model), pool_grid(model), "floor")
        assert len(found.ranks_bev) > 1000
        d, c = (t[b : b + 1].detach().requires_grad_() for t in (depth, context))
        theirs = bev_pool(d, c, found)
        torch.testing.assert_close(pooled[b : b + 1], theirs)
        grads = torch.autograd.grad((theirs * weights[b : b + 1]).sum(), (d, c))
        for grad, other in zip(mine, grads):
            torch.testing.assert_close(grad[b : b + 1], other, rtol=1e-4, atol=1e-5)


def test_gradients_of_pooling_are_those_of_its_sums():
    model, batch, depth, context = batch_of_maps(torch.float64)
    found = BatchMap.build(batch.coefficients, model)
    weights = torch.randn(2, 1, 48, 48, 5, dtype=torch.float64,
                          generator=torch.Generator().manual_seed(2))  # fmt: skip

    def pooled(d, c):
        return (batch_pool(d, c, found, model.grid.shape_zyx) * weights).sum()

    assert torch.autograd.gradcheck(pooled, (depth, context), fast_mode=True)


def test_gradients_of_resizing_are_those_of_torch():
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: bilinear(t, (11, 8)), (x,))
    assert torch.autograd.gradcheck(lambda t: bilinear(t, (1, 3)), (x,))
    with torch.no_grad():
        same = torch.nn.functional.interpolate(x, (11, 8), mode="bilinear", align_corners=True)
        assert torch.equal(bilinear(x, (11, 8)), same)


# ---- losses -------------------------------------------------------------------------------------


def test_depths_become_shares_of_the_pixels_of_a_feature():
    config = small_camera_config().model.depth  # 1.0, 2.5, 4.0 ... 29.5 m
    depth = torch.full((1, 1, 4, 8), NO_DEPTH, dtype=torch.uint8)
    depth[..., :4] = 4  # 1 m
    depth[0, 0, 0, :2] = 9  # 2.25 m, nearest to 2.5 m
    depth[0, 0, 0, 2] = 200  # 50 m, too far
    truth = depth_truth(depth, config, (1, 2))[0, 0]
    assert truth.shape == (config.bins, 1, 2)
    assert truth[:3, 0, 0].tolist() == [13 / 16, 2 / 16, 0.0]
    assert truth.sum() == 15 / 16
    sure = torch.zeros(1, 1, config.bins, 1, 2)
    sure[0, 0, 0] = 1.0
    right = depth_loss(sure, sure)
    assert right == 0.0 and depth_loss(sure, truth[None, None]) > 1.0


def test_hidden_objects_cost_nothing_whatever_is_said_of_them():
    config = small_camera_config()
    batch = changed(rendered(), unchanged(config), (0, 1))
    names, rules = config.model.network.segmentation, config.loss
    batch.covered[:], batch.hidden[:] = 0, 0
    batch.covered[:, 10:14, 10:20], batch.hidden[:, 30:34, 10:20] = 1, 1
    logits = torch.full((2, 3, 48, 48), -8.0)
    logits[:, 0, 10:14, 10:20] = 8.0
    good, parts = segmentation_loss(logits, batch, names, rules)
    assert parts["iou_vehicle"] == 1.0
    logits[:, 0, 30:34, 10:20] = 8.0
    assert segmentation_loss(logits, batch, names, rules)[0] == pytest.approx(float(good))
    logits[:, 0, 40:44, 10:20] = 8.0
    worse, parts = segmentation_loss(logits, batch, names, rules)
    assert worse > good + 0.1 and parts["iou_vehicle"] == pytest.approx(0.5)


# ---- runs ---------------------------------------------------------------------------------------


def test_a_small_network_learns_a_frame_by_heart_and_the_pipeline_runs_it(tmp_path):
    config = unchanged(
        small_camera_config(
            optimizer={"steps": 30, "max_learning_rate": 0.02, "batch_norm_momentum": 0.3}
        )
    )
    one = changed(rendered()[:1], config, (0,))
    trainer = CameraTrainer(config, tmp_path, CPU)
    assert trainer.run(itertools.repeat(one))
    rows = read_log(tmp_path)
    assert rows[0]["iou_vehicle"] < 0.1 and rows[-1]["iou_vehicle"] > 0.5
    assert rows[-1]["iou_drivable_area"] > 0.8 and rows[-1]["loss"] < 0.6 * rows[0]["loss"]

    camera = CameraConfig.from_yaml(tmp_path / CAMERA)
    pipeline = CameraPipeline(camera, load_camera_weights(camera.checkpoint_path, camera), "cpu")
    counts = IoUCounts(camera.model)
    fixed = {"num_sweeps": 21, "cameras.scale": 0.25}
    scene = render_scene(SimConfig.from_dict({"seed": 9} | fixed), camera.model, 20.0)
    found = pipeline.process(scene.decoded())
    assert "untrained_weights" not in found.report.notes
    counts.add(found.bev, scene.truth)
    assert counts.report()["num_frames"] == 1
    assert draw_scene(scene, found.bev, counts.layers).shape[2] == 3


def run(config, folder, *, steps=None, goes_on=False, device=CPU):
    trainer = CameraTrainer(config, folder, device, goes_on=goes_on)
    if goes_on:
        trainer.resume()
    end = trainer.step + steps if steps else None
    batches = CameraBatches(rendered(), config, Place(), trainer.step, 1)
    trainer.run(batches, stop=lambda: trainer.step == end)
    batches.close()
    return trainer


def everything(folder):
    step, tensors, values = read_state(newest_state(folder))
    return step, {k: v.numpy().tobytes() for k, v in tensors.items()}, values["optimizer_steps"]


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    config = small_camera_config(optimizer={"average": 0.9})
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", steps=1)
    assert everything(tmp_path / "parts")[0] == 1
    assert run(config, tmp_path / "parts", goes_on=True).note == ""
    assert everything(tmp_path / "whole") == everything(tmp_path / "parts")
    one, two = (
        load_camera_weights(tmp_path / n / WEIGHTS, config.camera) for n in ("whole", "parts")
    )
    assert one.sha256 == two.sha256


@pytest.mark.parametrize(
    "other",
    [
        {"image": {"size_hw": [64, 160]}},
        {"grid": {"resolution_m": 2.0}},
        {"depth": {"max_m": 46.0}},
    ],
)
def test_a_state_of_another_geometry_is_refused(other, tmp_path):
    """These change no weight: the state would fit, and mean something else."""
    config = small_camera_config()
    CameraTrainer(config, tmp_path, CPU).save()
    model = {**TREE["model"]}
    for name, values in other.items():
        model[name] = {**model.get(name, {}), **values}
    trainer = CameraTrainer(small_camera_config(model=model), tmp_path, CPU)
    with pytest.raises(CheckpointError, match="go on with the same"):
        trainer.resume()


def test_what_is_exported_computes_what_was_trained(tmp_path):
    config = unchanged(small_camera_config(optimizer={"steps": 1}))
    trainer = run(config, tmp_path)
    batch = changed(rendered(), config, (0, 1))
    found = BatchMap.build(batch.coefficients, config.model)
    trained, read = trainer.module.eval(), load_camera_weights(tmp_path / WEIGHTS, config.camera)
    images = batch.images.permute(0, 1, 4, 2, 3).float() / 128 - 1
    with torch.no_grad():
        said = trained(images, found)
        depth, context = read.network().lift(images)
        pooled = batch_pool(depth, context, found, config.model.grid.shape_zyx)
        again = read.network().read(pooled).segmentation
    # Convolutions are kept in half precision.
    torch.testing.assert_close(said.depth, depth, rtol=0.05, atol=0.01)
    torch.testing.assert_close(said.segmentation, again, rtol=0.05, atol=0.05)


def test_what_is_exported_is_the_running_average_in_every_number(tmp_path):
    """Numbers that need no other type must not change back with the network they came from."""
    trainer = run(small_camera_config(optimizer={"average": 0.9}), tmp_path)
    exported = trainer.weights().tensors
    _, tensors, _ = read_state(newest_state(tmp_path))
    apart = 0
    for name, tensor in exported.items():
        average = tensors[f"average/{name}"]
        assert torch.equal(tensor, average.to(tensor.dtype)), name
        apart += tensor.dtype == torch.float32 and not torch.equal(tensor, tensors[f"model/{name}"])
    assert apart > 10


@pytest.mark.gpu
def test_a_gpu_learns_like_a_cpu_and_goes_on_to_the_same_bits(tmp_path):
    cuda = torch.device("cuda", 0)
    for precision in ("fp32", "bf16"):
        config = small_camera_config(optimizer={"average": 0.9, "precision": precision})
        folder = tmp_path / precision
        run(config, folder / "whole", device=cuda)
        run(config, folder / "parts", steps=1, device=cuda)
        run(config, folder / "parts", goes_on=True, device=cuda)
        assert everything(folder / "whole") == everything(folder / "parts"), precision
        run(config, folder / "cpu")
        gpu, cpu = ([row["loss"] for row in read_log(folder / n)] for n in ("whole", "cpu"))
        assert gpu[:3] == pytest.approx(cpu[:3], rel=2e-2 if precision == "fp32" else 6e-2)


# ---- counting -----------------------------------------------------------------------------------


def test_cells_are_counted_by_what_is_seen_and_what_is_hidden():
    model = small_camera_config().model
    covered, hidden = np.zeros((48, 48), np.uint8), np.zeros((48, 48), np.uint8)
    covered[20:24, 20:30], hidden[30:32, 20:30] = 1, 1
    likely = np.zeros((48, 48), np.float32)
    likely[22:26, 20:30], likely[30:32, 20:25] = 0.9, 0.45
    likely[:, 25:] = np.nan  # out of sight
    layers = {name: likely if name == "vehicle" else 0 * likely for name in
              model.network.segmentation}  # fmt: skip
    counts = IoUCounts(model)
    counts.add(BevGrid(layers, 1.0, (-24.0, -24.0)), Truth(covered, hidden))
    assert counts.iou("vehicle") == pytest.approx(10 / 30)
    assert counts.iou("vehicle", all_objects=True) == pytest.approx(10 / 40)
    assert counts.iou("vehicle", 0.4, all_objects=True) == pytest.approx(20 / 40)
    report = counts.report()["layers"]
    assert report["vehicle"]["cells"] == {"hits": 10, "false": 10, "missed": 10}
    assert report["pedestrian"]["iou"] is None
    assert json.dumps(report)


# ---- commands -----------------------------------------------------------------------------------


def test_frames_runs_and_evaluations_from_the_command_line(tmp_path, capsys):
    path, frames, out = tmp_path / "train.yaml", tmp_path / "frames", tmp_path / "run"
    path.write_text(yaml.safe_dump(TREE))

    def train(*options: object) -> int:
        return main(["train", "--config", str(path), "--device", "cpu", *map(str, options)])

    assert train("--out", out) == 2
    assert "write them first with --make-shards" in capsys.readouterr().err
    assert train("--make-shards", frames, "--scenes", 2) == 0
    assert "2 of 2 drives, 2 frames" in capsys.readouterr().out
    assert train("--data", frames, "--out", out, "--time-limit", 0.1) == 0
    assert "1 of 3 steps done; the same command with --resume goes on" in capsys.readouterr().out
    assert train("--data", frames, "--out", out, "--resume") == 0
    assert "3 of 3 steps done." in capsys.readouterr().out
    assert [row["step"] for row in read_log(out)] == [1, 2, 3]

    results, sim = tmp_path / "results", tmp_path / "sim.yaml"
    sim.write_text(yaml.safe_dump({"cameras": {"scale": 0.25}}))
    options = ["--config", str(out / CAMERA), "--sim-config", str(sim), "--device", "cpu"]
    both = ["eval", "--cameras", *options]
    assert main([*both, "--sim", "1", "--out", str(results)]) == 0
    report = json.loads((results / "report.json").read_text())
    assert set(report["layers"]) == {"vehicle", "pedestrian", "drivable_area"}
    assert report["about"]["source"] == "simulator, seeds 900000 to 900000"
    assert (results / "scene_900000.png").stat().st_size > 1000
    assert main([*both, "--kitti", str(tmp_path)]) == 2
    assert "--kitti is not for cameras" in capsys.readouterr().err
