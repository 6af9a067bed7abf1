"""The command ``drivert eval``: its sources, files, pictures and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driveRT_ros.cli import main
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.train.config import FIRST_TRAINING_SEED
from driveRT_ros.train.evaluate import HELD_OUT_SEED
from test.io.test_kitti import label, write_frame
from test.support.demo_files import tiny_network, tiny_scene
from test.support.evaluation import recorded_drive
from test.support.nuscenes import MiniNuScenes


def drivert(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def test_the_command_evaluates_simulated_scenes_and_leaves_report_and_pictures(
    tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    network, scene = tiny_network(tmp_path), tiny_scene(tmp_path)
    code = drivert(
        *("eval", "--sim", 2, "--seed", 5, "--sim-config", scene, "--config", network),
        *("--device", "cpu", "--set", "densification_params.num_past_frames=1"),
        *("--worst", 1, "--out", out, "--submission", tmp_path / "s.json"),
    )
    text = capsys.readouterr().out
    assert code == 0 and "2 frames" in text and "mAP" in text and "not trained" in text
    names = {p.name for p in out.iterdir()}
    assert {"report.json", "precision_recall.png", "by_range.png"} <= names
    assert len([n for n in names if n.startswith("worst_01_simulated-")]) == 1
    tree = json.loads((out / "report.json").read_text())
    assert tree["num_frames"] == 2 and tree["about"]["weights"] == "untrained"
    assert tree["about"]["source"] == "simulator, seeds 5 to 6"
    assert set(tree["classes"]) == set(NUSCENES_CLASSES)
    submitted = json.loads((tmp_path / "s.json").read_text())["results"]
    assert list(submitted) == ["simulated-5", "simulated-6"]


def test_scenes_are_held_out_unless_a_seed_asks_for_those_of_training(
    tmp_path: Path, capsys
) -> None:
    assert HELD_OUT_SEED + 100_000 <= FIRST_TRAINING_SEED
    small = ("--sim-config", tiny_scene(tmp_path), "--config", tiny_network(tmp_path))
    options = (*small, "--set", "densification_params.num_past_frames=0", "--worst", 0)
    for name, seed in (("held", ()), ("seen", ("--seed", FIRST_TRAINING_SEED))):
        assert drivert("eval", "--sim", 1, *seed, *options, "--out", tmp_path / name) == 0
        assert ("may have been trained on" in capsys.readouterr().out) == (name == "seen")


def test_every_simulated_box_counts_where_asked_for_also_without_a_point(tmp_path: Path) -> None:
    small = ("--sim-config", tiny_scene(tmp_path), "--config", tiny_network(tmp_path))
    options = (*small, "--set", "densification_params.num_past_frames=0", "--worst", 0)
    truths = []
    for name, more in (("seen", ()), ("every", ("--every-box",))):
        assert drivert("eval", "--sim", 1, *more, *options, "--out", tmp_path / name) == 0
        tree = json.loads((tmp_path / name / "report.json").read_text())
        cars = tree["classes"]["car"]["by_range"]  # up to 50 m, where cars count in both
        truths.append(sum(part["num_truth"] for part in cars))
    assert truths[1] > truths[0] > 0


def test_the_command_compares_a_recording_moved_by_three_metres(tmp_path: Path, capsys) -> None:
    bags = recorded_drive(tmp_path, shift_m=3.0)
    out = tmp_path / "out"
    arguments = ("--bag", bags / "clouds", "--results", bags / "results", "--out", out)
    assert drivert("eval", *arguments, "--worst", 0) == 0
    cars = json.loads((out / "report.json").read_text())["classes"]["car"]
    assert cars["num_truth"] > 5 and max(cars["ap"][:3]) < 0.02 and cars["ap"][3] > 0.6
    assert "Report and pictures are in" in capsys.readouterr().out


def test_the_command_detects_in_a_bag_in_nuscenes_and_in_kitti(tmp_path: Path, capsys) -> None:
    bags = recorded_drive(tmp_path)
    data = MiniNuScenes(keyframes=2)
    data.add_object("vehicle.car", dict.fromkeys(range(2), (110.0, 50.0, 1.0)))
    data.write(tmp_path / "nuscenes")
    write_frame(tmp_path / "kitti", label("Car", 0, 1.6, 10, 0.0))
    submission = tmp_path / "s.json"
    network = tiny_network(tmp_path)
    network.write_text(network.read_text() + "input: {forward_yaw_deg: 45.0}\n")
    for source, frames, ahead_deg in (
        (("--bag", bags / "clouds", "--run"), 3, 45.0),
        (
            ("--nuscenes", tmp_path / "nuscenes", "--split", "all", "--submission", submission),
            2,
            90,
        ),
        (("--kitti", tmp_path / "kitti"), 1, 0.0),
    ):
        out = tmp_path / f"out{source[0]}"
        options = ("--config", network, "--device", "cpu", "--worst", 0)
        assert drivert("eval", *source, *options, "--out", out) == 0
        tree = json.loads((out / "report.json").read_text())
        assert tree["num_frames"] == frames and tree["about"]["weights"] == "untrained"
        assert tree["about"]["forward_yaw_deg"] == ahead_deg, "of data sets it is known"
    assert list(json.loads(submission.read_text())["results"]) == ["sample0", "sample1"]
    assert "no NDS" in capsys.readouterr().out  # KITTI has no velocities


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--sim", "0"), "from 1 on, got 0"),
        (("--sim", "1", "--run"), "Option --run needs --bag"),
        (("--bag", "drive", "--sim-seed", "4"), "Option --sim-seed needs --sim"),
        (("--sim", "1", "--split", "val"), "Option --split needs --nuscenes"),
        (("--sim", "1", "--data", "real"), "Option --data names real frames for --statistics"),
        (("--sim", "1", "--jobs", "-2"), "--jobs must be 0 (all cores) or more, got -2"),
        (("--sim", "1", "--min-score", "7"), "--min-score lie in [0, 1], got 4 and 7"),
        (("--sim", "1", "--worst", "-1"), "--worst must be 0 or more"),
        (("--bag", "drive", "--checkpoint", "w"), "--checkpoint is for detecting anew"),
        (("--sim", "1", "--min-points", "0"), "at least 1, got 0"),
        (("--sim", "1", "--max-range", "-1"), "must be positive"),
        (("--sim", "1", "--submission", "absent/s.json"), "folder of 'absent/s.json'"),
        (("--kitti", "nowhere"), "has no KITTI frames"),
        (("--nuscenes", "nowhere"), "'nowhere' is no folder"),
        (("--bag", "nowhere"), "nowhere"),
        (("--sim", "1", "--weights", "no.safetensors"), "'no.safetensors' does not exist"),
    ],
)
def test_what_cannot_be_evaluated_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert drivert("eval", *arguments, "--set", "num_threads=1") == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_a_bag_without_ground_truth_or_detections_says_so(tmp_path: Path, capsys) -> None:
    bags = recorded_drive(tmp_path)
    assert drivert("eval", "--bag", bags / "results") == 2
    assert "no messages on /ground_truth/detections" in capsys.readouterr().err
    assert drivert("eval", "--bag", bags / "clouds") == 2
    error = capsys.readouterr().err
    assert "no detections of a node" in error and "--results" in error and "--run" in error


def test_a_result_folder_stands_for_the_bag_in_it(tmp_path: Path) -> None:
    bags = recorded_drive(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (bags / "results").rename(folder / "output_bag")
    arguments = ("--bag", bags / "clouds", "--results", folder, "--worst", 0)
    assert drivert("eval", *arguments, "--out", tmp_path / "out") == 0


def test_a_wrong_topic_leaves_no_output_folder(tmp_path: Path, capsys) -> None:
    arguments = ("--bag", recorded_drive(tmp_path) / "clouds", "--run", "--topic", "/nope")
    assert drivert("eval", *arguments, "--out", tmp_path / "out") == 2
    assert "has no topic '/nope'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_draws_statistics_of_simulated_scenes_beside_real_ones(
    tmp_path: Path, capsys
) -> None:
    out, scene = tmp_path / "out", tiny_scene(tmp_path)
    options = ("--seed", 5, "--sim-config", scene, "--statistics", "--out", out)
    assert drivert("eval", "--sim", 1, *options) == 0
    tree = json.loads((out / "statistics.json").read_text())
    assert tree["simulated"]["frames"] == 1 and tree["difference"]["intensity"] is not None
    assert "| car | 466 / " in (out / "statistics.md").read_text()
    assert (out / "statistics.png").is_file() and "points_car" in capsys.readouterr().out
    assert drivert("eval", "--kitti", "x", "--statistics") == 2
    assert "add --sim N" in capsys.readouterr().err


def test_every_box_is_no_choice_beside_limits(tmp_path: Path, capsys) -> None:
    assert drivert("eval", "--sim", 1, "--every-box", "--max-range", 40) == 2
    assert "every box counts" in capsys.readouterr().err
