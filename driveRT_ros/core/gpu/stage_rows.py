"""The features of every stage of the CUDA engine, for whoever compares two precisions."""

from __future__ import annotations

import torch

from driveRT_ros.core.gpu.backbone import SparseBackbone
from driveRT_ros.core.gpu.domains import BEV_DILATED, BEV_UNION
from driveRT_ros.core.qualify import StageRows


class EngineStages:
    """The six levels, their sum in the bird's-eye view, and the rows that the heads read.

    Rows lie in spatial order, whatever the Plan, so those of two engines can be compared one by
    one.

    Args:
        engine: Makes them.
    """

    def __init__(self, engine: SparseBackbone) -> None:
        self._engine, graph = engine, engine.graph
        self._stages = {
            f"level{number}": (level[-1].name, number - 1)
            for number, level in enumerate(graph.levels, start=1)
        }
        self._stages["bev"] = ("bev", BEV_UNION)
        self._stages["bev_rows"] = (graph.bev[-1].name, BEV_DILATED)

    def __call__(self, points: torch.Tensor) -> dict[str, StageRows]:
        """Return the rows of every stage; they hold until the next call.

        Args:
            points: (N, 5) float32.

        Raises:
            InvalidFrame: If the points exceed the capacities.
        """
        self._engine.compute(points)
        return {name: self._rows(*at) for name, at in self._stages.items()}

    def _rows(self, layer: str, number: int) -> StageRows:
        level = self._engine.maps.levels[number]
        rows = int(level.counts[1])
        return StageRows(level.coords_zyx[:rows], self._engine.output(layer)[:rows])
