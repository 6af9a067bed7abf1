"""How sparse a frame is, and what that should cost: numbers that explain its latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.front_end import FrontResult
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.reference import sparsity as reference
from driveRT_ros.models.graph import LayerSpec
from driveRT_ros.models.voxelnext import Backbone, FrameMaps

TILE_ROWS = 64
"""Rows of a tile of which the waste is told."""

HALF_LIFE_FRAMES = 50.0
"""A measured frame counts half after this many more."""

_LEAST_SPREAD = 0.01
"""Relative spread of pairs below which fixed and per-pair cost cannot be told apart."""


@dataclass(frozen=True)
class SparsityReport:
    """The sparsity of one frame. Level 1 is the voxels, and its map their 27 neighbours.

    Args:
        voxels_per_level: Active rows of each backbone level.
        degree_histogram: Voxels by number of neighbours, 0 to 26.
        distinct_masks: Different sets of neighbours.
        tile_rows: Rows of a tile.
        executed_pairs: Pairs that tiles of the voxels, in the order given, multiply.
        useful_pairs: Pairs that there are.
        leaves: Leaves of 8 x 8 x 8 cells that hold a voxel.
        leaf_filled: Mean share of their cells that are voxels.
        layer_pairs: Pairs of every sparse convolution of the network, added up.
        measured_ms: Time of the stages of the pipeline, where it ran.
        predicted_ms: That time as the frames before it let expect; None for the first one.
        per_pair_ns: What a pair costs, by the frames before it.
    """

    voxels_per_level: tuple[int, ...]
    degree_histogram: tuple[int, ...]
    distinct_masks: int
    tile_rows: int
    executed_pairs: int
    useful_pairs: int
    leaves: int
    leaf_filled: float
    layer_pairs: int
    measured_ms: float | None = None
    predicted_ms: float | None = None
    per_pair_ns: float | None = None

    @property
    def tile_waste(self) -> float:
        """Executed over useful pairs; 1 is no waste."""
        return self.executed_pairs / self.useful_pairs if self.useful_pairs else 1.0


def sparsity(
    maps: FrameMaps, layers: Sequence[LayerSpec], tile_rows: int = TILE_ROWS
) -> SparsityReport:
    """Count the sparsity of a frame.

    Args:
        maps: Every coordinate map of the frame.
        layers: Layers of the network; those with a map are counted, the first one on the voxels.
        tile_rows: Rows of a tile.
    """
    voxels = maps.by_key[layers[0].map_key]
    executed, useful = reference.tile_work(voxels, tile_rows)
    leaves, filled = reference.leaf_occupancy(maps.level_coords[0], maps.level_shapes[0])
    return SparsityReport(
        voxels_per_level=tuple(len(coords) for coords in maps.level_coords),
        degree_histogram=tuple(reference.degree_histogram(voxels).tolist()),
        distinct_masks=len(torch.unique(reference.neighbour_masks(voxels))),
        tile_rows=tile_rows,
        executed_pairs=executed,
        useful_pairs=useful,
        leaves=leaves,
        leaf_filled=filled,
        layer_pairs=sum(len(maps.by_key[x.map_key].in_rows) for x in layers if x.map_key),
    )


class FrameTimeModel:
    """Time of a frame as ``fixed + per pair * pairs``, fitted to the frames of this run.

    Least squares with exponential forgetting. Neither part is ever negative; while all frames are
    alike the two cannot be told apart, and the whole time counts per pair.

    Args:
        half_life_frames: A frame counts half after this many more.
    """

    def __init__(self, half_life_frames: float = HALF_LIFE_FRAMES) -> None:
        self._keep = 0.5 ** (1.0 / half_life_frames)
        self._weight = self._pairs = self._ms = self._spread = self._joint = 0.0

    @property
    def per_pair_ms(self) -> float | None:
        """Cost of one pair; None before the first frame, or where no frame had any."""
        if not self._pairs:
            return None
        most = self._ms / self._pairs
        if self._spread <= (_LEAST_SPREAD * self._pairs) ** 2 * self._weight:
            return most
        return min(max(self._joint / self._spread, 0.0), most)

    def predict(self, pairs: int) -> float | None:
        """Return the milliseconds to expect of a frame; None before the first one."""
        if not self._weight:
            return None
        return self._ms + (self.per_pair_ms or 0.0) * (pairs - self._pairs)

    def update(self, pairs: int, measured_ms: float) -> None:
        """Take a measured frame."""
        self._weight = self._keep * self._weight + 1.0
        ahead = pairs - self._pairs
        self._pairs += ahead / self._weight
        self._ms += (measured_ms - self._ms) / self._weight
        self._spread = self._keep * self._spread + ahead * (pairs - self._pairs)
        self._joint = self._keep * self._joint + ahead * (measured_ms - self._ms)


class SparsityMonitor:
    """Sparsity of the frames of one pipeline; it remembers what they took.

    Args:
        config: Grid and channels.
    """

    def __init__(self, config: LidarConfig) -> None:
        self._config = config
        self._times = FrameTimeModel()

    def count(self, coords_bzyx: torch.Tensor) -> SparsityReport:
        """Return the sparsity of these voxels (N, 4), in their order."""
        backbone = Backbone(self._config.model, {}, Ops.for_device(coords_bzyx.device))
        shape = self._config.voxelization.sparse_shape_zyx
        return sparsity(backbone.build_maps(coords_bzyx, shape), backbone.graph.layers)

    def look(self, front: FrontResult, stage_ms: Mapping[str, float]) -> SparsityReport:
        """Return the sparsity of a processed frame with measured and predicted time.

        The maps are built anew by the reference, after the frame: that does not count as its time.
        """
        found = self.count(torch.nn.functional.pad(front.voxel_coords_zyx, (1, 0)))
        measured_ms, per_pair_ms = sum(stage_ms.values()), self._times.per_pair_ms
        predicted_ms = self._times.predict(found.layer_pairs)
        self._times.update(found.layer_pairs, measured_ms)
        return replace(
            found,
            measured_ms=measured_ms,
            predicted_ms=predicted_ms,
            per_pair_ns=None if per_pair_ms is None else per_pair_ms * 1e6,
        )
