"""What the pooling kernels work off, made from a scatter map once a calibration.

Both lists are plain torch on the device of the map. They need to know how much there is, so making
one waits for the device; pooling with it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pool_types import ScatterMap

TILE_CELLS, TILE_ROWS = 16, 16
"""Cells of a tile, and feature rows of one step of it."""
MAX_DEPTHS, _MAX_RUN = 1024, 63
"""Depths that a table entry can name, and how many of them in a row."""
CHUNK = 32
"""Points after which an interval is cut, while parts are left."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Intervals cut into parts of about equal length, longest first.

    The parts of an interval are neighbours and never straddle a block.

    Args:
        table: (slots, 4) int32 first point, points, cell (or -1), and part | parts << 16.
        block_slots: Slots of a block; a power of two.
    """

    table: torch.Tensor
    block_slots: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.table) // self.block_slots


def balanced_slots(scatter_map: ScatterMap, block_slots: int = 16, chunk: int = CHUNK) -> Slots:
    """Cut the intervals of a map.

    Args:
        scatter_map: The map.
        block_slots: Slots of a block, and the most parts of an interval; a power of two.
        chunk: Points after which an interval is cut.
    """
    made = scatter_map.trimmed()
    starts = made.interval_starts.long()
    cut = _cut(made.interval_lengths.long(), block_slots, chunk)
    cell = made.ranks_bev[starts].long()[cut.owner]
    return Slots(_table(cut, starts, cell, block_slots, -1), block_slots)


class _Cut(NamedTuple):
    """Parts of things: whose, which, of how many, where it begins in it and how long it is."""

    owner: torch.Tensor
    part: torch.Tensor
    parts: torch.Tensor
    begin: torch.Tensor
    count: torch.Tensor


def _cut(lengths: torch.Tensor, most_parts: int, chunk: int) -> _Cut:
    """Cut things longer than a chunk into parts, most parts first, then longest parts first.

    The number of parts is a power of two, so that parts sorted like this never straddle a block of
    ``most_parts``.
    """
    wanted = (lengths + chunk - 1) // chunk
    parts = torch.ones_like(wanted)
    for _ in range(most_parts.bit_length() - 1):
        parts = torch.where(parts < wanted, parts * 2, parts)
    each = (lengths + parts - 1) // parts
    longest = int(each.max()) + 1 if len(each) else 1
    order = (parts * longest + each).argsort(descending=True, stable=True)
    owner = torch.repeat_interleave(order, parts[order])
    before = (parts[order].cumsum(0) - parts[order]).repeat_interleave(parts[order])
    part = torch.arange(len(owner), device=lengths.device) - before
    begin = part * each[owner]
    count = torch.minimum(each[owner], lengths[owner] - begin).clamp(min=0)
    return _Cut(owner, part, parts[owner], begin, count)


def _table(
    cut: _Cut, starts: torch.Tensor, target: torch.Tensor, block_slots: int, no_target: int
) -> torch.Tensor:
    """Return (slots, 4) int32: first, count, target, part | parts << 16; filled up to a block."""
    rows = -(-len(cut.owner) // block_slots) * block_slots
    empty = torch.tensor([0, 0, no_target, 1 << 16], dtype=torch.int32, device=starts.device)
    table = empty.repeat(rows, 1)
    columns = [starts[cut.owner] + cut.begin, cut.count, target, cut.part | cut.parts << 16]
    table[: len(cut.owner)] = torch.stack(columns, dim=1).int()
    return table


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of 16 cells and the camera columns that they see, dearest tiles first.

    Args:
        slots: (slots, 4) int32 first step, steps, tile, and part | parts << 16, as in
            :class:`Slots`; a warp works one off.
        tile_cells: (tiles, 16) int32 cell, or -1 behind the last.
        step_place: (steps,) int32 bits: column u, first row / 16 << 16, camera << 24.
        entries: (steps, 32, 8) int16 bits, as the lanes of a warp read them: first depth, number
            of depths << 10; zero where the cell does not see the row.
    """

    slots: torch.Tensor
    tile_cells: torch.Tensor
    step_place: torch.Tensor
    entries: torch.Tensor


def tiles_unsupported(frustum_shape: tuple[int, int, int, int]) -> str:
    """Return why a frustum cannot be written as tiles, or an empty string."""
    n, d, h, w = frustum_shape
    fits = n <= 256 and d <= MAX_DEPTHS and h <= 256 * TILE_ROWS and w <= 65536
    return "" if fits else f"a frustum of {frustum_shape} (N, D, H, W) exceeds the table entries"


