"""Layers with random operands for the tensor-core convolution, and what they must give."""

from __future__ import annotations

import numpy as np
import torch

from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.sparse_conv_mma import PARAMETERS, MmaTactic, pack_weight, round_tf32
from test.support.cuda_cpu import CpuModule
from test.support.tile_tables import convolve_groups, random_sources, tile_tables

NAN = float("nan")
ERRORS = {"F16": 2e-6, "TF32": 2e-6, "F16X3": 2e-6, "F64": 2**-24}
"""Of the largest output: sums in fp32, but for F64 one rounding to fp32."""
HALF_ROUNDING = 2**-11  # of each output, where halves are written


def tactic(precision, flow="staged", *, groups=1, tile_rows=32, slab=None, warps=(1, 1), stages=3):
    slab = slab or (32 if precision == "F16" or flow == "resident" else 16)
    return MmaTactic(groups, tile_rows, slab, *warps, stages, 1, precision, flow)


class Layer:
    """One layer with random operands, its tables and its expected result."""

    def __init__(self, choice, c_in, c_out, rows, *, taps=27, density=0.3, seed=0, in_rows=70):
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.choice, self.c_in, self.c_out, self.rows = choice, c_in, c_out, rows
        self.half = choice.precision == "F16"
        self.partial = choice.groups > 1
        self.x = torch.randn(in_rows, c_in, generator=generator)
        self.weight = torch.randn(taps, c_in, c_out, generator=generator) / (taps * c_in) ** 0.5
        self.bias = torch.randn(c_out, generator=generator)
        self.residual = torch.randn(rows, c_out, generator=generator)
        if self.half:
            self.x, self.residual = self.x.half(), self.residual.half()
        sources = random_sources(rows, in_rows, taps, density, rng)
        self.tables = tile_tables(sources, choice.tile_rows, choice.groups, rng)

    def rounded(self, values):
        if self.choice.precision == "TF32":
            return round_tf32(values.float())
        return values.half() if self.half else values

    def expected(self, *, bias=True, residual=True, relu=True):
        sums = convolve_groups(
            self.rounded(self.x), self.rounded(self.weight), self.tables.sources, self.choice.groups
        )
        if self.partial:
            return sums
        out = sums[0] + (self.bias.double().numpy() if bias else 0)
        out = out + (self.residual.double().numpy() if residual else 0)
        return np.where(out < 0, 0, out) if relu else out

    def run(self, *, bias=True, residual=True, relu=True, grid=3, seed=0, rank=True, x_scale=1.0):
        """Return rows x channels, or groups x rows x channels; NaN where nothing was written."""
        t, choice = self.tables, self.choice
        packed, scale = pack_weight(self.weight, choice.precision)
        shape = (choice.groups, t.row_capacity, self.c_out)
        kind = torch.float16 if self.half and not self.partial else torch.float32
        out, ticket = torch.full(shape, NAN, dtype=kind), torch.zeros(1, dtype=torch.int32)
        finishing = not self.partial
        arguments = struct_value(
            *PARAMETERS,
            {
                "x": self.x,
                "weight": packed,
                "bias": self.bias if bias and finishing else 0,
                "residual": self.residual if residual and finishing else 0,
                "out": out,
                "order": t.order,
                "table": t.table,
                "tile_mask": t.tile_mask,
                "tile_rank": t.tile_rank if rank else 0,
                "n_tiles": t.n_tiles,
                "ticket": ticket,
                "group_taps": t.group_taps,
                "relu": int(relu),
                "x_scale": x_scale,
                "out_scale": 1 / (x_scale * scale),
            },
        )
        sizes = (self.c_in, self.c_out, len(self.weight))
        module = CpuModule(choice.kernel, choice.defines(*sizes))
        module.launch(
            choice.kernel,
            grid,
            choice.threads(sizes[1]),
            arguments,
            shared=choice.shared_bytes(*sizes),
            seed=seed,
            resident=2,
        )
        return out.float().numpy() if self.partial else out[0].float().numpy()

    def chain_in_float32(self):
        """Return rows x channels of fp32 products, added one after the other in fp32."""
        x, weight = self.x.numpy(), self.weight.numpy()
        out = np.zeros((self.rows, self.c_out), np.float32)
        for tap, sources in enumerate(self.tables.sources):
            at = np.flatnonzero(sources >= 0)
            for k in range(self.c_in):
                out[at] += x[sources[at], k, None] * weight[tap, k]
        return out

    def check(self, **options):
        got, expected = self.run(**options), self.expected(**_epilogue(options))
        if self.partial:
            for group in range(self.choice.groups):
                used = self.written_rows(group)
                self.compare(got[group][used], expected[group][used])
                rest = np.delete(got[group], used, axis=0)
                assert np.isnan(rest).all(), "rows that the group does not hold must stay untouched"
            return
        self.compare(got[: self.rows], expected)
        assert np.isnan(got[self.rows :]).all(), "rows beyond the last were written"

    def written_rows(self, group):
        if group == self.choice.groups // 2:
            return np.arange(self.rows)
        per = self.tables.group_taps
        return np.flatnonzero((self.tables.sources[group * per :][:per] >= 0).any(0))

    def compare(self, got, expected):
        share = ERRORS[self.choice.precision] * max(1.0, np.abs(expected).max(initial=0))
        rounding = HALF_ROUNDING if self.half and not self.partial else 0
        assert got.shape == expected.shape and not np.isnan(got).any()
        assert (np.abs(got - expected) <= share + rounding * np.abs(expected)).all()


def _epilogue(options):
    return {k: v for k, v in options.items() if k in ("bias", "residual", "relu")}
