"""What is compared: this engine, eager peers, and cuBLAS on equal work."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from driveRT_ros.bench.networks import (
    BEV,
    MAPS,
    MAPS_AND_VOXELS,
    PEER_TOLERANCE,
    VOXELS,
    Network,
    Rows,
    errors,
    failure,
    stages_of,
)
from driveRT_ros.bench.timing import (
    Mark,
    eager_times,
    kernel_times,
    stage_event_times,
    summary,
    unmarked,
)
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.domains import BEV_DILATED, BEV_UNION
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.tuner_device import TOLERANCE
from driveRT_ros.models.graph import LayerSpec


def in_turn(*steps: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that takes the steps one after the other."""

    def work() -> None:
        for step in steps:
            step()

    return work


class EagerSamples:
    """Event and wall times of runs launched one by one."""

    def __init__(self) -> None:
        self.events: list[float] = []
        self.walls: list[float] = []

    def add(self, work: Callable[[], None], samples: int) -> None:
        """Run ``work`` and keep its times."""
        events, walls = eager_times(work, samples)
        self.events += events
        self.walls += walls

    def result(self) -> dict[str, Any]:
        """Return summaries."""
        return {"eager_us": summary(self.events), "wall_us": summary(self.walls)}


def profiled(run: Callable[[Mark], None], repeats: int) -> dict[str, Any]:
    """Return kernel sums, or why there are none."""
    try:
        return {"kernels_us": kernel_times(run, repeats)}
    except RuntimeError as error:
        return {"kernels_absent": str(error)}


