"""Check, then time, the whole camera model: images on the host to layers and boxes there.

The images are those of a simulated rig, six of 1600 x 900 pixels, as decoded files leave them. Each
candidate is compared first: its network input with that of the reference on the CPU, byte for byte,
its layers with those of the reference in float32, and a pipeline that replays CUDA graphs with the
one that enqueues kernel by kernel, byte for byte. One that differs has no time.

``wall``, ``device``, ``stage`` and ``kernels`` are those of :mod:`driveRT_ros.bench.frame`.
``first``: the wall time of the first frame after warming up. ``moved``: that of a frame whose first
camera has another pose than in the frame before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from driveRT_ros.bench.frame import Samples, Table
from driveRT_ros.bench.reference import processor
from driveRT_ros.bench.timing import clocks, kernel_times, machine, summary, warm_profiler
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import CameraFrame, Detections
from driveRT_ros.models.lss_weights import CameraWeights
from driveRT_ros.sim.cameras import Cameras
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.rig import NAMES
from driveRT_ros.sim.world import World

PRECISIONS = ("fp32", "tf32", "fp16")
MEAN_ERROR = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 5e-3}
"""Greatest mean difference of a probability from the reference, by precision."""
_WARM_UPS, _RUNS, _PROFILED_RUNS = 3, 10, 10

Frames = Sequence[CameraFrame]


def simulated(config: CameraConfig, seed: int = 0) -> dict[str, Frames]:
    """Return sets of images by name: of all cameras, and without the first.

    Raises:
        ConfigError: If the simulator has none of these cameras.
    """
    names = [name for name in config.cameras if name in NAMES]
    if not names:
        raise ConfigError(
            f"The simulator has the cameras {', '.join(NAMES)}, none of "
            f"{', '.join(config.cameras)}."
        )
    asked = {"enabled": True, "jpeg_quality": 0, "names": names}
    drive = {"seed": seed, "num_sweeps": 1, "cameras": asked}
    frames = Cameras(World(SimConfig.from_dict(drive))).frames(0)
    found: dict[str, Frames] = {f"{len(frames)} cameras": frames}
    if len(frames) > 1:
        found["one missing"] = frames[1:]
    return found


class Candidate:
    """One pipeline through all sets of images.

    Args:
        name: Short name.
        pipeline: What runs.
    """

    def __init__(self, name: str, pipeline: CameraPipeline) -> None:
        self.name, self.pipeline = name, pipeline
        self.precision = pipeline.config.precision

    def check(self, frames: Frames, want: Detections, same: Detections | None) -> dict[str, Any]:
        """Warm up and compare; where something differs, ``absent`` says what.

        Args:
            frames: A set.
            want: What the reference makes of it.
            same: Whose bytes must come out; None for any.
        """
        found = [self.pipeline.process(frames, with_fingerprint=True) for _ in range(_WARM_UPS)]
        prints = [each.report.fingerprint for each in found]
        mean, most = _difference(found[-1], want)
        record = {
            "precision": self.precision,
            "mean_error": mean,
            "max_error": most,
            "boxes": len(found[-1]),
        }
        absent = ""
        if prints[-1]["images"] != want.report.fingerprint["images"]:
            absent = "the network input differs from that of the CPU"
        elif not mean <= MEAN_ERROR[self.precision]:
            absent = f"layers differ from the reference by {mean:.2e} in the mean"
        elif prints[0] != prints[-1]:
            absent = "the same images gave other bytes"
        elif same is not None and prints[-1] != same.report.fingerprint:
            absent = "other bytes than without graphs"
        elif self.pipeline.graph_note:
            absent = self.pipeline.graph_note
        return {**record, "absent": absent} if absent else record

    def process(self, frames: Frames) -> tuple[Detections, dict[str, float]]:
        """Return what is found, and milliseconds by stage."""
        found = self.pipeline.process(frames)
        return found, dict(found.report.stage_ms)


def _difference(got: Detections, want: Detections) -> tuple[float, float]:
    """Return mean and greatest difference of the layers; infinite where one alone is unknown."""
    errors = []
    for name, layer in want.bev.layers.items():
        other = got.bev.layers[name]
        both = np.isnan(layer) & np.isnan(other)
        errors.append(np.where(both, 0.0, np.nan_to_num(np.abs(layer - other), nan=np.inf)))
    return float(np.mean(errors)), float(np.max(errors))


def candidates(
    config: CameraConfig,
    weights: CameraWeights | None,
    precisions: Sequence[str],
    device: torch.device,
) -> list[Candidate]:
    """Return the pipelines of each precision: on CUDA one without graphs, then one with them.

    Raises:
        ConfigError: If a Plan cannot be used here: another one would be timed in its name.
    """
    found = []
    for precision in precisions:
        wanted = dataclasses.replace(config, precision=precision)
        for graph in (False, True) if device.type == "cuda" else (False,):
            pipeline = CameraPipeline(wanted, weights, device, graph=graph)
            if pipeline.plan_note:
                raise ConfigError(pipeline.plan_note)
            how = "graph" if graph else "eager" if device.type == "cuda" else "reference"
            found.append(Candidate(f"{how} {precision}", pipeline))
    return found


def measure(
    candidates: Sequence[Candidate],
    reference: CameraPipeline,
    sets: Mapping[str, Frames],
    *,
    rounds: int,
    commit: str = "",
    told: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Check all candidates on every set, time those that pass, in turns, and return the report.

    Args:
        candidates: In this order; one without graphs before the one with them.
        reference: On the CPU, in float32.
        sets: Images by name.
        rounds: Interleaved rounds.
        commit: See :func:`~driveRT_ros.bench.timing.machine`.
        told: Called after each set with its name.
    """
    cuda = candidates[0].pipeline.device.type == "cuda"
    report: dict[str, Any] = {
        **machine(commit),
        "suite": "camera",
        "device": "cuda" if cuda else "cpu",
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "weights": reference.weights.name,
        "protocol": {"rounds": rounds, "runs_a_round": _RUNS if cuda else 1},
        "clocks": [clocks("start")] if cuda else [],
        "sets": {},
    }
    first = {each.name: _first_frame_us(each, next(iter(sets.values()))) for each in candidates}
    for name, frames in sets.items():
        report["sets"][name] = _timed(candidates, reference, frames, rounds, cuda)
        for each, record in report["sets"][name]["candidates"].items():
            if "absent" not in record and each in first:
                record["first_us"] = first.pop(each)
        told(name)
    if cuda:  # last, as it may slow what comes after it
        warm_profiler()
        for name, frames in sets.items():
            for each in candidates:
                record = report["sets"][name]["candidates"][each.name]
                if "absent" not in record:
                    record.update(_profiled(each, frames))
        report["clocks"].append(clocks("end"))
    return report


