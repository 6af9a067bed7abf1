"""The CUDA engine as the front end of the pipeline, and what happens where a frame does not fit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import torch

from driveRT_ros.core.back_end import BackEnd
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.front_end import FrontEnd, FrontFrame, FrontResult
from driveRT_ros.core.gpu.back_end import EngineBackEnd
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.counts import FrameCounts
from driveRT_ros.core.gpu.domains import BEV_DILATED, NUM_BACKBONE_LEVELS
from driveRT_ros.core.gpu.heads import SparseHeads, unsupported
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.core.stages import StageClock
from driveRT_ros.models.voxelnext import VoxelNeXtWeights

Overflow = Mapping[str, tuple[int, int]]


class EngineFrame:
    """A cloud that the engine is at work on.

    Args:
        engine: At work.
        cloud: (N, 5) the points, on the device.
        again: Makes the result of a frame that did not fit, given what was needed.
    """

    def __init__(
        self,
        engine: SparseBackbone,
        cloud: torch.Tensor,
        again: Callable[[Overflow], FrontResult],
    ) -> None:
        self.engine = engine
        self._cloud, self._again = cloud, again
        self._counts: FrameCounts | None = None
        self._result: FrontResult | None = None

    def settle(self, counts: FrameCounts) -> None:
        """Take the counts of this frame from whoever waited for them."""
        self._counts = counts

    @property
    def rows(self) -> int:
        """Rows of the engine's result."""
        return self._known().rows[BEV_DILATED]

    @property
    def voxels_per_level(self) -> tuple[int, ...]:
        """See :class:`~driveRT_ros.core.front_end.FrontFrame`."""
        if self.overflow:
            return self.result().voxels_per_level
        return self._known().rows[:NUM_BACKBONE_LEVELS]

    @property
    def dropped(self) -> Mapping[str, int]:
        """The counts of the reference; voxels beyond the capacity never get here."""
        if self.overflow:
            return self.result().dropped
        counts = self._known()
        left_out = counts.non_finite_points + counts.out_of_range_points
        return {
            "non_finite_points": counts.non_finite_points,
            "out_of_range_points": counts.out_of_range_points,
            "over_capacity_points": self._cloud.shape[0] - left_out - counts.used_points,
            "over_capacity_voxels": 0,
            "over_capacity_voxel_points": 0,
        }

    @property
    def overflow(self) -> Overflow:
        """See :class:`~driveRT_ros.core.front_end.FrontResult`."""
        return self._known().overflow

    def result(self) -> FrontResult:
        """See :class:`~driveRT_ros.core.front_end.FrontFrame`."""
        if self._result is None:
            self._result = self._again(self.overflow) if self.overflow else self._tensors()
        return self._result

    def _known(self) -> FrameCounts:
        if self._counts is None:
            reader = self.engine.maps.counts
            reader.enqueue()
            self._counts = reader.read()
        return self._counts

    def _tensors(self) -> FrontResult:
        maps, rows = self.engine.maps, self._known().rows
        last = maps.levels[BEV_DILATED]
        coords = torch.nn.functional.pad(last.coords_zyx[: self.rows], (1, 0))  # batch 0
        return FrontResult(
            bev=SparseTensor(self.engine.features[: self.rows], coords, last.shape.shape_zyx),
            voxel_coords_zyx=maps.levels[0].coords_zyx[: rows[0]],
            voxel_features=maps.features[: rows[0]],
            voxels_per_level=self.voxels_per_level,
            dropped=self.dropped,
        )


class EngineFrontEnd:
    """The engine: float32 in and out, rows in spatial order, no wait before its end.

    A frame that needs more room than the buffers have runs again in ``fallback``. That is slow but
    gives the documented result (of too many voxels, the first ``max_voxels`` in order of
    appearance), and :attr:`FrontResult.overflow` says what was needed.

    Args:
        engine: Compiled and bound.
        fallback: The reference on the same device.
        make_heads: Returns the heads over the rows of the engine, by :func:`engine_heads`; without
            it, the reference goes on from there.
        graph: Replay the frame from CUDA graphs, on a CUDA device.
    """

    def __init__(
        self,
        engine: SparseBackbone,
        fallback: FrontEnd,
        make_heads: Callable[[LidarConfig, BackEnd], BackEnd] | None = None,
        *,
        graph: bool = True,
    ) -> None:
        self._engine = engine
        self._fallback = fallback
        self._make_heads = make_heads
        stages = {"maps": lambda: engine.run_maps(), "backbone": lambda: engine.run_layers()}
        self.graphs = StageGraphs(stages, engine.maps.device, enabled=graph)

    @property
    def note(self) -> str:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        return self.graphs.note

    def take(self, points: torch.Tensor) -> torch.Tensor:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        maps = self._engine.maps
        if points.shape[0] > maps.points.shape[0]:
            return self._fallback.take(points)
        with torch.cuda.device_of(maps.points):
            return maps.load(points)

    def run(self, cloud: torch.Tensor, clock: StageClock) -> FrontFrame:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        given, room = cloud.shape[0], self._engine.maps.points.shape[0]
        if given > room:
            return self._again(cloud, clock, {"points": (given, room)})
        clock.lap("voxelize")
        with torch.cuda.device_of(cloud):
            self.graphs.run(clock.lap)
        return EngineFrame(self._engine, cloud, functools.partial(self._again, cloud, clock))

    def back_end(self, config: LidarConfig, reference: BackEnd) -> BackEnd:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        if self._make_heads is None:
            return reference
        made = self._make_heads(config, reference)
        if isinstance(made, EngineBackEnd) and self.graphs.captured:
            made.graphs.capture()  # rows are in place: the next frame need not be slower
        return made

    def _again(self, cloud: torch.Tensor, clock: StageClock, overflow: Overflow) -> FrontResult:
        return dataclasses.replace(self._fallback.run(cloud, clock).result(), overflow=overflow)


def engine_heads(
    engine: SparseBackbone,
    tensors: Mapping[str, torch.Tensor],
    config: LidarConfig,
    reference: BackEnd,
    *,
    graph: bool = True,
) -> BackEnd:
    """Return the heads on the GPU, or the reference where the kernels cannot run the model.

    Args:
        engine: Makes the rows.
        tensors: Folded weights on its device.
        config: Thresholds and limits.
        reference: Torch on the same device.
        graph: Replay them from CUDA graphs.
    """
    level, last = engine.maps.levels[BEV_DILATED], engine.graph.bev[-1]
    arithmetic = engine.plan.tactics[last.map_key].arithmetic
    if unsupported(config, arithmetic, torch.cuda.get_device_capability(level.counts.device)):
        return reference
    before = engine.maps.counts.size
    heads = SparseHeads(config, tensors, engine.features, level, arithmetic, before)
    return EngineBackEnd(heads, engine.maps.counts, reference, graph=graph)


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
    engine = SparseBackbone(config, tensors, device, plan)
    make_heads = functools.partial(engine_heads, engine, tensors, graph=graph)
    return EngineFrontEnd(engine, fallback, make_heads, graph=graph), plan, note
