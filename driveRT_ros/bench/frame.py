"""Check, then time, the whole LiDAR detector: from its input to detections on the host.

The input is the points of a frame, or a PointCloud2 whose bytes hold the same points and are
decoded first: by the GPU for this package's detector there, else by the host. Every detector is
compared before it is timed with a float64 run of the same network on the same voxels, which are
made in float32: a point on the edge of a cell has one cell. A detector that finds other boxes has
no time.

``wall``: one call until the detections are on the host. ``device``: between two events around the
call, gaps of the host included. ``stage``: from the report of the detector. ``kernels``: the sum of
what ran on the GPU, from the profiler.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from driveRT_ros import __version__
from driveRT_ros.bench.frames import Frame
from driveRT_ros.bench.networks import TorchNetwork
from driveRT_ros.bench.peer_detector import PeerDetector
from driveRT_ros.bench.reference import processor
from driveRT_ros.bench.same_boxes import BoxCheck, compare_boxes
from driveRT_ros.bench.timing import clocks, kernel_times, machine, summary, warm_profiler
from driveRT_ros.core.config import DensificationConfig, LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import Detections, PointBatch
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import CountedRows
from driveRT_ros.core.rows import RowMaker, plain_rows, rows_for
from driveRT_ros.core.sweeps import SweepBuffer, sweeps_for
from driveRT_ros.io.encode import encode_pointcloud
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.raw_pointcloud import read_raw
from driveRT_ros.io.typestore import message_type
from driveRT_ros.models.checkpoint import load_weights
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.models.weights import VoxelNeXtWeights

POINTS, MESSAGE = "points", "message"
_WARM_UPS = {"cuda": 3, "cpu": 1}
_RUNS = {"cuda": 10, "cpu": 1}  # of each detector and input in a round
_PROFILED_RUNS = 10


class Detector(Protocol):
    """Whatever turns points into boxes."""

    def process(self, points: torch.Tensor) -> Detections:
        """Detect objects in (N, 5) points on the CPU; the result lies there too."""


# ---- the input ----------------------------------------------------------------------------------


class FrameInput:
    """One frame as points and as a message.

    Args:
        frame: The points.
        config: How clouds are decoded.
        make_rows: Makes the memory that they are decoded into.

    Raises:
        ConfigError: If the message does not give the points back.
    """

    def __init__(self, frame: Frame, config: LidarConfig, make_rows: RowMaker = plain_rows) -> None:
        self.points, self._config, self._make_rows = frame.points, config, make_rows
        xyz, rest = frame.points[:, :3].numpy(), frame.points[:, 3:].numpy()
        batch = PointBatch(xyz, rest[:, 0], rest[:, 1], None, 1_000_000_000, "lidar")
        self.message = encode_pointcloud(batch, message_type)
        decoded = self.decoded()
        if not torch.equal(decoded, self.points):
            raise ConfigError(
                f"Frame {frame.name} has {len(self.points)} points, its message gives "
                f"{len(decoded)} or others back; its values do not fit parameter group 'input'."
            )

    def decoded(self) -> torch.Tensor:
        """Return the points in the message as the node takes them from it."""
        cloud = decode(self.message, config=self._config.input, make_rows=self._make_rows)
        return SweepBuffer(self._config.densification_params).push(cloud, None)

    def detect(self, detector: Detector, kind: str) -> tuple[Detections, dict[str, float]]:
        """Run a detector on one form of the input; return detections and milliseconds by stage."""
        if kind == POINTS:
            found = detector.process(self.points)
            return found, dict(found.report.stage_ms)
        begin = time.perf_counter()
        points = self._unpacked(detector) or self.decoded()
        decode_ms = (time.perf_counter() - begin) * 1e3
        found = detector.process(points)
        return found, {"decode": decode_ms, **found.report.stage_ms}

    def _unpacked(self, detector: Detector) -> CountedRows | None:
        """Return the points in the message on their way, where the node leaves them to the GPU."""
        if not isinstance(detector, LidarPipeline) or detector.device.type != "cuda":
            return None
        raw = read_raw(self.message, self._config.input, self._make_rows)
        cloud = _input_of(detector.device).push_raw(raw, None)
        return cloud if isinstance(cloud, CountedRows) else None


@functools.cache
def _input_of(device: torch.device) -> SweepBuffer:
    return sweeps_for(DensificationConfig(num_past_frames=0), device)


# ---- the candidates -----------------------------------------------------------------------------


class Samples:
    """Times of one detector on one form of the input, in microseconds."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.events: list[float] = []
        self.stages: dict[str, list[float]] = {}

    def add(self, detect: Callable[[], tuple[Detections, dict[str, float]]], cuda: bool) -> None:
        """Run once and keep the times."""
        if cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
        begin = time.perf_counter()
        _, stage_ms = detect()
        self.walls.append((time.perf_counter() - begin) * 1e6)
        if cuda:
            end.record()
            end.synchronize()
            self.events.append(start.elapsed_time(end) * 1e3)
        for stage, value in stage_ms.items():
            self.stages.setdefault(stage, []).append(value * 1e3)

    def result(self) -> dict[str, Any]:
        """Return summaries."""
        found: dict[str, Any] = {"wall_us": summary(self.walls)}
        if self.events:
            found["device_us"] = summary(self.events)
        return {**found, "stage_us": {s: summary(v) for s, v in self.stages.items()}}


