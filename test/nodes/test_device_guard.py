"""A GPU that fails costs the frames it fails: the next one works, there or on the CPU."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core import device_faults
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.device_faults import DEVICE_ERROR, OUT_OF_MEMORY
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes.device_guard import FIRST_WAIT_S, LAST_WAIT_S, MAX_FAILURES, DeviceGuard
from driveRT_ros.nodes.diagnostics import statuses
from driveRT_ros.nodes.health import ERROR, WARN, Health
from test.support.camera_messages import SMALL as SMALL_CAMERAS
from test.support.camera_rig import textured
from test.support.failing_gpu import FailingGpu, fail
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL_STILL, make_cloud
from test.support.worker_bench import Bench, Log

FP16 = LidarConfig.from_dict({**SMALL_STILL, "precision": "fp16", "plan_path": "some/plan.json"})
CPU = {"lidar": LidarPipeline, "camera": CameraPipeline}


class Guarded:
    """A guard around a GPU that follows a script; its CPU is the real one.

    Args:
        script: One word for each frame, each building anew after the first, and each change of
            parameters, on the GPU.
        config: Of the pipeline.
        kind: Of the pipeline on the CPU.
    """

    def __init__(self, *script: Any, config: Any = FP16, kind: str = "lidar") -> None:
        self.script, self.kind, self.now_s = iter(script), kind, 0.0
        self.log = Log()
        self.health = Health(config.diagnostics, self.log)
        self.built: list[Any] = []  # configurations
        first = FailingGpu(config, self.script)
        first.warm_up()
        self.alive = weakref.ref(first)
        self.guard = DeviceGuard(first, self.make, self.health, self.log, lambda: self.now_s)

    def make(self, config: Any) -> Any:
        self.built.append(config)
        if config.device == "cpu":
            return CPU[self.kind](config, None, "cpu")
        assert self.alive() is None, "the memory of the pipeline before is still held"
        fail(next(self.script))
        made = FailingGpu(config, self.script)
        self.alive = weakref.ref(made)
        return made

    def faults(self) -> list[tuple[int, str]]:
        """Return what is in the diagnostics long after the last frame."""
        return [(f.level, f.sentence) for f in self.health.faults(1e9)]


class Run:
    """Clouds through the worker, the handler and a guarded pipeline."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        self.bench = Bench(guarded.guard, guarded.health)
        self.sent = 0

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.__exit__()

    def clouds(self, count: int, after_s: float = 0.0) -> list[int]:
        """Send clouds; return the seconds of those that got a result."""
        self.guarded.now_s += after_s
        before = len(self.bench.outputs.results)
        stamps = range(self.sent + 1, self.sent + count + 1)
        self.bench.run(*(make_cloud(i * S) for i in stamps))
        self.sent += count
        return [r.stamp_ns // S for r in self.bench.outputs.results[before:]]


@pytest.fixture(autouse=True)
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count how often memory is given back to the device."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(device_faults, "_wrecks", [])
    return calls


@pytest.mark.parametrize(("word", "reason"), [("memory", OUT_OF_MEMORY), ("refused", DEVICE_ERROR)])
def test_a_fault_costs_its_frame_and_the_next_one_finds_a_new_pipeline(
    word: str, reason: str, emptied: list[str]
) -> None:
    guarded = Guarded("ok", "ok", word, "build", "ok", "ok")
    with Run(guarded) as run:
        assert run.clouds(5) == [1, 2, 4, 5]
        assert run.bench.outputs.dropped_s == [3]
        assert guarded.health.state.dropped == {reason: 1}
        [fault] = guarded.health.faults(0.0)
        assert fault.level == ERROR and "(stamp 3.000000000)" in fault.sentence
    assert emptied == ["emptied"]  # before the only building anew
    assert guarded.built == [dataclasses.replace(FP16, device="cuda:0")]
    assert guarded.faults() == []
    assert next(guarded.script, None) is None


def test_a_gpu_that_fails_again_and_again_is_replaced_by_the_cpu_until_it_works() -> None:
    refusals = ["memory", "memory", "memory"]  # at a frame, then twice at building anew
    guarded = Guarded(*refusals, "memory", "build", "memory", "build", "ok", "ok")
    with Run(guarded) as run:
        assert run.clouds(MAX_FAILURES + 2) == [4, 5]
        assert guarded.health.state.dropped == {OUT_OF_MEMORY: MAX_FAILURES}
        assert guarded.health.state.device == "cpu"
        assert guarded.built[-1].precision == "fp32" and guarded.built[-1].plan_path == ""
        [(level, sentence)] = guarded.faults()
        assert level == WARN and f"{FIRST_WAIT_S:g} s" in sentence and "2.00 GiB" in sentence

        # Building anew fails: the frame goes to the CPU, and the wait doubles.
        assert run.clouds(1, after_s=FIRST_WAIT_S) == [6]
        assert run.clouds(1, after_s=1.5 * FIRST_WAIT_S) == [7]
        # It succeeds, but the frame itself fails and is lost.
        assert run.clouds(2, after_s=0.5 * FIRST_WAIT_S) == [9]
        assert guarded.health.state.dropped == {OUT_OF_MEMORY: MAX_FAILURES + 1}
        assert guarded.health.state.device == "cpu" and len(guarded.faults()) == 1

        assert run.clouds(2, after_s=4 * FIRST_WAIT_S) == [10, 11]
        assert guarded.health.state.device == "cuda:0" and guarded.faults() == []
    assert next(guarded.script, None) is None
    assert [c.device for c in guarded.built].count("cpu") == 1


def test_the_cpu_finds_what_a_node_without_a_gpu_finds() -> None:
    with Run(Guarded("lost")) as run, Bench() as plain:
        assert run.clouds(2) == [2]
        plain.run(make_cloud(2 * S))
        [got], [want] = run.bench.outputs.results, plain.outputs.results
        assert len(want.found) > 0
        assert torch.equal(got.found.boxes, want.found.boxes)


def test_the_wait_stops_growing() -> None:
    guarded = Guarded(*["memory"] * 12)
    with Run(guarded) as run:
        run.clouds(MAX_FAILURES)
        for _ in range(9):
            assert len(run.clouds(1, after_s=LAST_WAIT_S)) == 1
        assert f"{LAST_WAIT_S:g} s" in guarded.faults()[0][1]
    assert next(guarded.script, None) is None


def test_a_gpu_that_has_gone_is_a_fault_and_no_wrong_parameter() -> None:
    gone = ConfigError("Parameter 'device' 'cuda:0' cannot be used: no CUDA-capable device.")
    guarded = Guarded("refused", *[gone] * (MAX_FAILURES - 1))
    with Run(guarded) as run:
        assert run.clouds(MAX_FAILURES + 1) == [MAX_FAILURES + 1]
        assert guarded.health.state.dropped == {DEVICE_ERROR: MAX_FAILURES}
        assert "no CUDA-capable device" in guarded.faults()[0][1]


def test_whatever_fails_while_the_pipeline_is_built_anew_leads_to_the_cpu() -> None:
    # A device that has left the bus fails in words that no list of CUDA errors has. An error that
    # counts for nothing would be met by every frame from then on.
    gone = RuntimeError("No CUDA GPUs are available")
    guarded = Guarded("refused", gone, OSError("/dev/nvidia0"))
    with Run(guarded) as run:
        assert run.clouds(MAX_FAILURES + 2) == [MAX_FAILURES + 1, MAX_FAILURES + 2]
        assert guarded.health.state.dropped == {DEVICE_ERROR: MAX_FAILURES}
        assert "/dev/nvidia0" in guarded.faults()[0][1]


def test_a_lost_context_leaves_the_cpu_for_good_and_says_that_a_restart_helps(
    emptied: list[str],
) -> None:
    guarded = Guarded("ok", "lost")
    with Run(guarded) as run:
        assert run.clouds(4) == [1, 3, 4]
        assert guarded.health.state.dropped == {DEVICE_ERROR: 1}
        [(level, sentence)] = guarded.faults()
        assert level == ERROR and "restart" in sentence and "on_device_loss" in sentence
        assert "illegal memory access" in sentence and "Search for it" not in sentence
        assert run.clouds(1, after_s=1e6) == [5]
        model = statuses("n", FP16, guarded.health, None, 0.0)[1]
        assert model.level == bytes([ERROR]) and "restart" in model.message
    assert [c.device for c in guarded.built] == ["cpu"]
    assert not emptied and guarded.guard.ending == ""
    assert [text for level, text in run.guarded.log if "restart" in text] == [sentence]


def test_nothing_in_a_lost_context_is_freed() -> None:
    # Freeing pinned memory or a graph calls CUDA, and an error there aborts the process.
    guarded = Guarded("lost", config=LidarConfig.from_dict(SMALL_STILL))
    with Run(guarded) as run:
        run.clouds(2)
        assert guarded.alive() is not None


def test_a_failed_call_that_hides_a_lost_context_is_known_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Kernels fail behind the host's back, so another call is often the first to say that it failed.
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: fail("lost"))
    guarded = Guarded(RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"))
    with Run(guarded) as run:
        assert run.clouds(2) == [2]
        [(level, sentence)] = guarded.faults()
        assert level == ERROR and "illegal memory access" in sentence
        assert guarded.alive() is not None


def test_loss_after_a_fallback_is_an_error_of_its_own() -> None:
    guarded = Guarded(*["refused"] * MAX_FAILURES, "lost")
    with Run(guarded) as run:
        run.clouds(MAX_FAILURES)
        assert [level for level, _ in guarded.faults()] == [WARN]
        assert run.clouds(1, after_s=FIRST_WAIT_S) == [4]
        assert [level for level, _ in guarded.faults()] == [ERROR]
        assert any("restart" in text for level, text in guarded.log if level == "error")


def test_where_the_node_is_to_end_nothing_more_is_processed() -> None:
    guarded = Guarded("ok", "lost", config=dataclasses.replace(FP16, on_device_loss="exit"))
    with Run(guarded) as run:
        assert run.clouds(3) == [1]
        assert guarded.health.state.dropped == {DEVICE_ERROR: 2}
        assert run.bench.outputs.dropped_s == [2, 3]
    assert "it ends" in guarded.guard.ending and guarded.built == []


def test_an_error_that_is_none_of_the_gpu_changes_nothing() -> None:
    guarded = Guarded("ok", ValueError("shape"), "ok")
    with Run(guarded) as run:
        assert run.clouds(3) == [1, 3]
        assert guarded.health.state.dropped == {"inference_error": 1}
    assert guarded.built == [] and guarded.faults() == []


def test_parameters_that_change_meet_the_pipeline_that_comes_next() -> None:
    strict = {"post_process_params.score_thresholds": [1.0]}
    guarded = Guarded("memory", "build", "ok", *["memory"] * MAX_FAILURES)
    with Run(guarded) as run:
        changed = LidarConfig.from_dict({**FP16.to_dict(), **strict})
        run.bench.worker.reconfigure(changed)  # fails on the GPU
        assert run.clouds(1) == [1]
        assert guarded.built[0].post_process_params == changed.post_process_params
        assert not guarded.health.state.dropped
        [fault] = guarded.health.faults(0.0)
        assert fault.level == ERROR and "while parameters changed" in fault.sentence
        run.clouds(MAX_FAILURES)
        assert run.clouds(1) == [5]
        assert len(run.bench.outputs.results[-1].found) == 0
        run.bench.worker.reconfigure(FP16)  # on the CPU
        assert run.clouds(1) == [6]
        assert len(run.bench.outputs.results[-1].found) > 0


def test_memory_that_cannot_be_given_back_costs_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(*["refused"] * MAX_FAILURES)
    with Run(guarded) as run:
        run.clouds(MAX_FAILURES)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fail("lost"))
        assert run.clouds(3) == [MAX_FAILURES + 2, MAX_FAILURES + 3]


