"""A training run becomes weights that ship, with a card whose numbers come from the run."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from driveRT_ros.cli import main
from driveRT_ros.commands import ship as command
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.models import shipped
from driveRT_ros.models.checkpoint import load_weights
from driveRT_ros.models.lss_weights import load_camera_weights
from driveRT_ros.models.shipped import CAMERA, LIDAR, with_shipped_weights
from driveRT_ros.models.strict import file_sha256
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.train import ship
from driveRT_ros.train.augment import draw_motion
from driveRT_ros.train.camera_config import CameraTrainConfig
from driveRT_ros.train.camera_loop import CameraTrainer
from driveRT_ros.train.config import AugmentConfig, TrainConfig
from driveRT_ros.train.data import collate
from driveRT_ros.train.evaluate import Evaluation
from driveRT_ros.train.loop import Trainer
from driveRT_ros.train.regression import small_evaluation
from test.support.camera_training import small_camera_config
from test.support.demo_files import tiny_scene
from test.support.training import small_sample

TINY = {
    "model": {"channels": [4, 4, 4, 8, 8, 8]},
    "data": {"batch_size": 2, "frames_per_drive": 1},
    "augment": {"paste_to": [], "fewer_sweeps_share": 0.5},
    "optimizer": {"steps": 2},
    "output": {"log_every": 1},
}
TINY_SIM = SimConfig.from_dict({"lidar.num_azimuths": 120})


def two_scenes(path: Path) -> Evaluation:
    return small_evaluation(path, TINY_SIM, scenes=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Folder of a run of two steps, of a report of one scene, and of what becomes of them."""
    folder = tmp_path_factory.mktemp("run")
    config = TrainConfig.from_dict(TINY)
    still = draw_motion(AugmentConfig(), np.random.default_rng(0))
    batch = collate([(small_sample(k, ground=600), still) for k in (0, 1)])
    trainer = Trainer(config, folder / "run", torch.device("cpu"), data_name="simulator, 2 frames")
    assert trainer.run(itertools.repeat(batch))
    evaluate = ["eval", "--sim", 1, "--config", folder / "run" / "detector.yaml", "--worst", 0]
    evaluate += ["--set", "num_threads=1", "--sim-config", tiny_scene(folder)]
    assert command_line(*evaluate, "--out", folder / "held_out") == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ship, "small_evaluation", two_scenes)
        assert ship_it(folder, "--to", folder / "shipped") == 0
    return folder


def ship_it(run: Path, *options: object) -> int:
    report = run / "held_out" / "report.json"
    fixed = ("ship", run / "run", "--name", LIDAR.name, "--report", report, "--commit", "abc123")
    return command_line(*fixed, *options)


