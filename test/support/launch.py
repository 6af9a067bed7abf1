"""How the kernels of the sparse engine are launched, written once for the CPU shim and for CUDA."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from driveRT_ros.core.cuda import Kernel
from driveRT_ros.core.gpu.domains import MAX_DOMAINS, UNIT_ROWS, LevelShape
from driveRT_ros.core.kernel_args import pack_structs, struct_value, struct_values
from test.support.cuda_cpu import CpuModule
from test.support.cuda_cpu.module import sanitized

NO_POINT = 0x7FFFFFFF
"""Empty place in a list of kernels/voxelize.cu."""
SENTINEL = 0x5B
"""Byte that fills what a kernel must not write, and what it must."""


@functools.cache
def _cpu_module(stem, defines, folder):
    return CpuModule(stem, dict(defines), folder)


@functools.cache
def _kernel(stem, name, defines, shared):
    return Kernel(stem, name, dict(defines), shared_bytes=shared)


@dataclass
class Backend:
    """Where kernels run.

    Args:
        name: ``cpu-shim`` or ``cuda``.
        seed: Order in which the threads of the shim run.
        resident: Blocks that the shim runs mixed.
        folder: Kernel sources of the shim, where not those of the package.
    """

    name: str
    seed: int = 0
    resident: int = 1
    folder: str | None = None

    @property
    def device(self):
        return torch.device("cpu") if self.name == "cpu-shim" else torch.device("cuda", 0)

    def repeats(self):
        """Yield often enough to see what is not repeatable; on the shim with another schedule."""
        for seed in range(100 if self.name == "cuda" else 4):
            self.seed = seed
            yield seed

    def launch(self, stem, name, grid, block, *args, defines=None, shared=0):
        """Run a kernel; on CUDA it may still be running afterwards."""
        key = tuple(sorted((defines or {}).items()))
        if self.name == "cpu-shim":
            module = _cpu_module(stem, key, self.folder)
            how = {"shared": shared, "seed": self.seed, "resident": self.resident}
            module.launch(name, grid, block, *args, **how)
        else:
            _kernel(stem, name, key, shared).bind(grid, block, *args)()


class Buffers:
    """Tensors that know what lies behind their end.

    Each is followed by bytes that must stay as they are, except under AddressSanitizer, which sees
    a write behind the end better when nothing follows.
    """

    def __init__(self, device):
        self.device = device
        self._slack = 0 if sanitized() else 64
        self._all = []

    def new(self, *shape, dtype=torch.int32, zero=False):
        """Return a tensor of zeros, or of sentinels (NaN where it holds floats)."""
        count = 1
        for size in shape:
            count *= size
        size = count * dtype.itemsize
        raw = torch.full((size + self._slack,), SENTINEL, dtype=torch.uint8, device=self.device)
        tensor = raw[:size].view(dtype).view(shape)
        if zero:
            tensor.zero_()
        elif dtype.is_floating_point:
            tensor.fill_(float("nan"))
        self._all.append((raw, size))
        return tensor

    def intact(self):
        """Tell whether nothing was written behind a tensor."""
        return all(bool((raw[size:] == SENTINEL).all()) for raw, size in self._all)


def ceil_div(a, b):
    return -(-a // b)


def level_shapes(grid_xyz):
    """Return (z, y, x) cells of the six levels, the bird's-eye union and its dilation."""
    nx, ny, nz = grid_xyz
    shapes = [(nz + 1, ny, nx)]
    for _ in range(5):
        shapes.append(tuple((n - 1) // 2 + 1 for n in shapes[-1]))
    return [*shapes, (1, *shapes[3][1:]), (1, *shapes[3][1:])]


@dataclass(frozen=True)
class DomainSpec:
    """One convolution: levels count from 0; 6 and 7 are the bird's-eye ones."""

    out_level: int
    in_level: int
    kernel: tuple[int, int, int] = (3, 3, 3)
    stride: int = 1
    padding: int = 1
    groups: int = 3
    tile_rows: int = 64

    @property
    def group_taps(self):
        kz, ky, kx = self.kernel
        return kz * ky * kx // self.groups

    @property
    def strides(self):
        return (self.stride,) * 3

    @property
    def paddings(self):
        return (self.padding if self.kernel[0] > 1 else 0, self.padding, self.padding)


SUBMANIFOLD = [DomainSpec(level, level) for level in range(6)]
DOWN = [DomainSpec(level, level - 1, stride=2) for level in range(1, 6)]
FLAT = [DomainSpec(7, 6, (1, 3, 3), groups=1), DomainSpec(7, 7, (1, 3, 3), groups=1)]


class Frame:
    """Levels, coordinate maps and voxel features of one frame.

    Args:
        backend: Where the kernels run.
        config: The voxel grid.
        point_capacity: Points that fit.
        row_capacity: Rows that fit, one number a level or one for all.
        leaf_capacity: Leaves that fit; enough by default.
        blocks: Blocks of every launch that may have any number.
        chunk_words: Top words that one block numbers; by default as many as suit the level.
    """

    def __init__(
        self,
        backend,
        config,
        point_capacity,
        row_capacity=4096,
        leaf_capacity=None,
        blocks=3,
        chunk_words=None,
    ):
        self.chunk_words = chunk_words
        self.backend, self.config, self.blocks = backend, config, blocks
        self.buffers = Buffers(backend.device)
        self.shapes = level_shapes(config.grid_xyz)
        rows = [row_capacity] * 8 if isinstance(row_capacity, int) else row_capacity
        leaves = leaf_capacity if isinstance(leaf_capacity, list) else [leaf_capacity] * 8
        self.levels = [self._level(i, rows[i], leaves[i]) for i in range(8)]
        self.level_structs = pack_structs("levels.cuh", "Level", self.levels, backend.device)
        self.level_values = struct_values("levels.cuh", "Level", self.levels)
        new = self.buffers.new
        low, high = config.point_cloud_range[:3], config.point_cloud_range[3:]
        grid = dict(zip(("min_x", "min_y", "min_z", "max_x", "max_y"), (*low, *high[:2])))
        grid |= dict(zip(("size_x", "size_y", "size_z"), config.voxel_size))
        grid |= dict(zip(("nx", "ny", "nz"), config.grid_xyz))
        grid |= {"point_stride": 5, "features": 5}
        self.grid = struct_value("levels.cu", "VoxelGrid", grid)
        self.points = new(point_capacity, 5, dtype=torch.float32)
        self.n_points = new(1)
        self.point_cell = new(point_capacity, 2)
        self.dropped = new(2, zero=True)
        self.stored = new(rows[0])
        self.features = new(rows[0], 5, dtype=torch.float32)

    def _level(self, i, row_capacity, leaf_capacity):
        shape = LevelShape(self.shapes[i], 1 << i if i < 6 else 0, max(0, i - 5), row_capacity)
        (nz, ny, nx), (_, ly, lx) = shape.shape_zyx, shape.leaves_zyx
        capacity = shape.leaves if leaf_capacity is None else leaf_capacity
        new, long = self.buffers.new, torch.int64
        chunk_words = self.chunk_words or shape.chunk_words
        return {
            **{"nz": nz, "ny": ny, "nx": nx, "ly": ly, "lx": lx, "stride": shape.stride},
            **{"kind": shape.kind, "top_words": shape.top_words, "chunk_words": chunk_words},
            **{"leaf_capacity": capacity, "row_capacity": row_capacity},
            "top": new(shape.top_words, 2, zero=True),
            "cells": new(shape.leaves, 8, dtype=long, zero=True),
            "leaf": new(capacity, 8, 2, dtype=long),
            "coords": new(row_capacity, 3),
            "counts": new(2, zero=True),
            "chunk_sums": new(ceil_div(shape.top_words, chunk_words), dtype=long, zero=True),
        }

    def set_points(self, points):
        self.points[: len(points)] = points.to(self.backend.device)
        self.n_points.fill_(len(points))

    def build_levels(self):
        """From points to the rows of every level."""
        blocks, levels = self.blocks, self.level_values
        run = functools.partial(self.backend.launch, "levels")
        cloud = (self.grid, self.points, self.n_points, self.point_cell, self.dropped)
        run("mark_points", blocks, 256, levels[0], *cloud)
        first, *others = (len(level["chunk_sums"]) for level in self.levels)
        run("mark_levels", first + 7 * blocks, 256, levels, blocks)
        clear = ceil_div(self.levels[0]["top_words"], 32)
        run("number_levels", sum(others) + clear, 256, levels)

    def average(self, max_points):
        """Mean features of the rows of the first level."""
        blocks, level = self.blocks, self.level_values[0]
        run = functools.partial(self.backend.launch, "voxelize")
        lists = self.buffers.new(len(self.stored), max_points).fill_(NO_POINT)
        run("list_points", blocks, 256, level, self.point_cell, self.n_points, lists, max_points)
        out = (lists, max_points, self.features, self.stored)
        run("mean_features", blocks, 256, level, self.points, 5, *out)
        self.lists = lists  # the kernels may still read it

    def build_maps(self, specs, tile_capacity=None):
        """Coordinate maps of several convolutions.

        Returns:
            One :class:`Map` each.
        """
        maps = [Map(self, spec, tile_capacity) for spec in specs]
        domains = struct_values("coordmap.cuh", "Domain", [m.fields for m in maps], MAX_DOMAINS)
        run = functools.partial(self.backend.launch, "coordmap")
        for name in ("mask_rows", "order_rows", "sort_rows", "fill_tiles"):
            blocks = self.blocks + len(maps) if name == "fill_tiles" else self.blocks
            run(name, blocks, 256, self.level_values, domains, len(maps))
        run("rank_tiles", len(maps), 1024, domains)
        return maps

    def count(self, level):
        """True number of leaves and rows of a level, also where more than fit."""
        leaves, rows = self.levels[level]["counts"][:2].tolist()
        return leaves, rows

    def coords(self, level):
        """(rows, 3) z, y, x of the rows that fit."""
        fields = self.levels[level]
        return fields["coords"][: min(self.count(level)[1], fields["row_capacity"])].cpu()


class Map:
    """The map of one convolution of a frame."""

    def __init__(self, frame, spec, tile_capacity=None):
        self.frame, self.spec = frame, spec
        self.row_capacity = frame.levels[spec.out_level]["row_capacity"]
        taps, groups = spec.group_taps, spec.groups
        tiles = groups * ceil_div(self.row_capacity, spec.tile_rows) + groups
        tiles = tiles if tile_capacity is None else tile_capacity
        new = frame.buffers.new
        kz, ky, kx = spec.kernel
        self.fields = {
            **{"out_level": spec.out_level, "in_level": spec.in_level, "kz": kz, "ky": ky},
            **{"kx": kx, "stride": spec.stride, "padding": spec.padding, "groups": groups},
            **{"group_taps": taps, "tile_rows": spec.tile_rows, "tile_capacity": tiles},
            "mask": new(self.row_capacity),
            "bins": new(groups << min(taps, 9), zero=True),
            "before": new(ceil_div(self.row_capacity, UNIT_ROWS), groups << min(taps, 9)),
            "order": new(tiles, spec.tile_rows),
            "table": new(tiles, taps, spec.tile_rows),
            "tile_mask": new(tiles),
            "tile_rank": new(tiles),
            "counts": new(3, zero=True),
        }

    @property
    def tiles(self):
        """True number of tiles, also where more than fit."""
        return int(self.fields["counts"][0])

    def host(self, name):
        """The tiles that fit of one table, on the CPU."""
        fits = min(self.tiles, self.fields["tile_capacity"])
        return self.fields[name][:fits].cpu()


@dataclass(frozen=True)
class ConvConfig:
    """Compile-time shape of the exact FP32 convolution."""

    cin: int
    cout: int
    tile_rows: int
    slab: int
    rows_per_thread: int
    channels_per_thread: int
    stages: int
    min_blocks: int

    @property
    def defines(self):
        names = ["CIN", "COUT", "TM", "KC", "RPT", "CPT", "STAGES", "MIN_BLOCKS"]
        return dict(zip(names, self.__dict__.values()))

    @property
    def threads(self):
        return self.cout // self.channels_per_thread * (self.tile_rows // self.rows_per_thread)

    @property
    def shared(self):
        return 4 * self.stages * (self.tile_rows * (self.slab + 4) + self.slab * self.cout)

    def __str__(self):
        return "-".join(map(str, self.__dict__.values()))


SPARSE_CONV = [
    ConvConfig(128, 128, 64, 16, 8, 8, 3, 3),
    ConvConfig(128, 128, 32, 16, 4, 8, 3, 4),
    ConvConfig(64, 64, 64, 16, 4, 8, 3, 4),
    ConvConfig(32, 32, 64, 32, 4, 4, 2, 8),
    ConvConfig(16, 16, 64, 16, 4, 4, 3, 8),
    ConvConfig(16, 32, 64, 16, 4, 4, 3, 8),
    ConvConfig(32, 64, 64, 16, 4, 8, 3, 4),
    ConvConfig(64, 128, 64, 16, 8, 8, 3, 3),
]


def sparse_conv(backend, config, conv_map, x, weight, *, bias=None, residual=None, relu=False):
    """Run the exact FP32 convolution over a map, with its epilogue.

    Args:
        backend: Where it runs.
        config: Its compile-time shape; ``tile_rows`` as the map's.
        conv_map: The map.
        x: (input rows, CIN) float32.
        weight: (taps, CIN, COUT) float32.
        bias: (COUT,) or None.
        residual: (rows, COUT) or None.
        relu: Clip at zero.

    Returns:
        (row capacity, COUT); rows beyond the last stay NaN.
    """
    spec, fields = conv_map.spec, conv_map.fields
    new = conv_map.frame.buffers.new
    parts = spec.groups > 1
    out = new(conv_map.row_capacity, config.cout, dtype=torch.float32)
    raw = new(spec.groups * conv_map.row_capacity, config.cout, dtype=torch.float32)
    ticket = new(1, zero=True)
    launch = {
        **{"x": x, "weight": weight, "out": raw if parts else out, "ticket": ticket},
        **{"bias": None if parts else bias, "residual": None if parts else residual},
        **{key: fields[key] for key in ("order", "table", "tile_mask", "tile_rank")},
        "n_tiles": fields["counts"],
        "group_taps": spec.group_taps,
        "relu": 0 if parts else int(relu),
    }
    value = struct_value("sparse_conv.cu", "Convolution", launch)
    how = {"defines": config.defines, "shared": config.shared}
    backend.launch("sparse_conv", "sparse_conv", 2, config.threads, value, **how)
    if parts:
        finish = {
            **{"part": raw, "mask": fields["mask"], "bias": bias, "residual": residual},
            **{"out": out, "group_taps": spec.group_taps, "relu": int(relu)},
        }
        value = struct_value("epilogue.cu", "Finish", finish)
        level = conv_map.frame.level_values[spec.out_level]
        defines = {"GROUPS": spec.groups, "COUT": config.cout, "HALF": 0}
        backend.launch("epilogue", "finish_groups", 2, 256, level, value, defines=defines)
    conv_map.alive = (raw, ticket)  # CUDA may still read them
    return out
