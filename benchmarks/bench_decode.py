"""Check, then time, decoding, joining and encoding of clouds in every layout.

On the host (--device cpu): one cloud in every layout is decoded, from the buffers of rosbags and of
rclpy, joined without past sweeps into the rows that the detector takes, and encoded; then sweeps
are joined with none and with nine before them, each moved by the motion since.

On a GPU (--device cuda): the same joins, until the points lie there; and clouds of 694 KB and 6 MB
from the message to the points on the device, both ways: the host decodes into page-locked rows that
the device fetches, or the device fetches the bytes of the message and decodes them. Both give the
same bytes, or nothing is timed.

By default both, where there is a GPU. Prints a table, or JSON with --output; ends with 1 where the
host decodes a layout slower than the limit of 10 ms. Nothing is timed before it decodes to the
points that were written.
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import datetime
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from driveRT_ros.core.config import DensificationConfig  # noqa: E402
from driveRT_ros.core.errors import ConfigError  # noqa: E402
from driveRT_ros.core.frame import PointBatch  # noqa: E402
from driveRT_ros.core.raw_cloud import CountedRows  # noqa: E402
from driveRT_ros.core.rows import rows_for  # noqa: E402
from driveRT_ros.core.stages import device_named  # noqa: E402
from driveRT_ros.core.sweeps import SweepBuffer, sweeps_for  # noqa: E402
from driveRT_ros.io.encode import encode_pointcloud  # noqa: E402
from driveRT_ros.io.pointcloud import decode  # noqa: E402
from driveRT_ros.io.raw_pointcloud import read_raw  # noqa: E402
from driveRT_ros.io.typestore import message_type  # noqa: E402
from test.support.clouds import make_cloud, random_points, xyzi_cloud  # noqa: E402

LIMIT_MS = 10.0
KINDS = ("decode", "join", "encode", "to_device")


def layouts(points: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return one message of each kind; the buffer is numpy, as rosbags has it."""

    def col(name: str, code: str, offset: int) -> dict[str, tuple[np.ndarray, str, int]]:
        return {name: (points[name], code, offset)}

    xyz = col("x", "f4", 0) | col("y", "f4", 4) | col("z", "f4", 8)
    xyz64 = col("x", "f8", 0) | col("y", "f8", 8) | col("z", "f8", 16)
    holes = {k: v.copy() for k, v in points.items()}
    holes["x"][::4] = np.nan
    holes_xyz = {a: (holes[a], "f4", 4 * k) for k, a in enumerate("xyz")}
    tail = col("intensity", "f4", 16) | col("t", "u4", 20) | col("ring", "u2", 26)
    misaligned = xyz | col("intensity", "f4", 12) | col("ring", "u2", 16)
    clock = {"time_stamp": (1.5e9 + points["t"] * 1e-9, "f8", 27)}
    options: dict[str, Any] = {"container": "numpy"}
    return {
        "xyz only, step 12": make_cloud(xyz, 12, **options),
        "xyzi float32, step 16": xyzi_cloud(points, **options),
        "xyzi + ring float32, step 20": make_cloud(
            xyz | col("intensity", "f4", 12) | col("ring", "f4", 16), 20, **options
        ),
        "xyzi float32 big-endian": xyzi_cloud(points, big_endian=True, **options),
        "xyzirt, step 22": make_cloud(misaligned | col("t", "u4", 18), 22, **options),
        "xyz float64 + i uint8 + ring, step 27": make_cloud(
            xyz64 | col("intensity", "u1", 24) | col("ring", "u2", 25), 27, **options
        ),
        "misaligned float64 clock, step 35": make_cloud(misaligned | clock, 35, **options),
        "xyzi row padding, 100 rows": xyzi_cloud(points, height=100, row_padding=12, **options),
        "organized, 25 % NaN, time, ring, step 48": make_cloud(
            holes_xyz | tail, 48, height=100, is_dense=False, **options
        ),
    }


def best_of(repeats: int, work: Callable[[], Any]) -> dict[str, float]:
    """Return CPU and wall milliseconds; the least one is the one that nothing disturbed."""
    cpu, wall = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.thread_time()
        work()
        cpu.append((time.thread_time() - start_cpu) * 1e3)
        wall.append((time.perf_counter() - start) * 1e3)
    return {
        "min_ms": round(min(wall), 3),
        "median_ms": round(statistics.median(wall), 3),
        "min_cpu_ms": round(min(cpu), 3),
    }


def check(name: str, message: Any, points: dict[str, np.ndarray]) -> None:
    """Refuse to time a layout that decodes to other points."""
    expected = np.stack([points[a] for a in "xyz"], axis=1)
    if "NaN" in name:
        expected = np.delete(expected, np.s_[::4], axis=0)
    np.testing.assert_array_equal(decode(message).xyz, expected, name)


def join(batch: PointBatch, past: int, repeats: int, device: torch.device) -> dict[str, float]:
    """Time the join of a sweep at 20 Hz, from a vehicle that drives and turns.

    On a GPU, until the points lie there.
    """
    sweeps = sweeps_for(DensificationConfig(num_past_frames=past), device)
    rows = rows_for(device)(len(batch))
    rows[:, :3], rows[:, 3], rows[:, 4] = batch.xyz, batch.intensity, batch.time_lag_s
    views = {"xyz": rows[:, :3], "intensity": rows[:, 3], "time_lag_s": rows[:, 4], "rows": rows}
    batch = dataclasses.replace(batch, **views)
    frames = itertools.count()

    def push() -> None:
        k = next(frames)
        pose, yaw = np.eye(4), 0.01 * k
        pose[:2, :2] = [[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]]
        pose[0, 3] = 0.5 * k
        sweeps.push(dataclasses.replace(batch, stamp_ns=1 + 50_000_000 * k), pose)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(past):
        push()
    return best_of(repeats, push)


