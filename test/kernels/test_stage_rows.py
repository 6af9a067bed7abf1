"""The features of every stage of the engine, as two precisions are compared by."""

from __future__ import annotations

import argparse
import functools
import json

import pytest
import torch

from driveRT_ros.bench.frames import Frame
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.stage_rows import EngineStages
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.qualify import compare_stages
from test.support import engine

CONFIG = LidarConfig.from_dict(engine.SMALL)
STAGES = ["level1", "level2", "level3", "level4", "level5", "level6", "bev", "bev_rows"]


@pytest.fixture
def stages(backend, monkeypatch):
    """Make the stages of the engine in a precision."""
    if backend.name == "cpu-shim":
        engine.put_on_the_shim(monkeypatch)
    device = backend.device

    @functools.cache
    def make(precision: str) -> EngineStages:
        capability = torch.cuda.get_device_capability(device)
        plan = default_plan(CONFIG.model.channels, capability, precision)
        tensors = engine.tensors_of(CONFIG, device)
        return EngineStages(SparseBackbone(CONFIG, tensors, device, plan))

    return make


def cloud(count: int, seed: int = 0) -> torch.Tensor:
    return engine.street(count, seed, edge_m=(4.8, 3.6))


def test_the_rows_of_every_stage_are_there_and_the_last_are_those_of_the_reference(stages):
    points = cloud(1500)
    _, maps, expected = engine.reference(CONFIG, points)
    found = stages("fp32")(points)
    assert list(found) == STAGES
    counts = [len(rows.features) for rows in found.values()]
    assert counts[:6] == [len(coords) for coords in maps.level_coords]
    assert 0 < counts[6] <= counts[7] == len(expected.features)
    assert all(len(rows.coords_zyx) == len(rows.features) for rows in found.values())
    last = found["bev_rows"]
    coords = torch.nn.functional.pad(last.coords_zyx.cpu(), (1, 0))
    mine, theirs = engine.in_order(coords), engine.in_order(expected.coords_bzyx)
    torch.testing.assert_close(
        last.features.cpu()[mine].double(), expected.features[theirs], rtol=1e-4, atol=1e-5
    )


def test_half_precision_is_off_by_little_at_every_stage_and_float32_not_at_all(stages):
    frames = [
        Frame(str(seed), "made up", cloud(count, seed)) for seed, count in ((1, 1500), (2, 0))
    ]
    errors, used, left_out = compare_stages(stages("fp32"), stages("fp16"), frames)
    assert list(errors) == STAGES and len(used) == 2 and left_out == {}
    assert all(1e-5 < e < 2e-2 for stage in errors.values() for e in (stage.largest, stage.rms))
    plan = stages("fp32")
    again, _, _ = compare_stages(plan, plan, frames)
    assert all(error.largest == 0 for error in again.values())


def test_points_that_do_not_fit_are_refused_and_the_next_ones_are_not(stages):
    found = stages("fp32")
    many = cloud(2000)
    many[:, :3] = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0)) * 7 - 3.5
    with pytest.raises(InvalidFrame, match="exceeds the capacities.*rows of level 1"):
        found(many)
    with pytest.raises(InvalidFrame):
        found(cloud(2001))
    rows = found(cloud(300))["bev_rows"].features.clone()
    assert torch.equal(found(cloud(300))["bev_rows"].features, rows) and len(rows)


@pytest.mark.gpu
def test_the_command_writes_verdicts_of_every_precision_that_the_pipeline_heeds(
    tmp_path, backend, capsys
):
    if backend.name != "cuda":
        pytest.skip("the command needs a GPU")
    from driveRT_ros.commands import qualify
    from driveRT_ros.core.errors import ConfigError
    from driveRT_ros.core.pipeline import LidarPipeline
    from driveRT_ros.models.checkpoint import load_weights, save_weights
    from driveRT_ros.models.untrained import untrained_weights

    path, checkpoint = tmp_path / "plan.json", tmp_path / "weights.safetensors"
    config = LidarConfig()
    save_weights(checkpoint, untrained_weights(config.model, 0))
    weights = load_weights(checkpoint, config)
    capability = torch.cuda.get_device_capability(backend.device)
    default_plan(config.model.channels, capability, "fp16").save(path)
    command = ["--plan", str(path), "--frames", "S1,S5", "--scenes", "0"]
    command += ["--checkpoint", str(checkpoint)]

    def run(*arguments: str) -> int:
        parser = argparse.ArgumentParser()
        qualify.add_arguments(parser)
        return qualify.execute(parser.parse_args([*command, *arguments]))

    # The scores of untrained weights all lie near one value, so that rounding decides a lot.
    assert run("--min-matched", "0.3", "--min-agreeing", "0.8") == 0
    verdicts = Plan.load(path).qualified
    assert list(verdicts) == ["fp32x3", "tf32", "fp16"]
    errors = {p: v.figures["features"]["bev_rows"]["largest"] for p, v in verdicts.items()}
    assert errors["fp32x3"] < 1e-4 < errors["tf32"] < 2e-2 and 1e-4 < errors["fp16"] < 2e-2
    assert verdicts["fp32x3"].figures["boxes"]["agreeing_share"] > 0.98
    wanted = LidarConfig.from_dict({"plan_path": str(path), "precision": "fp16"})
    points = engine.street(2000, 0)
    notes = LidarPipeline(wanted, weights, backend.device).process(points).report.notes
    assert "precision_not_qualified" not in notes and "plan_not_used" not in notes
    assert run("--precision", "fp16", "--max-feature-error", "1e-6") == 1
    assert "FAILED" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="'fp16' failed.*1.0e-06 is allowed"):
        LidarPipeline(wanted, weights, backend.device)
    assert json.loads(path.read_text())["qualified"]["tf32"]["passed"]
