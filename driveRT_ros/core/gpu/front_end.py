"""The CUDA engine as the front end of the pipeline, and what happens where a frame does not fit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import torch

from driveRT_ros.core.back_end import BackEnd
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.front_end import FrontEnd, FrontFrame, FrontResult
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.counts import FrameCounts
from driveRT_ros.core.gpu.domains import BEV_DILATED, NUM_BACKBONE_LEVELS
from driveRT_ros.core.gpu.heads import EngineBackEnd, SparseHeads, unsupported
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.core.stages import StageClock
from driveRT_ros.models.voxelnext import VoxelNeXtWeights


class EngineFrame:
    """A cloud that the engine is at work on.

    Args:
        finish: Waits for the counts of the frame and returns its result.
    """

    def __init__(self, finish: Callable[[], FrontResult]) -> None:
        self._finish = finish
        self._result: FrontResult | None = None

    def result(self) -> FrontResult:
        """See :class:`~driveRT_ros.core.front_end.FrontFrame`."""
        if self._result is None:
            self._result = self._finish()
        return self._result


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
    """

    def __init__(
        self,
        engine: SparseBackbone,
        fallback: FrontEnd,
        make_heads: Callable[[LidarConfig, BackEnd], BackEnd] | None = None,
    ) -> None:
        self._engine = engine
        self._fallback = fallback
        self._make_heads = make_heads

    def run(self, cloud: torch.Tensor, clock: StageClock) -> FrontFrame:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        maps = self._engine.maps
        if len(cloud) > len(maps.points):
            return self._again(cloud, clock, {"points": (len(cloud), len(maps.points))})
        with torch.cuda.device_of(cloud):
            maps.load(cloud)
            clock.lap("voxelize")
            self._engine.run(lap=clock.lap)
            maps.counts.enqueue()
        return EngineFrame(functools.partial(self._finish, cloud, clock))

    def _finish(self, cloud: torch.Tensor, clock: StageClock) -> FrontResult:
        maps = self._engine.maps
        counts = maps.counts.read()
        if counts.overflow:
            return self._again(cloud, clock, counts.overflow)
        last, rows = maps.levels[BEV_DILATED], counts.rows[BEV_DILATED]
        coords = torch.nn.functional.pad(last.coords_zyx[:rows], (1, 0))  # batch 0
        return FrontResult(
            bev=SparseTensor(self._engine.features[:rows], coords, last.shape.shape_zyx),
            voxel_coords_zyx=maps.levels[0].coords_zyx[: counts.rows[0]],
            voxel_features=maps.features[: counts.rows[0]],
            voxels_per_level=counts.rows[:NUM_BACKBONE_LEVELS],
            dropped=self._dropped(len(cloud), counts),
        )

    def back_end(self, config: LidarConfig, reference: BackEnd) -> BackEnd:
        """See :class:`~driveRT_ros.core.front_end.FrontEnd`."""
        return self._make_heads(config, reference) if self._make_heads else reference

    def _dropped(self, points: int, counts: FrameCounts) -> dict[str, int]:
        """Return the counts of the reference; voxels beyond the capacity never get here."""
        used = int(self._engine.maps.points_stored[: counts.rows[0]].sum())
        left_out = counts.non_finite_points + counts.out_of_range_points
        return {
            "non_finite_points": counts.non_finite_points,
            "out_of_range_points": counts.out_of_range_points,
            "over_capacity_points": points - left_out - used,
            "over_capacity_voxels": 0,
            "over_capacity_voxel_points": 0,
        }

    def _again(
        self, cloud: torch.Tensor, clock: StageClock, overflow: Mapping[str, tuple[int, int]]
    ) -> FrontResult:
        return dataclasses.replace(self._fallback.run(cloud, clock).result(), overflow=overflow)


def engine_heads(
    engine: SparseBackbone,
    tensors: Mapping[str, torch.Tensor],
    config: LidarConfig,
    reference: BackEnd,
) -> BackEnd:
    """Return the heads on the GPU, or the reference where the kernels cannot run the model.

    Args:
        engine: Makes the rows.
        tensors: Folded weights on its device.
        config: Thresholds and limits.
        reference: Torch on the same device.
    """
    level, last = engine.maps.levels[BEV_DILATED], engine.graph.bev[-1]
    arithmetic = engine.plan.tactics[last.map_key].arithmetic
    if unsupported(config, arithmetic, torch.cuda.get_device_capability(level.counts.device)):
        return reference
    heads = SparseHeads(config, tensors, engine.features, level, arithmetic)
    return EngineBackEnd(heads, reference)


def make_engine(
    config: LidarConfig,
    weights: VoxelNeXtWeights,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    fallback: FrontEnd,
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
    make_heads = functools.partial(engine_heads, engine, tensors)
    return EngineFrontEnd(engine, fallback, make_heads), plan, note
