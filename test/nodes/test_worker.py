"""The worker thread: a fault costs its frame, is named, and the next frame works."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.frame import Detections, FrameReport
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.io.encode import encode_pointcloud
from driveRT_ros.nodes.diagnostics import statuses
from driveRT_ros.nodes.handler import FINGERPRINT, LidarHandler, PosedCloud
from driveRT_ros.nodes.health import ERROR, HOLD_S, WARN, Health
from driveRT_ros.nodes.raw import message_class
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL_STILL, make_batch, make_cloud, make_garbage
from test.support.worker_bench import CONFIG, Bench, Log


class FailingPipeline:
    """Fails as told, frame by frame, and else finds nothing."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.weights = SimpleNamespace(trained=False, source="seed", sha256="0")

    def process(self, points: Any, **_: bool) -> Detections:
        error = self._errors.pop(0)
        if error is not None:
            raise error
        return Detections.empty(report=FrameReport(num_points=len(points)))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("illegal address"), "inference_error"),
        (MemoryError("no more"), "inference_error"),
        (DeviceError("CUDA error 700 (an illegal memory access)"), "device_error"),
        (torch.cuda.OutOfMemoryError("Tried to allocate 2 GiB"), "out_of_memory"),
    ],
)
def test_exception_in_inference_drops_that_frame_with_an_error_that_names_it(
    error: Exception, reason: str
) -> None:
    with Bench(FailingPipeline(None, error, None)) as bench:
        bench.run(*(make_cloud(i * S) for i in range(1, 4)))
        assert [r.stamp_ns for r in bench.outputs.results] == [1 * S, 3 * S]
        assert bench.health.state.dropped == {reason: 1}
        assert bench.outputs.dropped_s == [2]
        [fault] = bench.health.faults(0.0)
        assert (fault.level, type(error).__name__ in fault.sentence) == (ERROR, True)
        assert str(error) in fault.sentence and "(stamp 2.000000000)" in fault.sentence
        assert [level for level, _ in bench.log].count("error") == 1
        weights = bench.pipeline.weights
        status = statuses("n", CONFIG, bench.health, weights, fault.at_s)[1]
        assert status.level == bytes([ERROR]) and str(error) in status.message


def test_bad_clouds_are_counted_by_reason_and_warned_about_once_in_a_while() -> None:
    with Bench() as bench:
        bench.run(*(make_garbage(i * S) for i in range(1, 6)), make_cloud(9 * S))
        assert len(bench.outputs.results) == 1
        assert sum(bench.health.state.dropped.values()) == 5
        assert bench.outputs.dropped_s == [1, 2, 3, 4, 5]
        warnings = [text for level, text in bench.log if level == "warning"]
        assert len(warnings) == 1
        assert bench.health.faults(0.0)[0].level == WARN


class TightPipeline(FailingPipeline):
    """A pipeline whose engine has no room for the frame."""

    def process(self, points: Any, **_: bool) -> Detections:
        overflow = {"rows of level 1": (900, 800)}
        return Detections.empty(report=FrameReport(overflow=overflow, notes=("engine_overflow",)))


def test_frame_that_did_not_fit_the_engine_is_published_with_a_warning_that_has_both_numbers() -> (
    None
):
    with Bench(TightPipeline()) as bench:
        bench.run(make_cloud(1 * S), make_cloud(2 * S))
        assert len(bench.outputs.results) == 2 and not bench.health.state.dropped
        [fault] = bench.health.faults(0.0)
        assert fault.level == WARN
        assert "900 rows of level 1 of 800" in fault.sentence
        assert "voxelization.max_voxels" in fault.sentence
        assert [level for level, _ in bench.log].count("warning") == 1
        status = statuses("n", CONFIG, bench.health, bench.pipeline.weights, fault.at_s)[2]
        assert {v.key: v.value for v in status.values}["notes"] == "engine_overflow"


def test_plan_that_is_not_used_is_a_warning_beside_the_one_about_weights() -> None:
    health = Health(CONFIG.diagnostics, Log())
    for trained in (True, False):
        weights = SimpleNamespace(trained=trained, source="seed", sha256="0")
        fine, stale = (
            statuses("n", CONFIG, health, weights, 0.0, note)[2]
            for note in ("", "Plan 'p' is old.")
        )
        assert stale.level == bytes([WARN]) and "Plan 'p' is old." in stale.message
        assert "Plan" not in fine.message
        assert ("untrained" in stale.message) == (not trained)


def test_fingerprint_is_computed_only_where_it_is_wanted() -> None:
    handler = LidarHandler(CONFIG, LidarPipeline(CONFIG, device="cpu"))
    cloud = make_cloud(S)
    assert handler.handle(PosedCloud(cloud), {"detections"}).found.report.fingerprint == {}
    wanted = handler.handle(PosedCloud(cloud), {FINGERPRINT})
    assert "detections" in wanted.found.report.fingerprint and wanted.messages == {}


