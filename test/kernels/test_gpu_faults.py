"""Faults of a real GPU: torch's errors are known, memory comes back, a lost context is survived."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.device_faults import DEVICE_ERROR, OUT_OF_MEMORY, device_fault
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import CountedRows
from driveRT_ros.nodes.cloud_input import CloudInput
from driveRT_ros.nodes.device_guard import MAX_FAILURES, DeviceGuard
from driveRT_ros.nodes.health import Health
from test.support.clouds import xyzi_cloud

pytestmark = pytest.mark.gpu

CONFIG = LidarConfig.from_dict(
    {
        "voxelization.point_cloud_range": [-4.8, -3.6, -5.0, 4.8, 3.6, 3.0],
        "voxelization.voxel_size": [0.15, 0.15, 0.2],
        "voxelization.max_voxels": 1500,
        "input.point_capacity": 2000,
        "model.channels": [16] * 6,
        "post_process_params.score_thresholds": [0.001],
    }
)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


class Log:
    def info(self, text: str) -> None:
        say(text)

    warning = error = info


class Faulty(LidarPipeline):
    """The detector on the GPU, which fails where it is told to."""

    fault: Any = None

    def process(self, points: Any, **options: bool) -> Any:
        fault, self.fault = self.fault, None
        if fault is not None:
            fault()
        return super().process(points, **options)


def fill_memory() -> None:
    torch.empty(1 << 46, dtype=torch.uint8, device="cuda")


def index_too_far() -> None:
    torch.zeros(8, device="cuda")[torch.full((8,), 1 << 20, device="cuda")].sum().item()


def points(seed: int) -> np.ndarray:
    xyz = np.random.default_rng(seed).uniform((-4, -3, -2), (4, 3, 0), (1500, 3))
    return np.concatenate((xyz, np.zeros((1500, 2))), axis=1, dtype=np.float32)


NUM_JOINED = (1500, 2892, 4282, 5674)
"""Points of so many of these sweeps: past ones without those on the vehicle itself."""


def cloud(seed: int) -> Any:
    """Return the same points as a message, with its pose."""
    columns = dict(zip(("x", "y", "z", "intensity"), points(seed).T))
    message = xyzi_cloud(columns, stamp_ns=10**18 + seed * 50_000_000)
    return SimpleNamespace(msg=message, T_world_lidar=np.eye(4))


def guarded() -> tuple[DeviceGuard, Health]:
    """Return a guard around the detector on the GPU."""

    def make(config: LidarConfig) -> LidarPipeline:
        return Faulty(config, None, config.device)

    pipeline = make(CONFIG)
    pipeline.warm_up()
    health = Health(CONFIG.diagnostics, Log())
    return DeviceGuard(pipeline, make, health, Log()), health


def test_memory_comes_back_after_every_fault() -> None:
    guard, _ = guarded()
    want = guard.process(points(1)).boxes
    used = []
    for _ in range(2 * MAX_FAILURES):
        guard._pipeline.fault = fill_memory
        with pytest.raises(torch.cuda.OutOfMemoryError) as raised:
            guard.process(points(1))
        assert device_fault(raised.value).reason == OUT_OF_MEMORY
        del raised  # its traceback holds the pipeline
        assert torch.equal(guard.process(points(1)).boxes, want)
        used.append(torch.cuda.memory_allocated())
    assert len(want) > 0 and len(set(used)) == 1


def lose_the_gpu() -> None:
    """Lose it in the middle of a run, and go on; runs in a process of its own."""
    guard, health = guarded()
    clouds = CloudInput(CONFIG, torch.device("cuda", 0))
    for seed in range(3):
        joined = clouds.join(cloud(seed), CONFIG.input)
        assert len(guard.process(joined.points)) > 0
        assert len(clouds.settle(joined)[1]) == NUM_JOINED[seed]
    assert isinstance(joined.points, CountedRows)
    guard._pipeline.fault = index_too_far
    try:
        guard.process(points(1))
    except RuntimeError as error:
        fault = device_fault(error)
        say(f"{type(error).__name__} {getattr(error, 'error_code', None)} {fault}")
        assert fault is not None and fault.reason == DEVICE_ERROR and fault.context_lost
    else:
        raise AssertionError("the GPU should be lost")
    want = LidarPipeline(CONFIG, None, "cpu").process(points(2)).boxes
    assert torch.equal(guard.process(points(2)).boxes, want)
    joined = clouds.join(cloud(3), CONFIG.input)  # the host decodes, and has the sweeps before it
    assert len(clouds.settle(joined)[1]) == NUM_JOINED[3] and not joined.points.is_cuda
    assert torch.equal(joined.points[:1500], torch.from_numpy(points(3)))
    assert health.state.device == "cpu" and "device_lost" in health.state.faults
    say("gone on")


def lose_the_gpu_with_a_cloud_on_its_way() -> None:
    """Lose it when the next cloud was sent ahead already; runs in a process of its own."""
    guard, health = guarded()
    clouds = CloudInput(CONFIG, torch.device("cuda", 0))
    waiting = [cloud(seed) for seed in range(len(NUM_JOINED))]
    clouds.following = lambda: waiting[0] if waiting else None

    def detect(last_words: Any = None) -> Any:
        def process(points: Any, meanwhile: Any) -> Any:
            return guard.process(
                points, meanwhile=lambda: (meanwhile(), last_words and last_words())
            )

        joined = clouds.join(waiting.pop(0), CONFIG.input)
        found = clouds.run(joined, process, CONFIG.input)
        return found, clouds.settle(joined)[0].report.notes

    for k in range(2):
        assert detect()[0].report.num_points == NUM_JOINED[k]
    try:
        detect(index_too_far)
    except RuntimeError as error:
        fault = device_fault(error)
        assert fault is not None and fault.context_lost, error
    else:
        raise AssertionError("the GPU should be lost")
    found, notes = detect()
    assert found.report.num_points == NUM_JOINED[3] and len(found) > 0
    assert "decoded_by_host" in notes and health.state.device == "cpu"
    say("gone on")


@pytest.mark.parametrize("lose", [lose_the_gpu, lose_the_gpu_with_a_cloud_on_its_way])
def test_a_process_goes_on_after_it_lost_the_gpu_and_ends_in_peace(lose: Any) -> None:
    code = (
        "import gc, os\n"
        f"from test.kernels.test_gpu_faults import {lose.__name__} as lose\n"
        "lose()\n"
        "gc.collect()\n"
        "print('ended', flush=True)\n"
        "os._exit(0)\n"  # as nodes end
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-2:] == ["gone on", "ended"]