def _timed(
    candidates: Sequence[Candidate],
    reference: CameraPipeline,
    frames: Frames,
    rounds: int,
    cuda: bool,
) -> dict[str, Any]:
    want = reference.process(frames, with_fingerprint=True)
    eager: dict[str, Detections] = {}
    records: dict[str, dict[str, Any]] = {}
    for each in candidates:
        records[each.name] = each.check(frames, want, eager.get(each.precision))
        eager.setdefault(each.precision, each.pipeline.process(frames, with_fingerprint=True))
    timed = [(c, Samples()) for c in candidates if "absent" not in records[c.name]]
    for turn in range(rounds):
        # There and back: what drifts during a round meets everyone alike.
        for each, samples in timed if turn % 2 == 0 else reversed(timed):
            for _ in range(_RUNS if cuda else 1):
                samples.add(lambda e=each: e.process(frames), cuda)
    for each, samples in timed:
        moved = _moved_us(each, frames, _RUNS if cuda else 2)
        records[each.name].update(samples.result(), moved_us=summary(moved))
    sizes = sorted({f"{f.size_wh[0]} x {f.size_wh[1]}" for f in frames})
    return {"images": len(frames), "sizes": sizes, "candidates": records}


def _first_frame_us(candidate: Candidate, frames: Frames) -> float:
    candidate.pipeline.warm_up()
    return _wall_us(candidate, frames)


def _moved_us(candidate: Candidate, frames: Frames, runs: int) -> list[float]:
    pose = np.array(frames[0].T_ego_camera)
    pose[2, 3] += 0.1
    raised = [dataclasses.replace(frames[0], T_ego_camera=pose), *frames[1:]]
    return [_wall_us(candidate, frames if run % 2 else raised) for run in range(runs)]


def _wall_us(candidate: Candidate, frames: Frames) -> float:
    begin = time.perf_counter()
    candidate.process(frames)
    return (time.perf_counter() - begin) * 1e6


def _profiled(candidate: Candidate, frames: Frames) -> dict[str, Any]:
    def run(mark: Callable[[str], None]) -> None:
        mark("frame")
        candidate.process(frames)

    try:
        times = kernel_times(run, _PROFILED_RUNS)
    except RuntimeError as error:
        return {"kernels_absent": str(error)}
    return {"kernels_us": {**times["total"], "launches": times["launches"]}}


def whole_table(report: Mapping[str, Any]) -> Table:
    """Return one line a set and candidate: times in milliseconds."""
    on_gpu = report["device"] == "cuda"
    head = ["images", "candidate", "mean error", "p50 ms", "p5", "p95", "first", "moved"]
    lines = [head + ["device", "kernels"] * on_gpu]
    for name, candidate, found in _records(report):
        if "absent" in found:
            lines.append([name, candidate, f"absent: {found['absent']}"])
            continue
        shown = [found["wall_us"][key] for key in ("median", "p5", "p95")]
        shown += [found.get("first_us"), found["moved_us"]["median"]]
        if on_gpu:
            shown += [found["device_us"]["median"], found.get("kernels_us", {}).get("median")]
        lines.append([name, candidate, f"{found['mean_error']:.1e}", *map(_ms, shown)])
    return lines


def stage_table(report: Mapping[str, Any]) -> Table:
    """Return one line a set and candidate: the stages, in milliseconds."""
    timed = [(*names, r["stage_us"]) for *names, r in _records(report) if "stage_us" in r]
    stages = dict.fromkeys(stage for *_, times in timed for stage in times)
    lines = [["images", "candidate", *stages]]
    for name, candidate, times in timed:
        medians = (times.get(stage, {}).get("median") for stage in stages)
        lines.append([name, candidate, *map(_ms, medians)])
    return lines


def _records(report: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, images in report["sets"].items():
        for candidate, found in images["candidates"].items():
            yield name, candidate, found


def _ms(value_us: float | None) -> str:
    return "" if value_us is None else f"{value_us / 1e3:,.2f}"
