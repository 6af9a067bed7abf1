"""Voxels and every coordinate map of a frame, built on the GPU without asking the host anything.

All counts stay in device memory. Buffers have fixed capacities; a kernel never stores beyond them
but keeps counting, so :meth:`FrameMaps.overflow` can say afterwards what did not fit and by how
much.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.cuda import Kernel, Launch
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.gpu.arena import Arena
from driveRT_ros.core.gpu.counts import read_counts
from driveRT_ros.core.gpu.domains import (
    KEY_TAPS,
    DomainShape,
    LevelShape,
    domain_shapes,
    level_shapes,
)
from driveRT_ros.core.kernel_args import pack_structs
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.sparse_types import NUM_FEATURES

_THREADS = 256
_WORDS_PER_LEAF = 8
_MAX_POINTS_PER_VOXEL = 32  # one a lane of the warp that searches them; kernels/voxelize.cu
_MAX_ROWS = 2**31 // 16  # rows times groups must fit the 32 bits of an order entry


@dataclass(frozen=True, eq=False)
class LevelBuffers:
    """Device memory of one level; ``counts`` holds leaves and rows, then two tickets."""

    shape: LevelShape
    top: torch.Tensor
    leaf: torch.Tensor
    leaf_cell: torch.Tensor
    coords_zyx: torch.Tensor
    counts: torch.Tensor
    leaf_status: torch.Tensor
    row_status: torch.Tensor

    def fields(self) -> dict[str, object]:
        """Return the struct ``Level`` of kernels/levels.cuh."""
        (nz, ny, nx), (_, ly, lx) = self.shape.shape_zyx, self.shape.leaves_zyx
        return {
            "nz": nz, "ny": ny, "nx": nx, "ly": ly, "lx": lx,
            "stride": self.shape.stride, "kind": self.shape.kind,
            "top_words": self.shape.top_words, "leaf_capacity": self.shape.leaf_capacity,
            "row_capacity": self.shape.row_capacity, "top": self.top, "leaf": self.leaf,
            "leaf_cell": self.leaf_cell, "coords": self.coords_zyx, "counts": self.counts,
            "leaf_status": self.leaf_status, "row_status": self.row_status,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class DomainBuffers:
    """Device memory of one coordinate map; ``counts`` holds tiles, executed and useful taps."""

    shape: DomainShape
    mask: torch.Tensor
    bins: torch.Tensor
    taken: torch.Tensor
    order: torch.Tensor
    table: torch.Tensor
    tile_mask: torch.Tensor
    tile_rank: torch.Tensor
    counts: torch.Tensor

    def fields(self) -> dict[str, object]:
        """Return the struct ``Domain`` of kernels/coordmap.cu."""
        s = self.shape
        kz, ky, kx = s.kernel_zyx
        return {
            "out_level": s.out_level, "in_level": s.in_level, "kz": kz, "ky": ky, "kx": kx,
            "stride": s.stride, "padding": s.padding, "groups": s.groups,
            "group_taps": s.group_taps, "tile_rows": s.tile_rows,
            "tile_capacity": s.tile_capacity, "mask": self.mask, "bins": self.bins,
            "taken": self.taken, "order": self.order, "table": self.table,
            "tile_mask": self.tile_mask, "tile_rank": self.tile_rank, "counts": self.counts,
        }  # fmt: skip


class FrameMaps:
    """The structure of one frame at a time, in buffers made once.

    Args:
        config: Grid and capacities.
        plan: Groups and tile heights of every domain.
        device: CUDA device.

    Raises:
        ConfigError: If the configuration exceeds what the kernels can hold.
    """

    def __init__(self, config: LidarConfig, plan: Plan, device: torch.device) -> None:
        self._check(config)
        self.config, self.device = config, device
        levels = level_shapes(config)
        domains = domain_shapes(levels, plan.tactics)
        self.arena = Arena(device, _zeroed_bytes(levels, domains, config.input.point_capacity))
        self.levels = tuple(self._level(shape) for shape in levels)
        self.domains = {shape.name: self._domain(shape) for shape in domains}
        new, points, rows = self.arena.empty, config.input.point_capacity, levels[0].row_capacity
        self.points = new(points, NUM_FEATURES, dtype=torch.float32)
        self.num_points = new(1)
        self.dropped = self.arena.zeroed(2)
        self.features = new(rows, NUM_FEATURES, dtype=torch.float32)
        self.points_stored = new(rows)
        self.level_structs = pack_structs(
            "levels.cuh", "Level", [level.fields() for level in self.levels], device
        )
        domain_fields = [domain.fields() for domain in self.domains.values()]
        self.domain_structs = pack_structs("coordmap.cu", "Domain", domain_fields, device)
        self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self.map_launches = (*self._level_launches(), *self._domain_launches())
        self.voxel_launches = self._voxel_launches()

    def load(self, points: torch.Tensor) -> None:
        """Copy a cloud into the frame, on the current stream.

        Args:
            points: (N, 5) float32 on this device.

        Raises:
            InvalidFrame: If it has another shape, dtype or device, or more points than fit.
        """
        if points.ndim != 2 or points.shape[1] != NUM_FEATURES or points.dtype != torch.float32:
            raise InvalidFrame(
                "Points must be rows of x, y, z, intensity, time lag in float32.",
                "points", (tuple(points.shape), points.dtype), f"(N, {NUM_FEATURES}) float32",
            )  # fmt: skip
        if points.device != self.device:
            raise InvalidFrame("Points lie elsewhere.", "points", points.device, self.device)
        if len(points) > len(self.points):
            raise InvalidFrame(
                "The cloud has more points than the frame holds; raise 'input.point_capacity'.",
                "points", len(points), f"at most {len(self.points)}",
            )  # fmt: skip
        self.points[: len(points)].copy_(points)
        self.num_points.fill_(len(points))

    def overflow(self) -> dict[str, tuple[int, int]]:
        """Return, by name, what was needed and what fits, where it did not fit; waits for the GPU.

        A frame with an overflow is incomplete: raise the capacity or run it elsewhere.
        """
        return dict(read_counts(self).overflow)

    @staticmethod
    def _check(config: LidarConfig) -> None:
        voxels = config.voxelization
        if voxels.max_points_per_voxel > _MAX_POINTS_PER_VOXEL:
            raise ConfigError(
                "Parameter 'voxelization.max_points_per_voxel' can be at most "
                f"{_MAX_POINTS_PER_VOXEL} on a GPU, got {voxels.max_points_per_voxel}."
            )
        if voxels.max_voxels > _MAX_ROWS:
            raise ConfigError(
                f"Parameter 'voxelization.max_voxels' can be at most {_MAX_ROWS} on a GPU, got "
                f"{voxels.max_voxels}."
            )
        z, y, x = level_shapes(config)[0].leaves_zyx
        if z * y * x >= 2**31:
            raise ConfigError(
                f"The grid {voxels.sparse_shape_zyx} has {z * y * x} leaves of 8 x 8 x 8 cells, "
                "more than 32 bits number; use larger voxels or a smaller range."
            )

    def _level(self, shape: LevelShape) -> LevelBuffers:
        new, zeroed, i64 = self.arena.empty, self.arena.zeroed, torch.int64
        leaves, words = shape.leaf_capacity, shape.top_words
        return LevelBuffers(
            shape,
            top=zeroed(words, 2),
            leaf=new(leaves, _WORDS_PER_LEAF, 2, dtype=i64),
            leaf_cell=new(leaves),
            coords_zyx=new(shape.row_capacity, 3),
            counts=zeroed(4),
            leaf_status=zeroed(-(-words // _THREADS), dtype=i64),
            row_status=zeroed(-(-leaves * _WORDS_PER_LEAF // _THREADS), dtype=i64),
        )

    def _domain(self, shape: DomainShape) -> DomainBuffers:
        new, zeroed = self.arena.empty, self.arena.zeroed
        tiles, bins = shape.tile_capacity, shape.bins
        return DomainBuffers(
            shape,
            mask=new(shape.row_capacity),
            bins=zeroed(bins),
            taken=zeroed(bins),
            order=new(tiles, shape.tile_rows),
            table=new(tiles, shape.group_taps, shape.tile_rows),
            tile_mask=new(tiles),
            tile_rank=new(tiles),
            counts=zeroed(3),
        )

    def _kernel(self, stem: str, name: str) -> Kernel:
        return Kernel(stem, name, device=self.device)

    def _level_launches(self) -> list[Launch]:
        voxels, levels = self.config.voxelization, self.level_structs
        low, high, size = (
            voxels.point_cloud_range[:3],
            voxels.point_cloud_range[3:],
            voxels.voxel_size,
        )
        grid = {
            "min_x": low[0], "min_y": low[1], "min_z": low[2], "max_x": high[0], "max_y": high[1],
            "size_x": size[0], "size_y": size[1], "size_z": size[2],
            **dict(zip(("nx", "ny", "nz"), voxels.grid_xyz)),
            "point_stride": NUM_FEATURES, "features": NUM_FEATURES,
        }  # fmt: skip
        self._grid = pack_structs("levels.cu", "VoxelGrid", [grid], self.device)
        self._point_cell = self.arena.empty(len(self.points), 2)
        some, others = self.multiprocessors, len(self.levels) - 1
        every_point = -(-len(self.points) // _THREADS)
        chunks = [-(-level.shape.top_words // _THREADS) for level in self.levels]
        leaves, rows, mark = (
            self._kernel("levels", name) for name in ("number_leaves", "number_rows", "mark_levels")
        )
        points, count, cell = self.points, self.num_points, self._point_cell
        return [
            self._kernel("levels", "mark_points").bind(
                min(every_point, some * 8), _THREADS,
                levels, self._grid, points, count, cell, self.dropped,
            ),
            leaves.bind((chunks[0], 1), _THREADS, levels, 0),
            self._kernel("levels", "mark_voxels").bind(
                min(every_point, some * 8), _THREADS, levels, cell, count
            ),
            rows.bind((some * 4, 1), _THREADS, levels, 0),
            mark.bind((some, others), _THREADS, levels, 0),
            leaves.bind((max(chunks[1:]), others), _THREADS, levels, 1),
            mark.bind((some, others), _THREADS, levels, 1),
            rows.bind((some, others), _THREADS, levels, 1),
        ]  # fmt: skip

    def _domain_launches(self) -> list[Launch]:
        count, blocks = len(self.domains), self.multiprocessors * 4
        both = (self.level_structs, self.domain_structs, count)
        names = ["mask_rows", "order_rows", "sort_rows", "fill_tiles"]
        if all(d.shape.group_taps <= KEY_TAPS for d in self.domains.values()):
            names.remove("sort_rows")
        walk = [self._kernel("coordmap", name).bind(blocks, _THREADS, *both) for name in names]
        rank = self._kernel("coordmap", "rank_tiles")
        return [*walk, rank.bind(count, 1024, self.domain_structs)]

    def _voxel_launches(self) -> tuple[Launch, ...]:
        new, zeroed = self.arena.empty, self.arena.zeroed
        points, rows = len(self.points), len(self.features)
        place, begin, grouped = new(points, 2), new(rows), new(points)
        row_points, ticket = zeroed(rows), zeroed(1)
        status = zeroed(-(-rows // 1024), dtype=torch.int64)
        levels, count, cell = self.level_structs, self.num_points, self._point_cell
        by_point = min(-(-points // _THREADS), self.multiprocessors * 8)
        by_row = min(-(-rows // _THREADS), self.multiprocessors * 8)
        most = self.config.voxelization.max_points_per_voxel
        return (
            self._kernel("voxelize", "count_points").bind(
                by_point, _THREADS, levels, cell, count, place, row_points
            ),
            self._kernel("voxelize", "place_rows").bind(
                -(-rows // 1024), _THREADS, levels, row_points, begin, status, ticket
            ),
            self._kernel("voxelize", "group_points").bind(
                by_point, _THREADS, place, count, begin, grouped
            ),
            self._kernel("voxelize", "mean_features").bind(
                by_row, _THREADS, levels, self.points, NUM_FEATURES, begin, row_points, grouped,
                most, self.features, self.points_stored,
            ),
        )  # fmt: skip


def _zeroed_bytes(
    levels: tuple[LevelShape, ...], domains: tuple[DomainShape, ...], points: int
) -> int:
    """Return room for everything that starts at zero, generously: it is a few megabytes."""
    by_level = sum(8 * s.top_words + s.leaf_capacity // 2 + 4096 for s in levels)
    by_domain = sum(8 * s.bins + 2048 for s in domains)
    return by_level + by_domain + 8 * levels[0].row_capacity + points // 64 + (64 << 10)
