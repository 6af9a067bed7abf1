"""Operators prepared once give what they give called one by one, whatever a grid holds then."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.bench.grid_cases import fog_sphere
from driveRT_ros.core import grid_ops
from driveRT_ros.core.grid_repeat import Repeated, RepeatedChecksum

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def prepared(device):
    index = torch.from_numpy(fog_sphere(0.5)).to(device)
    header = grid_ops.grid_header(index)
    values = torch.arange(header.value_count, dtype=torch.float32, device=device)
    return index, header, values, grid_ops.index_to_grid(index, values, header)


@pytest.mark.parametrize("device", DEVICES)
def test_a_checksum_follows_what_the_grid_holds(device):
    *_, grid = prepared(device)
    repeated, seen = RepeatedChecksum(grid), set()
    for byte in (40, 800, 5000, len(grid) - 1):  # head, first and second block, last block
        grid[byte] ^= 1
        assert repeated() == repeated() == grid_ops.checksum(grid)
        seen.add(repeated())
    assert len(seen) == 4


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_with_buffers_of_the_caller_can_be_repeated(device):
    index, header, values, grid = prepared(device)
    out = torch.zeros_like(grid)
    convert = Repeated(lambda: grid_ops.index_to_grid(index, values, header, out=out), index.device)
    made = grid_ops.grid_header(grid)  # read before: while a graph is captured nobody may wait
    stats = Repeated(lambda: grid_ops.grid_stats(out, made), index.device)
    for scale in (1.0, -3.0):
        values.mul_(scale)
        assert torch.equal(convert(), grid_ops.index_to_grid(index, values, header))
        assert stats().whole() == grid_ops.grid_stats(out).whole()


@pytest.mark.gpu
def test_a_repeated_call_keeps_the_order_of_the_stream():
    *_, grid = prepared("cuda")
    repeated = RepeatedChecksum(grid)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        grid[5000] ^= 1
        late = repeated()
    assert late == grid_ops.checksum(grid)
