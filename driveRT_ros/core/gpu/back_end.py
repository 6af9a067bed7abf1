"""The heads of the engine as the back end of the pipeline: the one place that waits for a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from driveRT_ros.core.back_end import BackEnd, Found
from driveRT_ros.core.device_faults import out_of_memory
from driveRT_ros.core.front_end import FrontFrame
from driveRT_ros.core.gpu.engine_frame import EngineFrame
from driveRT_ros.core.gpu.heads import SparseHeads
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.stages import StageClock

if TYPE_CHECKING:
    from driveRT_ros.core.gpu.backbone import SparseBackbone


class EngineBackEnd:
    """The heads behind the engine; where a frame left the engine, the reference goes on too.

    Args:
        engine: Makes the rows.
        heads: Bound to them, with room for the counts of the engine before their result.
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

        def finish() -> None:
            heads.suppress()
            engine.maps.counts.pack(heads.before)

        stages = {"head": heads.run_branches, "postprocess": finish}
        self.graphs = StageGraphs(stages, heads.features.device, enabled=self._graph)

    @property
    def note(self) -> str:
        """See :class:`~driveRT_ros.core.back_end.BackEnd`."""
        return self.graphs.note

    def capture(self) -> None:
        """Capture the graphs on the rows that are in place; waits for the device."""
        self.graphs.capture()

    def run(self, front: FrontFrame, clock: StageClock) -> Found:
        """See :class:`~driveRT_ros.core.back_end.BackEnd`."""
        while isinstance(front, EngineFrame):
            if front.engine is self._engine:
                self._find(front, clock)
            elif not self._found_anew(front, clock):
                front = front.give_up()
                continue
            instead = front.instead
            if instead is None:
                return self._heads.found(front.rows)
            front = instead
        return self._fallback.run(front, clock)

    def _found_anew(self, frame: EngineFrame, clock: StageClock) -> bool:
        """Go on with an engine that took the place of this; False where the memory is full."""
        before = self._engine, self._heads, self.graphs
        try:
            heads = self._make(frame.engine)
            assert heads is not None  # only capacities differ
            self._use(frame.engine, heads)
            self._find(frame, clock)
        except Exception as error:  # of torch, or of the driver
            self._engine, self._heads, self.graphs = before
            if frame.shrink is None or not out_of_memory(error):
                raise
            return False
        return True

    def _find(self, frame: EngineFrame, clock: StageClock) -> None:
        """Run the heads, and wait for boxes and counts."""
        heads, counts = self._heads, self._engine.maps.counts
        # Enqueued before anybody knows whether the frame fitted: the kernels stay inside of their
        # buffers, and the result of one that did not is never read.
        with torch.cuda.device_of(heads.features):
            self.graphs.run(clock.lap)
            heads.copy.enqueue()
        clock.waits()
        heads.copy.wait()
        frame.settle(counts.named(heads.copy.words[: counts.size]))
