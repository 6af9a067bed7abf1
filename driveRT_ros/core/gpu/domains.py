"""Levels and domains of one network: which rows exist, and which convolutions walk them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.tactics import GROUP_TAPS, TILE_ROWS, ConvTactic

Triple = tuple[int, int, int]

NUM_BACKBONE_LEVELS = 6
BEV_UNION = 6
"""Place of the bird's-eye union of levels 4, 5 and 6 among the levels."""
BEV_DILATED = 7
"""Place of its 3 x 3 dilation."""
LEAF_EDGE = 8
"""Cells along the edge of a leaf; kernels/levels.cuh."""
_MANY_WORDS = 1024
"""Top words above which a block numbers eight of them instead of one."""

KEY_TAPS = 9
"""Taps of a group that its rows are counted by; kernels/coordmap.cuh."""
MAX_DOMAINS = 28
"""Coordinate maps that a launch can have; kernels/coordmap.cuh."""
UNIT_ROWS = 512
"""Least rows that a block counts at once; kernels/coordmap.cuh."""
MAX_TAPS = 27
"""Taps of the largest kernel, one bit each; kernels/coordmap.cuh."""

_ROWS_BY_LEVEL = (1.0, 1.5, 0.8, 0.4)
"""Rows of levels 1 to 4 for one voxel: a stride-2 level has 0.5 to 1.6 times the rows of the one
before on real frames. Coarser levels get as many rows as they have cells and cannot overflow."""


@dataclass(frozen=True)
class LevelShape:
    """Cells and capacity of one level."""

    shape_zyx: Triple
    stride: int
    kind: int  # 0: three-dimensional; 1: bird's-eye union; 2: its dilation
    row_capacity: int

    @property
    def leaves_zyx(self) -> Triple:
        """Leaves along each axis."""
        z, y, x = (-(-n // LEAF_EDGE) for n in self.shape_zyx)
        return z, y, x

    @property
    def leaf_capacity(self) -> int:
        """Leaves that can be active: no more than rows, no more than there are."""
        return min(self.leaves, self.row_capacity)

    @property
    def leaves(self) -> int:
        """Leaves of the grid."""
        return math.prod(self.leaves_zyx)

    @property
    def top_words(self) -> int:
        """32-bit words of the bitmap of leaves."""
        return -(-self.leaves // 32)

    @property
    def chunk_words(self) -> int:
        """Words of that bitmap that one block numbers."""
        return 8 if self.top_words > _MANY_WORDS else 1

    @property
    def chunks(self) -> int:
        """Blocks that number this level."""
        return -(-self.top_words // self.chunk_words)


@dataclass(frozen=True)
class DomainShape:
    """One coordinate map: rows of one level, reading rows of another.

    Args:
        name: Its key in the graph and in the Plan.
        out_level: Level of the output rows.
        in_level: Level of the input rows.
        kernel_zyx: Taps.
        stride: Output spacing.
        padding: Cells around the input, on y, x and, for a 3-D kernel, z.
        groups: Groups of taps, from the tactic.
        tile_rows: Rows of a tile, from the tactic.
        row_capacity: Of the output level.

    Raises:
        ConfigError: If there are more taps than a mask has bits, or they make no such groups.
    """

    name: str
    out_level: int
    in_level: int
    kernel_zyx: Triple
    stride: int
    padding: int
    groups: int
    tile_rows: int
    row_capacity: int

    def __post_init__(self) -> None:
        taps = math.prod(self.kernel_zyx)
        if taps > MAX_TAPS or taps % self.groups or taps // self.groups not in GROUP_TAPS:
            raise ConfigError(
                f"Domain '{self.name}' has {taps} taps in {self.groups} groups; maps hold kernels "
                f"of up to {MAX_TAPS} taps in groups of 3, 9 or 27."
            )
        if self.tile_rows not in TILE_ROWS:
            raise ConfigError(
                f"Domain '{self.name}' has tiles of {self.tile_rows} rows; use 16, 32, 64 or 128."
            )

    @property
    def group_taps(self) -> int:
        """Taps of a group."""
        return math.prod(self.kernel_zyx) // self.groups

    @property
    def bins(self) -> int:
        """Patterns of taps that the rows of all groups are counted by; kernels/coordmap.cuh."""
        return self.groups << min(self.group_taps, KEY_TAPS)

    @property
    def units(self) -> int:
        """Units of work that the rows can make; kernels/coordmap.cuh."""
        return -(-self.row_capacity // UNIT_ROWS)

    @property
    def tile_capacity(self) -> int:
        """Tiles if every row used every group."""
        return self.groups * -(-self.row_capacity // self.tile_rows)


def level_shapes(config: LidarConfig) -> tuple[LevelShape, ...]:
    """Return the six backbone levels, the bird's-eye union and its dilation."""
    shape, most = config.voxelization.sparse_shape_zyx, config.voxelization.max_voxels
    levels = []
    for i in range(NUM_BACKBONE_LEVELS):
        z, y, x = shape
        share = _ROWS_BY_LEVEL[i] if i < len(_ROWS_BY_LEVEL) else float("inf")
        levels.append(LevelShape(shape, 1 << i, 0, int(min(z * y * x, most * share))))
        shape = ((z - 1) // 2 + 1, (y - 1) // 2 + 1, (x - 1) // 2 + 1)
    _, y, x = levels[3].shape_zyx
    levels += [LevelShape((1, y, x), 0, kind, y * x) for kind in (1, 2)]
    return tuple(levels)


def domain_shapes(
    levels: tuple[LevelShape, ...], tactics: Mapping[str, ConvTactic]
) -> tuple[DomainShape, ...]:
    """Return the thirteen coordinate maps of VoxelNeXt in the order of execution."""

    def domain(name: str, out: int, source: int, kernel: Triple, stride: int) -> DomainShape:
        tactic, rows = tactics[name], levels[out].row_capacity
        return DomainShape(
            name, out, source, kernel, stride, 1, tactic.groups, tactic.tile_rows, rows
        )

    cube, square = (3, 3, 3), (1, 3, 3)
    domains = [domain("subm1", 0, 0, cube, 1)]
    for i in range(1, NUM_BACKBONE_LEVELS):
        domains.append(domain(f"spconv{i + 1}", i, i - 1, cube, 2))
        domains.append(domain(f"subm{i + 1}", i, i, cube, 1))
    domains.append(domain("spconv_out", BEV_DILATED, BEV_UNION, square, 1))
    domains.append(domain("subm_out", BEV_DILATED, BEV_DILATED, square, 1))
    return tuple(domains)
