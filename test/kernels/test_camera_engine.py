"""The camera pipeline with its kernels, on the CPU shim, against the reference path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.camera_pool import CameraPool
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.reference.bev_pool import bev_pool
from test.support.camera_engine import SHIM, PoolingOnTheShim
from test.support.camera_rig import textured
from test.support.pool_cases import random_map

SMALL = {
    "cameras": ["CAM_FRONT_LEFT", "CAM_FRONT", "CAM_BACK"],
    "model": {
        "image": {"size_hw": [64, 192]},
        "depth": {"max_m": 25.0, "step_m": 2.0},
        "grid": {"x_range_m": [-16, 16], "y_range_m": [-20, 20], "resolution_m": 1.0},
        "network": {
            "neck_channels": 16,
            "context_channels": 8,
            "bev_channels": [16, 16, 16],
            "bev_out_channels": 16,
            "head_channels": 8,
        },
    },
}
CONFIG = CameraConfig.from_dict(SMALL)
KEY = "float32_c8_fits_l2"
SOME = PoolTactic("balanced", block_slots=4, chunk=8, in_flight=2)


@pytest.fixture
def images():
    frames = textured(5, size_wh=(480, 270))
    return [frame for frame in frames if frame.name in CONFIG.cameras]


@pytest.fixture
def plain():
    """Return the reference, made before the shim takes its place."""
    return CameraPipeline(CONFIG, device="cpu")


@pytest.fixture
def shim(plain, monkeypatch):
    return PoolingOnTheShim(monkeypatch)


def moved(frame, metres):
    pose = np.array(frame.T_ego_camera)
    pose[2, 3] += metres
    return replace(frame, T_ego_camera=pose)


def test_kernels_and_reference_give_the_same_frames(images, plain, monkeypatch):
    frames = [images, images[1:], images, [moved(images[0], 0.3), *images[1:]], images]
    wanted = [plain.process(each) for each in frames]
    shim = PoolingOnTheShim(monkeypatch)
    pipeline = CameraPipeline(CONFIG, device="cpu")
    for each, want in zip(frames, wanted):
        got = pipeline.process(each)
        assert got.report.notes == want.report.notes
        for name, layer in want.bev.layers.items():
            np.testing.assert_allclose(got.bev.layers[name], layer, atol=1e-5, err_msg=name)
    # One map for the first calibration, one for the moved camera, one for the camera put back.
    assert pipeline.map_builds == len(shim.bound) == shim.launches["write_map"] == 3
    assert shim.launches["pool_balanced"] == shim.launches["softmax_norms"] == len(frames)


def test_warming_up_compiles_the_kernel_that_frames_use(images, shim):
    pipeline = CameraPipeline(CONFIG, device="cpu")
    pipeline.warm_up()
    assert shim.launches["pool_balanced"] == 1 and pipeline.map_builds == 0
    pipeline.process(images)
    first, second = shim.bound
    assert (first.name, first.defines) == (second.name, second.defines)


def test_the_tactic_of_the_plan_runs_and_repeats_whatever_the_schedule(images, shim, tmp_path):
    path = tmp_path / "plan.json"
    Plan("fp32", {}, gpu=SHIM.name, pools={KEY: SOME}).save(path)
    pipeline = CameraPipeline(replace(CONFIG, plan_path=str(path)), device="cpu")
    found = []
    shim.backend.resident = 3
    for seed in (1, 2):
        shim.backend.seed = seed
        found.append(pipeline.process(images, with_fingerprint=True).report)
    assert found[0].fingerprint == found[1].fingerprint
    assert pipeline.plan_note == "" and "plan_not_used" not in found[0].notes
    (launch,) = shim.bound
    assert (launch.defines["SLOTS"], launch.defines["UNROLL"]) == (4, 2)


def test_a_foreign_plan_is_named_and_the_default_runs(images, shim, tmp_path):
    path = tmp_path / "plan.json"
    Plan("fp32", {}, gpu="another", pools={KEY: SOME}).save(path)
    pipeline = CameraPipeline(replace(CONFIG, plan_path=str(path)), device="cpu")
    assert "plan_not_used" in pipeline.process(images).report.notes
    assert "tuned on 'another'" in pipeline.plan_note
    assert shim.bound[0].defines["SLOTS"] == PoolTactic("balanced").block_slots


def test_another_plan_is_another_pipeline(shim, tmp_path):
    pipeline = CameraPipeline(CONFIG, device="cpu")
    other = pipeline.reconfigured(replace(CONFIG, plan_path=str(tmp_path / "none.json")))
    assert other is not pipeline and other._stages is not pipeline._stages
    assert pipeline.plan_note == "" and "none.json" in other.plan_note


def test_halves_pool_on_tensor_cores_and_a_new_map_leaves_nothing_of_the_old(shim):
    config = CameraConfig.from_dict(SMALL)
    pool = CameraPool(config, torch.device("cpu"), torch.float16)
    assert pool.tactic.kind == "tiles"
    _, n, d, h, w = pool.logits.shape
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, n, d, h, w, generator=generator).mul_(3).half()
    context = torch.randn(1, n, h, w, 8, generator=generator).half()
    has_image = np.array([True, False, True])
    pool.mark(has_image)
    pool.load(logits, context)
    depth = logits.double().softmax(dim=2)
    depth[:, 1] = 0
    for seed in (0, 1):
        made = random_map((n, d, h, w), (1, 40, 32), seed, share=0.1)
        pool.use(made)
        want = bev_pool(depth, context.double(), made)
        assert (pool().double() - want).abs().max() <= 2e-3 * want.abs().max()
    assert shim.launches == {"softmax_norms": 2, "pool_tiles": 2}


def test_a_camera_that_comes_back_weighs_again(shim):
    pool = CameraPool(CONFIG, torch.device("cpu"), torch.float32)
    logits, context = torch.ones_like(pool.logits), torch.ones_like(pool.context)
    pool.use(random_map(logits.shape[1:], (1, 40, 32), share=0.1))
    here = np.ones(3, bool)
    for weights in ([True, True, False], [False, True, True], [True] * 3):
        here[:] = weights  # the caller's own array, changed in place
        pool.mark(here)
        pool.load(logits, context)
        # A pixel adds 1 / bins for each of its points in the grid.
        made = pool._map.trimmed()
        pixels = logits.shape[3] * logits.shape[4]
        seen = torch.tensor(weights)[made.ranks_feat.long() // pixels]
        want = float(seen.sum()) / logits.shape[2] * context.shape[-1]
        assert float(pool().sum()) == pytest.approx(want, rel=1e-5)


def test_on_the_cpu_the_reference_runs_and_says_that_it_needs_no_plan(images):
    pipeline = CameraPipeline(replace(CONFIG, plan_path="plan.json"), device="cpu")
    assert "pooling on device 'cpu' runs the reference, which needs none" in pipeline.plan_note
    assert "plan_not_used" in pipeline.process(images).report.notes


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_frame_waits_for_the_gpu_only_to_read_its_result(images, monkeypatch, precision):
    pipeline = CameraPipeline(replace(CONFIG, precision=precision), device="cuda")
    pipeline.process(images)  # the map is built and compiled kernels are loaded
    layers = pipeline._layers

    def read(*args):
        torch.cuda.set_sync_debug_mode("default")
        return layers(*args)

    monkeypatch.setattr(pipeline, "_layers", read)
    torch.cuda.set_sync_debug_mode("error")
    try:
        pipeline.process(images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
