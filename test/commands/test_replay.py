"""``drivert replay`` becomes the replay node: its messages, its exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driveRT_ros.commands.common import dropped_topic
from driveRT_ros.nodes.process_env import node_environment, private_domain
from test.support.bags import write_drive
from test.support.demo_files import drivert
from test.support.node_process import wait_until_signals_are_taken

pytestmark = pytest.mark.nodes


def test_a_bag_is_played_from_the_given_second_on(tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 6)
    done = drivert(
        "replay", bag, "--wait", 0, "--start", 0.1015, "--rate", 5, "--topics", "/points"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Played 3 messages (3 clouds) on 1 topics" in done.stdout + done.stderr


def test_a_bad_bag_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = drivert("replay", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_lidar_node_that_answers_is_also_heard_about_the_clouds_it_drops() -> None:
    assert dropped_topic("/front/output/detections") == "/front/debug/dropped_cloud"
    assert dropped_topic("/answers") == ""


@pytest.mark.parametrize("module", ["replay_node", "recorder_node", "offline_node"])
@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_ctrl_c_while_a_node_is_still_starting_leaves_no_traceback(
    module: str, after_s: float, tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", f"driveRT_ros.nodes.{module}", "--ros-args"]
    argv += ["-p", f"bag_path:={tmp_path / 'bag'}"]
    if module != "recorder_node":
        write_drive(tmp_path / "bag", 2)
    with private_domain() as domain:
        process = subprocess.Popen(
            argv, env=node_environment(domain), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        wait_until_signals_are_taken(process)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=240.0)[0].decode()
    assert "Traceback" not in text
    assert process.returncode == 0, text
