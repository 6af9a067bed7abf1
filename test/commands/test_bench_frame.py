"""``drivert bench frame``: whole detectors that are checked by their boxes, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
import torch

from driveRT_ros.bench import frame as bench
from driveRT_ros.bench.frames import Frame
from driveRT_ros.bench.networks import TorchNetwork
from driveRT_ros.bench.peer_detector import PeerDetector
from driveRT_ros.bench.same_boxes import compare_boxes
from driveRT_ros.cli import main
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import Detections
from driveRT_ros.models.untrained import untrained_weights
from test.commands.test_cli import refused
from test.support.demo_files import tiny_network

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
CPU = torch.device("cpu")
CONFIG = LidarConfig.from_dict({
    "voxelization.point_cloud_range": [-24.0, -24.0, -4.0, 24.0, 24.0, 2.0],
    "voxelization.voxel_size": [0.5, 0.5, 0.5],
    "model.channels": [4, 4, 4, 8, 8, 8],
    "post_process_params.score_thresholds": [0.02],
})  # fmt: skip
WEIGHTS = untrained_weights(CONFIG.model, 0)


def cloud(count: int = 3000) -> Frame:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([40.0, 40.0, 4.0, 255.0, 0.4])
    points = torch.rand(count, 5, generator=generator) * spread
    return Frame("x", "made up", points - torch.tensor([20.0, 20.0, 3.0, 0.0, 0.0]))


# ---- the command --------------------------------------------------------------------------------


def test_the_detector_is_checked_and_timed_from_points_and_from_a_message(tmp_path, capsys):
    output = tmp_path / "result.json"
    assert main([
        "bench", "frame", "--device", "cpu", "--rounds", "2", "--output", str(output),
        "--config", str(tiny_network(tmp_path)),
    ]) == 0  # fmt: skip
    report = json.loads(output.read_text())
    assert report["suite"] == "frame" and report["cpu"] and report["weights"]
    frame = report["frames"]["S1"]
    found = frame["candidates"]["ours fp32"]
    assert found["boxes"]["matched"] == found["boxes"]["wanted"] == frame["boxes"] > 0
    assert frame["message_bytes"] == 16 * frame["points"]
    stages = ["voxelize", "maps", "backbone", "head", "postprocess"]
    assert list(found["points"]["stage_us"]) == stages
    assert list(found["message"]["stage_us"]) == ["decode", *stages]
    for times in (found["points"], found["message"]):
        assert times["wall_us"]["n"] == 2
        # Medians of two runs are means: stages lie inside of the whole, however slow either was.
        inside = sum(stage["median"] for stage in times["stage_us"].values())
        assert 0 < inside <= times["wall_us"]["median"] + 0.01
    text = capsys.readouterr().out
    assert "ours fp32" in text and "backbone" in text and f"Wrote {output}." in text


@no_gpu
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "'drivert bench frame --device cpu'"),
        (("--device", "cpu", "--peers", "torch"), "need a GPU"),
        (("--peers", "cublas"), "There is no peer cublas; there are spconv, torch."),
        (("--device", "cpu", "--rates", "10"), "--rates belongs to 'drivert bench ros'"),
        (("--device", "cpu", "--frames", "D"), "no frame 'D'"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "bench", "frame", *arguments)


# ---- candidates ---------------------------------------------------------------------------------


def run(*peers: bench.Candidate) -> dict:
    candidates = [*bench.ours(CONFIG, WEIGHTS, [("fp32", None)], CPU), *peers]
    measured = bench.FrameBench(CONFIG, WEIGHTS, candidates, CPU, 1)
    return bench.measure(measured, [cloud()], profile=False)


def peer(name: str, tensors) -> bench.Candidate:
    network = functools.partial(TorchNetwork, CONFIG, tensors)
    make = functools.partial(PeerDetector, network, CONFIG, tensors)
    return bench.Candidate(name, "fp32", make, peer=True)


def test_a_peer_is_timed_where_it_finds_the_same_boxes_and_absent_where_not():
    tensors = WEIGHTS.to(CPU, torch.float32)
    other = {**tensors, "conv4.0.weight": tensors["conv4.0.weight"] * 1.01}
    assert "conv4.0.weight" in tensors
    broken = bench.Candidate("broken", "fp32", lambda: 1 / 0, peer=True)
    report = run(peer("right", tensors), peer("wrong", other), broken)
    found = report["frames"]["x"]["candidates"]
    assert found["right"]["boxes"]["matched"] == report["frames"]["x"]["boxes"] > 5
    assert found["right"]["points"]["wall_us"]["median"] > 0
    assert "boxes differ" in found["wrong"]["absent"] and "points" not in found["wrong"]
    assert found["broken"]["absent"] == "ZeroDivisionError: division by zero"
    lines = bench.whole_table(report)
    assert sum(any(cell.startswith("absent: ") for cell in line) for line in lines) == 2
    assert [line[1] for line in bench.stage_table(report)] == ["detector", "ours fp32", "right"]


def test_a_frame_with_other_rows_than_its_table_says_is_refused():
    candidates = bench.ours(CONFIG, WEIGHTS, [("fp32", None)], CPU)
    measured = bench.FrameBench(CONFIG, WEIGHTS, candidates, CPU, 1)
    with pytest.raises(ConfigError, match="the table says"):
        measured.time_frame(dataclasses.replace(cloud(), rows=(1, 2, 3, 4, 5, 6)))


def test_a_frame_that_a_message_cannot_hold_is_refused():
    given = cloud()
    given.points[7, 3] = 300.0  # clipped to 255
    with pytest.raises(ConfigError, match="do not fit parameter group 'input'"):
        bench.FrameInput(given, CONFIG)


# ---- the comparison of boxes --------------------------------------------------------------------


def boxes(*rows: tuple[float, float, int]) -> Detections:
    """Return boxes of x, score and label."""
    values = torch.zeros(len(rows), 9)
    values[:, 0] = torch.tensor([row[0] for row in rows])
    values[:, 3:6] = torch.tensor([4.0, 2.0, 1.5])
    scores, labels = torch.tensor([r[1] for r in rows]), torch.tensor([r[2] for r in rows])
    return Detections(values, scores, labels)


def test_boxes_in_another_order_are_the_same():
    a, b = boxes((0, 0.9, 0), (10, 0.8, 1)), boxes((10, 0.8, 1), (0, 0.9, 0))
    check = compare_boxes(a, b, LidarConfig())
    assert (check.matched, check.unexplained, check.fault("fp32")) == (2, 0, "")


@pytest.mark.parametrize(
    "got",
    [
        boxes((0, 0.9, 0)),
        boxes((0, 0.9, 0), (10.1, 0.8, 0)),
        boxes((0, 0.9, 0), (10, 0.79, 0)),
        boxes((0, 0.9, 0), (10, 0.8, 1)),
        boxes((0, 0.9, 0), (10, 0.8, 0), (20, 0.5, 0)),
        Detections.empty(),
    ],
)
def test_a_box_that_is_missing_moved_or_too_much_is_a_fault(got):
    want = boxes((0, 0.9, 0), (10, 0.8, 0))
    assert "boxes differ" in compare_boxes(got, want, LidarConfig()).fault("fp32")


def test_rounding_may_decide_at_the_threshold_and_between_equal_scores():
    want = boxes((0, 0.9, 0), (30, 0.10005, 0), (60, 0.5, 0))
    got = boxes((0, 0.9, 0), (61, 0.50005, 0))  # 61 and 60 overlap: one of them stays
    check = compare_boxes(got, want, LidarConfig())
    assert (check.matched, check.ties, check.unexplained) == (1, 2, 0)
    assert check.fault("fp32") == ""


def test_results_that_differ_by_ties_everywhere_are_a_fault():
    want = boxes(*((10.0 * k, 0.5, 0) for k in range(8)))
    got = boxes(*((10.0 * k + 1, 0.5, 0) for k in range(8)))
    check = compare_boxes(got, want, LidarConfig())
    assert check.ties == 16 and "boxes differ" in check.fault("fp32")


def test_the_last_place_of_a_full_head_is_a_threshold():
    config = LidarConfig.from_dict({"post_process_params.max_boxes_per_head": 2})
    want, got = boxes((0, 0.9, 0), (10, 0.5, 0)), boxes((0, 0.9, 0), (20, 0.50005, 0))
    assert compare_boxes(got, want, config).fault("fp32") == ""
    assert "2 boxes differ" in compare_boxes(got, want, LidarConfig()).fault("fp32")


def test_less_precision_is_held_to_most_of_the_boxes():
    want = boxes(*((10.0 * k, 0.5, 0) for k in range(4)))
    got = boxes(*((10.0 * k + 0.05, 0.49, 0) for k in range(2)))
    assert compare_boxes(got, want, LidarConfig(), "fp16").fault("fp16") == ""
    fewer = dataclasses.replace(
        got, boxes=got.boxes[:1], scores=got.scores[:1], labels=got.labels[:1]
    )
    assert "only 1 of 4" in compare_boxes(fewer, want, LidarConfig(), "fp16").fault("fp16")
