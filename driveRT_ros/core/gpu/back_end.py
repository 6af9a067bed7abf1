"""The heads of the engine as the back end of the pipeline: the one place that waits for a frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from driveRT_ros.core.back_end import BackEnd, Found
from driveRT_ros.core.device_faults import out_of_memory
from driveRT_ros.core.front_end import FrontFrame
from driveRT_ros.core.gpu.engine_frame import EngineFrame
from driveRT_ros.core.gpu.heads import SparseHeads
from driveRT_ros.core.gpu.row_crcs import RowCrcs, frame_crcs
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.stages import StageClock

if TYPE_CHECKING:
    from driveRT_ros.core.gpu.backbone import SparseBackbone


class EngineBackEnd:
    """The heads behind the engine; where a frame left the engine, the reference goes on too.

    Args:
        engine: Makes the rows.
        heads: Bound to them, with room before their result for the counts of the engine and the
            CRC-32 of the rows.
        make: Returns the heads over another engine, where one took the place of this.
        fallback: The reference on the same device.
        graph: Replay the heads from CUDA graphs, on a CUDA device.
    """

    def __init__(
        self,
        engine: SparseBackbone,
        heads: SparseHeads,
        make: Callable[[SparseBackbone], SparseHeads | None],
        fallback: BackEnd,
        *,
        graph: bool = True,
    ) -> None:
        self._make, self._fallback, self._graph = make, fallback, graph
        self._use(engine, heads)

    def _use(self, engine: SparseBackbone, heads: SparseHeads) -> None:
        self._engine, self._heads = engine, heads
        self._row_crcs: RowCrcs | None = None  # until somebody asks
        counted = heads.before[: engine.maps.counts.size]

        def finish() -> None:
            heads.suppress()
            engine.maps.counts.pack(counted)

        stages = {"head": heads.run_branches, "postprocess": finish}
        self.graphs = StageGraphs(stages, heads.features.device, enabled=self._graph)

    @property
    def note(self) -> str:
        """See :class:`~driveRT_ros.core.back_end.BackEnd`."""
        return self.graphs.note

    def capture(self) -> None:
        """Capture the graphs on the rows that are in place; waits for the device."""
        self.graphs.capture()

    def run(self, front: FrontFrame, clock: StageClock, *, with_row_crcs: bool = False) -> Found:
        """See :class:`~driveRT_ros.core.back_end.BackEnd`."""
        while isinstance(front, EngineFrame):
            if front.engine is self._engine:
                self._find(front, clock, with_row_crcs)
            elif not self._found_anew(front, clock, with_row_crcs):
                front = front.give_up()
                continue
            instead = front.instead
            if instead is None:
                return self._found(front.rows, with_row_crcs)
            front = instead
        return self._fallback.run(front, clock)

    def _found_anew(self, frame: EngineFrame, clock: StageClock, with_row_crcs: bool) -> bool:
        """Go on with an engine that took the place of this; False where the memory is full."""
        before = self._engine, self._heads, self.graphs, self._row_crcs
        try:
            heads = self._make(frame.engine)
            assert heads is not None  # only capacities differ
            self._use(frame.engine, heads)
            self._find(frame, clock, with_row_crcs)
        except Exception as error:  # of torch, or of the driver
            self._engine, self._heads, self.graphs, self._row_crcs = before
            if frame.shrink is None or not out_of_memory(error):
                raise
            return False
        return True

    def _find(self, frame: EngineFrame, clock: StageClock, with_row_crcs: bool) -> None:
        """Run the heads, and wait for boxes, counts and what else the copy brings."""
        heads, counts = self._heads, self._engine.maps.counts
        if with_row_crcs and self._row_crcs is None and self._engine.maps.in_cell_order:
            self._row_crcs = frame_crcs(self._engine, heads.before[counts.size :])
        # Enqueued before anybody knows whether the frame fitted: the kernels stay inside of their
        # buffers, and the result of one that did not is never read.
        with torch.cuda.device_of(heads.features):
            self.graphs.run(clock.lap)
            if with_row_crcs and self._row_crcs is not None:
                # In no graph: it is one launch in any case, while the device is at work, and no
                # stage becomes slower because somebody listens.
                self._row_crcs.enqueue()
            heads.copy.enqueue()
        clock.waits()
        heads.copy.wait()
        frame.settle(counts.named(heads.copy.words[: counts.size]))

    def _found(self, rows: int, with_row_crcs: bool) -> Found:
        """Return what the last copy brought.

        Args:
            rows: Rows of that frame.
            with_row_crcs: Whether it brought their CRC-32.
        """
        found = self._heads.found(rows)
        if not with_row_crcs or self._row_crcs is None:
            return found
        words = self._heads.copy.words[self._engine.maps.counts.size :]
        return dataclasses.replace(found, row_crcs=self._row_crcs.named(words))