def test_a_stand_in_takes_parameters_over_though_the_gpu_fails_at_them() -> None:
    unusable = InvalidFrame("of no use")  # says nothing about the GPU: the stand-in is kept
    guarded = Guarded(*["memory"] * MAX_FAILURES, "build", unusable, "memory")
    strict = {"post_process_params.score_thresholds": [1.0]}
    with Run(guarded) as run:
        assert run.clouds(MAX_FAILURES + 1) == [MAX_FAILURES + 1]
        assert len(run.bench.outputs.results[-1].found) > 0
        assert run.clouds(1, after_s=FIRST_WAIT_S) == []
        run.bench.worker.reconfigure(LidarConfig.from_dict({**FP16.to_dict(), **strict}))
        assert len(run.clouds(1)) == 1
        assert len(run.bench.outputs.results[-1].found) == 0


def test_a_pipeline_on_the_cpu_is_left_alone() -> None:
    config = LidarConfig.from_dict(SMALL_STILL)
    pipeline = LidarPipeline(config, None, "cpu")
    health = Health(config.diagnostics, Log())
    guard = DeviceGuard(pipeline, lambda config: None, health, Log())
    with Bench(guard, health) as bench:
        bench.run(make_cloud(S))
        assert len(bench.outputs.results) == 1 and health.state.device == "cpu"


def test_cameras_go_on_like_clouds() -> None:
    config = CameraConfig.from_dict({**SMALL_CAMERAS, "precision": "fp16"})
    guarded = Guarded("ok", "memory", "build", "lost", config=config, kind="camera")
    frames = textured(0, size_wh=(320, 180))
    guard = guarded.guard
    guard.process(frames)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        guard.process(frames)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        guard.process(frames)
    found = guard.process(frames)
    plain = CameraPipeline(CameraConfig.from_dict(SMALL_CAMERAS), None, "cpu").process(frames)
    assert found.bev is not None and plain.bev is not None
    np.testing.assert_array_equal(found.bev.layers["vehicle"], plain.bev.layers["vehicle"])
    assert guard.map_builds == 1 and guarded.faults()[0][0] == ERROR
