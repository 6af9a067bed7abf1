"""Ways to pool camera features on a GPU: what each needs, and what it launches."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.pool_types import ScatterMap
from driveRT_ros.core.pool_work import (
    CHUNK,
    Slots,
    Tiles,
    balanced_slots,
    column_tiles,
    tiles_unsupported,
)

FORMATS = {torch.float32: 0, torch.float16: 1, torch.float8_e4m3fn: 2}
"""How the kernels name the types of features; depths and results are one of the first two."""
BASELINES = ("v2", "v2_depth", "v3")
KINDS = (*BASELINES, "balanced", "tiles")
MOST_CHANNELS = 256
"""Of a warp: sums are kept in registers, one for two channels."""
USUAL_CHANNELS = 128
"""Of a warp where nothing was measured."""
_MOST_SHARED = 48 * 1024

Work = Slots | Tiles | None


@dataclass(frozen=True)
class PoolShape:
    """What a kernel is compiled for.

    Args:
        channels: Features of a pixel.
        features: Type of the features.
        depth: Type of the depths.
        out: Type of the result.
        align: Features that can be loaded at once: their addresses are multiples of so many.
        logits: Whether depths are logits, whose softmax is the weights.
    """

    channels: int
    features: torch.dtype
    depth: torch.dtype
    out: torch.dtype
    align: int
    logits: bool = False

    @staticmethod
    def of(
        depth: torch.Tensor, context: torch.Tensor, out_dtype: torch.dtype, *, logits: bool = False
    ) -> PoolShape:
        """Return the shape of a call.

        Args:
            depth: (B, N, D, H, W).
            context: (B, N, H, W, C).
            out_dtype: Type of the result.
            logits: Whether depths are logits.
        """
        size = context.element_size()
        bytes_ = [context.data_ptr(), 16, *(size * stride for stride in context.stride()[:-1])]
        align = math.gcd(*bytes_) // size
        types = (context.dtype, depth.dtype, out_dtype)
        return PoolShape(context.shape[-1], *types, max(align, 1), logits)


@dataclass(frozen=True)
class PoolLaunch:
    """One launch.

    Args:
        stem: Kernel source.
        name: Kernel.
        grid: Blocks.
        block: Threads.
        defines: Compile-time constants.
        parameters: The struct that the kernel takes.
        keep: Tensors that must live as long as the launch.
    """

    stem: str
    name: str
    grid: tuple[int, int, int]
    block: int
    defines: Mapping[str, int]
    parameters: np.void
    keep: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class PoolTactic:
    """One way to pool.

    Args:
        kind: ``tiles`` (tensor cores), ``balanced``, or a baseline: ``v3``, ``v2_depth``, ``v2``.
        vector: Most channels that a lane loads at once, in bytes.
        block_slots: Parts of intervals in a block (``balanced``); a power of two.
        chunk: Points after which an interval is cut (``balanced``).
        in_flight: Points that a lane loads before it adds them (``v3``, ``balanced``).
        half_sum: Sum the points of a part in halves (``balanced``): faster on small chips, and
            less exact.
        warps: Warps of a block, and the most that share a tile (``tiles``); a power of two.
        steps: Steps of a tile after which another warp takes part (``tiles``).
        groups: Groups of channels, each with blocks of its own (``tiles``).
        min_blocks: Blocks that must fit a multiprocessor (``tiles``): the register limit.
        passes: Parts in which a warp loads the channels of its rows (``tiles``): more parts need
            fewer registers and wait more often.
        whole_sectors: Swap results between lanes so that 32 bytes are written at once (``tiles``).
    """

    kind: str
    vector: int = 16
    block_slots: int = 16
    chunk: int = CHUNK
    in_flight: int = 4
    half_sum: bool = False
    warps: int = 8
    steps: int = 2
    groups: int = 1
    min_blocks: int = 1
    passes: int = 1
    whole_sectors: bool = False

    def supports(
        self, shape: PoolShape, frustum_shape: tuple[int, int, int, int] = (1, 1, 1, 1)
    ) -> str:
        """Return why this tactic cannot pool such tensors, or an empty string where it can."""
        tiled = self.kind == "tiles"
        halves = shape.features != torch.float32
        slots = self.block_slots
        rules = {
            f"kind, one of {KINDS}": self.kind in KINDS,
            "features of float32, float16 or float8_e4m3fn": shape.features in FORMATS,
            "depths of float32 or float16": FORMATS.get(shape.depth, 2) < 2,
            "results of float32 or float16": FORMATS.get(shape.out, 2) < 2,
            "at least one channel": shape.channels >= 1,
            "a vector of 1 to 16 bytes": self.vector in (1, 2, 4, 8, 16),
            "a power of two as block_slots": 1 <= slots <= 64 and slots & (slots - 1) == 0,
            "chunk and in_flight of at least 1": self.chunk >= 1 and self.in_flight >= 1,
            "half_sum with features other than float32": halves or not self.half_sum,
            "features that are not float32": halves or not tiled,
            "channels that divide into groups": not tiled or shape.channels % self.groups == 0,
            f"at most {MOST_CHANNELS} channels a group": not tiled
            or shape.channels <= MOST_CHANNELS * self.groups,
            "passes of a multiple of 8 channels": self.passes == 1
            or self.passes > 1
            and shape.channels % (8 * self.groups * self.passes) == 0,
            "a power of two up to 16 as warps": self.warps in (1, 2, 4, 8, 16),
            "steps of at least 1": self.steps >= 1,
        }
        bad = [name for name, good in rules.items() if not good]
        if not bad and tiled:
            bad = [tiles_unsupported(frustum_shape)] if tiles_unsupported(frustum_shape) else []
            bad += ["less shared memory"] if self._shared(shape) > _MOST_SHARED else []
        return f"{self} needs {', '.join(bad)}; got {shape}" if bad else ""

    def _shared(self, shape: PoolShape) -> int:
        return (self.warps - 1) * -(-(shape.channels // self.groups) // 8) * 512

    def to_json(self) -> str:
        """Return the tactic as JSON text, for records and Plans."""
        return json.dumps(vars(self))

    @staticmethod
    def from_json(text: str) -> PoolTactic:
        """Read a tactic.

        Raises:
            ConfigError: If the text is no tactic.
        """
        try:
            return PoolTactic(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"This is no tactic of pooling: {error}.") from None

    @property
    def work_key(self) -> str:
        """Equal for tactics that work off the same lists."""
        sizes = {"balanced": (self.block_slots, self.chunk), "tiles": (self.warps, self.steps)}
        return f"{self.kind} {sizes.get(self.kind, '')}"

    def work_of(self, tables: Sequence[torch.Tensor]) -> Work:
        """Return the work that :func:`tensors_of` took apart."""
        if self.kind == "tiles":
            return Tiles(*tables)
        return Slots(tables[0], self.block_slots) if self.kind == "balanced" else None

    def work(self, scatter_map: ScatterMap) -> Work:
        """Return what the kernel works off; waits for the device."""
        if self.kind == "tiles":
            return column_tiles(scatter_map, self.warps, self.steps)
        if self.kind == "balanced":
            return balanced_slots(scatter_map, self.block_slots, self.chunk)
        return None

    def defines(self, shape: PoolShape) -> dict[str, int]:
        """Return the compile-time constants."""
        formats = [FORMATS[t] for t in (shape.features, shape.depth, shape.out)]
        values = {
            "CHANNELS": shape.channels,
            **dict(zip(("FEATURES", "DEPTHS", "RESULTS"), formats)),
            **({"LOGITS": 1} if shape.logits else {}),
        }
        size = shape.features.itemsize
        if self.kind == "tiles":
            align = min(shape.align, max(self.vector // size, 1))
            parts = self.groups * self.passes
            if parts > 1:  # every part starts at a multiple of its channels
                align = math.gcd(align, shape.channels // parts)
            values |= {"ALIGN": align, "WARPS": self.warps, "GROUPS": self.groups}
            values |= {"PASSES": self.passes, "WHOLE_SECTORS": int(self.whole_sectors)}
            return {**values, "MIN_BLOCKS": self.min_blocks}
        # Eight channels are enough for a lane: more would leave lanes without work.
        vector = math.gcd(shape.align, shape.channels, min(max(self.vector // size, 1), 8))
        if self.kind == "v2_depth" and shape.channels % 10 == 0 and shape.align % 2 == 0:
            vector = 10
        lanes = min(shape.channels // vector, 1024 // self.block_slots, 64)
        more = {"VEC": vector, "LANES": lanes, "SLOTS": self.block_slots}
        return {**values, **more, "UNROLL": self.in_flight, "HALF_SUM": int(self.half_sum)}

    def launch(
        self,
        depth: torch.Tensor,
        context: torch.Tensor,
        out: torch.Tensor,
        scatter_map: ScatterMap,
        work: Work,
        scale: float = 1.0,
        norms: torch.Tensor | None = None,
    ) -> PoolLaunch:
        """Return the launch that pools into ``out``.

        Args:
            depth: (B, N, D, H, W); contiguous from N on, unless the kind is ``tiles``.
            context: (B, N, H, W, C), last axis contiguous.
            out: (B, Z, Y, X, C) contiguous, zero where the map has no points.
            scatter_map: The map, trimmed.
            work: What :meth:`work` made of that map.
            scale: Multiplies the result.
            norms: (B, N, H, W, 2) float32 where depths are logits, see
                :func:`driveRT_ros.core.pool_softmax.norms_launch`; None where they are weights.

        Raises:
            ConfigError: If the tactic cannot do it.
        """
        shape = PoolShape.of(depth, context, out.dtype, logits=norms is not None)
        reason = self.supports(shape, scatter_map.frustum_shape) or _bad_strides(
            depth, context, self.kind == "tiles"
        )
        if reason:
            raise ConfigError(f"This tactic cannot pool: {reason}.")
        fields = {
            "depth": depth.data_ptr(),
            "features": context.data_ptr(),
            "out": out,
            "cells": scatter_map.cells,
            "depth_batch": depth.stride(0),
            "feature_batch": context.stride(0),
            "norms": norms,
            "norm_batch": math.prod(context.shape[1:4]),
            "scale": scale,
        }
        inputs = (shape, fields, depth, context, scatter_map)
        if isinstance(work, Tiles):
            made = self._tile_launch(*inputs, work)
        else:
            made = self._interval_launch(*inputs, work)
        return made if norms is None else dataclasses.replace(made, keep=(*made.keep, norms))

    def _tile_launch(
        self,
        shape: PoolShape,
        fields: dict[str, object],
        depth: torch.Tensor,
        context: torch.Tensor,
        scatter_map: ScatterMap,
        work: Tiles,
    ) -> PoolLaunch:
        tables = {f.name: getattr(work, f.name) for f in dataclasses.fields(work)}
        fields |= tables
        depth_axes = ("depth_camera", "depth_bin", "depth_row", "depth_column")
        fields |= dict(zip(depth_axes, depth.stride()[1:]))
        feature_axes = ("feature_camera", "feature_row", "feature_column")
        fields |= dict(zip(feature_axes, context.stride()[1:4]))
        fields |= dict(zip(("rows", "cols"), scatter_map.frustum_shape[2:]))
        return PoolLaunch(
            stem="bev_pool_tiles",
            name="pool_tiles",
            grid=(len(work.slots) // self.warps, len(depth), self.groups),
            block=32 * self.warps,
            defines=self.defines(shape),
            parameters=struct_value("bev_pool_tiles.cu", "PoolTiles", fields),
            keep=(depth, context, *tables.values()),
        )

    def _interval_launch(
        self,
        shape: PoolShape,
        fields: dict[str, object],
        depth: torch.Tensor,
        context: torch.Tensor,
        scatter_map: ScatterMap,
        work: Slots | None,
    ) -> PoolLaunch:
        defines = self.defines(shape)
        _, bins, rows, cols = scatter_map.frustum_shape
        arrays = scatter_map.arrays()
        names = ("ranks_depth", "ranks_feat", "ranks_bev", "starts", "lengths")
        intervals = len(scatter_map.interval_starts)
        fields |= dict(zip(names, arrays))
        fields |= {"slots": work.table if work else None, "intervals": intervals}
        fields |= {"feature_row": context.stride(3), "points_per_pixel": bins}
        fields["pixels"] = rows * cols
        if work:
            blocks, block = work.blocks, defines["LANES"] * work.block_slots
        else:
            owners = shape.channels // (1 if self.kind == "v2" else defines["VEC"])
            blocks, block = -(-intervals * owners // 256), 256
            if blocks * block >= 2**31:
                raise ConfigError(
                    f"'{self.kind}' numbers {owners} results of each of {intervals} cells with 31 "
                    "bits; use 'tiles' or 'balanced'."
                )
        return PoolLaunch(
            stem="bev_pool",
            name=f"pool_{self.kind}",
            grid=(blocks, len(depth), 1),
            block=block,
            defines=defines,
            parameters=struct_value("bev_pool.cu", "Pool", fields),
            keep=(depth, context, *arrays, *([work.table] if work else [])),
        )


def _bad_strides(depth: torch.Tensor, context: torch.Tensor, tiled: bool) -> str:
    """Return which memory layout a kernel cannot address, or an empty string."""
    if context.shape[-1] > 1 and context.stride(-1) != 1:
        return f"a contiguous last axis of the context, got strides {context.stride()}"
    spans = [
        sum((n - 1) * s for n, s in zip(t.shape[1:], t.stride()[1:])) for t in (depth, context)
    ]
    if max(spans) * 4 >= 2**31:
        return f"batch items below 2**29 elements, got {max(spans)}"
    if tiled:
        return ""
    if not depth[0].is_contiguous():
        return f"contiguous depths, got strides {depth.stride()}"
    _, _, h, w, _ = context.shape
    row = context.stride(3)
    wanted = (h * w * row, w * row, row)
    pixels = zip(context.shape[1:4], context.stride()[1:4], wanted)
    if any(size > 1 and stride != want for size, stride, want in pixels):
        return f"context pixels at equal distances, got strides {context.stride()}"
    return ""


def tensors_of(work: Work) -> list[torch.Tensor]:
    """Return the tables of some work, for an operator that takes nothing but tensors."""
    if isinstance(work, Tiles):
        return [work.slots, work.tile_cells, work.step_place, work.entries]
    return [work.table] if work else []


def default_tactic(shape: PoolShape, frustum_shape: tuple[int, int, int, int]) -> PoolTactic:
    """Return the tactic for tensors that nothing was measured for.

    None of them spills registers on any architecture, with or without logits.
    """
    channels = shape.channels
    groups = -(-channels // USUAL_CHANNELS)
    while groups < channels and channels % groups:
        groups += 1
    tiles = PoolTactic("tiles", groups=groups)
    if channels > USUAL_CHANNELS:
        # Rows by 8 bytes leave room for 12 warps of a multiprocessor, also where depths are logits.
        tiles = PoolTactic(
            "tiles", vector=8, warps=4, steps=4, groups=groups, min_blocks=3, whole_sectors=True
        )
    elif channels > 96:
        # Two groups read depths twice, but need 96 registers where one needs 157 - as long as both
        # can load 16 bytes at once.
        halves = PoolTactic("tiles", steps=4, groups=2)
        tiles = PoolTactic("tiles", warps=4) if channels % 16 else halves
    wide_enough = groups == 1 or channels // groups >= 32
    fits = wide_enough and not tiles.supports(shape, frustum_shape)
    return tiles if fits else PoolTactic("balanced")
