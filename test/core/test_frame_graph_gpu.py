"""A frame replayed from CUDA graphs is the eager one to the byte, and waits for the device once."""

from __future__ import annotations

import threading

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.plan import PRECISIONS
from driveRT_ros.core.stages import crc32
from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from test.support.driver_calls import graph_launches, work_enqueued

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
STAGES = ["voxelize", "maps", "backbone", "head", "postprocess"]


@pytest.fixture(scope="module")
def clouds() -> list[torch.Tensor]:
    """Simulated clouds of one, two and three sweeps, and what is left of one in small ones."""
    sweeps = SweepBuffer(LidarConfig().densification_params)
    drive = SimConfig.from_dict({"seed": 9, "num_sweeps": 3})
    found = [sweeps.push(f.points, f.T_world_ego @ f.T_ego_lidar) for f in simulate(drive)]
    return [*found, found[0][:200], found[0][:1], found[0][:0]]


@pytest.fixture(scope="module", params=PRECISIONS)
def pair(request) -> tuple[LidarPipeline, LidarPipeline]:
    """One pipeline that replays graphs and one that enqueues kernel by kernel."""
    config = LidarConfig.from_dict({"precision": request.param})
    both = tuple(LidarPipeline(config, None, DEVICE, graph=graph) for graph in (True, False))
    for pipeline in both:
        pipeline.warm_up()
    return both


def same_bytes(a: Detections, b: Detections) -> bool:
    tensors = ((a.boxes, b.boxes), (a.scores, b.scores), (a.labels, b.labels))
    return all(torch.equal(x, y) for x, y in tensors)


def test_the_graph_path_gives_the_bytes_of_the_eager_path(pair, clouds):
    replayed, eager = pair
    assert replayed._front_end.graphs.captured and replayed._back_end.graphs.captured
    assert not eager._front_end.graphs.captured and not eager._back_end.graphs.captured
    for cloud in (*clouds, *reversed(clouds)):
        got, want = (p.process(cloud, with_fingerprint=True) for p in pair)
        assert same_bytes(got, want)
        assert got.report.fingerprint == want.report.fingerprint
        assert got.report.dropped == want.report.dropped
        assert got.report.voxels_per_level == want.report.voxels_per_level
        assert got.report.notes == want.report.notes and "graph_not_used" not in got.report.notes
        assert list(got.report.stage_ms) == STAGES
        assert all(ms > 0 for ms in got.report.stage_ms.values())
    assert len(replayed.process(clouds[2])) > 40


def test_a_hundred_repeats_among_other_frames_give_the_same_bytes(pair, clouds):
    replayed, _ = pair
    first = replayed.process(clouds[2])
    for number in range(100):
        replayed.process(clouds[number % len(clouds)])
        assert same_bytes(replayed.process(clouds[2]), first)


