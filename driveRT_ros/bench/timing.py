"""Clocks of the GPU benchmarks: events, kernel sums, and what the machine was.

All times are microseconds. Kernel sums come from the profiler: a marker kernel at the border of
every stage splits the kernels of a run into stages, so host gaps count nowhere.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from driveRT_ros import __version__
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.replay import captured, replay_times

Mark = Callable[[str], None]
"""Called at the start of every stage with its name."""

_CLOCKS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "pstate": "pstate",
}


def unmarked(_: str) -> None:
    """Mark nothing: the run as users run it."""


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Return median, 5th and 95th percentile and the number of samples."""
    if len(samples) > 1:
        cuts = statistics.quantiles(samples, n=20, method="inclusive")
        low, high = cuts[0], cuts[-1]
    else:
        low = high = samples[0]
    middle = statistics.median(samples)
    values = {"median": middle, "p5": low, "p95": high}
    return {**{name: round(value, 3) for name, value in values.items()}, "n": len(samples)}


def eager_times(work: Callable[[], None], samples: int) -> tuple[list[float], list[float]]:
    """Return the times between two events around ``work``, and wall times until it is done."""
    events, walls = [], []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - begin) * 1e6)
        events.append(start.elapsed_time(end) * 1e3)
    return events, walls


def stage_event_times(run: Callable[[Mark], None], samples: int) -> dict[str, dict[str, float]]:
    """Return the time between events at the borders of every stage, host gaps included."""
    by_stage: dict[str, list[float]] = {}
    for _ in range(samples):
        marks: list[tuple[str, torch.cuda.Event]] = []

        def mark(stage: str, marks: list = marks) -> None:
            marks.append((stage, torch.cuda.Event(enable_timing=True)))
            marks[-1][1].record()

        torch.cuda.synchronize()
        run(mark)
        mark("end")
        torch.cuda.synchronize()
        total: dict[str, float] = {}
        for (stage, start), (_, end) in zip(marks, marks[1:]):
            total[stage] = total.get(stage, 0.0) + start.elapsed_time(end) * 1e3
        for stage, value in total.items():
            by_stage.setdefault(stage, []).append(value)
    return {stage: summary(values) for stage, values in by_stage.items()}


# ---- kernel sums --------------------------------------------------------------------------------

Kernel = tuple[int, float, str]
"""Start in nanoseconds (a time of day: too long for a float), duration in microseconds, name."""
_MARKER = "spin_kernel"  # what torch.cuda._sleep launches


def warm_profiler() -> None:
    """Start the profiler once: its first session takes seconds."""
    kernel_times(lambda mark: mark("warm-up"), 1)


def kernel_times(run: Callable[[Mark], None], repeats: int) -> dict[str, Any]:
    """Return what the kernels of a run took, copies and fills included.

    Args:
        run: Calls the mark it is given at the start of every stage.
        repeats: Runs.

    Returns:
        ``total`` and ``stages``: summaries over the runs; ``launches``: kernels of one run.

    Raises:
        RuntimeError: If the profiler lost a marker.
    """
    names: list[str] = []

    def mark(stage: str) -> None:
        names.append(stage)
        torch.cuda._sleep(1)

    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            run(mark)
            mark("end")
        torch.cuda.synchronize()
    return sum_by_stage(_device_events(profile), names, repeats)


def sum_by_stage(kernels: Sequence[Kernel], names: Sequence[str], repeats: int) -> dict[str, Any]:
    """Add up kernels between markers; see :func:`kernel_times`."""
    kernels = sorted(kernels)
    markers = sum(_MARKER in name for _, _, name in kernels)
    if markers != len(names):
        raise RuntimeError(f"the profiler saw {markers} of {len(names)} markers")
    runs: list[dict[str, float]] = [{}]
    launches, stage, at = 0, "", -1
    for _, duration, name in kernels:
        if _MARKER in name:
            at += 1
            if stage == "end":
                runs.append({})
            stage = names[at]
            if stage != "end":
                runs[-1].setdefault(stage, 0.0)
        elif stage not in ("", "end"):
            runs[-1][stage] += duration
            launches += 1
    stages = {s: summary([r.get(s, 0.0) for r in runs]) for s in runs[0]}
    total = summary([sum(r.values()) for r in runs])
    return {"total": total, "stages": stages, "launches": round(launches / repeats)}


def _device_events(profile: torch.profiler.profile) -> list[Kernel]:
    """Return what ran on the GPU; the raw records where this torch offers them, for speed."""
    cuda = torch.autograd.DeviceType.CUDA
    raw = getattr(getattr(profile, "profiler", None), "kineto_results", None)
    if raw is not None:
        try:
            return [
                (e.start_ns(), e.duration_ns() / 1e3, e.name())
                for e in raw.events()
                if e.device_type() == cuda
            ]
        except AttributeError:
            pass  # another torch names them differently; the public list is the same, slower
    return [
        (round(e.time_range.start * 1e3), e.time_range.elapsed_us(), e.name)
        for e in profile.events()
        if e.device_type == cuda
    ]


# ---- the machine --------------------------------------------------------------------------------


def gpu_query(fields: Sequence[str]) -> list[str]:
    """Return what nvidia-smi says about the first GPU, empty texts where it says nothing."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return [""] * len(fields)
    values = [value.strip() for value in done.stdout.split("\n")[0].split(",")]
    return values if len(values) == len(fields) else [""] * len(fields)


def clocks(when: str) -> dict[str, str]:
    """Return clocks, temperature and power now; they are read, never set."""
    return {"when": when, **dict(zip(_CLOCKS.values(), gpu_query(list(_CLOCKS))))}


def machine(commit: str = "") -> dict[str, Any]:
    """Return what the numbers depend on.

    Args:
        commit: What was measured; by default that of the work tree that this package lies in.
    """
    on_gpu = torch.cuda.is_available()
    return {
        "suite": "sparse",
        "gpu": torch.cuda.get_device_name(0) if on_gpu else "",
        "driver": gpu_query(["driver_version"])[0] if on_gpu else "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
        "version": __version__,
        "commit": commit or work_tree_commit(),
    }


def work_tree_commit() -> str:
    """Return the commit of the work tree that tracks this file; empty for an installed package."""
    here = Path(__file__).resolve()
    for command in (["ls-files", "--error-unmatch", here.name], ["rev-parse", "--short", "HEAD"]):
        try:
            done = subprocess.run(
                ["git", "-C", str(here.parent), *command], capture_output=True, text=True
            )
        except OSError:
            return ""
        if done.returncode:
            return ""
    return done.stdout.strip()


def ceilings() -> dict[str, float]:
    """Return the copy bandwidth (bytes read plus written) and the rate of a large FP32 product."""
    size, items = 8192, 1 << 28
    product, copy = _product_us(size), _copy_us(items)
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "copy_tb_per_s": round(2 * 4 * items / copy / 1e6, 3),
        "fp32_tflop_per_s": round(2 * size**3 / product / 1e6, 2),
    }


def _product_us(size: int) -> float:
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return statistics.median(replay_times(captured(lambda: torch.mm(a, b, out=out)), 5, 1))


def _copy_us(items: int) -> float:
    source = torch.randn(items, device="cuda")
    target = torch.empty_like(source)
    return statistics.median(replay_times(captured(lambda: target.copy_(source)), 5, 4))


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write a report; readers see the old file or the new one, never a part.

    Raises:
        ConfigError: If the file cannot be written.
    """
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"The result '{path}' cannot be written: {error}.") from None
