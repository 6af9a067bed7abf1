"""``drivert bench camera``: pipelines that are checked before they are timed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import yaml

from driveRT_ros.bench import camera as bench
from driveRT_ros.cli import main
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.models.lss_weights import untrained_camera_weights
from test.commands.test_cli import refused
from test.kernels.test_camera_engine import SMALL
from test.support.camera_rig import textured

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
CONFIG = CameraConfig.from_dict(SMALL)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def sets():
    frames = [f for f in textured(5, size_wh=(480, 270)) if f.name in CONFIG.cameras]
    return {"3 cameras": frames}


def test_the_reference_is_timed_with_all_cameras_and_without_one(tmp_path, capsys):
    output, config = tmp_path / "result.json", tmp_path / "small.yaml"
    parameters = {**SMALL, "cameras": ["CAM_FRONT", "CAM_BACK"]}
    config.write_text(yaml.safe_dump({"camera_node": {"ros__parameters": parameters}}))
    arguments = ["--device", "cpu", "--rounds", "2", "--config", str(config)]
    assert main(["bench", "camera", *arguments, "--output", str(output)]) == 0
    report = json.loads(output.read_text())
    assert report["suite"] == "camera" and report["cpu"] and "untrained" in report["weights"]
    assert list(report["sets"]) == ["2 cameras", "one missing"]
    for name, count in (("2 cameras", 2), ("one missing", 1)):
        images = report["sets"][name]
        assert (images["images"], images["sizes"]) == (count, ["1600 x 900"])
        found = images["candidates"]["reference fp32"]
        assert found["wall_us"]["n"] == 2 and found["mean_error"] == 0
        stages = ["images", "maps", "backbone", "pool", "head", "postprocess"]
        assert list(found["stage_us"]) == stages
        assert ("first_us" in found) == (name == "2 cameras") and found["moved_us"]["n"] == 2
    text = capsys.readouterr().out
    assert "reference fp32" in text and "backbone" in text and f"Wrote {output}." in text


@no_gpu
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "'drivert bench camera --device cpu'"),
        (("--precision", "fp32x3"), "no precision 'fp32x3'; there are fp32, tf32, fp16."),
        (("--device", "cpu", "--precision", "fp16"), "need a GPU"),
        (("--frames", "S1"), "--frames belongs to"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "bench", "camera", *arguments)


def test_cameras_that_the_simulator_does_not_have_are_refused():
    with pytest.raises(ConfigError, match="none of roof"):
        bench.simulated(replace(CONFIG, cameras=("roof",)))


def test_a_pipeline_with_other_layers_has_no_time(sets):
    reference = CameraPipeline(CONFIG, device="cpu")
    (right,) = bench.candidates(CONFIG, None, ["fp32"], CPU)
    weights = untrained_camera_weights(CONFIG.model, 1)
    wrong = bench.Candidate("wrong", CameraPipeline(CONFIG, weights, "cpu"))
    report = bench.measure([right, wrong], reference, sets, rounds=1)
    found = report["sets"]["3 cameras"]["candidates"]
    assert found["reference fp32"]["wall_us"]["median"] > 0
    assert "layers differ from the reference" in found["wrong"]["absent"]
    assert "wall_us" not in found["wrong"]
    lines = bench.whole_table(report)
    assert sum(any(cell.startswith("absent: ") for cell in line) for line in lines) == 1
    assert [line[1] for line in bench.stage_table(report)] == ["candidate", "reference fp32"]


def test_a_camera_moves_in_every_frame_that_is_timed_so(sets):
    (right,) = bench.candidates(CONFIG, None, ["fp32"], CPU)
    bench.measure([right], CameraPipeline(CONFIG, device="cpu"), sets, rounds=1)
    # One map for the set, and one for each frame that moves a camera: there and back.
    assert right.pipeline.map_builds == 3


def test_a_graph_that_gives_other_bytes_than_the_eager_path_is_absent(sets):
    reference, frames = CameraPipeline(CONFIG, device="cpu"), sets["3 cameras"]
    (right,) = bench.candidates(CONFIG, None, ["fp32"], CPU)
    want = reference.process(frames, with_fingerprint=True)
    assert "absent" not in right.check(frames, want, want)
    other = reference.process(frames[1:], with_fingerprint=True)
    assert "other bytes than without graphs" in right.check(frames, want, other)["absent"]
    assert "network input differs" in right.check(frames, other, None)["absent"]


def test_a_plan_that_cannot_be_used_is_refused():
    with pytest.raises(
        ConfigError, match="pooling on device 'cpu' runs the reference, which needs none"
    ):
        bench.candidates(replace(CONFIG, plan_path="plan.json"), None, ["fp32"], CPU)
