"""The heads of the engine as the back end of the pipeline: the one place that waits for a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from driveRT_ros.core.back_end import BackEnd, Found
from driveRT_ros.core.front_end import FrontFrame, FrontResult
from driveRT_ros.core.gpu.counts import CountsReader
from driveRT_ros.core.gpu.heads import SparseHeads
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.stages import StageClock

if TYPE_CHECKING:
    from driveRT_ros.core.gpu.front_end import EngineFrame


class EngineBackEnd:
    """The heads behind the engine; where a frame did not fit it, the reference goes on too.

    Args:
        heads: Bound to the rows of the engine, with room for the counts before their result.
        counts: Of the engine.
        fallback: The reference on the same device.
        graph: Replay the heads from CUDA graphs, on a CUDA device.
    """

    def __init__(
        self, heads: SparseHeads, counts: CountsReader, fallback: BackEnd, *, graph: bool = True
    ) -> None:
        self._heads, self._counts, self._fallback = heads, counts, fallback
        stages = {"head": heads.run_branches, "postprocess": self._finish}
        self.graphs = StageGraphs(stages, heads.features.device, enabled=graph)

    @property
    def note(self) -> str:
        """See :class:`~driveRT_ros.core.back_end.BackEnd`."""
        return self.graphs.note

    def run(self, front: FrontFrame, clock: StageClock) -> Found:
        """See :class:`~driveRT_ros.core.back_end.BackEnd`."""
        if isinstance(front, FrontResult):  # the engine never ran on this cloud
            return self._fallback.run(front, clock)
        # Enqueued before anybody knows whether the frame fitted: the kernels stay inside of their
        # buffers, and the result of one that did not is never read.
        with torch.cuda.device_of(self._heads.features):
            self.graphs.run(clock.lap)
            self._heads.copy.enqueue()
        self._heads.copy.wait()
        frame: EngineFrame = front  # type: ignore[assignment]
        frame.settle(self._counts.named(self._heads.copy.words[: self._counts.size]))
        if frame.overflow:
            return self._fallback.run(frame.result(), clock)
        return self._heads.found(frame.rows)

    def _finish(self) -> None:
        """Suppress boxes, and put the counts of the frame before them."""
        self._heads.suppress()
        self._counts.pack(self._heads.before)
