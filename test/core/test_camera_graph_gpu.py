"""A camera frame from CUDA graphs is the eager one to the byte, and waits for the device once."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from driveRT_ros.core.camera_config import CameraConfig, bevdet_r50
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.frame import CameraFrame
from test.core.test_camera_pipeline import assert_same
from test.support.camera_rig import textured
from test.support.driver_calls import graph_launches, work_enqueued

pytestmark = pytest.mark.gpu

STAGES = ["images", "maps", "backbone", "pool", "head", "postprocess"]
DEVICE = "cuda"


def with_heads(precision: str = "fp32") -> CameraConfig:
    """Return the default model with detection heads beside its layers."""
    changes = {
        "precision": precision,
        "model.network.heads": ["car,truck", "pedestrian"],
        "post_process_params.score_thresholds": [0.12],
        "post_process_params.top_k": 60,
    }
    return CameraConfig.from_dict(changes)


@pytest.fixture(scope="module")
def sets() -> list[list[CameraFrame]]:
    return [textured(seed) for seed in (5, 6, 7)]


@pytest.fixture(scope="module", params=["fp32", "tf32", "fp16"])
def pair(request) -> tuple[CameraPipeline, CameraPipeline]:
    """One pipeline that replays graphs and one that enqueues kernel by kernel."""
    config = with_heads(request.param)
    both = tuple(CameraPipeline(config, device=DEVICE, graph=graph) for graph in (True, False))
    for pipeline in both:
        pipeline.warm_up()
    return both


def moved(frames: list[CameraFrame], metres: float) -> list[CameraFrame]:
    pose = np.array(frames[1].T_ego_camera)
    pose[2, 3] += metres
    return [frames[0], replace(frames[1], T_ego_camera=pose), *frames[2:]]


def check_same(pair, frames) -> None:
    got, want = (p.process(frames, with_fingerprint=True) for p in pair)
    assert_same(got, want)
    assert got.report.fingerprint == want.report.fingerprint
    assert got.report.dropped == want.report.dropped and got.report.notes == want.report.notes
    assert "graph_not_used" not in got.report.notes
    if frames:
        assert list(got.report.stage_ms) == STAGES
        work = {name: ms for name, ms in got.report.stage_ms.items() if name != "maps"}
        assert all(ms > 0 for ms in work.values())  # of a map that is known, nothing is left to do


def test_the_graph_path_gives_the_bytes_of_the_eager_path(pair, sets):
    for frames in (*sets, *reversed(sets)):
        check_same(pair, frames)
    replayed, eager = pair
    assert replayed.graph_note == "" == eager.graph_note
    assert set(replayed._stages.captured) == {"images", "backbone", "pool", "head"}
    assert eager._stages.captured == ()
    assert len(replayed.process(sets[0])) > 0


def test_cameras_may_drop_out_and_come_back(pair, sets):
    frames = sets[0]
    for present in ([0, 2, 3], [5], [], range(6), [4, 3], range(6)):
        check_same(pair, [frames[i] for i in present])


def test_a_change_of_calibration_or_size_leaves_nothing_of_the_old_one(pair, sets):
    frames, built = sets[0], pair[0].map_builds
    large = textured(5, size_wh=(1920, 1080))
    for each in (frames, moved(frames, 0.3), frames, large, [*large[:3], *frames[3:]], frames):
        check_same(pair, each)
    assert pair[0].map_builds - built in (5, 6)  # the first set is known where others ran before


def test_a_hundred_repeats_among_other_frames_give_the_same_bytes(pair, sets):
    replayed, _ = pair
    first = replayed.process(sets[2])
    for number in range(100):
        replayed.process(sets[number % 3][number % 4 :])
        assert_same(replayed.process(sets[2]), first)


def test_the_network_input_is_that_of_the_cpu_and_the_layers_are_about_its(sets):
    cpu = CameraPipeline(CameraConfig(), device="cpu")
    gpu = CameraPipeline(CameraConfig(), device=DEVICE)
    want, got = (p.process(sets[0], with_fingerprint=True) for p in (cpu, gpu))
    assert got.report.fingerprint["images"] == want.report.fingerprint["images"]
    for name, layer in want.bev.layers.items():
        np.testing.assert_allclose(got.bev.layers[name], layer, atol=1e-4, err_msg=name)


def test_a_frame_never_waits_but_for_its_result(sets):
    """torch refuses every synchronising call; waiting for an event is none."""
    pipeline = CameraPipeline(with_heads(), device=DEVICE)
    want = [pipeline.process(frames) for frames in (*sets, sets[0][1:])]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [pipeline.process(frames) for frames in (*sets, sets[0][1:])]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for got, each in zip(found, want):
        assert_same(got, each)


def test_another_stream_and_another_thread_may_run_the_frame(pair, sets):
    replayed, _ = pair
    want, found = replayed.process(sets[1]), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(replayed.process(sets[1]))

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 2
    for each in found:
        assert_same(each, want)


def test_the_graph_of_a_large_published_network_is_the_eager_one(sets):
    config = replace(bevdet_r50(), precision="fp16")
    pair = tuple(CameraPipeline(config, device=DEVICE, graph=graph) for graph in (True, False))
    for frames in (sets[0], sets[1][2:], sets[0]):
        check_same(pair, frames)


def test_images_that_find_no_memory_cost_their_frame_alone(sets):
    pipeline = CameraPipeline(CameraConfig(), device=DEVICE)
    want = pipeline.process(sets[0])
    large = textured(5, size_wh=(3840, 2160))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            pipeline.process(large)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_same(pipeline.process(sets[0]), want)
    fresh = CameraPipeline(CameraConfig(), device=DEVICE).process(large)
    assert_same(pipeline.process(large), fresh)
    assert pipeline.graph_note == ""


def test_memory_stays_flat_over_calibrations_and_missing_cameras(sets):
    pipeline = CameraPipeline(CameraConfig(), device=DEVICE)

    def turn() -> None:
        for metres in (0.0, 0.2, 0.4):
            pipeline.process(moved(sets[0], metres))
            pipeline.process(sets[0][1:])

    for _ in range(3):
        turn()
    used, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(5):
        turn()
    assert torch.cuda.memory_allocated() == used
    assert torch.cuda.memory_reserved() <= reserved + (64 << 20)


def test_a_replay_asks_the_driver_for_four_graphs_in_place_of_every_kernel(pair, sets):
    replayed, eager = (work_enqueued(lambda p=p: p.process(sets[0])) for p in pair)
    assert graph_launches(replayed) == 4 and graph_launches(eager) == 0, (replayed, eager)
    assert 3 * replayed.total() < eager.total(), (replayed, eager)