class Candidate:
    """One detector through all frames.

    Args:
        name: Short name.
        precision: Of its sparse network.
        make: Builds it; called when first needed.
        peer: Whether it may be absent: whatever a peer does, the others are measured.
    """

    def __init__(
        self, name: str, precision: str, make: Callable[[], Detector], *, peer: bool = False
    ) -> None:
        self.name, self.precision, self._make, self._peer = name, precision, make, peer
        self.detector: Detector | None = None
        self.absent, self._check = "", BoxCheck()
        self.samples: dict[str, Samples] = {}

    def prepare(self, given: FrameInput, want: Detections, config: LidarConfig, runs: int) -> bool:
        """Warm up on a frame and check the boxes; where they differ, ``absent`` says how."""
        self._check, self.samples = BoxCheck(), {POINTS: Samples(), MESSAGE: Samples()}
        try:
            self.detector = self.detector or self._make()
            found = [given.detect(self.detector, kind)[0] for kind in self.samples]
            found += [given.detect(self.detector, POINTS)[0] for _ in range(runs - 1)]
        except Exception as error:
            if not self._peer:
                raise
            self.absent = f"{type(error).__name__}: {str(error).strip()[:300]}"
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # a context that a fault has spoilt ends the run here
            return False
        checks = [compare_boxes(each, want, config, self.precision) for each in found]
        self._check = checks[-1]
        self.absent = next((text for c in checks if (text := c.fault(self.precision))), "")
        if found[-1].report.overflow:
            self.absent = f"capacities exceeded: {dict(found[-1].report.overflow)}"
        return not self.absent

    def result(self) -> dict[str, Any]:
        """Return how the boxes compare, and the times."""
        found = {"precision": self.precision, "boxes": dataclasses.asdict(self._check)}
        if self.absent:
            return {**found, "absent": self.absent}
        found["version"] = getattr(self.detector, "version", __version__)
        return {**found, **{kind: samples.result() for kind, samples in self.samples.items()}}


def weights_of(config: LidarConfig) -> VoxelNeXtWeights:
    """Return the weights of ``checkpoint_path``, or seeded untrained ones."""
    if config.checkpoint_path:
        layout = config.checkpoint_layout
        return load_weights(config.checkpoint_path, config, layout=layout)
    return untrained_weights(config.model, config.seed)


def ours(
    config: LidarConfig, weights: VoxelNeXtWeights, plans: Sequence[tuple[str, Path | None]],
    device: torch.device,
) -> list[Candidate]:  # fmt: skip
    """Return this package's detector under each precision and Plan; None is the default Plan.

    Raises:
        ConfigError: If a Plan cannot be used here: another one would be timed in its name.
    """
    found = []
    for precision, path in plans:
        wanted = {"precision": precision, "plan_path": str(path or "")}
        pipeline = LidarPipeline(dataclasses.replace(config, **wanted), weights, device)
        if pipeline.plan_note:
            raise ConfigError(pipeline.plan_note)
        name = f"ours {precision}" + (f" ({path.stem})" if path else "")
        found.append(Candidate(name, precision, lambda pipeline=pipeline: pipeline))
    return found


# ---- the measuring ------------------------------------------------------------------------------