class Peer:
    """One eager implementation through all frames, with what was measured.

    Args:
        name: Short name.
        precision: Key of :data:`PEER_TOLERANCE`.
        make: Builds the network; called when first needed, so that a missing package is a result.
        fallback: Options of ``make`` for a second attempt, by the note that explains them.
    """

    def __init__(
        self,
        name: str,
        precision: str,
        make: Callable[..., Network],
        fallback: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.name, self.precision, self.note, self.absent = name, precision, "", ""
        self._make, self._fallback = make, dict(fallback or {})
        self._network: Network | None = None
        self._ready_s = 0.0  # import, build, tune and three runs, the first time

    def prepare(self, voxels: Rows, want: Mapping[str, Rows]) -> bool:
        """Warm up on a frame and check it; where it fails, ``absent`` says why."""
        self.absent, self._samples, self._error = "", EagerSamples(), {}
        try:
            self._warm(voxels)
            self._error = errors(self._network.outputs(), want)
            self.absent = failure(self._error, PEER_TOLERANCE[self.precision])
        except Exception as error:  # whatever a peer does, the others are measured
            self.absent = f"{type(error).__name__}: {str(error).strip()[:300]}"
            torch.cuda.synchronize()  # a context that a fault has spoilt ends the run here
        return not self.absent

    def _warm(self, voxels: Rows) -> None:
        begin = time.perf_counter()
        try:
            self._network = self._network or self._make()
            self._run_thrice(voxels)
        except Exception:
            if not self._fallback:
                raise
            self.note, options = self._fallback.popitem()
            self._network = self._make(**options)
            self._run_thrice(voxels)
        self._ready_s = self._ready_s or time.perf_counter() - begin

    def _run_thrice(self, voxels: Rows) -> None:
        self._network.load(voxels)
        for _ in range(3):
            self._network.run()
        torch.cuda.synchronize()

    def sample(self, runs: int) -> None:
        """Add timed runs."""
        self._samples.add(self._network.run, runs)

    def result(self) -> dict[str, Any]:
        """Return errors and times of the frame."""
        if self.absent:
            return {"precision": self.precision, "absent": self.absent, "error": self._error}
        version, note = self._network.version, self.note
        found = {"precision": self.precision, "version": version, "error": self._error}
        found |= {"note": note, "ready_s": round(self._ready_s, 2)}
        return {**found, **self._samples.result()}

    def profile(self, voxels: Rows, repeats: int) -> dict[str, Any]:
        """Return event times by stage and kernel sums; after all other timing of the process."""
        self._network.load(voxels)
        events = stage_event_times(self._network.run, repeats)
        return {"stage_events_us": events, **profiled(self._network.run, repeats)}


# ---- this engine --------------------------------------------------------------------------------


class Ours:
    """The sparse engine under one Plan; its graphs are captured once and serve every frame."""

    def __init__(
        self,
        name: str,
        precision: str,
        config: LidarConfig,
        tensors: Mapping[str, torch.Tensor],
        plan: Plan | None = None,
    ) -> None:
        self.name, self.precision = name, precision
        device = next(iter(tensors.values())).device
        capability = torch.cuda.get_device_capability(device)
        plan = plan or default_plan(config.model.channels, capability, precision)
        self.backbone = SparseBackbone(config, tensors, device, plan)
        self._stages = stages_of(self.backbone.graph)
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self.absent = ""

    def prepare(self, points: torch.Tensor, want: Mapping[str, Rows]) -> bool:
        """Run a cloud on the device once over poisoned rows and check it; ``absent`` says a fault.

        Args:
            points: (N, 5) on the device.
            want: Result of the oracle.
        """
        self._points, self._eager, self._samples = points, EagerSamples(), {}
        for stage in want:
            self.backbone.output(self._last_layer(stage)).fill_(torch.nan)
        try:
            self.backbone.compute(points)
        except InvalidFrame as overflow:
            self._error, self.absent = {}, str(overflow)
            return False
        self._error = errors(self.outputs(), want)
        self.absent = failure(self._error, TOLERANCE[self.precision])
        return not self.absent

    def sample(self, samples: int, replays: int) -> None:
        """Add replay times of every graph, and eager runs from points on the device."""
        for region, graph in self.graphs().items():
            times = replay_times(graph, samples, replays)
            self._samples.setdefault(region, []).extend(times)
        self._eager.add(functools.partial(self.backbone.enqueue, self._points), samples)

    def result(self) -> dict[str, Any]:
        """Return errors, times and work of the frame."""
        if self.absent:
            return {"precision": self.precision, "absent": self.absent, "error": self._error}
        times = {region: summary(values) for region, values in self._samples.items()}
        both, maps = times[MAPS_AND_VOXELS]["median"], times[MAPS]["median"]
        return {
            "precision": self.precision,
            "error": self._error,
            "graph_us": times,
            "voxel_features_us": round(both - maps, 3),
            **self._eager.result(),
            **self.work(),
        }

    def profile(self, points: torch.Tensor, repeats: int) -> dict[str, Any]:
        """Return kernel sums of eager runs."""
        self.backbone.maps.load(points)
        return profiled(self.run, repeats)

    def _last_layer(self, stage: str) -> str:
        return BEV if stage == BEV else self._stages[stage][-1].name

    def run(self, mark: Mark = unmarked) -> None:
        """See :class:`Network`."""
        maps = self.backbone.maps
        mark(MAPS)
        maps.arena.clear()
        for launch in maps.map_launches:
            launch()
        mark(VOXELS)
        for launch in maps.voxel_launches:
            launch()
        for stage, launches in self.backbone.stages.items():
            mark(stage)
            for launch in launches:
                launch()

    def outputs(self) -> dict[str, Rows]:
        """See :class:`Network`."""
        found = {BEV: self._level_rows(BEV, BEV_UNION)}
        for stage, layers in self._stages.items():
            found[stage] = self._level_rows(layers[-1].name, self._level_of(layers[-1]))
        return found

    def _level_of(self, layer: LayerSpec) -> int:
        levels = self.backbone.graph.levels
        return next((n for n, of in enumerate(levels) if layer in of), BEV_DILATED)

    def _level_rows(self, layer: str, number: int) -> Rows:
        level = self.backbone.maps.levels[number]
        rows = min(int(level.counts[1]), level.shape.row_capacity)
        return self.backbone.output(layer)[:rows], level.coords_zyx[:rows]

    def graphs(self) -> dict[str, torch.cuda.CUDAGraph]:
        """Return the graph of the frame, of the maps, of maps and voxels, and of every stage.

        They are captured once: counts are read on the device, so a graph fits any frame.
        A stage needs its tile counters at zero: its graph clears them first, a cost of about a
        microsecond that the frame does not have.
        """
        if not self._graphs:
            maps = self.backbone.maps

            clear, reset = maps.arena.clear, self.backbone.reset_tickets
            work = {
                "frame": self.backbone.run,
                MAPS: in_turn(clear, *maps.map_launches),
                MAPS_AND_VOXELS: in_turn(clear, *maps.map_launches, *maps.voxel_launches),
            }
            for stage, launches in self.backbone.stages.items():
                work[stage] = in_turn(reset, *launches)
            self._graphs = {name: captured(do) for name, do in work.items()}
        return self._graphs

    def work(self) -> dict[str, Any]:
        """Return useful GFLOP of each stage and executed over useful work; waits for the GPU."""
        maps, useful, executed = self.backbone.maps, {}, {}
        for stage, layers in self._stages.items():
            domain = maps.domains[layers[0].map_key]
            _, done, needed = domain.counts.tolist()
            flops = sum(2 * layer.in_channels * layer.out_channels for layer in layers)
            useful[stage] = flops * needed
            # The input layer has no tiles: it executes what it needs.
            executed[stage] = flops * (done if stage in maps.domains else needed)
        total = sum(useful.values())
        return {
            "useful_gflop": {s: round(v / 1e9, 4) for s, v in useful.items()},
            "executed_over_useful": {
                **{s: round(executed[s] / v, 4) for s, v in useful.items() if v},
                "all": round(sum(executed.values()) / total, 4) if total else 1.0,
            },
        }


# ---- cuBLAS on equal work -----------------------------------------------------------------------


class EqualProducts:
    """Dense products that need as many operations as each stage: rows x (taps * in) x out.

    Args:
        maps: Coordinate maps of the frame by key.
        stages: Layers of each stage.
        precision: ``fp32`` (no TF32), ``tf32`` or ``fp16``.
    """

    def __init__(
        self, maps: Mapping[str, Any], stages: Mapping[str, list[LayerSpec]], precision: str
    ) -> None:
        self.name, self.precision = f"cuBLAS {precision}", precision
        dtype = torch.float16 if precision == "fp16" else torch.float32
        generator = torch.Generator("cuda").manual_seed(0)
        self.shapes: dict[str, list[int]] = {}
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self.samples: dict[str, list[float]] = {}
        self._keep: list[tuple[torch.Tensor, ...]] = []
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for stage, layers in stages.items():
            coord_map = maps[layers[0].map_key]
            rows, pairs = coord_map.num_out, len(coord_map.in_rows)
            if not rows:
                continue
            inner = max(8, round(pairs / rows * layers[0].in_channels / 8) * 8)
            outer = layers[0].out_channels
            a, b = (
                torch.randn(shape, generator=generator, device="cuda").to(dtype)
                for shape in ((rows, inner), (inner, outer))
            )
            out = torch.empty(rows, outer, dtype=dtype, device="cuda")
            self.shapes[stage] = [len(layers), rows, inner, outer]
            self._keep.append((a, b, out))  # a graph holds addresses, not tensors
            product = functools.partial(torch.mm, a, b, out=out)
            self.graphs[stage] = captured(in_turn(*[product] * len(layers)))
        torch.backends.cuda.matmul.allow_tf32 = False

    def sample(self, samples: int, replays: int) -> None:
        """Add replay times of every stage."""
        for stage, graph in self.graphs.items():
            times = replay_times(graph, samples, replays)
            self.samples.setdefault(stage, []).extend(times)

    def result(self) -> dict[str, Any]:
        """Return shapes (products, rows, inner, outer) and times of every stage."""
        times = {stage: summary(values) for stage, values in self.samples.items()}
        return {"precision": self.precision, "shapes": self.shapes, "graph_us": times}
