"""The CUDA engine as the front end of the pipeline, and what happens where a frame does not fit."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable, Mapping

import torch

from driveRT_ros.core.back_end import BackEnd
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.device_faults import out_of_memory
from driveRT_ros.core.fingerprint import ROWS
from driveRT_ros.core.front_end import FrontEnd, FrontFrame, FrontResult
from driveRT_ros.core.gpu.back_end import EngineBackEnd
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.domains import BEV_DILATED, NUM_BACKBONE_LEVELS
from driveRT_ros.core.gpu.engine_frame import EngineFrame
from driveRT_ros.core.gpu.growth import POINTS, HighWater, Overflow, larger, refusal
from driveRT_ros.core.gpu.heads import SparseHeads, unsupported
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.raw_cloud import Cloud, CountedRows, exact
from driveRT_ros.core.stages import StageClock
from driveRT_ros.models.voxelnext import VoxelNeXtWeights


class EngineFrontEnd:
    """The engine: float32 in and out, rows in spatial order, no wait before its end.

    ``overflow_policy`` says what becomes of a frame that needs more room than the buffers have.
    ``retry`` runs it again on a larger engine, which stays, and loses nothing. ``degrade``, and
    ``retry`` where there is no room for a larger engine, run it in ``fallback``: slow, but with the
    documented result (of too many voxels, the first ``max_voxels`` in order of appearance).
    ``strict`` refuses it. In any case :attr:`FrontResult.overflow` says what was needed.

    Memory may run out as long as both engines are there: until the first frame of the larger one is
    through its heads. Then the one before it goes on, and no larger one is tried again.

    Args:
        config: Capacities of the first engine, and the policy.
        make: Compiles and binds the engine of a configuration.
        fallback: The reference on the same device.
        make_heads: Returns the heads over the rows of an engine, or None where the kernels cannot
            run the model; without it, the reference goes on from there.
        graph: Replay the frame from CUDA graphs, on a CUDA device.
    """

    def __init__(
        self,
        config: LidarConfig,
        make: Callable[[LidarConfig], SparseBackbone],
        fallback: FrontEnd,
        make_heads: Callable[[LidarConfig, SparseBackbone], SparseHeads | None] | None = None,
        *,
        graph: bool = True,
    ) -> None:
        self._config, self._make, self._fallback = config, make, fallback
        self._make_heads, self._graph = make_heads, graph
        self._high_water, self._may_grow = HighWater(), config.overflow_policy == "retry"
        self._use(make(config))

    def _use(self, engine: SparseBackbone) -> None:
        self._engine = engine
        stages = {"maps": lambda: engine.run_maps(), "backbone": lambda: engine.run_layers()}
        self.graphs = StageGraphs(stages, engine.maps.device, enabled=self._graph)

    @property
    def note(self) -> str:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        return self.graphs.note

    @property
    def high_water(self) -> dict[str, tuple[int, int]]:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        maps = self._engine.maps
        return self._high_water.marks(
            maps.points.shape[0],
            [level.shape.row_capacity for level in maps.levels[:NUM_BACKBONE_LEVELS]],
        )

    def take(self, points: Cloud) -> Cloud:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        maps = self._engine.maps
        with torch.cuda.device_of(maps.points):
            if isinstance(points, CountedRows):
                if points.room <= maps.points.shape[0]:
                    return maps.load_counted(points)
                points = points.exact()  # there may be room for as many as there are
            if points.shape[0] > maps.points.shape[0]:
                return self._fallback.take(points)
            return maps.load(points)

    def run(self, cloud: Cloud, clock: StageClock) -> FrontFrame:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        if isinstance(cloud, CountedRows):
            return self._enqueued(cloud, clock, {})
        given, room = cloud.shape[0], self._engine.maps.points.shape[0]
        if given > room:
            self._high_water.see(given)
            return self._instead(cloud, clock, {}, {POINTS: (given, room)})
        return self._enqueued(cloud, clock, {})

    def back_end(self, config: LidarConfig, reference: BackEnd) -> BackEnd:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        make = self._make_heads
        heads = make(config, self._engine) if make else None
        if make is None or heads is None:
            return reference
        made = EngineBackEnd(
            self._engine, heads, functools.partial(make, config), reference, graph=self._graph
        )
        if self.graphs.captured:
            made.capture()  # rows are in place: the next frame need not be slower
        return made

    def _enqueued(self, cloud: Cloud, clock: StageClock, lacked: Overflow) -> EngineFrame:
        clock.lap("voxelize")
        with torch.cuda.device_of(self._engine.maps.points):
            self.graphs.run(clock.lap)
        instead = functools.partial(self._instead, cloud, clock, lacked)
        return EngineFrame(self._engine, cloud, instead, self._high_water, lacked)

    def _instead(
        self, cloud: Cloud, clock: StageClock, lacked: Overflow, overflow: Overflow
    ) -> FrontFrame:
        """Do with a frame that did not fit what the policy says.

        Args:
            cloud: The frame.
            clock: Of the frame.
            lacked: What smaller engines had no room for.
            overflow: What this one has no room for.
        """
        if self._config.overflow_policy == "strict":
            raise refusal(overflow)
        points = exact(cloud)
        lacked = {**lacked, **overflow}
        config = larger(self._config, overflow) if self._may_grow else None
        if config is None:
            return self._referred(points, clock, lacked)
        before = self._config, self._engine, self.graphs
        shrink = functools.partial(self._shrunk, before, points, clock, lacked)
        return self._grown(config, points, clock, lacked, shrink) or shrink()

    def _referred(self, cloud: torch.Tensor, clock: StageClock, lacked: Overflow) -> FrontResult:
        return dataclasses.replace(self._fallback.run(cloud, clock).result(), overflow=lacked)

    def _grown(
        self,
        config: LidarConfig,
        cloud: torch.Tensor,
        clock: StageClock,
        lacked: Overflow,
        shrink: Callable[[], FrontFrame],
    ) -> EngineFrame | None:
        """Run a frame on a larger engine and go on with that; None where the memory is full."""
        try:
            self._use(self._make(config))
            self._config = config
            with torch.cuda.device_of(cloud):
                cloud = self._engine.maps.load(cloud)
            frame = self._enqueued(cloud, clock, lacked)
        except Exception as error:  # of torch, or of the driver: pinned memory and kernels, too
            if not out_of_memory(error):
                raise
            return None
        frame.shrink = shrink
        return frame

    def _shrunk(
        self,
        before: tuple[LidarConfig, SparseBackbone, StageGraphs],
        cloud: torch.Tensor,
        clock: StageClock,
        lacked: Overflow,
    ) -> FrontResult:
        """Go back to the engine before, for good: the next attempt to grow would end likewise."""
        self._config, self._engine, self.graphs = before
        self._may_grow = False
        device = self._engine.maps.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # else memory is used again while kernels write there
        gc.collect()  # what is left of the larger one and refers to itself
        return self._referred(cloud, clock, lacked)


def engine_heads(
    tensors: Mapping[str, torch.Tensor], config: LidarConfig, engine: SparseBackbone
) -> SparseHeads | None:
    """Return the heads on the GPU, or None where the kernels cannot run the model.

    Args:
        tensors: Folded weights on its device.
        config: Thresholds and limits.
        engine: Makes the rows.
    """
    level, last = engine.maps.levels[BEV_DILATED], engine.graph.bev[-1]
    arithmetic = engine.plan.tactics[last.map_key].arithmetic
    if unsupported(config, arithmetic, torch.cuda.get_device_capability(level.counts.device)):
        return None
    before = engine.maps.counts.size + len(ROWS)
    return SparseHeads(config, tensors, engine.features, level, arithmetic, before)


def make_engine(
    config: LidarConfig,
    weights: VoxelNeXtWeights,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    fallback: FrontEnd,
    *,
    graph: bool = True,
) -> tuple[FrontEnd, Plan | None, str]:
    """Choose the Plan, compile and bind; see :func:`~driveRT_ros.core.front_end.make_front_end`.

    Raises:
        ConfigError: If no Plan runs this model in this precision on this GPU.
        DeviceError: If the GPU, its driver or its compiler refuses.
    """
    plan, note = Plan.for_device(
        config.plan_path,
        config.model.channels,
        config.precision,
        torch.cuda.get_device_name(device),
        torch.cuda.get_device_capability(device),
        weights.sha256 if config.plan_path else "",
    )

    def make(config: LidarConfig) -> SparseBackbone:
        return SparseBackbone(config, tensors, device, plan)

    heads = functools.partial(engine_heads, tensors)
    return EngineFrontEnd(config, make, fallback, heads, graph=graph), plan, note
