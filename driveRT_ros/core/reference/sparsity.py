"""What a coordinate map costs, counted in plain torch."""

from __future__ import annotations

import torch

from driveRT_ros.core.reference.coordmap import cell_keys
from driveRT_ros.core.sparse_types import CoordMap, Triple

LEAF_EDGE = 8
"""Cells along the edge of a leaf, as in NanoVDB."""


def taps_of_pairs(coord_map: CoordMap) -> torch.Tensor:
    """Return the (P,) int64 kernel tap of each pair."""
    device = coord_map.out_rows.device
    counts = torch.tensor(coord_map.counts, device=device)
    return torch.arange(len(counts), device=device).repeat_interleave(counts)


def neighbour_masks(coord_map: CoordMap) -> torch.Tensor:
    """Return (num_out,) int64: bit k is set where tap k of an output row has an input row."""
    masks = coord_map.out_rows.new_zeros(coord_map.num_out)
    # A row meets a tap at most once, so adding the bits is joining them.
    return masks.index_add_(0, coord_map.out_rows, 1 << taps_of_pairs(coord_map))


def degree_histogram(coord_map: CoordMap) -> torch.Tensor:
    """Return (K,) int64: output rows by their number of neighbours, themselves not counted.

    Args:
        coord_map: Map of K taps whose outputs are its inputs.
    """
    degree = torch.bincount(coord_map.out_rows, minlength=coord_map.num_out) - 1
    return torch.bincount(degree, minlength=len(coord_map.counts))


def tile_work(coord_map: CoordMap, tile_rows: int) -> tuple[int, int]:
    """Return executed and useful pairs of an implicit GEMM over tiles of consecutive rows.

    A tile multiplies all of its rows by every tap that any of its rows has; the last one is as
    high as the others.

    Args:
        coord_map: The map, its output rows in the order of execution.
        tile_rows: Output rows of a tile.
    """
    taps = len(coord_map.counts)
    tiles = -(-coord_map.num_out // tile_rows)
    has_tap = torch.zeros(tiles * taps, dtype=torch.bool, device=coord_map.out_rows.device)
    tile = coord_map.out_rows.div(tile_rows, rounding_mode="floor")
    has_tap[tile * taps + taps_of_pairs(coord_map)] = True
    return int(has_tap.sum()) * tile_rows, len(coord_map.out_rows)


def leaf_occupancy(coords_bzyx: torch.Tensor, shape_zyx: Triple) -> tuple[int, float]:
    """Return the leaves of 8 x 8 x 8 cells with an active cell, and the mean share that is active.

    Args:
        coords_bzyx: (N, 4) int32, unique.
        shape_zyx: Cells of the grid.
    """
    z, y, x = (-(-n // LEAF_EDGE) for n in shape_zyx)
    leaves = coords_bzyx.clone()
    leaves[:, 1:] = leaves[:, 1:].div(LEAF_EDGE, rounding_mode="floor")
    count = len(torch.unique(cell_keys(leaves, (z, y, x))))
    return count, len(coords_bzyx) / (count * LEAF_EDGE**3) if count else 0.0
