"""A camera frame from graphs is the one without them, and only what has to is captured again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.gpu import camera_input
from test.core.test_camera_pipeline import assert_same
from test.kernels.test_camera_engine import SMALL, moved
from test.support.camera_graphs import GraphsOnTheShim
from test.support.camera_rig import textured
from test.support.failing_gpu import lost, out_of_memory, refused

BOTH = {
    **SMALL,
    "model": {**SMALL["model"], "network": {**SMALL["model"]["network"], "heads": ["car,truck"]}},
    "post_process_params": {"score_thresholds": [0.12], "top_k": 60},
}
CONFIG = CameraConfig.from_dict(BOTH)
STAGES = ["images", "maps", "backbone", "pool", "head", "postprocess"]


def images(seed=5, size_wh=(480, 270)):
    return [each for each in textured(seed, size_wh=size_wh) if each.name in CONFIG.cameras]


@pytest.fixture
def shim(monkeypatch):
    return GraphsOnTheShim(monkeypatch)


def test_graphs_give_the_bytes_of_the_eager_path_through_every_change(shim):
    replayed, eager = (CameraPipeline(CONFIG, device="cpu", graph=graph) for graph in (True, False))
    replayed.warm_up()
    eager.warm_up()
    here, other = images(), images(6)
    raised = [moved(here[0], 0.3), *here[1:]]
    for frames in (
        here,
        other,
        here[1:],  # a camera drops out ...
        [here[0], other[1]],
        here,  # ... and comes back
        raised,
        here,
        images(7, (640, 360)),
        [],
        here,
    ):
        got, want = (p.process(frames, with_fingerprint=True) for p in (replayed, eager))
        assert_same(got, want)
        assert got.report.fingerprint == want.report.fingerprint
        assert got.report.notes == want.report.notes and "graph_not_used" not in got.report.notes
        stages = STAGES if frames else ["images", "maps", "postprocess"]
        assert list(got.report.stage_ms) == list(want.report.stage_ms) == stages
    assert len(got) > 0
    # Memory of the images: made up, real, larger. Maps: made up, real, moved, real, larger, real.
    assert shim.captures == {"images": 3, "backbone": 1, "pool": 6, "head": 1}
    assert replayed.map_builds == eager.map_builds == 5
    assert shim.replays["images"] == 11 and shim.replays["backbone"] == shim.replays["pool"] == 10


def test_the_reference_of_the_cpu_gives_the_same_input_and_about_the_same_layers(monkeypatch):
    plain = CameraPipeline(CONFIG, device="cpu")
    frames = [images(), images()[1:], images(8, (700, 500))]
    wanted = [plain.process(each, with_fingerprint=True) for each in frames]
    GraphsOnTheShim(monkeypatch)
    pipeline = CameraPipeline(CONFIG, device="cpu")
    for each, want in zip(frames, wanted):
        got = pipeline.process(each, with_fingerprint=True)
        assert got.report.fingerprint["images"] == want.report.fingerprint["images"]
        for name, layer in want.bev.layers.items():
            np.testing.assert_allclose(got.bev.layers[name], layer, atol=1e-5, err_msg=name)
    assert plain._stages.captured == () and plain.graph_note == ""


def test_other_thresholds_capture_nothing(shim):
    pipeline = CameraPipeline(CONFIG, device="cpu")
    before = pipeline.process(images())
    captured = dict(shim.captures)
    post = replace(CONFIG.post_process_params, score_thresholds=(1.0,))
    strict = pipeline.reconfigured(replace(CONFIG, post_process_params=post))
    assert len(strict.process(images())) == 0 < len(before)
    assert shim.captures == captured and set(strict._stages.captured) == set(captured)


@pytest.mark.parametrize("stage", ["images", "backbone", "pool"])
def test_a_stage_that_cannot_be_captured_runs_as_it_is_and_says_so(shim, stage):
    eager = CameraPipeline(CONFIG, device="cpu", graph=False)
    pipeline = CameraPipeline(CONFIG, device="cpu")
    shim.faults[stage] = [refused(), refused()]
    here, raised = images(), [moved(images()[0], 0.3), *images()[1:]]
    for frames in (here, raised, here, images(7, (640, 360))):
        got, want = pipeline.process(frames), eager.process(frames)
        assert_same(got, want)
        assert set(got.report.notes) == {*want.report.notes, "graph_not_used"}
        assert "refused to capture" in pipeline.graph_note and "rank_tiles" in pipeline.graph_note
    # A device that refused once is not asked again where a calibration or a size changes.
    assert len(shim.faults[stage]) == 1 and stage not in pipeline._stages.captured
    assert eager.graph_note == ""


@pytest.mark.parametrize("make", [out_of_memory, lost])
def test_a_capture_that_loses_the_device_costs_the_frame(shim, make):
    """The guard of the node takes such errors and builds the pipeline anew."""
    pipeline = CameraPipeline(CONFIG, device="cpu")
    shim.faults["pool"] = [make()]
    with pytest.raises(RuntimeError):
        pipeline.process(images())
    assert pipeline.graph_note == ""
    want = CameraPipeline(CONFIG, device="cpu", graph=False).process(images())
    assert_same(pipeline.process(images()), want)


def test_a_camera_that_was_never_there_weighs_nothing_and_changes_no_graph(shim):
    pipeline = CameraPipeline(CONFIG, device="cpu")
    pipeline.process(images())
    captured = dict(shim.captures)
    found = [pipeline.process(images()[:2]) for _ in range(2)]
    assert_same(*found)
    assert pipeline._stages.pool.present.tolist() == [1.0, 1.0, 0.0]
    assert not pipeline._stages.batch[2].any() and pipeline._stages.batch[:2].any()
    assert shim.captures == captured


def test_results_outlive_the_frames_after_them(shim):
    pipeline = CameraPipeline(CONFIG, device="cpu")
    first = pipeline.process(images())
    kept = {name: layer.copy() for name, layer in first.bev.layers.items()}
    boxes = first.boxes.clone()
    pipeline.process(images(6))
    for name, layer in kept.items():
        np.testing.assert_array_equal(first.bev.layers[name], layer)
    assert torch.equal(first.boxes, boxes)


def test_larger_images_whose_frame_fails_leave_no_graph_of_the_memory_before(shim, monkeypatch):
    """The memory had moved when the frame failed: a graph of it would show what lies there now."""
    pipeline = CameraPipeline(CONFIG, device="cpu")
    pipeline.process(images())
    large = images(7, (640, 360))

    def full(*_):
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(camera_input._Slot, "send", full)
        pipeline.process(large)
    got = pipeline.process(large, with_fingerprint=True)
    want = CameraPipeline(CONFIG, device="cpu", graph=False).process(large, with_fingerprint=True)
    assert_same(got, want)
    assert got.report.fingerprint == want.report.fingerprint
    assert shim.captures["images"] == 2
