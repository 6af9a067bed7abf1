"""The command line: help, errors as one sentence with exit code 2, conversion, info."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import driveRT_ros
from driveRT_ros.__main__ import main as start
from driveRT_ros.cli import COMMANDS, main
from driveRT_ros.commands import convert
from driveRT_ros.commands.common import detector_config, output_folder, write_parameter_file
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.io.bag import BagReader, BagWriter
from test.support.bags import messages, write_drive
from test.support.demo_files import tiny_scene

CLOUD = "sensor_msgs/msg/PointCloud2"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must end with exit code 2, and return its one sentence."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_what_a_command_does_with_examples(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"] if command else ["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert "examples:" in text and f"drivert {command}".strip() in text


def test_only_commands_that_exist_are_offered(capsys) -> None:
    assert "invalid choice: 'fly'" in refused(capsys, "fly")
    about_frames = {"demo", "run", "replay", "convert", "export"}
    assert set(COMMANDS) == about_frames | {
        *("tune", "qualify", "train", "bench", "eval", "ship", "verify", "info")
    }


def test_ctrl_c_while_everything_is_being_imported_is_no_traceback(monkeypatch, capsys) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "driveRT_ros.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "driveRT_ros.cli")
    monkeypatch.delattr(driveRT_ros, "cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert start() == 130
    assert capsys.readouterr().err == "drivert: interrupted.\n"


@pytest.mark.parametrize(
    "arguments", [(), ("--nonsense",), ("demo", "--bga", "x"), ("replay",), ("convert", "out")]
)
def test_unknown_or_missing_arguments_exit_with_2(arguments: tuple[str, ...], capsys) -> None:
    assert "usage: drivert" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--bag", "b", "--frames", "-1"),
        ("replay", "b", "--rate", "-1"),
        ("replay", "b", "--wait", "nan"),
        ("demo", "--duration", "inf"),
        ("convert", "--sim", "b", "--frames", "2.5"),
    ],
)
def test_a_number_that_means_nothing_is_refused_with_its_option(arguments, capsys) -> None:
    error = refused(capsys, *arguments)
    assert f"argument {arguments[-2]}: takes a" in error and f"got '{arguments[-1]}'" in error


@pytest.mark.parametrize("command", ["demo", "run"])
def test_a_missing_bag_is_one_sentence(command: str, capsys, tmp_path: Path) -> None:
    out = tmp_path / "out"
    error = refused(capsys, command, "--bag", tmp_path / "nowhere", "--out", out)
    assert "nowhere" in error and error.count("\n") == 1
    assert not out.exists()  # nothing is left of a run that never began


@pytest.mark.parametrize("command", ["demo", "run"])
def test_a_bag_with_several_clouds_needs_a_choice_and_lists_them(
    command: str, capsys, tmp_path: Path
) -> None:
    with BagWriter(tmp_path / "bag") as writer:
        for topic in ("/front", "/rear"):
            writer.add_topic(topic, CLOUD)
        writer.add_topic("/tf", "tf2_msgs/msg/TFMessage")
    error = refused(capsys, command, "--bag", tmp_path / "bag")
    assert "/front, /rear" in error and "--topic" in error
    error = refused(capsys, command, "--bag", tmp_path / "bag", "--topic", "/top")
    assert "no topic '/top'" in error and "/front, /rear" in error
    error = refused(capsys, command, "--bag", tmp_path / "bag", "--topic", "/tf")
    assert "'/tf'" in error and "tf2_msgs/msg/TFMessage, not a" in error and "/rear" in error


def test_a_cloud_topic_without_messages_is_known_and_said_to_be_empty(
    capsys, tmp_path: Path
) -> None:
    with BagWriter(tmp_path / "bag") as writer:
        writer.add_topic("/points", CLOUD)
    assert "'/points'" in refused(capsys, "run", "--bag", tmp_path / "bag")


def test_the_layouts_bag_lists_its_twelve_clouds(capsys, data_dir: Path) -> None:
    bag = data_dir / "bags" / "rosbag2_pointcloud2_layouts_mcap"
    error = refused(capsys, "run", "--bag", bag)
    assert "12 topics" in error and "/velodyne/vlp16_xyzircaedt_step32" in error


def test_live_needs_a_topic(capsys) -> None:
    assert "--bag PATH for a recording, --topic NAME live" in refused(capsys, "run")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("seed", "NAME=VALUE, got 'seed'"),
        ("sede=1", "Did you mean 'seed'"),
        ("seed=-1", "'seed' must lie in"),
        ("voxelization.voxel_size=[1, 1]", "must hold 3 values"),
        ("seed=[", "no YAML"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_starts(
    setting: str, sentence: str, capsys, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert sentence in refused(capsys, "demo", "--set", setting, "--out", out)
    assert not out.exists()


def test_a_missing_checkpoint_or_parameter_file_is_named(capsys, tmp_path: Path) -> None:
    assert "no.pth" in refused(capsys, "demo", "--checkpoint", tmp_path / "no.pth")
    assert "no.yaml" in refused(capsys, "demo", "--config", tmp_path / "no.yaml")


@pytest.mark.parametrize("command", [["demo"], ["run", "--topic", "/x"], ["replay", "bag"]])
def test_without_ros_the_commands_that_need_it_say_how_to_get_it(
    command: list[str], capsys, monkeypatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "source a ROS 2 install" in refused(capsys, *command)


class Arguments:
    """What the parser would give."""

    def __init__(self, **values: object) -> None:
        defaults = {"config": None, "checkpoint": None, "set": [], "command": "demo"}
        self.__dict__ |= defaults | {"overwrite": False, "out_parent": "x"} | values


def test_settings_win_over_what_the_data_need_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("input: {intensity_scale: 2.0, queue_depth: 9}\nseed: 4\n")
    args = Arguments(config=str(file), set=["seed=5", "bev.resolution_m=1"])
    config = detector_config(args, {"input.intensity_scale": 255.0, "seed": 6})
    assert (config.input.intensity_scale, config.input.queue_depth, config.seed) == (255.0, 9, 5)
    assert config.bev.resolution_m == 1.0


def test_a_written_parameter_file_gives_back_the_same_configuration(tmp_path: Path) -> None:
    config = LidarConfig.from_dict({"seed": 3, "post_process_params.score_thresholds": [0.25]})
    path = write_parameter_file(config, tmp_path / "lidar.yaml")
    assert LidarConfig.from_yaml(path) == config
    assert path.read_text().startswith("/**:\n  ros__parameters:")


def test_an_output_folder_is_never_emptied_unless_a_run_made_it(tmp_path: Path, capsys) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for extra in ((), ("--overwrite",)):
        error = refused(capsys, "demo", "--out", mine, *extra)
        assert "is not empty; choose another folder." in error
    assert (mine / "thesis.txt").exists()
    made = output_folder(Arguments(out=str(tmp_path / "made")))
    assert output_folder(Arguments(out=str(made))) == made  # nothing was left in it
    (made / "old.png").write_text("")
    assert "add --overwrite" in refused(capsys, "demo", "--out", made)
    output_folder(Arguments(out=str(made), overwrite=True))
    assert [p.name for p in made.iterdir()] == ["drivert.txt"]
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(capsys, "demo", "--out", tmp_path / "file")


def test_overwriting_never_deletes_what_the_same_command_reads(tmp_path: Path, capsys) -> None:
    made = output_folder(Arguments(out=str(tmp_path / "made")))
    bag = write_drive(made / "output_bag", 1, num_points=50)
    words = ("export", "nvdb", "--bag", bag, "--out", made, "--overwrite")
    assert f"would delete '{bag}', which --bag names" in refused(capsys, *words)
    assert bag.exists()


def test_a_simulated_drive_becomes_a_bag_with_ground_truth_and_transforms(
    tmp_path: Path, capsys
) -> None:
    out = tmp_path / "bag"
    scene = str(tiny_scene(tmp_path))
    code = main(["convert", "--sim", str(out), "--duration", "0.2", "--sim-config", scene])
    assert code == 0, capsys.readouterr().err
    assert f"Wrote 4 frames to {out}." in capsys.readouterr().out
    with BagReader(out) as reader:
        assert reader.message_counts["/LIDAR_TOP"] == 4
        assert reader.message_counts["/ground_truth/detections"] == 4
        assert reader.message_counts["/tf"] == 4 and reader.message_counts["/tf_static"] >= 1
    again = tmp_path / "again"
    main(["convert", "--sim", str(again), "--duration", "0.2", "--sim-config", scene])
    other = tmp_path / "other"
    main([
        "convert", "--sim", str(other), "--duration", "0.2", "--sim-config", scene,
        "--sim-seed", "1",
    ])  # fmt: skip
    assert messages(again, "/LIDAR_TOP") == messages(out, "/LIDAR_TOP")
    assert messages(other, "/LIDAR_TOP") != messages(out, "/LIDAR_TOP")
    assert "exists; name another folder" in refused(capsys, "convert", "--sim", out)


def test_kitti_frames_become_a_bag_without_poses(tmp_path: Path, data_dir: Path, capsys) -> None:
    kitti = data_dir / "lidar" / "kitti_object"
    assert main(["convert", "--kitti", str(kitti), str(tmp_path / "bag")]) == 0
    with BagReader(tmp_path / "bag") as reader:
        assert reader.message_counts["/LIDAR_TOP"] == 3
        assert reader.message_counts["/tf"] == 0


def test_a_nuscenes_keyframe_becomes_a_bag(tmp_path: Path, data_dir: Path, capsys) -> None:
    root = data_dir / "nuscenes" / "scene-0061"
    assert main(["convert", "--nuscenes", str(root), str(tmp_path / "bag"), "--frames", "1"]) == 0
    with BagReader(tmp_path / "bag") as reader:
        assert reader.message_counts["/LIDAR_TOP"] == 1
        assert reader.message_counts["/tf"] == 1


def test_a_bag_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    words = ("convert", "--sim", tmp_path / "file" / "bag", "--duration", "0")
    assert "cannot be written" in refused(capsys, *words)


def test_a_conversion_that_is_interrupted_leaves_no_part_of_a_bag(tmp_path, monkeypatch) -> None:
    def interrupted(_: object, path: Path, frames: int) -> int:
        path.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "write_source_bag", interrupted)
    assert main(["convert", "--sim", str(tmp_path / "bag")]) == 130
    assert not (tmp_path / "bag").exists()


@pytest.mark.parametrize("source", ["--nuscenes", "--kitti"])
def test_a_folder_that_is_no_data_set_is_refused(source: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    error = refused(capsys, "convert", source, tmp_path / "empty", tmp_path / "bag")
    assert str(tmp_path / "empty") in error
    assert not (tmp_path / "bag").exists()


def test_info_tells_what_this_machine_has(capsys) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("driveRT_ros", "torch", "rclpy", "CPU", "transport"):
        assert word in text


def test_info_lists_every_topic_of_a_bag_in_full(tmp_path: Path, capsys) -> None:
    topic = "/a/rather/long/name/of/a/topic/as/vehicles/with/many/sensors/have/them/points"
    assert main(["info", str(write_drive(tmp_path / "bag", 3, topic=topic))]) == 0
    text = capsys.readouterr().out
    assert "7 messages, 0.101 s" in text
    assert any(line.split() == [topic, "3", CLOUD] for line in text.splitlines())
    assert "nowhere" in refused(capsys, "info", tmp_path / "nowhere")