class FrameBench:
    """The candidates and the report that grows with every frame.

    Args:
        config: Grid, channels and post-processing.
        weights: Of every candidate.
        candidates: In this order.
        device: Where they run.
        rounds: Interleaved rounds.
        commit: See :func:`~driveRT_ros.bench.timing.machine`.
    """

    def __init__(
        self,
        config: LidarConfig,
        weights: VoxelNeXtWeights,
        candidates: Sequence[Candidate],
        device: torch.device,
        rounds: int,
        commit: str = "",
    ) -> None:
        self._config, self._candidates, self._rounds = config, candidates, rounds
        self._cuda, self._make_rows = device.type == "cuda", rows_for(device)
        exact = weights.to(device, torch.float64)
        self._oracle = PeerDetector(lambda: TorchNetwork(config, exact), config, exact)
        self.report: dict[str, Any] = {
            **machine(commit),
            "suite": "frame",
            "device": device.type,
            "cpu": processor(),
            "threads": torch.get_num_threads(),
            "weights": weights.name,
            "protocol": {"rounds": rounds, "runs_a_round": _RUNS[device.type]},
            "clocks": [clocks("start")] if self._cuda else [],
            "frames": {},
        }

    def time_frame(self, frame: Frame) -> None:
        """Check all candidates on one frame and time those that pass, in turns.

        Raises:
            ConfigError: If the frame has other rows than its table says.
        """
        given = FrameInput(frame, self._config, self._make_rows)
        want = self._oracle.process(given.points)
        rows = want.report.voxels_per_level
        if frame.rows and rows != frame.rows:
            raise ConfigError(
                f"Frame {frame.name} has rows {list(rows)}, the table says {list(frame.rows)}."
            )
        device = "cuda" if self._cuda else "cpu"
        warm_ups = _WARM_UPS[device]
        timed = [c for c in self._candidates if c.prepare(given, want, self._config, warm_ups)]
        for turn in range(self._rounds):
            # There and back: what drifts during a round meets everyone alike.
            for each in timed if turn % 2 == 0 else reversed(timed):
                for kind, samples in each.samples.items():
                    for _ in range(_RUNS[device]):
                        samples.add(lambda e=each, k=kind: given.detect(e.detector, k), self._cuda)
        if self._cuda:
            self.report["clocks"].append(clocks(f"frame {frame.name}"))
        self.report["frames"][frame.name] = {
            "source": frame.source,
            "points": len(frame.points),
            "message_bytes": len(given.message.data),
            "rows": list(rows),
            "boxes": len(want),
            "candidates": {each.name: each.result() for each in self._candidates},
        }

    def profile_frame(self, frame: Frame) -> None:
        """Add kernel sums; the profiler may slow what runs after it, so this comes last."""
        given = FrameInput(frame, self._config, self._make_rows)
        found = self.report["frames"][frame.name]
        for each in self._candidates:
            record = found["candidates"][each.name]
            if "absent" in record:
                continue

            def run(mark: Callable[[str], None], detector: Any = each.detector) -> None:
                mark("frame")
                given.detect(detector, POINTS)

            try:
                times = kernel_times(run, _PROFILED_RUNS)
                record["kernels_us"] = {**times["total"], "launches": times["launches"]}
            except RuntimeError as error:
                record["kernels_absent"] = str(error)


def measure(
    bench: FrameBench,
    frames: Sequence[Frame],
    *,
    profile: bool,
    told: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Time every frame and return the report.

    Args:
        bench: The candidates.
        frames: In this order.
        profile: Add kernel sums; needs a GPU.
        told: Called after each frame with its name.
    """
    for frame in frames:
        bench.time_frame(frame)
        told(f"frame {frame.name}")
    if profile:
        warm_profiler()
        for frame in frames:
            bench.profile_frame(frame)
            told(f"profile of frame {frame.name}")
        bench.report["clocks"].append(clocks("end"))
    return bench.report


Table = list[list[str]]
"""Cells by line; the first line is the head."""


def whole_table(report: Mapping[str, Any]) -> Table:
    """Return one line a frame, detector and input: boxes, then times in milliseconds."""
    on_gpu = report["device"] == "cuda"
    head = ["frame", "detector", "from", "boxes", "p50 ms", "p5", "p95"]
    lines = [head + ["device", "kernels"] * on_gpu]
    for name, candidate, found in _records(report):
        if "absent" in found:
            lines.append([name, candidate, f"absent: {found['absent']}"])
            continue
        boxes = f"{found['boxes']['matched']}/{found['boxes']['wanted']}"
        for kind in (POINTS, MESSAGE):
            times = found[kind]
            shown = [times["wall_us"][key] for key in ("median", "p5", "p95")]
            if on_gpu:
                kernels = found.get("kernels_us", {}) if kind == POINTS else {}
                shown += [times["device_us"]["median"], kernels.get("median")]
            lines.append([name, candidate, kind, boxes, *map(_ms, shown)])
    return lines


def stage_table(report: Mapping[str, Any]) -> Table:
    """Return one line a frame and detector: the stages from the message on, in milliseconds."""
    timed = [(*names, r[MESSAGE]["stage_us"]) for *names, r in _records(report) if MESSAGE in r]
    stages = dict.fromkeys(stage for *_, times in timed for stage in times)
    lines = [["frame", "detector", *stages]]
    for name, candidate, times in timed:
        medians = (times.get(stage, {}).get("median") for stage in stages)
        lines.append([name, candidate, *map(_ms, medians)])
    return lines


def _records(report: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, frame in report["frames"].items():
        for candidate, found in frame["candidates"].items():
            yield name, candidate, found


def _ms(value_us: float | None) -> str:
    return "" if value_us is None else f"{value_us / 1e3:,.2f}"