def test_fault_leaves_the_diagnostics_after_a_while() -> None:
    health = Health(CONFIG.diagnostics, Log())
    health.fault("a", WARN, "An a.", 10.0)
    health.fault("b", ERROR, "A b.", 11.0)
    assert [f.sentence for f in health.faults(12.0)] == ["A b.", "An a."]
    assert [f.sentence for f in health.faults(10.5 + HOLD_S)] == ["A b."]
    assert health.faults(11.5 + HOLD_S) == []


def test_lasting_fault_is_logged_once_and_stays_until_cleared() -> None:
    log = Log()
    health = Health(CONFIG.diagnostics, log)
    for now_s in (0.0, 10.0, 99.0):
        health.fault("qos", ERROR, "No.", now_s, until_cleared=True)
    assert log == [("error", "No.")]
    assert len(health.faults(1e6)) == 1
    health.cleared("qos")
    assert health.faults(1e6) == []


def test_frame_in_work_is_finished_before_the_worker_ends() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(FailingPipeline):
        def process(self, points: Any, **_: bool) -> Detections:
            begun.set()
            assert go_on.wait(90.0)
            return super().process(points)

    bench = Bench(Slow(None))
    bench.mailbox.put(PosedCloud(make_cloud(S)), 0.0)
    assert begun.wait(90.0)
    assert not bench.worker.stop(0.05)
    go_on.set()
    assert bench.worker.stop(90.0)
    assert len(bench.outputs.results) == 1


def test_only_wanted_outputs_are_computed() -> None:
    handler = LidarHandler(CONFIG, LidarPipeline(CONFIG, device="cpu"))
    cloud = make_cloud(S)
    assert handler.handle(PosedCloud(cloud), ()).messages == {}
    result = handler.handle(PosedCloud(cloud), {"detections"})
    assert (list(result.messages), result.found.bev) == (["detections"], None)
    result = handler.handle(PosedCloud(cloud), {"occupancy_grid", "markers"})
    assert list(result.messages) == ["markers", "occupancy_grid"]


def test_picture_has_the_nose_of_the_vehicle_up_where_the_mounting_is_known() -> None:
    # Points ahead of a sensor that looks to the right of its vehicle; no boxes are drawn.
    config = LidarConfig.from_dict({**SMALL_STILL, "post_process_params.score_thresholds": [1.0]})
    handler = LidarHandler(config, LidarPipeline(config, device="cpu"))
    batch = make_batch(S)
    ahead = np.abs(batch.xyz) * np.float32([0.2, 0.1, 0.0]) + np.float32([10, 0, -1])
    cloud = encode_pointcloud(dataclasses.replace(batch, xyz=ahead), message_class)
    empty = make_cloud(S, count=0)
    T_ego_lidar = np.eye(4)
    T_ego_lidar[:2, :2] = [[0, 1], [-1, 0]]  # +x of the sensor is -y of the vehicle

    def drawn_at(T: np.ndarray | None) -> tuple[float, float]:
        with_points, without = (
            np.asarray(image.data, int).reshape(image.height, image.width, 3)
            for msg in (cloud, empty)
            for image in [
                handler.handle(PosedCloud(msg, None, T), {"bev_image"}).messages["bev_image"]
            ]
        )
        drawn = np.abs(with_points - without).max(axis=2) > 60
        row, col = np.argwhere(drawn).mean(axis=0) / drawn.shape
        return row, col

    row, col = drawn_at(None)
    assert row < 0.3 and 0.3 < col < 0.7  # without the mounting, +x of the sensor is up
    row, col = drawn_at(T_ego_lidar)
    assert col > 0.7 and 0.3 < row < 0.7


def test_another_configuration_takes_effect_with_the_next_frame() -> None:
    strict = LidarConfig.from_dict({**SMALL_STILL, "post_process_params.score_thresholds": [0.99]})
    with Bench() as bench:
        bench.run(make_cloud(S))
        bench.worker.reconfigure(strict)
        bench.run(make_cloud(2 * S))
        assert [len(r.found) > 0 for r in bench.outputs.results] == [True, False]


def test_parameters_that_cannot_take_effect_are_a_fault_and_cost_no_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: LidarHandler, config: LidarConfig) -> None:
        raise ValueError("no such grid")

    monkeypatch.setattr(LidarHandler, "reconfigure", refuse)
    with Bench() as bench:
        bench.worker.reconfigure(dataclasses.replace(CONFIG, seed=1))
        bench.run(make_cloud(S), make_cloud(2 * S))
        assert len(bench.outputs.results) == 2 and not bench.health.state.dropped
        [fault] = bench.health.faults(0.0)
        assert fault.level == ERROR
        assert "parameters" in fault.sentence and "no such grid" in fault.sentence


def test_precision_in_the_diagnostics_is_that_of_the_cpu_where_it_stands_in() -> None:
    health = Health(CONFIG.diagnostics, Log())
    weights = SimpleNamespace(trained=True, source="test", sha256="0")
    for device, precision in (("cuda:0", "fp16"), ("cpu", "fp32")):
        health.runs_on(device)
        config = dataclasses.replace(CONFIG, precision="fp16")
        [status] = [
            s for s in statuses("n", config, health, weights, 0.0) if "model_status" in s.name
        ]
        assert {v.key: v.value for v in status.values}["precision"] == precision
