"""``drivert demo`` from end to end: processes over DDS, pictures, table, bag, exit code."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import pytest
from PIL import Image

from driveRT_ros.io.bag import BagReader
from test.support.bags import write_drive
from test.support.demo_files import drivert, tiny_cameras, tiny_network, tiny_scene

pytestmark = pytest.mark.nodes

DETECTIONS = "/lidar_node/output/detections"


def check_results(out: Path, clouds: int, text: str) -> None:
    """Check everything that a demo promises to leave behind."""
    assert f"{clouds} of {clouds} clouds answered" in text
    for stage in ("decode", "preprocess", "inference", "postprocess", "publish", "total"):
        row = next(line for line in text.splitlines() if re.search(rf"\b{stage} ", line))
        assert len(re.findall(r"\d+\.\d\d", row)) == 4, row  # p50, p95, p99, max
    with BagReader(out / "output_bag") as reader:
        assert reader.message_counts[DETECTIONS] == clouds
        assert reader.message_counts["/lidar_node/output/objects"] == clouds
        assert reader.message_counts["/diagnostics"] > 0
    pictures = sorted((out / "pictures").glob("*.png"))
    assert len(pictures) == clouds
    first = cv2.imread(str(pictures[0]))
    assert min(first.shape[:2]) > 400 and first.std() > 5  # not one flat colour
    (gif,) = (out / "pictures").glob("*.gif")
    with Image.open(gif) as animation:
        assert animation.n_frames == clouds
    (mp4,) = (out / "pictures").glob("*.mp4")
    video = cv2.VideoCapture(str(mp4))
    assert video.read()[0]
    video.release()
    for path in (out / "output_bag", out / "pictures", gif, mp4, out / "logs"):
        assert str(path) in text


def test_a_simulated_drive_is_played_detected_recorded_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = drivert(
        "demo", "--duration", 0.4, "--sim-seed", 3, "--sim-config", tiny_scene(tmp_path),
        "--config", tiny_network(tmp_path), "--camera-config", tiny_cameras(tmp_path),
        "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(out, 8, done.stdout)
    assert "not trained" in done.stdout
    with BagReader(out / "input_bag") as reader:
        assert reader.message_counts["/ground_truth/detections"] == 8
        assert reader.message_counts["/CAM_BACK/image_rect_compressed"] == 3
    assert "3 sets of images of 6 cameras" in done.stdout
    with BagReader(out / "output_bag") as reader:
        assert reader.message_counts["/camera_node/output/occupancy_grid"] == 3
        assert reader.message_counts["/camera_node/output/bev_image"] == 3
    picture = cv2.imread(str(sorted((out / "pictures").glob("*.png"))[-1]))
    assert picture.shape[1] > 1900 and picture[:, -700:].std() > 5  # beside the clouds


def test_without_cameras_the_demo_is_about_clouds_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = drivert(
        "demo", "--duration", 0.1, "--sim-config", tiny_scene(tmp_path), "--no-cameras",
        "--config", tiny_network(tmp_path), "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(out, 2, done.stdout)
    with BagReader(out / "input_bag") as reader:
        assert "/CAM_BACK/image_rect_compressed" not in reader.topics
    assert not (out / "logs" / "camera_node.log").exists()


def test_cameras_of_a_bag_are_looked_through_offline(tmp_path: Path, data_dir: Path) -> None:
    out = tmp_path / "out"
    bag = data_dir / "bags" / "rosbag2_nuscenes_scene0061_kf0"
    done = drivert(
        "run", "--camera", "--bag", bag, "--config", tiny_cameras(tmp_path), "--out", out
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Processed 1 camera sets of 6 images of 6 cameras" in done.stdout
    assert re.search(r"decode +│ +\d+\.\d\d", done.stdout) and "not trained" in done.stdout
    (picture,) = (out / "pictures").glob("*.png")
    assert cv2.imread(str(picture)).shape == (720, 720, 3)
    with BagReader(out / "output_bag") as reader:
        assert reader.message_counts["/camera_node/output/occupancy_grid"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--camera"], "--images TOPIC"),
        (["--camera", "--topic", "/points"], "use --images"),
        (["--images", "/front/image_raw"], "needs --camera"),
        (["--camera", "--images", "/a/image_raw", "/b/image_raw/compressed"], "all raw or all"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(
    arguments: list[str], sentence: str
) -> None:
    done = drivert("run", *arguments)
    assert done.returncode == 2 and sentence in done.stderr


def test_a_bag_of_any_origin_is_drawn_from_its_own_topic(tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 5, topic="/sensing/points", num_points=800)
    out = tmp_path / "out"
    done = drivert(
        "demo", "--bag", bag, "--config", tiny_network(tmp_path), "--out", out, "--frames", 3,
        "--record-all",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(out, 3, done.stdout)
    with BagReader(out / "output_bag") as reader:
        assert reader.message_counts["/sensing/points"] == 3
        assert reader.message_counts["/lidar_node/output/bev_image"] == 3


def test_kitti_frames_without_poses_are_detected_in(tmp_path: Path, data_dir: Path) -> None:
    out = tmp_path / "out"
    done = drivert(
        "demo", "--kitti", data_dir / "lidar" / "kitti_object",
        "--config", tiny_network(tmp_path), "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(out, 3, done.stdout)
    written = (out / "lidar_node.yaml").read_text()
    for needed in ("num_past_frames: 0", "intensity_scale: 255.0", "forward_yaw_deg: 0.0"):
        assert needed in written


def test_the_nuscenes_keyframe_bag_is_detected_in(tmp_path: Path, data_dir: Path) -> None:
    out = tmp_path / "out"
    bag = data_dir / "bags" / "rosbag2_nuscenes_scene0061_kf0"
    done = drivert(
        "demo", "--bag", bag, "--config", tiny_network(tmp_path),
        "--camera-config", tiny_cameras(tmp_path), "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(out, 1, done.stdout)
    assert "1 sets of images of 6 cameras" in done.stdout


@pytest.mark.slow
def test_kitti_passes_the_whole_network(tmp_path: Path, data_dir: Path) -> None:
    out = tmp_path / "out"
    kitti = data_dir / "lidar" / "kitti_object"
    done = drivert("demo", "--kitti", kitti, "--out", out, timeout_s=500.0)
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(out, 3, done.stdout)


def test_ctrl_c_ends_a_demo_and_every_process_it_has_started(tmp_path: Path) -> None:
    bag = write_drive(tmp_path / "bag", 400, num_points=500)
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "driveRT_ros", "demo", "--bag", str(bag), "--rate", "0.1"]
    argv += ["--config", str(tiny_network(tmp_path)), "--out", str(out)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        replay_log, deadline = out / "logs" / "replay_node.log", time.monotonic() + 300.0
        while not replay_log.exists() or "4 of 400 clouds" not in replay_log.read_text():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(240.0) == 130
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "log").read_text()
    assert "interrupted" in text and "Traceback" not in text
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(out).encode() not in command_line.read_bytes(), command_line
        except (FileNotFoundError, ProcessLookupError):
            continue
    with BagReader(out / "output_bag") as reader:  # what was recorded is readable
        assert reader.message_counts[DETECTIONS] > 0
