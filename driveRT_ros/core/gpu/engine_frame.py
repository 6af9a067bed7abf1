"""A cloud on its way through the engine, and what takes its place where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from driveRT_ros.core.front_end import FrontFrame, FrontResult
from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.counts import FrameCounts
from driveRT_ros.core.gpu.domains import BEV_DILATED, NUM_BACKBONE_LEVELS
from driveRT_ros.core.gpu.growth import HighWater, Overflow
from driveRT_ros.core.raw_cloud import Cloud, exact
from driveRT_ros.core.sparse_types import SparseTensor


class EngineFrame:
    """A cloud that the engine is at work on.

    Args:
        engine: At work.
        cloud: (N, 5) the points, on the device; asked for their number at the end alone.
        instead: Returns what becomes of a frame that did not fit, given what was needed.
        high_water: Told of every frame.
        lacked: What smaller engines had no room for in this very frame.

    Attributes:
        engine: As given.
        shrink: Where the engine was built for this frame: goes back to the one before, and returns
            what takes the place of the frame. None once the frame is through.
    """

    def __init__(
        self,
        engine: SparseBackbone,
        cloud: Cloud,
        instead: Callable[[Overflow], FrontFrame],
        high_water: HighWater,
        lacked: Overflow,
    ) -> None:
        self.engine = engine
        self._cloud, self._make_instead, self._high_water = cloud, instead, high_water
        self._lacked = lacked
        self.shrink: Callable[[], FrontFrame] | None = None
        self._counts: FrameCounts | None = None
        self._instead: FrontFrame | None = None
        self._result: FrontResult | None = None

    def settle(self, counts: FrameCounts) -> None:
        """Take the counts of this frame from whoever waited for them."""
        self._counts, self.shrink = counts, None
        self._high_water.see(exact(self._cloud).shape[0], counts.rows[:NUM_BACKBONE_LEVELS])

    def give_up(self) -> FrontFrame:
        """Leave the engine that was built for this frame, and return what takes its place."""
        shrink, self.shrink = self.shrink, None
        assert shrink is not None
        del self.engine  # the last that holds it: its memory is needed
        self._instead = shrink()
        return self._instead

    @property
    def instead(self) -> FrontFrame | None:
        """What takes the place of this frame where it did not fit, else None."""
        if self._instead is None and self._known().overflow:
            self._instead = self._make_instead(self._known().overflow)
        return self._instead

    @property
    def rows(self) -> int:
        """Rows of the engine's result."""
        return self._known().rows[BEV_DILATED]

    @property
    def voxels_per_level(self) -> tuple[int, ...]:
        """See :class:`~driveRT_ros.core.front_end.FrontFrame`."""
        if self.instead is not None:
            return self.instead.voxels_per_level
        return self._known().rows[:NUM_BACKBONE_LEVELS]

    @property
    def dropped(self) -> Mapping[str, int]:
        """The counts of the reference; voxels beyond the capacity never get here."""
        if self.instead is not None:
            return self.instead.dropped
        counts = self._known()
        left_out = counts.non_finite_points + counts.out_of_range_points
        return {
            "non_finite_points": counts.non_finite_points,
            "out_of_range_points": counts.out_of_range_points,
            "over_capacity_points": exact(self._cloud).shape[0] - left_out - counts.used_points,
            "over_capacity_voxels": 0,
            "over_capacity_voxel_points": 0,
        }

    @property
    def overflow(self) -> Overflow:
        """See :class:`~driveRT_ros.core.front_end.FrontResult`."""
        return self._lacked if self.instead is None else self.instead.overflow

    @property
    def grown(self) -> bool:
        """See :class:`~driveRT_ros.core.front_end.FrontResult`."""
        return bool(self._lacked) if self.instead is None else self.instead.grown

    def result(self) -> FrontResult:
        """See :class:`~driveRT_ros.core.front_end.FrontFrame`."""
        if self.instead is not None:
            return self.instead.result()
        if self._result is None:
            self._result = self._tensors()
        return self._result

    def _known(self) -> FrameCounts:
        if self._counts is None:
            reader = self.engine.maps.counts
            reader.enqueue()
            self.settle(reader.read())
        assert self._counts is not None
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
            overflow=self.overflow,
            grown=self.grown,
            in_cell_order=maps.in_cell_order,
        )
