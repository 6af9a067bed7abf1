"""What is compiled ahead is what the engine then asks for, and people see how far it is."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from driveRT_ros.core import kernel_builds
from driveRT_ros.core.config import DensificationConfig, LidarConfig
from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.gpu import backbone, frame_maps, grid_ops, heads, sweeps, unpack_points
from driveRT_ros.core.gpu.front_end import make_engine
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from driveRT_ros.core.kernel_builds import (
    KernelBuild,
    compile_builds,
    engine_builds,
    pipeline_builds,
)
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.plan import default_plan
from driveRT_ros.io.raw_pointcloud import read_raw
from test.support import engine
from test.support.clouds import random_points, xyzi_cloud

CONFIG = {
    "voxelization.point_cloud_range": [-4.8, -3.6, -5.0, 4.8, 3.6, 3.0],
    "voxelization.voxel_size": [0.15, 0.15, 0.2],
    "voxelization.max_voxels": 1500,
    "input.point_capacity": 2000,
}


@pytest.mark.parametrize(
    ("precision", "capability", "top_k"),
    [
        *(("fp32", (9, 0), 500), ("fp32", (7, 5), 500), ("fp32x3", (8, 0), 500)),
        *(("tf32", (9, 0), 500), ("fp16", (9, 0), 500)),
        ("fp16", (9, 0), 600),  # more than the heads of the engine hold: the reference goes on
    ],
)
def test_all_that_the_engine_compiles_is_known_before(
    precision: str, capability: tuple[int, int], top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()

    class Kernel(engine.ShimKernel):
        def __init__(self, stem, name, defines=None, **how):
            asked.add(KernelBuild.of(stem, defines or {}))
            super().__init__(stem, name, defines, **how)

    engine.put_on_the_shim(monkeypatch, capability)
    for module in (backbone, frame_maps, heads):
        monkeypatch.setattr(module, "Kernel", Kernel)
    changes = {"precision": precision, "post_process_params.top_k": top_k}
    config = LidarConfig.from_dict({**CONFIG, **changes})
    plain = LidarPipeline(LidarConfig.from_dict(CONFIG), None, "cpu")
    front, plan, _ = make_engine(
        config, plain.weights, plain._tensors, plain.device, plain._front_end
    )
    front.back_end(config, plain._back_end)

    assert plan is not None
    builds = engine_builds(config, plan, capability)
    assert len(set(builds)) == len(builds)
    assert set(builds) == asked


def test_what_sweeps_and_fingerprints_need_is_compiled_ahead_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = set()

    def kernel_on(device: torch.device, stem: str, *kind: str) -> engine.ShimKernel:
        asked.add(stem)
        return engine.ShimKernel(stem, *kind, device=device)

    monkeypatch.setattr(sweeps, "kernel_on", kernel_on)
    monkeypatch.setattr(unpack_points, "kernel_on", kernel_on)
    buffer = DeviceSweepBuffer(DensificationConfig(), torch.device("cpu"))
    for stamp_ns in (0, 1):
        cloud = PointBatch(np.ones((9, 3)), np.ones(9), np.ones(9), None, stamp_ns, "lidar")
        buffer.push(cloud, np.eye(4))
    buffer.push_raw(read_raw(xyzi_cloud(random_points(9))), np.eye(4))
    assert asked
    grid_ops.crc32(torch.ones(9), run=lambda stem, *_, **__: asked.add(stem), resident=1)
    config = LidarConfig()
    given = config, default_plan(config.model.channels, (9, 0)), (9, 0)
    assert asked and {*pipeline_builds(*given)} - {*engine_builds(*given)} == {
        KernelBuild(stem) for stem in asked
    }


def test_builds_are_compiled_side_by_side_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = [KernelBuild.of("levels", {"N": n}) for n in range(5)]
    both, compiled, told = threading.Barrier(2, timeout=90.0), [], []

    def compile_cubin(stem: str, arch: str, defines: dict[str, str]) -> None:
        if defines["N"] in ("0", "1"):
            both.wait()  # passes only where two are at work
        compiled.append((stem, arch, defines["N"]))

    monkeypatch.setattr(kernel_builds.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(kernel_builds, "compile_cubin", compile_cubin)
    compile_builds(builds, "sm_90", told.append)
    assert sorted(compiled) == [("levels", "sm_90", str(n)) for n in range(5)]
    assert told == [1, 2, 3, 4, 5]


def test_a_source_that_does_not_compile_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_cubin(stem: str, arch: str, defines: dict[str, str]) -> None:
        if stem == "bad":
            raise DeviceError("bad.cu does not compile.")
        time.sleep(0.2)  # all of them would take ten seconds
        compiled.append(stem)

    monkeypatch.setattr(kernel_builds.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(kernel_builds, "compile_cubin", compile_cubin)
    builds = [KernelBuild("bad"), *(KernelBuild(f"good{n}") for n in range(50))]
    with pytest.raises(DeviceError, match=r"bad\.cu"):
        compile_builds(builds, "sm_90", lambda done: None)
    assert len(compiled) < 50
