"""Seeded sparse grids, the worked examples, and sparse <-> dense conversions for tests."""

from __future__ import annotations

import numpy as np
import torch

SHAPE_4X5 = (1, 4, 5)
CELLS_4X5 = ((1, 1), (2, 2), (2, 4), (3, 3))
"""Four (row, column) cells: 17 dilated cells, 30 dense and 10 submanifold map entries."""

SHAPE_5X5 = (1, 5, 5)
CELLS_5X5 = ((1, 1), (2, 2), (2, 4), (3, 2), (4, 3))
"""Five (row, column) cells: 11 submanifold entries in groups of 2, 1, 5, 1, 2."""


def flat_coords(cells_yx) -> torch.Tensor:
    """Return (N, 4) int32 coordinates of 2-D cells."""
    return torch.tensor([(0, 0, y, x) for y, x in cells_yx], dtype=torch.int32).reshape(-1, 4)


def random_coords(num: int, shape_zyx, *, seed: int, batches: int = 1, ordered=False):
    """Return ``num`` distinct coordinates (num, 4) int32, shuffled unless ``ordered``."""
    rng = np.random.default_rng(seed)
    size = (batches, *shape_zyx)
    flat = rng.choice(int(np.prod(size)), size=num, replace=False)
    if ordered:
        flat.sort()
    return torch.from_numpy(np.stack(np.unravel_index(flat, size), axis=1).astype(np.int32))


def random_tensor(*shape: int, seed: int, dtype=torch.float64) -> torch.Tensor:
    """Return a normal tensor from a seed."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def to_dense(features, coords_bzyx, shape_zyx, batches: int = 1) -> torch.Tensor:
    """Return (B, C, Z, Y, X) with zeros at inactive cells."""
    dense = features.new_zeros(batches, features.shape[1], *shape_zyx)
    b, z, y, x = coords_bzyx.long().unbind(1)
    dense[b, :, z, y, x] = features
    return dense


def at_cells(dense, coords_bzyx) -> torch.Tensor:
    """Return the (N, C) values of a dense (B, C, Z, Y, X) tensor at coordinates."""
    b, z, y, x = coords_bzyx.long().unbind(1)
    return dense[b, :, z, y, x]


def dense_weight(weight, kernel) -> torch.Tensor:
    """Turn (K, C_in, C_out) into torch's (C_out, C_in, kz, ky, kx)."""
    return weight.reshape(*kernel, *weight.shape[1:]).permute(4, 3, 0, 1, 2)
