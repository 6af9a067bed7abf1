"""``drivert tune``: what it refuses, and a whole search on a device with known costs."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from driveRT_ros.bench import frames
from driveRT_ros.bench.frames import Frame
from driveRT_ros.cli import main
from driveRT_ros.commands import tune
from driveRT_ros.core import device_faults
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.verdict import Verdict
from driveRT_ros.models import shipped
from test.commands.test_cli import refused
from test.support.bags import write_drive
from test.support.demo_files import tiny_scene
from test.support.tuning import FakeDevice

GPU = tune.Gpu(torch.device("cuda", 0), "A GPU", "1.2", (9, 0))
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def some_frames(config):
    """Return five calibration frames and twenty others, all tiny."""
    for number in range(25):
        yield number < 5, Frame(f"f{number}", "made up", torch.full((3, 5), float(number)))


class CostDevice(FakeDevice):
    """Every choice costs 100 us but for the last of ``subm4``, which costs 60."""

    def __init__(self, precision: str = "fp32", **options) -> None:
        config = LidarConfig()
        choices = tune.choices_for(config, precision, GPU.capability)
        default = default_plan(config.model.channels, GPU.capability, precision)
        costs = {
            domain: dict.fromkeys((*tactics, default.tactics[domain]), 100.0)
            for domain, tactics in choices.items()
        }
        self.best = choices["subm4"][-1]
        costs["subm4"][self.best] = 60.0
        super().__init__(costs, **options)


@pytest.fixture
def tuned(monkeypatch, tmp_path, capsys):
    """Return a function that runs ``drivert tune`` on a device; it returns Plan and text."""

    def run(device: FakeDevice, *arguments: object, code: int = 0) -> tuple[Plan | None, str]:
        monkeypatch.setattr(tune, "find_gpu", lambda wanted: GPU)
        monkeypatch.setattr(tune, "open_device", lambda *given: device)
        output = tmp_path / "plan.json"
        assert main(["tune", "--output", str(output), *map(str, arguments)]) == code
        text = capsys.readouterr()
        return Plan.load(output) if output.exists() else None, text.out + text.err

    monkeypatch.setattr(frames, "tuning_frames", some_frames)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)  # the devices time layers of the default model
    return run


# ---- a search -----------------------------------------------------------------------------------


def test_a_search_writes_a_plan_that_the_engine_takes_with_its_evidence(tuned, tmp_path):
    device = CostDevice()
    plan, text = tuned(device)
    assert plan.tactics["subm4"] == device.best
    assert plan.gpu == "A GPU" and plan.weights_sha256 == ""  # untrained weights bind nothing
    found, note = Plan.for_device(
        tmp_path / "plan.json", LidarConfig().model.channels, "fp32", "A GPU", (9, 0), "any"
    )
    assert found == plan and note == ""
    assert "subm4" in text and "Accepted on 20 held-out frames" in text
    assert "1300 -> 1260 µs" in text
    assert {"gpu", "driver", "date", "domains", "acceptance"} <= set(plan.measured)
    assert not list(tmp_path.glob("*.partial.json"))


def test_the_precision_asked_for_is_the_one_searched(tuned):
    plan, _ = tuned(CostDevice("fp16"), "--precision", "fp16")
    assert plan.precision == "fp16"
    assert {tactic.arithmetic for tactic in plan.tactics.values()} == {"F16"}


def test_a_search_that_finds_nothing_writes_the_default_and_says_why(tuned):
    plan, text = tuned(CostDevice(), "--min-gain", "50")
    assert plan.tactics == default_plan(LidarConfig().model.channels, (9, 0)).tactics
    assert "The default Plan stays: no tactic beat the default by 50 %." in text


def test_faults_are_shown(tuned):
    device = CostDevice()
    device.errors["subm4", device.best] = 0.5
    plan, text = tuned(device)
    assert "subm4" in text and "wrong by 5.0e-01" in text
    assert plan.measured["domains"]["subm4"]["faults"] == 1


@pytest.mark.parametrize("in_whole_frames", [False, True])
def test_a_search_that_loses_the_gpu_leaves_the_process_without_cleaning_up(
    tuned, monkeypatch, in_whole_frames
):
    """Freeing tensors calls CUDA, which would abort the process and hide what it had to say."""
    monkeypatch.setattr(device_faults, "_wrecks", [])
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    device, few = CostDevice(), tune.choices_for(LidarConfig(), "fp32", GPU.capability)["subm4"]
    monkeypatch.setattr(tune, "choices_for", lambda *_: {"subm4": few})
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")

    def die(*_):
        device.dead = True
        raise lost

    if in_whole_frames:
        device.frame_us = die
        device.lost_after = lambda fault: device_faults.keep(fault) or fault
    else:
        device.deadly = {device.best}
    code = 0 if in_whole_frames else 2
    plan, text = tuned(device, code=code)
    assert left == [code] and len(device_faults._wrecks) == 1
    if in_whole_frames:
        assert plan.tactics != {} and "The default Plan stays: a whole frame failed" in text
    else:
        assert plan is None and "start again to continue without it" in text


@pytest.mark.parametrize("before_the_search", [False, True])
def test_a_gpu_that_is_lost_outside_of_candidates_ends_the_process_likewise(
    tuned, monkeypatch, before_the_search
):
    monkeypatch.setattr(device_faults, "_wrecks", [])
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    device = CostDevice()
    lost = RuntimeError("CUDA error: unspecified launch failure")

    def die(*_):
        raise lost

    if before_the_search:
        device.overflow = die
    else:
        device.at_check = die  # the first check is of a default
    code = 1 if before_the_search else 2
    _, text = tuned(device, code=code)
    assert left == [code] and "unspecified launch failure" in text


def test_an_interrupted_search_continues_when_it_is_started_again(tuned, tmp_path):
    def stop(domain, tactic):
        if domain == "subm3":
            raise KeyboardInterrupt

    plan, text = tuned(CostDevice(at_check=stop), code=130)
    assert plan is None and "interrupted" in text
    partial = tmp_path / "plan.json.partial.json"
    assert json.loads(partial.read_text())["state"]["domains"]["subm4"]["done"]
    device = CostDevice()
    plan, text = tuned(device)
    assert "Continuing" in text
    assert plan.tactics["subm4"] == device.best
    assert not any(domain == "subm4" for domain, _ in device.checked)
    assert not partial.exists()


def test_another_minimum_gain_is_another_search(tuned):
    def stop(domain, tactic):
        if domain == "subm3":
            raise KeyboardInterrupt

    tuned(CostDevice(at_check=stop), code=130)
    _, text = tuned(CostDevice(), "--min-gain", "3")
    assert "another search (min_gain)" in text


def test_a_time_limit_says_that_the_search_can_go_on(tuned, tmp_path):
    plan, text = tuned(CostDevice(), "--time-limit", "1e-9")
    assert plan.measured["complete"] is False
    assert "start the same command again to continue" in text
    assert (tmp_path / "plan.json.partial.json").exists()


def test_frames_that_do_not_fit_are_left_out_by_name(tuned):
    class Small(CostDevice):
        def overflow(self, frame):
            return {"rows of level 1": (7, 5)} if frame.name in ("f0", "f9") else {}

    plan, text = tuned(Small())
    assert "Frame f0 is left out" in text and "Frame f9 is left out" in text
    assert plan.measured["calibration_frames"] == ["f1", "f2", "f3", "f4"]
    assert len(plan.measured["held_out_frames"]) == 19


def test_the_domain_with_most_work_is_searched_first_and_all_are():
    choices = tune.choices_for(LidarConfig(), "fp32", (9, 0))
    assert next(iter(choices)) == "subm4"
    assert set(choices) == set(default_plan(LidarConfig().model.channels, (9, 0)).tactics)
    assert all(choices.values())


# ---- frames -------------------------------------------------------------------------------------


def test_simulated_frames_come_from_other_drives_than_the_held_out_ones(monkeypatch):
    monkeypatch.setattr(frames, "TUNING_SWEEPS", (2, 1))
    found = list(frames.tuning_frames(LidarConfig()))
    assert [calibrates for calibrates, _ in found] == [True] * 2 + [False] * 8
    assert len({frame.name for _, frame in found}) == 10
    assert len(found[0][1].points) > len(found[1][1].points)
    assert not torch.equal(found[1][1].points, found[3][1].points)
    again = list(frames.tuning_frames(LidarConfig()))
    assert all(torch.equal(a.points, b.points) for (_, a), (_, b) in zip(found, again))


def test_frames_of_a_bag_are_joined_as_the_node_joins_them(tmp_path, capsys):
    scene = str(tiny_scene(tmp_path))
    bag = tmp_path / "bag"
    assert main(["convert", "--sim", str(bag), "--duration", "0.5", "--sim-config", scene]) == 0
    config = LidarConfig.from_dict({"densification_params.num_past_frames": 2})
    found = list(tune.bag_frames(str(bag), "", config))
    assert len(found) == 10
    assert [n for n, (calibrates, _) in enumerate(found) if calibrates] == [2, 7]
    lags = [sorted({round(float(lag), 2) for lag in f.points[:, 4]}) for _, f in found]
    assert lags[0] == [0.0] and lags[1] == [0.0, 0.05] and lags[9] == [0.0, 0.05, 0.1]


def test_a_bag_with_too_few_clouds_is_refused(tuned, tmp_path):
    bag = write_drive(tmp_path / "bag", 3)
    plan, text = tuned(CostDevice(), "--bag", bag, code=2)
    assert plan is None and "has 3 clouds" in text and "tuning needs 5" in text


# ---- refusals -----------------------------------------------------------------------------------


@no_gpu
def test_without_a_gpu_it_says_so_in_a_sentence(capsys, tmp_path):
    error = refused(capsys, "tune", "--output", tmp_path / "plan.json")
    assert "finds no CUDA device to tune on" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_no_gpu_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    error = refused(capsys, "tune", "--set", "device=cpu", "--output", tmp_path / "plan.json")
    assert "'device' is 'cpu'" in error


@pytest.mark.parametrize("name", ["", "no/folder/plan.json"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(name, capsys, tmp_path):
    assert "cannot be written" in refused(capsys, "tune", "--output", tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--min-gain", "-1"), "min_gain"),
        (("--min-gain", "100"), "min_gain"),
        (("--time-limit", "-1"), "time_limit_s"),
        (("--precision", "bf16"), "invalid choice"),
        (("--weights", "no.pth"), "no.pth"),
        (("--set", "sede=1"), "Did you mean"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "tune", *arguments)


def test_trained_weights_bind_the_plan_to_themselves(tuned, monkeypatch, tmp_path):
    from driveRT_ros.models.checkpoint import save_weights
    from driveRT_ros.models.untrained import untrained_weights

    weights = dataclasses.replace(untrained_weights(LidarConfig().model, 5), trained=True)
    path = Path(tmp_path / "weights.safetensors")
    save_weights(path, weights)
    plan, _ = tuned(CostDevice(), "--weights", path)
    assert plan.weights_sha256 == weights.sha256


def test_verdicts_on_precisions_that_lie_in_the_file_stay_and_new_tactics_have_none(
    tuned, tmp_path
):
    """A verdict is about the tactics that it names: what the search replaced is not vouched for."""
    plan = dataclasses.replace(
        default_plan(LidarConfig().model.channels, (9, 0), "fp16"), gpu="A GPU"
    )
    verdict = Verdict(True, (), {}, {}, "A GPU", "ab", plan.tactics_sha256(), "2026-11-30")
    plan = dataclasses.replace(plan, qualified={"fp16": verdict})
    plan.save(tmp_path / "plan.json")
    device = CostDevice("fp16")
    found, text = tuned(device, "--precision", "fp16")
    assert found.qualified == plan.qualified and found.tactics["subm4"] == device.best
    assert "'drivert qualify --plan" in text
    channels = LidarConfig().model.channels
    ran, _ = Plan.for_device(tmp_path / "plan.json", channels, "fp16", "A GPU", (9, 0), "ab")
    assert ran.tactics == found.tactics and not ran.is_qualified


def test_ways_to_pool_that_lie_in_the_file_stay(tuned, tmp_path):
    pools = {"float16_c64_fits_l2": PoolTactic("tiles")}
    found = {"pools": {"float16_c64_fits_l2": {"chosen_us": 3.0}}}
    Plan("fp16", {}, gpu="A GPU", pools=pools, measured=found).save(tmp_path / "plan.json")
    device = CostDevice()
    plan, _ = tuned(device)
    assert plan.pools == pools and plan.measured["pools"] == found["pools"]
    assert plan.tactics["subm4"] == device.best and plan.precision == "fp32"
