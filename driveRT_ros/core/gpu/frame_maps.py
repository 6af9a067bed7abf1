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
from driveRT_ros.core.gpu.counts import CountsReader
from driveRT_ros.core.gpu.domains import (
    KEY_TAPS,
    MAX_DOMAINS,
    DomainShape,
    LevelShape,
    domain_shapes,
    level_shapes,
)
from driveRT_ros.core.gpu.transfers import HEADER_WORDS, FrameInput
from driveRT_ros.core.kernel_args import pack_structs, struct_value, struct_values
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.raw_cloud import CountedRows
from driveRT_ros.core.sparse_types import NUM_FEATURES

_THREADS = 256
_WORDS_PER_LEAF = 8
_MAX_POINTS_PER_VOXEL = 32  # a list is searched from its start; kernels/voxelize.cu
_NO_POINT = 0x7FFFFFFF  # kernels/voxelize.cu
_MAX_LEAVES = 2**24  # a gigabyte of cell bits


@dataclass(frozen=True, eq=False)
class LevelBuffers:
    """Device memory of one level; ``counts`` holds leaves and rows."""

    shape: LevelShape
    top: torch.Tensor
    cells: torch.Tensor
    leaf: torch.Tensor
    coords_zyx: torch.Tensor
    counts: torch.Tensor
    chunk_sums: torch.Tensor

    def fields(self) -> dict[str, object]:
        """Return the struct ``Level`` of kernels/levels.cuh."""
        (nz, ny, nx), (_, ly, lx) = self.shape.shape_zyx, self.shape.leaves_zyx
        return {
            "nz": nz, "ny": ny, "nx": nx, "ly": ly, "lx": lx,
            "stride": self.shape.stride, "kind": self.shape.kind,
            "top_words": self.shape.top_words, "chunk_words": self.shape.chunk_words,
            "leaf_capacity": self.shape.leaf_capacity, "row_capacity": self.shape.row_capacity,
            "top": self.top, "cells": self.cells, "leaf": self.leaf, "coords": self.coords_zyx,
            "counts": self.counts, "chunk_sums": self.chunk_sums,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class DomainBuffers:
    """Device memory of one coordinate map; ``counts`` holds tiles, executed and useful taps."""

    shape: DomainShape
    mask: torch.Tensor
    bins: torch.Tensor
    before: torch.Tensor
    order: torch.Tensor
    table: torch.Tensor
    tile_mask: torch.Tensor
    tile_rank: torch.Tensor
    counts: torch.Tensor

    def fields(self) -> dict[str, object]:
        """Return the struct ``Domain`` of kernels/coordmap.cuh."""
        s = self.shape
        kz, ky, kx = s.kernel_zyx
        return {
            "out_level": s.out_level, "in_level": s.in_level, "kz": kz, "ky": ky, "kx": kx,
            "stride": s.stride, "padding": s.padding, "groups": s.groups,
            "group_taps": s.group_taps, "tile_rows": s.tile_rows,
            "tile_capacity": s.tile_capacity, "mask": self.mask, "bins": self.bins,
            "before": self.before, "order": self.order, "table": self.table,
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

    in_cell_order = True
    """Rows are numbered in the order of :func:`driveRT_ros.core.fingerprint.cell_order`."""

    def __init__(self, config: LidarConfig, plan: Plan, device: torch.device) -> None:
        self._check(config)
        self.config, self.device = config, device
        levels = level_shapes(config)
        domains = domain_shapes(levels, plan.tactics)
        self.arena = Arena(device, _zeroed_bytes(levels, domains) + 4 * levels[0].row_capacity)
        self.levels = tuple(self._level(shape) for shape in levels)
        self.domains = {shape.name: self._domain(shape) for shape in domains}
        new, points, rows = self.arena.empty, config.input.point_capacity, levels[0].row_capacity
        self._input = FrameInput(new(HEADER_WORDS + points * NUM_FEATURES))
        self.points, self.num_points = self._input.points, self._input.num_points
        self.dropped = self.arena.zeroed(2)
        self.features = new(rows, NUM_FEATURES, dtype=torch.float32)
        self.points_stored, self.used_points = self.arena.zeroed(rows), self.arena.zeroed(1)
        level_fields = [level.fields() for level in self.levels]
        self.level_values = struct_values("levels.cuh", "Level", level_fields)
        self.level_structs = pack_structs("levels.cuh", "Level", level_fields, device)
        domain_fields = [domain.fields() for domain in self.domains.values()]
        self._domain_values = struct_values("coordmap.cuh", "Domain", domain_fields, MAX_DOMAINS)
        self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._by_point = min(-(-points // _THREADS), self.multiprocessors * 8)
        launches = self._level_launches()
        self.level_launches = launches[:2]
        """Points to the rows of level 1, which is all that voxel features need."""
        self.map_launches = (*launches, *self._domain_launches())
        self.voxel_launches = self._voxel_launches()
        self.counts = CountsReader(self)

    def load(self, points: torch.Tensor) -> torch.Tensor:
        """Copy a cloud into the frame, on the current stream; return its rows there.

        Args:
            points: (N, 5) float32 or float64, on this device or on the host; they may change as
                soon as this returns, in pinned memory once the stream is past it.

        Raises:
            InvalidFrame: If it has another shape, dtype or device, or more points than fit.
        """
        known = points.dtype in (torch.float32, torch.float64)
        if points.ndim != 2 or points.shape[1] != NUM_FEATURES or not known:
            raise InvalidFrame(
                "Points must be rows of x, y, z, intensity, time lag in float32 or float64.",
                "points", (tuple(points.shape), points.dtype), f"(N, {NUM_FEATURES}) float32",
            )  # fmt: skip
        if points.device.type not in (self.device.type, "cpu"):
            raise InvalidFrame("Points lie elsewhere.", "points", points.device, self.device)
        if len(points) > len(self.points):
            raise InvalidFrame(
                "The cloud has more points than the frame holds; raise 'input.point_capacity'.",
                "points", len(points), f"at most {len(self.points)}",
            )  # fmt: skip
        return self._input.load(points)

    def load_counted(self, points: CountedRows) -> CountedRows:
        """Copy points of which the device alone knows the number, on the current stream.

        Args:
            points: On this device, with room for no more than the frame holds.
        """
        mine = self.points[: points.room]
        mine.copy_(points.rows)
        self.num_points.copy_(points.count)
        return points.at(mine)

    def count_used(self) -> None:
        """Sum up the points that voxels are the mean of, on the current stream."""
        torch.sum(self.points_stored, 0, keepdim=True, dtype=torch.int32, out=self.used_points)

    def overflow(self) -> dict[str, tuple[int, int]]:
        """Return, by name, what was needed and what fits, where it did not fit; waits for the GPU.

        A frame with an overflow is incomplete: raise the capacity or run it elsewhere.
        """
        self.counts.enqueue()
        return dict(self.counts.read().overflow)

    @staticmethod
    def _check(config: LidarConfig) -> None:
        voxels = config.voxelization
        if voxels.max_points_per_voxel > _MAX_POINTS_PER_VOXEL:
            raise ConfigError(
                "Parameter 'voxelization.max_points_per_voxel' can be at most "
                f"{_MAX_POINTS_PER_VOXEL} on a GPU, got {voxels.max_points_per_voxel}."
            )
        z, y, x = level_shapes(config)[0].leaves_zyx
        if z * y * x > _MAX_LEAVES:
            raise ConfigError(
                f"The grid {voxels.sparse_shape_zyx} has {z * y * x} leaves of 8 x 8 x 8 cells, "
                f"more than the {_MAX_LEAVES} that a GPU can hold; use larger voxels or a smaller "
                "range."
            )

    def _level(self, shape: LevelShape) -> LevelBuffers:
        new, zeroed, i64 = self.arena.empty, self.arena.zeroed, torch.int64
        return LevelBuffers(
            shape,
            top=zeroed(shape.top_words, 2),
            cells=self.arena.filled(shape.leaves, _WORDS_PER_LEAF, value=0, dtype=i64),
            leaf=new(shape.leaf_capacity, _WORDS_PER_LEAF, 2, dtype=i64),
            coords_zyx=new(shape.row_capacity, 3),
            counts=zeroed(2),
            chunk_sums=zeroed(shape.chunks, dtype=i64),
        )

    def _domain(self, shape: DomainShape) -> DomainBuffers:
        new, zeroed = self.arena.empty, self.arena.zeroed
        tiles, bins = shape.tile_capacity, shape.bins
        return DomainBuffers(
            shape,
            mask=new(shape.row_capacity),
            bins=zeroed(bins),
            before=new(shape.units, bins),
            order=new(tiles, shape.tile_rows),
            table=new(tiles, shape.group_taps, shape.tile_rows),
            tile_mask=new(tiles),
            tile_rank=new(tiles),
            counts=zeroed(3),
        )

    def _kernel(self, stem: str, name: str) -> Kernel:
        return Kernel(stem, name, device=self.device)

    def _level_launches(self) -> tuple[Launch, ...]:
        voxels = self.config.voxelization
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
        value = struct_value("levels.cu", "VoxelGrid", grid)
        self._point_cell = self.arena.empty(len(self.points), 2)
        first, others = self.levels[0].shape, self.levels[1:]
        words = -(-first.top_words // 32)  # in units of 32
        mark = first.chunks + len(others) * words
        number = sum(level.shape.chunks for level in others) + words
        return (
            self._kernel("levels", "mark_points").bind(
                self._by_point, _THREADS, self.level_values[0], value,
                self.points, self.num_points, self._point_cell, self.dropped,
            ),
            self._kernel("levels", "mark_levels").bind(
                mark, _THREADS, self.level_values, words, dependent=True
            ),
            self._kernel("levels", "number_levels").bind(
                number, _THREADS, self.level_values, dependent=True
            ),
        )  # fmt: skip

    def _domain_launches(self) -> list[Launch]:
        count = len(self.domains)
        blocks = max(self.multiprocessors * 4, 2 * count)  # some of fill_tiles rank tiles instead
        both = (self.level_values, self._domain_values, count)
        sorts = any(d.shape.group_taps > KEY_TAPS for d in self.domains.values())
        names = ["mask_rows", "order_rows", *(["sort_rows"] * sorts), "fill_tiles"]
        walk = [
            self._kernel("coordmap", name).bind(blocks, _THREADS, *both, dependent=True)
            for name in names
        ]
        if sorts:
            rank = self._kernel("coordmap", "rank_tiles")
            walk.append(rank.bind(count, 1024, self._domain_values, dependent=True))
        return walk

    def _voxel_launches(self) -> tuple[Launch, ...]:
        rows, length = len(self.features), self.config.voxelization.max_points_per_voxel
        lists = self.arena.filled(rows, length, value=_NO_POINT)
        level = self.level_values[0]
        by_row = min(-(-rows // _THREADS), self.multiprocessors * 8)
        return (
            self._kernel("voxelize", "list_points").bind(
                self._by_point, _THREADS, level, self._point_cell, self.num_points, lists, length
            ),
            self._kernel("voxelize", "mean_features").bind(
                by_row, _THREADS, level, self.points, NUM_FEATURES, lists, length,
                self.features, self.points_stored, dependent=True,
            ),
        )  # fmt: skip


def _zeroed_bytes(levels: tuple[LevelShape, ...], domains: tuple[DomainShape, ...]) -> int:
    """Return room for everything that starts at zero, generously: it is a few megabytes."""
    by_level = sum(8 * (s.top_words + s.chunks) + 1024 for s in levels)
    by_domain = sum(4 * s.bins + 2048 for s in domains)
    return by_level + by_domain + (64 << 10)