def command_line(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def test_a_run_becomes_the_default_of_the_detector(run: Path, monkeypatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", run / "shipped")
    chosen = with_shipped_weights(LidarConfig())
    assert chosen.checkpoint_path == str(run / "shipped" / "voxelnext_small_sim.safetensors")
    assert chosen.model.channels == (4, 4, 4, 8, 8, 8)
    weights = load_weights(chosen.checkpoint_path, chosen)
    assert weights.trained
    head = ship.card_head(LIDAR.card())
    assert head["file_sha256"] == file_sha256(LIDAR.path())
    assert (head["weights_sha256"], head["commit"]) == (weights.sha256, "abc123")
    assert head["small_scenes"] == ship.small_numbers(two_scenes(LIDAR.path()))
    assert head["forward_yaw_deg"] == chosen.model.forward_yaw_deg == 90.0


def test_the_card_holds_the_numbers_of_run_and_report(run: Path) -> None:
    text = (run / "shipped" / "voxelnext_small_sim.md").read_text()
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    assert TrainConfig.from_dict(recipe) == TrainConfig.from_dict(TINY)
    assert "paste_share" not in text, "what is at its default is not repeated"
    assert "those of mini_val among them" in text, "what the simulator was fitted to is told"
    assert "2 of 2 steps of 2 frames, 4 frames seen" in text and "`abc123`" in text
    report = json.loads((run / "held_out" / "report.json").read_text())
    for name, found in report["classes"].items():
        row = f"| {name} | {found['num_truth']} | {found['mean_ap']:.3f} |"
        assert (row in text) == (found["num_truth"] > 0)
    assert f"| mAP | simulator | ≥ 0.6 | {report['mean_ap']:.3f} | no |" in text
    assert "50% of the frames in training had fewer" in text
    assert "AP below 0.3): car" in text
    assert "--make-shards frames --scenes 2" in text
    assert str(run) not in text


def test_numbers_of_other_weights_are_refused(run: Path, tmp_path: Path, capsys) -> None:
    report = json.loads((run / "held_out" / "report.json").read_text())
    report["about"]["weights_sha256"] = "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(report))
    (tmp_path / "no.json").write_text("[]")
    for name, sentence in (("other", "about other weights"), ("no", "no report of")):
        assert ship_it(run, "--to", tmp_path, "--report", tmp_path / f"{name}.json") == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"data": "nuScenes v1.0-trainval"}, "recordings have licences of their own"),
        ({"data": "simulator; nuScenes v1.0-mini"}, "recordings have licences of their own"),
        ({"config": {"densification_params": {"num_past_frames": 1}}}, "another 'densification_"),
        ({"config": {"modle": {}}}, "is of another version"),
    ],
)
def test_what_may_not_ship_is_refused(
    run: Path, tmp_path: Path, capsys, monkeypatch, changed, sentence
) -> None:
    def changed_state(state: Path):
        step, tensors, values = read(state)
        return step, tensors, values | changed

    read = ship.read_state
    monkeypatch.setattr(ship, "read_state", changed_state)
    assert ship_it(run, "--to", tmp_path) == 2
    assert sentence in capsys.readouterr().err


def test_too_large_weights_and_wrong_names_are_refused(
    run: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    report = run / "held_out" / "report.json"
    for name, sentence in (
        ("lss_small_sim", "has format and version"),
        ("my_net", "takes voxelnext_small_sim or lss_small_sim, got 'my_net'"),
    ):
        assert command_line("ship", run / "run", "--name", name, "--report", report) == 2
        assert sentence in capsys.readouterr().err
    assert command_line("ship", tmp_path, "--name", LIDAR.name, "--report", report) == 2
    assert "is no folder of a training run" in capsys.readouterr().err
    small = ship.dataclasses.replace(LIDAR, max_bytes=1000)
    monkeypatch.setattr(shipped, "LIDAR", small)
    with pytest.raises(ship.ConfigError, match="1,000 at most"):
        ship._check_may_ship(run / "run" / "weights.safetensors", small, TrainConfig(), "simulator")


def test_without_a_checkout_the_commit_must_be_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ship.ConfigError, match="--commit"):
        command._commit()


def test_a_run_of_the_camera_model_ships_with_its_layers(tmp_path: Path, monkeypatch) -> None:
    config = small_camera_config()
    trainer = CameraTrainer(
        config, tmp_path / "run", torch.device("cpu"), data_name="simulator, 6 frames"
    )
    trainer.save()
    layer = {"iou": 0.4125, "precision": 0.5, "recall": 0.75, "iou_by_range": [0.4]}
    report = {
        "about": {
            "source": "simulator, seeds 1 to 2",
            "weights_sha256": file_sha256(tmp_path / "run" / "weights.safetensors"),
            "min_pixels": 20.0,
        },
        "num_frames": 2,
        "layers": {"vehicle": layer},
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    options = ("--report", tmp_path / "report.json", "--commit", "abc123", "--to", tmp_path / "to")
    assert command_line("ship", tmp_path / "run", "--name", CAMERA.name, *options) == 0
    text = CAMERA.card(tmp_path / "to").read_text()
    assert "| vehicle | 0.412 | 0.500 | 0.750 |" in text and "2 frames" in text
    assert "fewer than 20 pixels of the network inputs count in the last column only" in text
    assert "fitted to statistics" not in text, "real clouds say nothing of rendered images"
    assert "| IoU of vehicles | simulator | ≥ 0.35 | 0.412 | yes |" in text
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    assert CameraTrainConfig.from_dict(recipe) == config
    assert "ImageNet" not in text and "0 of 3 steps" in text
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "to")
    chosen = with_shipped_weights(CameraConfig())
    assert chosen.model == config.model
    assert load_camera_weights(chosen.checkpoint_path, chosen).trained
