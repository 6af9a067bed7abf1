"""Calls prepared by the shape of a grid give what any grid of that shape holds now."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from driveRT_ros.core import grid_ops
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu import grid_blocks, prepared
from driveRT_ros.core.gpu import grid_ops as gpu
from driveRT_ros.core.grid_types import STATS
from driveRT_ros.core.nanovdb_layout import ON_INDEX, converted, read_header
from driveRT_ros.core.reference import grid_ops as reference
from driveRT_ros.core.reference import grid_stats as reference_stats
from test.support.launch import Backend
from test.support.nvdb_grids import Sketch, mixed, padded


class ShimKernel:
    """A kernel whose launches run on the CPU, with the arguments as they are then."""

    launches: list[str] = []

    def __init__(self, stem, name, device):
        self._stem, self._name, self._backend = stem, name, Backend("cpu-shim")

    def bind(self, grid, block, *args, dependent=False):
        def launch(stream):
            ShimKernel.launches.append(self._name)
            self._backend.launch(self._stem, self._name, grid, block, *args)

        return launch


@pytest.fixture
def on_shim(monkeypatch):
    """Run what is launched by default on the shim, and forget what was prepared there."""
    caches = grid_blocks._prepared, gpu._prepared_stats, gpu._prepared_index
    monkeypatch.setattr(prepared, "Kernel", ShimKernel)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(
        cuda_stream=0, synchronize=lambda: None
    ))  # fmt: skip
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=2)
    )
    monkeypatch.setattr(grid_blocks, "_host_pair", lambda: torch.empty(2, dtype=torch.int32))
    ShimKernel.launches.clear()
    yield
    for cache in caches:
        cache.cache_clear()


def aligned(data: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(data.copy())


def test_a_checksum_takes_two_launches_and_follows_the_bytes(on_shim):
    grids = [padded(4096 * 30 + 64, seed=seed) for seed in (1, 2)]
    header = read_header(grids[0])
    for grid in (*grids, grids[0]):
        expected = reference.checksum(grid, header)
        tensor = aligned(grid)
        assert grid_blocks.checksum_now(tensor, header.size) == expected
        bits = gpu.checksum(tensor, header).tolist()
        assert tuple(int(v) & 0xFFFFFFFF for v in bits) == expected
    assert grid_blocks._prepared.cache_info().misses == 1
    assert ShimKernel.launches == ["sum_diagonals", "fold_diagonals"] * 6


def test_statistics_and_conversions_follow_the_values(on_shim):
    sketch = mixed()
    index, values = sketch.grid(ON_INDEX), sketch.values().astype(np.float32)
    header = read_header(index)
    for scale in (1.0, -3.0):
        scaled = (values * np.float32(scale)).astype(np.float32)
        out = torch.empty(converted(header, values.dtype).size, dtype=torch.uint8)
        gpu.index_to_grid(aligned(index), header, torch.from_numpy(scaled), 2, out)
        expected = reference.index_to_grid(index, header, scaled, 2)
        np.testing.assert_array_equal(out.numpy(), expected)
        made = read_header(expected)
        found = gpu.grid_stats(out, made)
        assert found.host().tobytes() == reference_stats.grid_stats(expected, made).tobytes()
        assert found.background.tolist() == scaled[:1].view(np.uint8).tolist()
    misses = [cache.cache_info().misses for cache in (gpu._prepared_stats, gpu._prepared_index)]
    assert misses == [1, 1] and len(ShimKernel.launches) == 2 * 4


def test_what_was_prepared_keeps_no_grid(on_shim):
    grid = padded(4096 * 3)
    tensor = aligned(grid)
    gone = weakref.ref(tensor)
    gpu.checksum(tensor, read_header(grid))
    del tensor
    gc.collect()
    assert gone() is None


@pytest.mark.gpu
def test_threads_on_streams_of_their_own_share_what_was_prepared():
    index, values = mixed().grid(ON_INDEX), mixed().values().astype(np.float32)
    scaled = [(values * np.float32(scale)).astype(np.float32) for scale in (1, -2, 0.5, 3)]
    grids = [reference.index_to_grid(index, read_header(index), each, 2) for each in scaled]
    header = read_header(grids[0])

    def work(grid):
        wrong = []
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.from_numpy(grid).cuda()
            expected = reference.checksum(grid, header)
            records = reference_stats.grid_stats(grid, header).tobytes()
            for _ in range(100):
                found = grid_ops.checksum(tensor, header), grid_ops.grid_stats(tensor, header)
                if found[0] != expected or found[1].host().tobytes() != records:
                    wrong.append(found)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, grids)) == [[]] * 4


@pytest.mark.gpu
def test_every_call_counts_its_upper_nodes_anew():
    far = {(4096 * i, 0, 0): float(i) for i in range(40)}
    grid = Sketch(far).grid()
    header, tensor = read_header(grid), torch.from_numpy(grid).cuda()
    expected = reference_stats.grid_stats(grid, header).tobytes()
    shape = (sum(header.node_counts) + 2, STATS.itemsize)
    for byte in (0, 1, 255):  # what the memory of the records held before
        torch.full(shape, byte, dtype=torch.uint8, device="cuda")
        assert grid_ops.grid_stats(tensor, header).host().tobytes() == expected


def test_a_grid_with_gaps_is_read_as_it_is(on_shim, monkeypatch):
    grid = padded(4096 * 3)
    spread = torch.zeros(len(grid), 2, dtype=torch.uint8)
    spread[:, 0] = torch.from_numpy(grid)
    seen = grid_ops._aligned(spread[:, 0])
    assert seen.is_contiguous() and torch.equal(seen, torch.from_numpy(grid))
    with pytest.raises(ConfigError, match="contiguous"):
        prepared_stats = gpu._prepared_stats(torch.device("cpu"), *stats_key(grid))
        prepared_stats.enqueue(0, spread[:, 0], torch.zeros(9))


def stats_key(grid):
    header = read_header(grid)
    return header.node_offsets, header.node_counts, header.table_size, True, True, False
