"""The engine's face over the reference: rows in another order, buffers of fixed size, no GPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch

from driveRT_ros.core.back_end import Found
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.front_end import FrontEnd
from driveRT_ros.core.gpu.counts import CountsReader
from driveRT_ros.core.gpu.domains import level_shapes
from driveRT_ros.core.gpu.front_end import EngineFrontEnd
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.models.voxelnext import Backbone

EVERY_VOXEL = 4_000_000
DROPPED = (
    "non_finite_heat",
    "over_top_k_candidates",
    "non_finite_boxes",
    "implausible_boxes",
    "out_of_range_boxes",
)


class FakeMaps:
    """The buffers that the pipeline reads; what no frame wrote is NaN or -1."""

    in_cell_order = False

    def __init__(self, config: LidarConfig, tile_capacity: int) -> None:
        self.points = torch.full((config.input.point_capacity, 5), torch.nan)
        self.num_points = 0
        self.levels = tuple(
            SimpleNamespace(
                shape=shape,
                counts=torch.zeros(4, dtype=torch.int32),
                coords_zyx=torch.full((shape.row_capacity, 3), -1, dtype=torch.int32),
            )
            for shape in level_shapes(config)
        )
        domain = SimpleNamespace(
            shape=SimpleNamespace(tile_capacity=tile_capacity),
            counts=torch.zeros(3, dtype=torch.int32),
        )
        self.domains = {"subm1": domain}
        self.dropped = torch.zeros(2, dtype=torch.int32)
        rows = self.levels[0].shape.row_capacity
        self.features = torch.full((rows, 5), torch.nan)
        self.used_points = torch.zeros(1, dtype=torch.int32)
        self.device = self.points.device
        self.counts = CountsReader(self)  # type: ignore[arg-type]

    def load(self, points: torch.Tensor) -> torch.Tensor:
        self.num_points = len(points)
        self.points[: len(points)] = points
        return self.points[: len(points)]


class FakeEngine:
    """Compute with the reference, hand out rows in a seeded random order.

    Args:
        config: Grid, capacities and channels.
        tensors: Folded weights.
        tile_capacity: Room for the tiles of its one domain.
    """

    def __init__(
        self, config: LidarConfig, tensors: dict[str, torch.Tensor], tile_capacity: int = 10**6
    ) -> None:
        self.config = config
        self.maps = FakeMaps(config, tile_capacity)
        self.features = torch.full((self.maps.levels[7].shape.row_capacity, 0), torch.nan)
        self.runs = 0
        self._ops = Ops.for_device("cpu")
        self._backbone = Backbone(config.model, tensors, self._ops)

    def run_maps(self) -> None:
        self.runs += 1
        maps = self.maps
        grid = dataclasses.replace(self.config.voxelization, max_voxels=EVERY_VOXEL)
        voxels = self._ops.voxelize(maps.points[: maps.num_points], grid)
        self._mine = self._backbone.build_maps(voxels.coords_bzyx, grid.sparse_shape_zyx)
        self._voxels = voxels

    def run_layers(self) -> None:
        maps, voxels, mine = self.maps, self._voxels, self._mine
        bev = self._backbone.run(voxels.features, mine)
        out = mine.by_key["spconv_out"]
        coords = [*mine.level_coords, out.in_coords_bzyx, out.out_coords_bzyx]
        order = torch.Generator().manual_seed(self.runs)
        for number, (level, rows) in enumerate(zip(maps.levels, coords)):
            picked = torch.randperm(len(rows), generator=order)[: level.shape.row_capacity]
            level.coords_zyx[: len(picked)] = rows[picked, 1:]
            level.counts[:2] = torch.tensor([1, len(rows)])
            if number == 0:
                maps.features[: len(picked)] = voxels.features[picked]
                maps.used_points[0] = voxels.num_points[picked].sum()
        self.features = torch.full((maps.levels[7].shape.row_capacity, bev.features.shape[1]), 9.9)
        self.features[: len(picked)] = bev.features[picked]
        maps.domains["subm1"].counts[0] = -(-len(voxels) // 64)
        dropped = [voxels.dropped[k] for k in ("non_finite_points", "out_of_range_points")]
        maps.dropped[:] = torch.tensor(dropped)


class FakeHeads:
    """The face of the heads of an engine: they find nothing, or no memory to run in.

    Args:
        engine: Makes the rows.
        full: Whether memory runs out.
    """

    def __init__(self, engine: FakeEngine, *, full: bool = False) -> None:
        self.features, self._full = engine.maps.points, full
        self.before = torch.zeros(engine.maps.counts.size, dtype=torch.int32)
        self.copy = SimpleNamespace(enqueue=lambda: None, wait=lambda: None)

    def run_branches(self) -> None:
        if self._full:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def suppress(self) -> None:
        self.copy.words = self.before.numpy()

    def found(self, rows: int) -> Found:
        none = torch.zeros(0, 9), torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        return Found(*none, rows, dict.fromkeys(DROPPED, 0), list)


def engine_pipeline(config: LidarConfig, **options: int) -> tuple[LidarPipeline, FakeEngine]:
    """Return a pipeline on the CPU that runs a fake engine, and the engine."""
    pipeline = LidarPipeline(config, None, "cpu")
    tensors = pipeline.weights.to("cpu", torch.float32)

    def make(wanted: LidarConfig) -> FakeEngine:
        return FakeEngine(wanted, tensors, **options)

    reference: FrontEnd = pipeline._front_end
    front = EngineFrontEnd(config, make, reference)  # type: ignore[arg-type]
    pipeline._front_end = front
    return pipeline, front._engine  # type: ignore[return-value]