def test_a_frame_from_host_memory_never_waits_but_for_its_result(pair, clouds):
    """torch refuses every synchronising call; waiting for an event is none."""
    replayed, _ = pair
    arrays = [cloud.numpy().copy() for cloud in clouds]
    want = [replayed.process(cloud) for cloud in clouds]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [replayed.process(cloud) for cloud in (*clouds, *arrays)]
        found += [replayed.process(cloud, with_fingerprint=True) for cloud in (*clouds, *arrays)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(same_bytes(a, b) for a, b in zip(found, 4 * want, strict=True))
    assert all(each.report.fingerprint for each in found[2 * len(clouds) :])


def test_a_fingerprint_is_that_of_zlib_over_the_rows(pair, clouds):
    for pipeline in pair:
        engine = pipeline._front_end._engine
        maps = engine.maps
        for cloud in (*clouds, *reversed(clouds)):
            found = pipeline.process(cloud, with_fingerprint=True).report.fingerprint
            voxels, rows = (int(maps.levels[number].counts[1]) for number in (0, 7))
            assert found["points"] == crc32(cloud) == crc32(maps.points[: len(cloud)])
            assert found["coords"] == crc32(maps.levels[0].coords_zyx[:voxels])
            assert found["features"] == crc32(maps.features[:voxels])
            assert found["bev"] == crc32(engine.features[:rows])


def test_a_fingerprint_gives_the_device_one_launch_more_and_no_copy(pair, clouds):
    for pipeline in pair:
        plain, marked = (
            work_enqueued(lambda p=pipeline, w=which: p.process(clouds[2], with_fingerprint=w))
            for which in (False, True)
        )
        assert marked.total() - plain.total() <= 1, (plain, marked)
        assert graph_launches(marked) == graph_launches(plain)


def test_points_on_the_device_or_in_float64_or_in_pinned_memory_give_the_same_frame(pair, clouds):
    replayed, _ = pair
    cloud = clouds[1]
    want = replayed.process(cloud)
    for points in (cloud.cuda(), cloud.double(), cloud.pin_memory(), cloud.numpy().astype(">f4")):
        assert same_bytes(replayed.process(points), want)


def test_another_stream_and_another_thread_may_run_the_frame(pair, clouds):
    replayed, _ = pair
    want, found = replayed.process(clouds[2]), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(replayed.process(clouds[2]))

    for run in (work, lambda: threading.Thread(target=work)):
        thread = run()
        if thread is not None:
            thread.start()
            thread.join()
    assert len(found) == 2 and all(same_bytes(each, want) for each in found)


def test_two_pipelines_in_two_threads_do_not_disturb_each_other(clouds):
    """One captures its graphs while the other is at work."""
    config = LidarConfig()
    want = LidarPipeline(config, None, DEVICE, graph=False).process(clouds[2])
    busy, stop, found = LidarPipeline(config, None, DEVICE), threading.Event(), []

    def work():
        while not stop.is_set() or not found:
            found.append(busy.process(clouds[2]))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            other = LidarPipeline(config, None, DEVICE)
            assert same_bytes(other.process(clouds[2]), want)
            assert other.graph_note == ""
    finally:
        stop.set()
        thread.join()
    assert busy.graph_note == "" and all(same_bytes(each, want) for each in found)


def test_another_threshold_captures_the_heads_alone_and_before_the_next_frame(pair, clouds):
    replayed, _ = pair
    config = LidarConfig.from_dict(
        {**replayed.config.to_dict(), "post_process_params.score_thresholds": [0.2]}
    )
    strict = replayed.reconfigured(config)
    assert strict._front_end is replayed._front_end and strict._back_end.graphs.captured
    found, all_of_them = strict.process(clouds[2]), replayed.process(clouds[2])
    kept = all_of_them.scores > 0.2
    assert 0 < len(found) < len(all_of_them) and torch.equal(found.boxes, all_of_them.boxes[kept])


def test_a_frame_that_does_not_fit_leaves_nothing_to_the_next_replay(clouds):
    changes = {"voxelization.max_voxels": 5000, "overflow_policy": "degrade"}
    replayed = LidarPipeline(LidarConfig.from_dict(changes), None, DEVICE)
    small = clouds[0][:4000]
    want = replayed.process(small)
    over = replayed.process(clouds[2])
    assert "engine_overflow" in over.report.notes and list(over.report.stage_ms) == STAGES
    again = replayed.process(small)
    assert same_bytes(again, want) and again.report.overflow == {}


def test_a_larger_engine_takes_over_and_gives_the_bytes_of_one_that_had_the_room(pair, clouds):
    replayed, _ = pair
    changes = {"voxelization.max_voxels": 3000, "input.point_capacity": 10_000}
    tight = LidarPipeline(
        LidarConfig.from_dict({**replayed.config.to_dict(), **changes}), None, DEVICE
    )
    small = clouds[0][:4000]
    assert tight.process(small).report.overflow == {}
    for turn in range(3):
        for cloud in (clouds[0], small, clouds[2]):
            got, want = tight.process(cloud), replayed.process(cloud)
            assert same_bytes(got, want) and got.report.dropped == want.report.dropped
            if turn:
                assert got.report.overflow == {} and "engine_grown" not in got.report.notes
    assert tight._front_end.graphs.captured and tight._back_end.graphs.captured
    points, room = got.report.high_water["points"]
    assert points == max(map(len, clouds)) <= room


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_room_the_boxes_are_the_same_bytes(seed, clouds):
    """Random room, most of it too small: kernels stay inside of their buffers and are run again."""
    generator = torch.Generator().manual_seed(seed)
    voxels, points = (int(10 ** (2 + 3 * torch.rand((), generator=generator))) for _ in range(2))
    changes = {"voxelization.max_voxels": voxels, "input.point_capacity": points}
    tight = LidarPipeline(LidarConfig.from_dict(changes), None, DEVICE)
    roomy = LidarPipeline(LidarConfig(), None, DEVICE)
    for cloud in (clouds[0][: 10 * seed], clouds[1], clouds[2], clouds[0]):
        got, want = (p.process(cloud, with_fingerprint=True) for p in (tight, roomy))
        assert got.report.fingerprint == want.report.fingerprint
        assert got.report.dropped == want.report.dropped


def test_memory_stays_flat_over_frames_of_many_sizes(clouds):
    pipeline = LidarPipeline(LidarConfig(), None, DEVICE)
    pipeline.process(clouds[2])
    before = torch.cuda.memory_reserved()
    for number in range(200):
        pipeline.process(clouds[2][: 5000 + number * 977 % (len(clouds[2]) - 5000)])
    assert torch.cuda.memory_reserved() == before


def test_a_replay_asks_the_driver_for_four_graphs_in_place_of_every_kernel(pair, clouds):
    replayed, eager = (work_enqueued(lambda p=p: p.process(clouds[2])) for p in pair)
    assert graph_launches(replayed) == 4 and graph_launches(eager) == 0, (replayed, eager)
    assert 3 * replayed.total() < eager.total(), (replayed, eager)
