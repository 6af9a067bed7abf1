"""What the pooling kernels work off, made from a scatter map once a calibration.

Both lists are plain torch on the device of the map. They need to know how much there is, so making
one waits for the device; pooling with it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    lengths, starts = made.interval_lengths.long(), made.interval_starts.long()
    wanted = (lengths + chunk - 1) // chunk
    parts = torch.ones_like(wanted)
    for _ in range(block_slots.bit_length() - 1):  # powers of two stay aligned when sorted
        parts = torch.where(parts < wanted, parts * 2, parts)
    each = (lengths + parts - 1) // parts
    order = (parts * (int(each.max()) + 1 if len(each) else 1) + each).argsort(
        descending=True, stable=True
    )
    parts, each, lengths, starts = parts[order], each[order], lengths[order], starts[order]
    owner = torch.repeat_interleave(torch.arange(len(parts), device=made.device), parts)
    part = torch.arange(len(owner), device=made.device) - (parts.cumsum(0) - parts)[owner]
    first = part * each[owner]
    count = torch.minimum(each[owner], lengths[owner] - first).clamp(min=0)
    cell = made.ranks_bev[starts].long()[owner]
    rows = -(-len(owner) // block_slots) * block_slots
    table = torch.tensor([0, 0, -1, 1 << 16], dtype=torch.int32, device=made.device)
    table = table.repeat(rows, 1)
    found = torch.stack([starts[owner] + first, count, cell, part | parts[owner] << 16], dim=1)
    table[: len(owner)] = found.int()
    return Slots(table, block_slots)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of 16 cells and the camera columns that they see, dearest tiles first.

    Args:
        tile_steps: (tiles, 2) int32 first step and number of steps.
        tile_cells: (tiles, 16) int32 cell, or -1 behind the last.
        step_place: (steps,) int32 bits: column u, first row / 16 << 16, camera << 24.
        entries: (steps, 32, 8) int16 bits, as the lanes of a warp read them: first depth, number
            of depths << 10; zero where the cell does not see the row.
    """

    tile_steps: torch.Tensor
    tile_cells: torch.Tensor
    step_place: torch.Tensor
    entries: torch.Tensor


def tiles_unsupported(frustum_shape: tuple[int, int, int, int]) -> str:
    """Return why a frustum cannot be written as tiles, or an empty string."""
    n, d, h, w = frustum_shape
    fits = n <= 256 and d <= MAX_DEPTHS and h <= 256 * TILE_ROWS and w <= 65536
    return "" if fits else f"a frustum of {frustum_shape} (N, D, H, W) exceeds the table entries"


def column_tiles(scatter_map: ScatterMap) -> Tiles:
    """Group the cells of a map and list, for each step, which depths weigh which row.

    Args:
        scatter_map: The map.

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
    dearest = per_tile.argsort(descending=True, stable=True)
    tile_steps = torch.stack([per_tile.cumsum(0) - per_tile, per_tile], dim=1)[dearest]
    return Tiles(
        tile_steps=tile_steps.int().contiguous(),
        tile_cells=tile_cells.view(-1, TILE_CELLS)[dearest].contiguous(),
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
