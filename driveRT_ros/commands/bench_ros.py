"""``drivert bench ros``: the node from outside, from the publishing of a cloud to detections.

Both ends of a latency are read from the steady clock of one process, the probe: just before it
publishes a serialized cloud, and in the callback that gets the serialized detections. Every cloud
that is answered counts; the warm-ups before them do not. Neither process is pinned to a CPU, and
whatever the probe itself needs to hear an answer is part of the latency.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from driveRT_ros.commands.bench_options import plans
from driveRT_ros.commands.common import (
    LIDAR_NODE,
    console,
    progress,
    require_ros,
    write_parameter_file,
)
from driveRT_ros.commands.supervised import supervised
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.nodes.process_env import node_command, node_environment
from driveRT_ros.nodes.processes import NodeProcess, ProcessFailed, Supervisor
from driveRT_ros.nodes.transport import transport_name

if TYPE_CHECKING:
    from driveRT_ros.bench.sensor import SensorClouds
    from driveRT_ros.core.config import LidarConfig

PROBE = "probe_node"
DEFAULT_MB, DEFAULT_HZ, DEFAULT_S = "0.694,6", "10,20", 20.0
READY_S = 300.0
SWEEPS = 5
"""Distinct clouds that are published in turns."""
WARM_UPS = 3
"""Clouds whose answers are waited for, one by one, before anything is measured."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report: one case a size and rate, each with a node of its own.

    Raises:
        ConfigError: If an option cannot be used here.
        DeviceError: If there is no GPU to measure on.
        ProcessFailed: If a process fails.
    """
    require_ros()
    import torch

    from driveRT_ros.bench.reference import processor
    from driveRT_ros.bench.sensor import sensor_clouds
    from driveRT_ros.bench.timing import machine

    sizes = _numbers("sizes", "million bytes", args.sizes or DEFAULT_MB, 0.01, 40.0)
    rates = _numbers("rates", "clouds a second", args.rates or DEFAULT_HZ, 0.1, 1000.0)
    seconds = DEFAULT_S if args.duration is None else args.duration
    if not 0.5 <= seconds <= 86_400:
        raise ConfigError(f"Option --duration takes 0.5 to 86400 seconds, got {seconds:g}.")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to measure on; "
            "'drivert bench ros --device cpu' times the node on the CPU."
        )
    config = _config(args)
    report: dict[str, Any] = {
        **machine(),
        "suite": "ros",
        "device": args.device,
        "cpu": processor(),
        "precision": config.precision,
        "past_sweeps": config.densification_params.num_past_frames,
        "transports": transport_name(node_environment()),
        "reliability": config.input.reliability,
        "queue_depth": config.input.queue_depth,
        "warm_ups": WARM_UPS,
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cases": [],
    }
    with tempfile.TemporaryDirectory(prefix="drivert-bench-") as folder, progress() as bar:
        task = bar.add_task("simulate", total=None)
        for size in sizes:
            clouds = sensor_clouds(size, SWEEPS)
            for rate in rates:
                bar.reset(task, total=round(rate * seconds))
                bar.update(task, description=f"{size:g} MB at {rate:g} Hz")
                case = Case(clouds, rate, seconds, config, Path(folder) / f"{size:g}-{rate:g}")
                found = case.run(lambda done: bar.update(task, completed=done))
                report["cases"].append(found)
    return report


def _numbers(option: str, unit: str, text: str, low: float, high: float) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(low <= number <= high for number in numbers):
        raise ConfigError(
            f"Option --{option} takes {unit} from {low:g} to {high:g} by comma, got '{text}'."
        )
    return numbers


def _config(args: argparse.Namespace) -> LidarConfig:
    """Return what the node takes: a parameter file as it is, else defaults without past sweeps."""
    from driveRT_ros.core.config import LidarConfig

    if args.config:
        config = LidarConfig.from_yaml(args.config)
    else:
        config = LidarConfig.from_dict({"densification_params.num_past_frames": 0})
    changes: dict[str, Any] = {"device": args.device}
    if args.precision or args.plan:
        precision, path = plans(args)[-1]
        changes |= {"precision": precision, "plan_path": str(path.resolve()) if path else ""}
    return dataclasses.replace(config, **changes)


@dataclasses.dataclass(frozen=True)
class Case:
    """One size of clouds at one rate, through a node that is started for it.

    Args:
        clouds: What is published.
        rate_hz: Clouds a second.
        seconds: For how long.
        config: What the node takes.
        folder: For clouds, logs and result; made here.
    """

    clouds: SensorClouds
    rate_hz: float
    seconds: float
    config: LidarConfig
    folder: Path

    def run(self, told: Callable[[int], object]) -> dict[str, Any]:
        """Return sizes, counts and percentiles.

        Args:
            told: Called with the clouds published so far.
        """
        self.folder.mkdir()
        for number, raw in enumerate(self.clouds.raw):
            (self.folder / f"{number:02}.cdr").write_bytes(raw)
        count = max(1, round(self.rate_hz * self.seconds))
        # What the node says is about the whole case; where it drops clouds, also about warm-ups.
        limits = dataclasses.replace(self.config.diagnostics, latency_window=min(count, 100_000))
        config = dataclasses.replace(self.config, diagnostics=limits)
        result = self.folder / "result.json"
        with supervised(self.folder) as supervisor:
            params_file = write_parameter_file(config, self.folder / "lidar_node.yaml")
            argv = node_command("lidar_node", params_file=params_file)
            node = supervisor.start(LIDAR_NODE, argv)
            supervisor.wait_for_line(node, "Active", READY_S)
            self._check_plan(node)
            probe = supervisor.start(PROBE, node_command(PROBE, params=self._probe(count, result)))
            _follow(supervisor, probe, told)
        try:
            found = json.loads(result.read_text(encoding="utf-8"))
        except OSError:
            raise ProcessFailed(f"The probe left no result:\n{probe.last_lines()}") from None
        return {
            "weights": _weights(node),
            "data_bytes": self.clouds.data_bytes,
            "points": self.clouds.points,
            "rate_hz": self.rate_hz,
            "seconds": self.seconds,
            **found,
        }

    def _probe(self, count: int, result: Path) -> dict[str, object]:
        return {
            "clouds_path": str(self.folder),
            "node": LIDAR_NODE,
            "rate_hz": float(self.rate_hz),
            "clouds": count,
            "warm_ups": WARM_UPS,
            "frame_id": self.clouds.frame_id,
            "world_frame_id": self.config.densification_params.world_frame_id,
            "output_path": str(result),
        }

    def _check_plan(self, node: NodeProcess) -> None:
        """Raise where the node took another Plan than the one that is to be timed."""
        for line in node.log().splitlines():
            if self.config.plan_path and f"Plan '{self.config.plan_path}'" in line:
                raise ConfigError(line.rpartition("]: ")[2])


def _weights(node: NodeProcess) -> str:
    """Return the name of what the node says that it runs."""
    from driveRT_ros.models.stored import name_of

    found = re.search(r"Configured in .*weights '([^']*)'", node.log())
    return name_of(found[1]) if found else ""


def _follow(supervisor: Supervisor, probe: NodeProcess, told: Callable[[int], object]) -> None:
    """Tell how far the probe is until it ends."""
    while probe.popen.poll() is None:
        supervisor.check()
        for line in reversed(probe.log().splitlines()):
            words = line.rpartition("]: ")[2].split()
            if words[1:2] == ["of"] and words[0].isdigit():
                told(int(words[0]))
                break
        time.sleep(0.2)
    supervisor.check()


def show(report: dict[str, Any]) -> None:
    """Print one line a size and rate, then what the node itself says of its frames."""
    machine = report["gpu"] if report["device"] == "cuda" else report["cpu"]
    console.print(
        f"{machine}, {report['precision']}, {report['past_sweeps']} past sweeps, "
        f"{report['transports']}, {report['date']}; weights: {report['cases'][0]['weights']}"
    )
    head = ("MB", "Hz", "sent", "answered", "dropped", "lost", "p50 ms", "p95", "p99", "max")
    shown = Table(*head, "node p50", "p99", box=None, padding=(0, 1, 0, 0))
    for case in report["cases"]:
        counts = [str(case[name]) for name in ("sent", "answered", "dropped", "lost")]
        times = [case["latency_ms"][name] for name in ("p50", "p95", "p99", "max")]
        times += [case["node"].get(name) for name in ("p50", "p99")]
        size, rate = f"{case['data_bytes'] / 1e6:.3f}", f"{case['rate_hz']:g}"
        shown.add_row(size, rate, *counts, *map(_ms, times))
    console.print(shown)
    console.print(
        "p50 ms: from publishing a cloud until its detections are in the other process; node: what "
        "it takes by itself. dropped: named by the node; lost: neither answered nor named. "
        f"{report['warm_ups']} clouds before each case do not count."
    )
    late = [case for case in report["cases"] if case["behind_s"] > 0.05 * case["seconds"]]
    for case in late:
        console.print(
            f"The sender fell {case['behind_s']:.1f} s behind at {case['data_bytes'] / 1e6:.3f} MB "
            f"and {case['rate_hz']:g} Hz; this machine does not publish so much."
        )


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