CLOUDS_MB = (0.694, 6.0)
"""Million bytes of a 32-beam sensor, and of a large one."""


def to_device(megabytes: float, repeats: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Time a message until its points lie on a GPU, decoded by the host and by the GPU.

    ``host_ms`` ends when the call returns and this thread is free; ``device_ms`` is between two
    events around it, so what the device waits for the host is in it.
    """
    points = random_points(round(megabytes * 1e6 / 22))
    fields = {n: (points[n], "f4", 4 * k) for k, n in enumerate(("x", "y", "z", "intensity"))}
    fields |= {"ring": (points["ring"], "u2", 16), "t": (points["t"], "u4", 18)}
    message = make_cloud(fields, 22, container="numpy")
    rules = DensificationConfig(num_past_frames=0)
    there, make_rows = sweeps_for(rules, device), rows_for(device)

    def by_host() -> torch.Tensor:
        return there.push(decode(message, make_rows=make_rows), None)

    def by_device() -> CountedRows:
        cloud = there.push_raw(read_raw(message), None)
        assert isinstance(cloud, CountedRows)
        return cloud

    want = decode(message).rows
    for found in (by_host(), by_device().exact(), by_device().exact()):
        np.testing.assert_array_equal(found.cpu().numpy().view(np.uint32), want.view(np.uint32))

    def finished(work: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            work()
            torch.cuda.synchronize(device)

        return run

    result = {}
    for name, work in (("decoded by the host", by_host), ("decoded by the GPU", by_device)):
        times = best_of(repeats, finished(work))
        enqueued, on_device = [], []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            begin = time.perf_counter()
            start.record()
            work()
            end.record()
            enqueued.append((time.perf_counter() - begin) * 1e3)
            end.synchronize()
            on_device.append(start.elapsed_time(end))
        times |= {
            "host_ms": round(statistics.median(enqueued), 3),
            "device_ms": round(statistics.median(on_device), 3),
        }
        result[f"{megabytes:g} MB, {len(want)} points, {name}"] = times
    return result


def machine() -> dict[str, str]:
    """Return what a number depends on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPO, capture_output=True, text=True
    )
    model = [
        x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")
    ]
    return {
        "cpu": model[0].split(":", 1)[1].strip() if model else platform.processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
    }


def on_host(points: dict[str, np.ndarray], repeats: int) -> dict[str, dict[str, Any]]:
    """Return times of decoding every layout, of joins and of encoding."""
    decoded: dict[str, dict[str, float]] = {}
    for name, message in layouts(points).items():
        check(name, message, points)
        decoded[f"{name} (rosbags)"] = best_of(repeats, lambda m=message: decode(m))
        alone = SweepBuffer(DensificationConfig(num_past_frames=0))
        decoded[f"{name} (rosbags), joined"] = best_of(
            repeats, lambda m=message, a=alone: a.push(decode(m), None)
        )
        message.data = array.array("B", message.data.tobytes())
        check(name, message, points)
        decoded[f"{name} (rclpy)"] = best_of(repeats, lambda m=message: decode(m))
    batch = batch_of(points)
    encode = best_of(repeats, lambda: encode_pointcloud(batch, message_type))
    joined = joins(batch, repeats, torch.device("cpu"))
    return {"decode": decoded, "join": joined, "encode": {"xyzi (rosbags)": encode}}


def on_gpu(
    points: dict[str, np.ndarray], repeats: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Return times of joins, and of clouds from the message to the points on a GPU."""
    there = {}
    for megabytes in CLOUDS_MB:
        there |= to_device(megabytes, repeats, device)
    return {"join": joins(batch_of(points), repeats, device), "to_device": there}


def batch_of(points: dict[str, np.ndarray]) -> PointBatch:
    """Return points as decoding gives them."""
    return PointBatch(
        xyz=np.stack([points[a] for a in "xyz"], axis=1),
        intensity=points["intensity"],
        time_lag_s=np.zeros(len(points["x"]), np.float32),
        ring=None,
        stamp_ns=1,
        frame_id="lidar",
    )


def joins(batch: PointBatch, repeats: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Return times of joins with none and with nine past sweeps."""
    return {
        f"{past} past sweeps, {device.type}": join(batch, past, repeats, device) for past in (0, 9)
    }


def main() -> int:
    """Run the benchmark; exit 1 if the host decodes a layout slower than the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="auto",
        help="cpu, cuda or cuda:N for one part alone; default: auto, all that this machine can",
    )  # fmt: skip
    parser.add_argument("--points", type=int, default=300_000, help="points a cloud")
    parser.add_argument("--repeats", type=int, default=50, help="runs of each kind")
    parser.add_argument("--output", type=Path, help="write JSON here")
    args = parser.parse_args()
    try:
        device = device_named(args.device)
    except ConfigError as error:
        parser.error(str(error))
    points = random_points(args.points)
    result: dict[str, Any] = {"machine": machine(), "points": args.points}
    result |= dict.fromkeys(KINDS, {})
    if args.device == "auto" or device.type == "cpu":
        result |= on_host(points, args.repeats)
    if device.type == "cuda":
        result["machine"]["gpu"] = torch.cuda.get_device_name(device)
        for kind, times in on_gpu(points, args.repeats, device).items():
            result[kind] = {**result[kind], **times}
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    for kind in KINDS:
        for name, times in result[kind].items():
            line = "  ".join(f"{key} {value:6.2f}" for key, value in times.items())
            print(f"{kind} {name:52} {line}")
    slowest = max((times["min_cpu_ms"] for times in result["decode"].values()), default=0.0)
    return int(slowest > LIMIT_MS)


if __name__ == "__main__":
    raise SystemExit(main())
