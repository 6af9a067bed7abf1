"""``drivert run``: offline results do not depend on speed, and every cloud is answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driveRT_ros.cli import main
from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.decode_messages import decode_detections
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.process_env import node_environment, private_domain
from test.support.bags import PERIOD_NS, START_NS, messages, write_drive
from test.support.demo_files import drivert, tiny_network

pytestmark = pytest.mark.nodes

DETECTIONS = "/lidar_node/output/detections"


def test_two_runs_over_one_bag_record_the_same_bytes(tmp_path: Path, capsys) -> None:
    # A live node drops what it has no time for, so its results depend on the speed of the machine.
    bag = write_drive(tmp_path / "bag", 8, num_points=800)
    network = tiny_network(tmp_path)
    recorded = []
    for name in ("first", "second"):
        out = tmp_path / name
        done = drivert("run", "--bag", bag, "--config", network, "--out", out, "--frames", 6)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "6 of 6 clouds answered" in done.stdout
        recorded.append(messages(out / "output_bag", DETECTIONS))
        stages = {s["stage"]: s for s in json.loads((out / "latency.json").read_text())["stages"]}
        assert stages["total"]["count"] == 6 and stages["total"]["p99_ms"] > 0
        assert "inference" in done.stdout and "p99" in done.stdout
        assert str(out / "output_bag") in done.stdout
    assert [t for t, _ in recorded[0]] == [START_NS + i * PERIOD_NS for i in range(6)]
    assert recorded[0] == recorded[1]
    first = str(tmp_path / "first")
    assert main(["verify", first, str(tmp_path / "second")]) == 0
    # The node, over the middleware and a recorder, gives what the pipeline gives by itself.
    assert main(["verify", first, "--replay", "--clouds", str(bag)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("Equal: 6 frames") == text.count("detections message 6 0") == 2
    with BagReader(tmp_path / "first" / "output_bag") as reader:
        boxes = [len(decode_detections(m.deserialize())) for m in reader.messages([DETECTIONS])]
        assert sum(boxes) > 0
        assert reader.message_counts["/lidar_node/output/objects"] == 6


def test_a_failing_node_is_reported_with_its_last_lines_and_exit_code_1(tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 1)
    wrong = tmp_path / "weights.safetensors"
    wrong.write_bytes(b"no weights")
    done = drivert("run", "--bag", bag, "--checkpoint", wrong, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stdout
    assert "The process 'lidar_node' ended with exit code 1" in done.stderr
    assert "weights.safetensors" in done.stderr
    assert "Traceback" not in done.stderr


def test_clouds_without_answer_are_counted_and_the_exit_code_says_so(tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 3, num_points=300)
    done = drivert(
        "run", "--bag", bag, "--config", tiny_network(tmp_path), "--out", tmp_path / "out",
        "--set", "densification_params.world_frame_id=nowhere",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "Processed 0 of 3 clouds of '/points'; dropped: 3 tf_missing." in done.stdout
    assert "3 clouds got no answer" in done.stdout


def test_the_real_keyframe_gives_one_array_with_the_header_of_its_cloud(
    tmp_path: Path, data_dir: Path
) -> None:
    bag = data_dir / "bags" / "rosbag2_nuscenes_scene0061_kf0"
    network = tiny_network(tmp_path)
    done = drivert("run", "--bag", bag, "--config", network, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    with BagReader(bag) as reader:
        (cloud,) = [m.deserialize() for m in reader.messages(["/LIDAR_TOP"])]
    with BagReader(tmp_path / "out" / "output_bag") as reader:
        (found,) = [m.deserialize() for m in reader.messages([DETECTIONS])]
    assert found.header == cloud.header
    assert found.header.frame_id == "LIDAR_TOP"
    assert stamp_ns_of(found.header.stamp) == 1_532_402_927_647_951_000


@pytest.mark.slow
def test_the_real_keyframe_passes_the_whole_network(tmp_path: Path, data_dir: Path) -> None:
    bag = data_dir / "bags" / "rosbag2_nuscenes_scene0061_kf0"
    done = drivert("run", "--bag", bag, "--out", tmp_path / "out", timeout_s=400.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 clouds answered" in done.stdout


def test_live_runs_until_ctrl_c_and_exits_with_0(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "driveRT_ros", "run", "--topic", "/points"]
    argv += ["--config", str(tiny_network(tmp_path))]
    log_path = tmp_path / "log"
    with private_domain() as domain, log_path.open("wb") as log:
        process = subprocess.Popen(argv, env=node_environment(domain), stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 300.0
            while "Active, listening on '/points'" not in log_path.read_text():
                assert process.poll() is None and time.monotonic() < deadline, log_path.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(240.0) == 0, log_path.read_text()
        finally:
            process.kill()
            process.wait()
