"""Whether memory stays as it is while thousands of clouds of all sizes go through the detector.

Nothing is left out: the first sample is taken when the detector is ready and has seen no cloud of
this run. Buffers that grow to the largest cloud do so early, a leak never stops; so memory is flat
where the most of the second half of the run is not above the most of the first.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driveRT_ros.bench.frame import MESSAGE, Detector, FrameInput
from driveRT_ros.bench.frames import Frame, drive
from driveRT_ros.bench.reference import processor
from driveRT_ros.bench.timing import machine
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.latency import PERCENTILES, percentile
from driveRT_ros.core.rows import rows_for

FRAMES = 2000
SIZES = (5_000, 250_000)
"""Points of the smallest and the largest cloud."""
DISTINCT = 40
"""Clouds, whose sizes lie evenly on a logarithmic scale."""
SAMPLES = 40
"""How often memory is looked at, at least, after the first time."""
_SEED, _SWEEPS = 7, 11
_HOST = "host_rss"


def soak_clouds(
    config: LidarConfig, sizes: tuple[int, int] = SIZES, distinct: int = DISTINCT
) -> Iterator[Frame]:
    """Yield parts of one simulated frame of eleven sweeps, drawn with a seed, the smallest first.

    Args:
        config: How sweeps are joined.
        sizes: Points of the smallest and the largest cloud.
        distinct: Clouds.
    """
    (whole,) = drive(_SEED, (_SWEEPS,), config)
    rng = np.random.default_rng(_SEED)
    for count in np.geomspace(*sizes, distinct).round().astype(int):
        chosen = np.sort(rng.permutation(len(whole.points))[:count])
        yield dataclasses.replace(
            whole, name=f"{len(chosen)} points", points=whole.points[torch.from_numpy(chosen)]
        )


def soak(
    detector: Detector,
    clouds: Sequence[Frame],
    config: LidarConfig,
    device: torch.device,
    frames: int = FRAMES,
    told: Callable[[int], object] = lambda done: None,
) -> dict[str, Any]:
    """Run messages of all sizes in an order drawn with a seed, and watch memory.

    Args:
        detector: Ready; its own warm-up is over.
        clouds: What is run.
        config: How messages are decoded.
        device: Of the detector.
        frames: How many to run.
        told: Called at every sample with the frames run so far.

    Returns:
        Report: wall milliseconds from message to detections, and by kind of memory every sample,
        in bytes, and by how much the second half is above the first.
    """
    given = [FrameInput(cloud, config, rows_for(device)) for cloud in clouds]
    order = np.random.default_rng(_SEED).integers(len(given), size=frames)
    every = max(1, frames // SAMPLES)
    at, samples, walls, overflows = [0], [memory(device)], [], 0
    for number, which in enumerate(order.tolist(), 1):
        begin = time.perf_counter()
        found, _ = given[which].detect(detector, MESSAGE)
        walls.append((time.perf_counter() - begin) * 1e3)
        overflows += bool(found.report.overflow)
        if number % every == 0 or number == frames:
            at.append(number)
            samples.append(memory(device))
            told(number)
    kinds = {kind: [sample[kind] for sample in samples] for kind in samples[0]}
    return {
        **machine(),
        "suite": "soak",
        "device": device.type,
        "cpu": processor(),
        "precision": config.precision,
        "frames": frames,
        "points": [min(len(c.points) for c in clouds), max(len(c.points) for c in clouds)],
        "overflows": overflows,
        "wall_ms": {
            **{f"p{p}": round(percentile(walls, p), 3) for p in PERCENTILES},
            "max": round(max(walls), 3),
        },
        "at_frame": at,
        "memory": {kind: {"bytes": values, **_growth(values)} for kind, values in kinds.items()},
    }


def memory(device: torch.device) -> dict[str, int]:
    """Return bytes in use: of the whole device, of torch's allocator there, of this process.

    Those of the whole device are also those of other processes on it.
    """
    found = {}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found = {
            "device_used": total - free,
            "torch_reserved": torch.cuda.memory_reserved(device),
            "torch_allocated": torch.cuda.memory_allocated(device),
        }
    return {**found, _HOST: _resident_bytes()}


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _growth(values: Sequence[int]) -> dict[str, int]:
    half = (len(values) + 1) // 2
    first, second = max(values[:half]), max(values[half:])
    return {"first_half_most": first, "second_half_most": second, "grown": second - first}


def growth_table(report: Mapping[str, Any]) -> list[list[str]]:
    """Return one line a kind of memory, in million bytes; the first line is the head."""
    lines = [["memory, MB", "ready", "first half", "second half", "grown"]]
    for kind, found in report["memory"].items():
        numbers = (found["bytes"][0], found["first_half_most"], found["second_half_most"])
        lines.append([kind, *(f"{n / 1e6:,.1f}" for n in numbers), f"{found['grown'] / 1e6:+,.3f}"])
    return lines
