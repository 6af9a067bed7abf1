"""Random coordinate maps and their tile tables, as the kernels of the convolutions read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class TileTables:
    """What ``struct Convolution`` points to, on the CPU."""

    sources: np.ndarray  # (taps, rows) input row or -1
    order: torch.Tensor
    table: torch.Tensor
    tile_mask: torch.Tensor
    tile_rank: torch.Tensor
    n_tiles: torch.Tensor
    group_taps: int
    groups: int
    row_capacity: int


def random_sources(rows, in_rows, taps, density, rng):
    """Return (taps, rows) input rows; a share ``density`` of them is present, the others are -1."""
    sources = rng.integers(0, max(in_rows, 1), (taps, rows))
    return np.where(rng.random((taps, rows)) < (density if in_rows else 0), sources, -1)


def tile_tables(sources, tile_rows, groups, rng, row_capacity=None):
    """Cut rows into tiles, by pattern inside each group; the middle group holds every row.

    Unused slots of the table and unused tiles hold rubbish, as in memory that was used before.
    """
    taps, rows = sources.shape
    capacity = row_capacity or rows + 5
    per_group = taps // groups
    orders, masks, tables = [], [], []
    for group in range(groups):
        present = sources[group * per_group : (group + 1) * per_group] >= 0
        bits = (present << np.arange(per_group)[:, None]).sum(0)
        kept = np.arange(rows) if group == groups // 2 else np.flatnonzero(bits)
        kept = kept[np.argsort(bits[kept], kind="stable")]
        for at in range(0, len(kept), tile_rows):
            tile = kept[at : at + tile_rows]
            order = np.full(tile_rows, -1)
            order[: len(tile)] = tile + group * capacity
            union = int(np.bitwise_or.reduce(bits[tile]))
            table = rng.integers(0, 2**31 - 1, (per_group, tile_rows))
            for slot, tap in enumerate(t for t in range(per_group) if union >> t & 1):
                table[slot] = -1
                table[slot, : len(tile)] = sources[group * per_group + tap, tile]
            orders.append(order), tables.append(table), masks.append(union << group * per_group)
    n = len(masks)
    spare = 2  # tiles beyond the count must not be read
    tiles = np.array(masks + [0x7FFFFFF] * spare, np.int64).astype(np.int32)
    rank = sorted(range(n), key=lambda i: -bin(masks[i]).count("1")) + [2**30] * spare
    rubbish = [np.full((spare, *shape), 2**30) for shape in ((tile_rows,), (per_group, tile_rows))]
    return TileTables(
        sources=sources,
        order=_int32(np.concatenate([np.reshape(orders, (n, tile_rows)), rubbish[0]])),
        table=_int32(np.concatenate([np.reshape(tables, (n, per_group, tile_rows)), rubbish[1]])),
        tile_mask=torch.from_numpy(tiles),
        tile_rank=_int32(np.array(rank)),
        n_tiles=torch.tensor([n], dtype=torch.int32),
        group_taps=per_group,
        groups=groups,
        row_capacity=capacity,
    )


def convolve_groups(x, weight, sources, groups):
    """Return (groups, rows, c_out) float64 sums of each group of taps."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    taps, rows = sources.shape
    out = np.zeros((groups, rows, weight.shape[2]))
    for tap in range(taps):
        at = np.flatnonzero(sources[tap] >= 0)
        out[tap * groups // taps, at] += x[sources[tap, at]] @ weight[tap]
    return out


def _int32(values):
    return torch.from_numpy(np.ascontiguousarray(values, np.int32))
