"""The GPU as the tuner sees it: whole engines under a Plan, compared and timed in turns."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.cuda import device_arch
from driveRT_ros.core.device_faults import keep
from driveRT_ros.core.errors import ConfigError, DeviceError, DriveRTError
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.exact import domain_layers_of, exact_outputs, relative_error
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.kernel_builds import layer_builds
from driveRT_ros.core.nvrtc import compile_cubin
from driveRT_ros.core.plan import Plan, domain_layers
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.core.tactics import ConvTactic
from driveRT_ros.core.tuner_device import Frame
from driveRT_ros.models.graph import LayerSpec

ROUNDS = 3
"""Turns of a pair: there and back each, so six samples of either."""
_SAMPLE_US = 1500.0
"""A sample replays a graph for about as long, that the clock of the events counts little."""
_ENGINES = 2
"""Engines kept: the two of a pair. One takes about a gigabyte."""


class Engine:
    """A backbone under one Plan, its graphs, and the frame that it holds."""

    def __init__(self, backbone: SparseBackbone) -> None:
        self.backbone = backbone
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._loaded = ""

    def load(self, frame: Frame) -> None:
        """Run a frame once, so that every graph finds its inputs in place.

        Raises:
            InvalidFrame: If it does not fit the capacities: its times would mean nothing.
        """
        if self._loaded == frame.name:
            return
        self._loaded = ""  # where it does not fit, part of it is in the buffers
        self.backbone.compute(frame.points, f"Frame '{frame.name}'")
        self._loaded = frame.name

    def overflow(self, frame: Frame) -> dict[str, tuple[int, int]]:
        """Return what of a frame does not fit, with what fits; nothing is loaded then."""
        self._loaded = ""
        self.backbone.enqueue(frame.points)
        return self.backbone.maps.overflow()

    def stage(self, domain: str) -> torch.cuda.CUDAGraph:
        """Return the launches of one domain, the reset of its tile counters included."""
        backbone = self.backbone

        def work() -> None:
            backbone.reset_tickets()
            for launch in backbone.stages[domain]:
                launch()

        return self._graph(domain, work)

    def maps(self) -> torch.cuda.CUDAGraph:
        """Return the launches that build every map."""
        maps = self.backbone.maps

        def work() -> None:
            maps.arena.clear()
            for launch in maps.map_launches:
                launch()

        return self._graph("maps", work)

    def frame(self) -> torch.cuda.CUDAGraph:
        """Return the whole frame."""
        return self._graph("frame", self.backbone.run)

    def _graph(self, name: str, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        if name not in self._graphs:
            self._graphs[name] = captured(work)
        return self._graphs[name]


class GpuTuningDevice:
    """See :class:`~driveRT_ros.core.tuner_device.TuningDevice`.

    Args:
        config: Grid, capacities and channels.
        tensors: ``<layer>.weight`` and ``<layer>.bias`` of every layer, float32 on the device.
        device: CUDA device.
        default: Plan whose tactics stand in every domain that is not being tried.
    """

    def __init__(
        self,
        config: LidarConfig,
        tensors: Mapping[str, torch.Tensor],
        device: torch.device,
        default: Plan,
    ) -> None:
        self._config, self._tensors, self._device = config, tensors, device
        self._default = default
        self._layers = domain_layers(config.model.channels)
        self._engines: OrderedDict[tuple[ConvTactic, ...], Engine] = OrderedDict()
        self._want: dict[tuple[str, str], dict[str, torch.Tensor]] = {}

    def prepare(self, domain: str, tactics: Sequence[ConvTactic]) -> None:
        """Compile ahead, side by side; a fault shows when the tactic is checked."""
        arch = device_arch(self._device.index or 0)
        layer = self._layers[domain]

        def compile_one(tactic: ConvTactic) -> None:
            try:
                for build in layer_builds(self._default.precision, domain, tactic, layer):
                    compile_cubin(build.stem, arch, dict(build.defines))
            except DriveRTError:
                return  # the check compiles again and reports it

        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
            list(threads.map(compile_one, tactics))

    def check(self, domain: str, tactic: ConvTactic, frame: Frame) -> float:
        """Return the largest error of the domain's layers on two runs over poisoned rows.

        Raises:
            DeviceError: If the two runs differ.
            ConfigError: If a weight does not have the channels that the kernels are tried for.
        """
        want = self._expected(domain, frame)
        engine = self._with(domain, tactic)
        backbone = engine.backbone
        engine.load(frame)
        rows = {name: len(exact) for name, exact in want.items()}
        runs = []
        for _ in range(2):
            for name in rows:
                backbone.output(name).fill_(torch.nan)
            backbone.enqueue(frame.points)
            runs.append([backbone.output(name)[:count].clone() for name, count in rows.items()])
        if not all(torch.equal(_bits(a), _bits(b)) for a, b in zip(*runs)):
            raise DeviceError(f"Two runs of one frame gave different bytes in domain '{domain}'.")
        return relative_error(runs[0], list(want.values()))

    def time_pair(
        self, domain: str, a: ConvTactic, b: ConvTactic, frame: Frame
    ) -> tuple[float, float]:
        """Return microseconds of the domain's layers under two tactics, measured in turns.

        Where the tactics need different tiles, what the maps of the frame take longer or shorter
        with the second is added to its time: it is the price of its tiles.
        """
        first, second = self._with(domain, a), self._with(domain, b)
        for engine in (first, second):
            engine.load(frame)
        us_a, us_b = _in_turns(first.stage(domain), second.stage(domain))
        shapes = (e.backbone.maps.domains[domain].shape for e in (first, second))
        if len(set(shapes)) > 1:
            maps_a, maps_b = _in_turns(first.maps(), second.maps())
            us_b = max(us_b + maps_b - maps_a, 0.0)
        return us_a, us_b

    def time_frame(self, plan: Plan, frame: Frame) -> float:
        """Return microseconds of a whole frame as one graph, voxelization included."""
        engine = self._engine(plan)
        engine.load(frame)
        graph = engine.frame()
        return statistics.median(replay_times(graph, 5, _replays(graph)))

    def difference(self, a: Plan, b: Plan, frame: Frame) -> float:
        """Return the largest difference of two Plans' features; infinite if the rows differ."""
        first, second = (self._rows(plan, frame) for plan in (a, b))
        if not torch.equal(first.coords_bzyx, second.coords_bzyx):
            return float("inf")
        return relative_error([second.features], [first.features.double()])

    def overflow(self, frame: Frame) -> dict[str, tuple[int, int]]:
        """Return what of a frame does not fit under the default Plan: such a frame cannot time."""
        return self._engine(self._default).overflow(frame)

    def lost_after(self, fault: Exception) -> Exception | None:
        """Return the error of a device that no longer works after a fault, None where it does."""
        try:
            torch.cuda.synchronize(self._device)  # before anything is freed
            self._engines.clear()  # a fault may have left half of what it wrote
            torch.ones(1, device=self._device).sum().item()
        except RuntimeError as error:
            keep(fault, error, self._engines, self._want, self._tensors)
            self._engines, self._want = OrderedDict(), {}
            return error
        return None

    # ---- engines --------------------------------------------------------------------------------

    def _with(self, domain: str, tactic: ConvTactic) -> Engine:
        tactics = {**self._default.tactics, domain: tactic}
        return self._engine(dataclasses.replace(self._default, tactics=tactics))

    def _engine(self, plan: Plan) -> Engine:
        key = tuple(plan.tactics[domain] for domain in self._layers)
        if key not in self._engines:
            while len(self._engines) >= _ENGINES:
                self._engines.popitem(last=False)
            backbone = SparseBackbone(self._config, self._tensors, self._device, plan)
            self._engines[key] = Engine(backbone)
        self._engines.move_to_end(key)
        return self._engines[key]

    def _rows(self, plan: Plan, frame: Frame) -> SparseTensor:
        engine = self._engine(plan)
        engine.load(frame)
        return engine.backbone.rows()

    # ---- what is right --------------------------------------------------------------------------

    def _expected(self, domain: str, frame: Frame) -> dict[str, torch.Tensor]:
        """Return float64 rows of the domain's layers; those of the last domain are kept."""
        if (domain, frame.name) not in self._want:
            engine = self._engine(self._default)
            engine.load(frame)
            backbone = engine.backbone
            mine = domain_layers_of(backbone.graph)[domain]
            self._check_widths(mine.layers)
            shape = backbone.maps.domains[domain].shape
            coords = [self._coords(engine, level) for level in (shape.in_level, shape.out_level)]
            x = backbone.output(mine.source)[: len(coords[0][0])]
            want = exact_outputs(mine, x, coords[0], coords[1], self._tensors)
            self._want = {(domain, frame.name): want}
        return self._want[domain, frame.name]

    def _check_widths(self, layers: Sequence[LayerSpec]) -> None:
        for layer in layers:
            c_in, c_out, taps = self._layers[layer.map_key]
            given = tuple(self._tensors[f"{layer.name}.weight"].shape)
            if given != (taps, c_in, c_out):
                raise ConfigError(
                    f"Weight '{layer.name}' is {given}, but the search tries kernels for "
                    f"{taps} taps, {c_in} -> {c_out} channels."
                )

    @staticmethod
    def _coords(engine: Engine, number: int) -> tuple[torch.Tensor, tuple[int, int, int]]:
        level = engine.backbone.maps.levels[number]
        zyx = level.coords_zyx[: int(level.counts[1])]
        return torch.cat((torch.zeros_like(zyx[:, :1]), zyx), dim=1), level.shape.shape_zyx


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Return the bytes, because NaN equals nothing."""
    return values.view(torch.int16 if values.dtype == torch.float16 else torch.int32)


def _replays(graph: torch.cuda.CUDAGraph) -> int:
    (once,) = replay_times(graph, 1, 1)
    return min(50, max(3, round(_SAMPLE_US / once)))


def _in_turns(a: torch.cuda.CUDAGraph, b: torch.cuda.CUDAGraph) -> tuple[float, float]:
    """Return the median times of two graphs, sampled there and back."""
    replays = max(_replays(a), _replays(b))
    us_a: list[float] = []
    us_b: list[float] = []
    for _ in range(ROUNDS):
        for graph, times in ((a, us_a), (b, us_b), (b, us_b), (a, us_a)):
            times += replay_times(graph, 1, replays)
    return statistics.median(us_a), statistics.median(us_b)