def column_tiles(scatter_map: ScatterMap, warps: int = 8, chunk: int = 2) -> Tiles:
    """Group the cells of a map and list, for each step, which depths weigh which row.

    Args:
        scatter_map: The map.
        warps: Warps of a block, and the most parts of a tile; a power of two.
        chunk: Steps after which a tile is cut.

    Raises:
        ConfigError: If the frustum is larger than the entries can say.
    """
    reason = tiles_unsupported(scatter_map.frustum_shape)
    if reason:
        raise ConfigError(f"The map cannot be tiled: {reason}; use 'balanced'.")
    made = scatter_map.trimmed()
    n, d, h, w = made.frustum_shape
    device, intervals = made.device, len(made.interval_starts)
    rank = made.ranks_depth.long()
    camera, bin_, v, u = rank // (d * h * w), rank // (h * w) % d, rank // w % h, rank % w
    column = camera * w + u
    owner = torch.repeat_interleave(
        torch.arange(intervals, device=device), made.interval_lengths.long()
    )

    # Cells in the order of the first column, then the first depth, that sees them.
    seen = torch.full((intervals,), n * w * d, dtype=torch.int64, device=device)
    seen.scatter_reduce_(0, owner, column * d + bin_, "amin")
    order = seen.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(intervals, device=device)
    tiles = -(-intervals // TILE_CELLS)
    tile_cells = torch.full((tiles * TILE_CELLS,), -1, dtype=torch.int32, device=device)
    tile_cells[:intervals] = made.ranks_bev[made.interval_starts.long()[order]]

    # Depths in a row of one (tile, column, cell, row) are one entry.
    tile, row = place[owner] // TILE_CELLS, place[owner] % TILE_CELLS
    slot = ((tile * (n * w) + column) * TILE_CELLS + row) * h + v
    by_slot = (slot * d + bin_).argsort()
    slot, bin_ = slot[by_slot], bin_[by_slot]
    run, first, length = _runs(slot, bin_)
    slot_of_run = slot[first]
    layer = _rank_in_group(slot_of_run)  # more than one run of a slot: another step, same column
    layers = int(layer.max()) + 1 if len(layer) else 1
    v, rest = slot_of_run % h, slot_of_run // h
    row, tile_column = rest % TILE_CELLS, rest // TILE_CELLS
    blocks = -(-h // TILE_ROWS)
    key = (tile_column * blocks + v // TILE_ROWS) * layers + layer
    steps, step = torch.unique(key, return_inverse=True)
    entries = torch.zeros(len(steps), TILE_CELLS, TILE_ROWS, dtype=torch.int64, device=device)
    entries[step, row, v % TILE_ROWS] = bin_[first] | length << 10

    steps = steps // layers
    block, tile_column = steps % blocks, steps // blocks
    column, tile = tile_column % (n * w), tile_column // (n * w)
    place = column % w | block << 16 | column // w << 24
    per_tile = torch.bincount(tile, minlength=tiles)
    cut = _cut(per_tile, warps, chunk)
    return Tiles(
        slots=_table(cut, per_tile.cumsum(0) - per_tile, cut.owner, warps, 0),
        tile_cells=tile_cells.view(-1, TILE_CELLS),
        step_place=_bits(place, torch.int32),
        entries=_as_lanes_read(_bits(entries, torch.int16)),
    )


def _runs(
    slot: torch.Tensor, bin_: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the run of each point, and the first point and the length of each run."""
    here = torch.arange(len(slot), device=slot.device)
    starts = torch.ones_like(slot, dtype=torch.bool)
    starts[1:] = (slot[1:] != slot[:-1]) | (bin_[1:] != bin_[:-1] + 1)
    begin = here[starts][starts.cumsum(0) - 1]
    starts |= (here - begin) % _MAX_RUN == 0
    first = here[starts]
    ends = torch.cat([first[1:], here.new_full((min(len(first), 1),), len(slot))])
    return starts.cumsum(0) - 1, first, ends - first


def _rank_in_group(groups: torch.Tensor) -> torch.Tensor:
    """Return how many equal values stand before each, in ascending values."""
    here = torch.arange(len(groups), device=groups.device)
    starts = torch.ones_like(groups, dtype=torch.bool)
    starts[1:] = groups[1:] != groups[:-1]
    return here - here[starts][starts.cumsum(0) - 1]


def _bits(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return unsigned values as the signed integers of the same bits."""
    half = 1 << (8 * dtype.itemsize - 1)
    return torch.where(values >= half, values - 2 * half, values).to(dtype)


def _as_lanes_read(entries: torch.Tensor) -> torch.Tensor:
    """Order (steps, 16 cells, 16 rows) as the lanes 4 g + t of a warp hold the left operand.

    Eight of a lane: cell g rows 4 t, 4 t + 1; cell g + 8 the same; then rows 4 t + 2, 4 t + 3.
    """
    parts = entries.view(-1, 2, 8, 4, 2, 2)  # cell half, g, t, row pair, row
    return parts.permute(0, 2, 3, 4, 1, 5).reshape(-1, 32, 8).contiguous()
