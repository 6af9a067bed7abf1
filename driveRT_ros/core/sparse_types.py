"""The values that sparse operators exchange; below the operators, so that all may import them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from driveRT_ros.core.errors import InvalidFrame

Triple = tuple[int, int, int]

NUM_FEATURES = 5
"""x, y, z, intensity, time lag."""


@dataclass(frozen=True, eq=False)
class Voxels:
    """Occupied cells in order of first appearance; the tensors share their first dimension V.

    Args:
        features: (V, 5) mean x, y, z, intensity, time lag of the points kept, in their dtype.
        coords_bzyx: (V, 4) int32 batch (always 0), z, y, x.
        num_points: (V,) int32 points averaged, 1 to ``max_points_per_voxel``.
        dropped: Counts of what was left out. ``non_finite_points``, ``out_of_range_points``,
            ``over_capacity_points`` (beyond ``max_points_per_voxel``) and
            ``over_capacity_voxel_points`` (in voxels beyond ``max_voxels``) add up with
            ``num_points`` to the input; ``over_capacity_voxels`` counts those voxels.
    """

    features: torch.Tensor
    coords_bzyx: torch.Tensor
    num_points: torch.Tensor
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.coords_bzyx)


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """Features at the active cells of a grid.

    Args:
        features: (N, C) float32 or float64.
        coords_bzyx: (N, 4) int32 batch, z, y, x; unique.
        spatial_shape_zyx: Cells of the grid.
        batch_size: Grids in the batch.
    """

    features: torch.Tensor
    coords_bzyx: torch.Tensor
    spatial_shape_zyx: Triple
    batch_size: int = 1

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.coords_bzyx):
            raise InvalidFrame(
                "Features must be one row per coordinate.",
                "features",
                tuple(self.features.shape),
                f"({len(self.coords_bzyx)}, C)",
            )

    def __len__(self) -> int:
        return len(self.coords_bzyx)


@dataclass(frozen=True, eq=False)
class CoordMap:
    """The pairs (input row, output row) of one sparse convolution, grouped by kernel tap.

    Args:
        in_rows: (P,) int64 input row of each pair.
        out_rows: (P,) int64 output row of each pair; ascending within a tap, each at most once.
        offset_starts: K + 1 positions: tap k owns the pairs from ``[k]`` up to ``[k + 1]``.
        in_coords_bzyx: (num_in, 4) int32 input coordinates: batch, z, y, x.
        out_coords_bzyx: (num_out, 4) int32 output coordinates.
        in_shape_zyx: Cells of the input grid.
        out_shape_zyx: Cells of the output grid.
        kernel_size: Taps along z, y, x.
        identity_offset: The tap that maps every row to itself, or None.
    """

    in_rows: torch.Tensor
    out_rows: torch.Tensor
    offset_starts: tuple[int, ...]
    in_coords_bzyx: torch.Tensor
    out_coords_bzyx: torch.Tensor
    in_shape_zyx: Triple
    out_shape_zyx: Triple
    kernel_size: Triple
    identity_offset: int | None = None

    @property
    def num_in(self) -> int:
        """Input rows."""
        return len(self.in_coords_bzyx)

    @property
    def num_out(self) -> int:
        """Output rows."""
        return len(self.out_coords_bzyx)

    @property
    def counts(self) -> tuple[int, ...]:
        """Pairs of each tap."""
        return tuple(b - a for a, b in zip(self.offset_starts, self.offset_starts[1:]))

    def pairs(self, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input rows and output rows of one tap."""
        mine = slice(self.offset_starts[offset], self.offset_starts[offset + 1])
        return self.in_rows[mine], self.out_rows[mine]
