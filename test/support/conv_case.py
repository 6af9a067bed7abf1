"""One sparse convolution on the map of a small frame, with random operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from test.support import oracle
from test.support.kernel_cases import cells_of, expected_entries, random_cloud, run_frame
from test.support.launch import sparse_conv


class Case:
    """A map of a frame with random operands."""

    def __init__(self, backend, config, spec, points=450, seed=0):
        self.backend, self.config = backend, config
        self.frame = run_frame(backend, random_cloud(points, seed=17), average=False)
        spec = replace(spec, tile_rows=config.tile_rows)
        (self.map,) = self.frame.build_maps([spec])
        self.levels = [cells_of(self.frame, level) for level in range(8)]
        self.rows = len(self.levels[spec.out_level])
        kz, ky, kx = spec.kernel
        generator = torch.Generator().manual_seed(seed)
        shapes = {
            "x": (max(len(self.levels[spec.in_level]), 1), config.cin),
            "weight": (kz * ky * kx, config.cin, config.cout),
            "bias": (config.cout,),
            "residual": (max(self.rows, 1), config.cout),
        }
        self.host = {k: torch.randn(shape, generator=generator) for k, shape in shapes.items()}

    def run(self, *names, relu=False):
        """Convolve with the operands named, such as ``bias``; (rows, COUT) on the CPU."""
        self.device = {k: v.to(self.backend.device) for k, v in self.host.items()}
        extra = {name: self.device[name] for name in names}
        operands = (self.device["x"], self.device["weight"])
        self.out = sparse_conv(
            self.backend, self.config, self.map, *operands, relu=relu, **extra
        ).cpu()
        return self.out[: self.rows]

    def expected(self, *names, relu=False):
        entries = expected_entries(self.map, self.levels)
        host = {k: v.numpy() for k, v in self.host.items()}
        out = oracle.convolve(
            host["x"],
            host["weight"],
            {(k, in_row, out_row) for (k, out_row), in_row in entries.items()},
            self.rows,
            host["bias"] if "bias" in names else None,
        )
        if "residual" in names:
            out = out + host["residual"][: self.rows]
        return np.where(out < 0, 0, out) if relu else out
