"""The first layer, and the merge of three levels into the bird's-eye view."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.kernel_args import struct_value
from test.support import oracle
from test.support.kernel_cases import (
    cells_of,
    crowded_cloud,
    random_cloud,
    run_frame,
    with_batch,
)
from test.support.launch import ceil_div


@pytest.mark.parametrize("points", [0, 1, 33, 450])
def test_the_first_layer_convolves_as_float64_does(backend, points):
    frame = run_frame(backend, random_cloud(points, seed=19), average=False)
    cells = cells_of(frame, 0)
    rows, new = len(cells), frame.buffers.new
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator) for shape in ((max(rows, 1), 5), (27, 5, 16), (16,))
    )
    device = [t.to(backend.device) for t in (x, weight, bias)]
    out = new(frame.levels[0]["row_capacity"], 16, dtype=torch.float32)
    fields = dict(zip(("x", "weight", "bias", "out"), (*device, out)), level=0)
    value = struct_value("input_conv.cu", "InputConv", fields)
    blocks = max(ceil_div(rows, 256), 1)
    structs = frame.level_structs
    defines = {"IN": 5, "OUT": 16, "HALF": 0}
    backend.launch("input_conv", "input_conv", blocks, 128, structs, value, defines=defines)
    entries = oracle.map_entries(
        with_batch(cells), [(0, *c) for c in cells], (3, 3, 3), (1, 1, 1), (1, 1, 1)
    )
    expected = oracle.convolve(x.numpy(), weight.numpy(), entries, rows, bias.numpy())
    np.testing.assert_allclose(out[:rows].cpu(), np.where(expected < 0, 0, expected), atol=1e-5)
    assert bool(out[rows:].isnan().all())
    assert frame.buffers.intact()


@pytest.mark.parametrize("channels", [16, 128])
def test_the_birds_eye_view_adds_every_row_above_a_cell(backend, channels):
    points = torch.cat((random_cloud(600, seed=21), crowded_cloud()))
    frame = run_frame(backend, points, average=False)
    levels = [cells_of(frame, level) for level in range(8)]
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(len(levels[i]), channels, generator=generator) for i in (3, 4, 5)]
    out = frame.buffers.new(4096, channels, dtype=torch.float32)
    device = [t.to(backend.device) for t in x]
    value = struct_value(
        "bev_merge.cu", "Merge", {"x": device, "out": out, "channels4": channels // 4}
    )
    how = {"defines": {"HALF": 0}}
    backend.launch("bev_merge", "bev_merge", 3, 256, frame.level_structs, value, **how)
    parts = [(with_batch(levels[i]), t.numpy()) for i, t in zip((3, 4, 5), x)]
    cells, sums = oracle.bev_merge(parts, (1, 2, 4))
    got = dict(zip(levels[6], out.cpu().numpy()))
    assert len(cells) == len(levels[6])
    for (_, y, x_), expected in zip(cells, sums):
        np.testing.assert_allclose(got[0, y, x_], expected, atol=1e-5)
    assert bool(out[len(cells) :].isnan().all())
