"""Check, then time, the reference operators on the CPU: what a machine without a GPU runs."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from driveRT_ros.bench.frames import Frame, network_tensors
from driveRT_ros.bench.networks import VOXELS, TorchNetwork, errors, failure
from driveRT_ros.bench.timing import machine, summary
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.tuner_device import TOLERANCE

NAME = "reference fp32"


def measure_reference(
    config: LidarConfig,
    frames: Sequence[Frame],
    repeats: int,
    commit: str = "",
    told: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Return the report of the float32 reference, each frame checked against float64 first.

    Args:
        config: Grid and channels.
        frames: In this order.
        repeats: Timed runs of each frame.
        commit: See :func:`~driveRT_ros.bench.timing.machine`.
        told: Called after each part with its name.
    """
    tensors = network_tensors(config, "cpu")
    network = TorchNetwork(config, tensors)
    oracle = TorchNetwork(config, {name: tensor.double() for name, tensor in tensors.items()})
    report: dict[str, Any] = {
        **machine(commit),
        "suite": "reference",
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "protocol": {"repeats": repeats},
        "frames": {},
    }
    with torch.inference_mode():
        for frame in frames:
            report["frames"][frame.name] = _time_frame(config, network, oracle, frame, repeats)
            told(f"frame {frame.name}")
    return report


def _time_frame(
    config: LidarConfig, network: TorchNetwork, oracle: TorchNetwork, frame: Frame, repeats: int
) -> dict[str, Any]:
    ops = Ops.for_device("cpu")
    voxels = ops.voxelize(frame.points, config.voxelization)
    for each in (oracle, network):
        each.load((voxels.features, voxels.coords_bzyx))
        each.run()
    want = oracle.outputs()
    error = errors(network.outputs(), want)
    found: dict[str, Any] = {
        "source": frame.source,
        "points": len(frame.points),
        "rows": [len(want[f"subm{n}"][0]) for n in range(1, 7)],
        "candidates": {NAME: {"precision": "fp32", "error": error}},
    }
    fault = failure(error, TOLERANCE["fp32"])
    if fault:
        found["candidates"][NAME]["absent"] = fault
        return found
    stages: dict[str, list[float]] = {}
    walls = []
    for _ in range(repeats):
        marks: list[tuple[str, float]] = []
        begin = time.perf_counter()
        ops.voxelize(frame.points, config.voxelization)
        network.run(lambda stage, marks=marks: marks.append((stage, time.perf_counter())))
        end = time.perf_counter()
        walls.append((end - begin) * 1e6)
        laps = [(VOXELS, begin), *marks, ("", end)]
        times: dict[str, float] = {}
        for (stage, start), (_, stop) in zip(laps, laps[1:]):
            times[stage] = times.get(stage, 0.0) + (stop - start) * 1e6
        for stage, value in times.items():
            stages.setdefault(stage, []).append(value)
    found["candidates"][NAME]["wall_us"] = summary(walls)
    found["candidates"][NAME]["stage_us"] = {s: summary(v) for s, v in stages.items()}
    return found


def processor() -> str:
    """Return the name of the CPU, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
