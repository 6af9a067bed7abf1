"""Kernels on NanoVDB grids give the bits of the reference, and those of zlib."""

from __future__ import annotations

import functools
import math
import zlib

import numpy as np
import pytest
import torch

from driveRT_ros.core import cuda, grid_ops
from driveRT_ros.core.gpu import crc_powers, grid_blocks
from driveRT_ros.core.gpu import grid_ops as gpu
from driveRT_ros.core.nanovdb_layout import FLOAT, INT32, ON_INDEX, converted, read_header
from driveRT_ros.core.nvrtc import read_source
from driveRT_ros.core.reference import grid_ops as reference
from driveRT_ros.core.reference import grid_stats as reference_stats
from test.support.cuda_cpu import CpuModule
from test.support.launch import SENTINEL, Buffers
from test.support.nvdb_files import real_grids
from test.support.nvdb_grids import KINDS, TAILS, Sketch, blob, dense_leaf, mixed, padded


def runner(backend):
    def run(stem, name, blocks, threads, *args, dependent=False):
        backend.launch(stem, name, blocks, threads, *args)

    return run


def on_device(backend, grid):
    """Return a grid with bytes behind it that nobody may write."""
    buffers = Buffers(backend.device)
    tensor = buffers.new(len(grid), dtype=torch.uint8)
    tensor.copy_(torch.as_tensor(grid))
    return tensor, buffers


# ---- checksum -----------------------------------------------------------------------------------


def checksum(backend, grid, resident=8):
    tensor, buffers = on_device(backend, grid)
    header = read_header(np.asarray(grid))
    bits = gpu.checksum(tensor, header, runner(backend), resident)
    assert buffers.intact() and torch.equal(tensor.cpu(), torch.as_tensor(grid))
    return tuple(int(v) & 0xFFFFFFFF for v in bits.tolist())


@pytest.mark.parametrize("piece", [1, 1024])
def test_products_bring_a_register_past_zeros(piece):
    tables, powers = crc_powers.operators(piece)
    assert tables.shape == (10, 7, 32) and powers.shape == (32,)
    register = 0x12345678
    for k, words in enumerate((1, 2, 4, 8, 16, 32, piece, 2 * piece, 4 * piece, 8 * piece)):
        # zlib begins with all ones and ends with their complement: two sums cancel both.
        linear = zlib.crc32(register.to_bytes(4, "little") + bytes(4 * words - 4))
        linear ^= zlib.crc32(bytes(4 * words))
        digits = [register >> 5 * d & 31 for d in range(7)]
        found = (int(tables[k, d, e]) for d, e in enumerate(digits))
        power = powers[words.bit_length() - 1]
        assert (
            functools.reduce(int.__xor__, found)
            == linear
            == int(crc_powers.product(register, power))
        )


@pytest.mark.parametrize(
    "size", [*range(9), 127, 128, 129, 4095, 4096, 4097, 8192, 32769, 36866, 98307, 300_001]
)
def test_the_crc_of_any_bytes_is_that_of_zlib(backend, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    tensor, buffers = on_device(backend, data)
    for resident in (1, 3, 100):
        bits = gpu.crc32(tensor, run=runner(backend), resident=resident)
        assert bits.shape == (1,) and int(bits) & 0xFFFFFFFF == zlib.crc32(data.data)
    assert buffers.intact()


def test_many_messages_need_two_launches_and_empty_ones_are_zero(backend):
    rng, launches = np.random.default_rng(1), []
    sizes = [0, 70_001, 4, 0, 4096, 8192, 12_289, 5, 40_000, 0, 3]
    parts = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    run = runner(backend)

    def counted(*args, **how):
        launches.append(args[1])
        run(*args, **how)

    for resident in (1, 50):
        given = [on_device(backend, part)[0] for part in parts]
        bits = gpu.crc32(*given, run=counted, resident=resident)
        assert [int(v) & 0xFFFFFFFF for v in bits.tolist()] == [zlib.crc32(p) for p in parts]
    assert launches == ["crc_messages"] * 4


FAR = """
extern "C" __global__ void far(const u32* powers, const u64* words, u32* out) {
    begin_dependent();
    const u32 v = shift_by(powers, words[blockIdx.x], 0x12345678u);
    if (threadIdx.x == 0) out[blockIdx.x] = v;
}
"""


def test_a_register_goes_past_more_words_than_32_bits_count(tmp_path):
    """Blocks of a tensor of more than 16 GiB have more than 2**32 words behind them."""
    (tmp_path / "far.cu").write_text(read_source("grid_ops_checksum.cu").decode() + FAR)
    _, powers = crc_powers.operators(1)
    words = [5, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 5, 2**33 + 2**31, 2**40 - 1, 2**64 - 1]
    out = torch.zeros(len(words), dtype=torch.int32)
    args = (powers.view(np.int32), np.array(words, np.uint64).view(np.int64))
    tensors = [torch.from_numpy(a) for a in args]
    CpuModule("far", folder=tmp_path).launch("far", len(words), 32, *tensors, out)
    for count, bits in zip(words, out.tolist()):
        register, power = 0x12345678, int(powers[0])  # squared as often as the count has bits
        for bit in range(count.bit_length()):
            register = int(crc_powers.product(register, power)) if count >> bit & 1 else register
            power = int(crc_powers.product(power, power))
        assert bits & 0xFFFFFFFF == register, count


@pytest.mark.parametrize("tail", TAILS)
def test_checksums_of_any_length_equal_zlib(backend, tail):
    grid = padded(tail, seed=tail)
    assert checksum(backend, grid) == reference.checksum(grid, read_header(grid))


@pytest.mark.parametrize("blocks", [7, 8, 9, 63, 64, 65, 129, 200])
def test_any_number_of_chunks_folds_to_the_same_checksum(backend, blocks):
    # A block takes 8 chunks a round: one round, a ragged one, several rounds.
    grid = padded(4096 * blocks + 32, seed=blocks)
    expected = reference.checksum(grid, read_header(grid))
    for resident in (1, 3, 8):
        assert checksum(backend, grid, resident) == expected


@pytest.mark.parametrize("steps", [1, 3, 33, 64])
def test_spans_of_any_length_fold_to_the_same_checksum(backend, monkeypatch, steps):
    monkeypatch.setattr(grid_blocks, "_STEPS", steps)
    grid = padded(4096 * 531 + 2784, seed=steps)
    assert checksum(backend, grid, 1) == reference.checksum(grid, read_header(grid))


def test_checksums_of_nodes_fold_over_three_launches(backend):
    grid = mixed().grid(version=(32, 3, 3))
    assert checksum(backend, grid) == reference.checksum(grid, read_header(grid))


def test_checksums_do_not_depend_on_the_schedule(backend):
    backend.resident = 3
    grid = padded(4096 * 40 + 96)
    expected = reference.checksum(grid, read_header(grid))
    for _ in backend.repeats():
        assert checksum(backend, grid) == expected


# ---- statistics ---------------------------------------------------------------------------------


def broken_leaf():
    """Return a leaf with everything that is not plain."""
    rng = np.random.default_rng(4)
    values = rng.normal(size=512).astype(np.float32)
    values[rng.choice(512, 40, replace=False)] = np.nan
    values[[3, 70, 200]] = -0.0, 0.0, 1e-42
    return dense_leaf(values.tolist())


def crowded():
    """Return nodes of more used slots than a block has threads, and than it lists at once."""
    plane = [(1, (8 * (i // 16), 0, 8 * (i % 16)), i / 7) for i in range(256) if i % 5]
    cube = [
        (2, (4096 + 128 * (i // 1024), 128 * (i // 32 % 32), 128 * (i % 32)), i / 3)
        for i in range(4700)
    ]
    return Sketch({(1, 9, 2): 5.0, (7, 127, 127): -1.0}, plane + cube)


SKETCHES = {
    "crowded": (crowded(), FLOAT),
    "nothing": (Sketch(background=3.0), FLOAT),
    "bare nodes": (Sketch(bare=mixed().bare, background=-2.0), FLOAT),
    "mixed": (mixed(), FLOAT),
    "integers": (mixed(whole=True), INT32),
    "broken": (broken_leaf(), FLOAT),
    "no number at all": (dense_leaf([math.nan] * 512), FLOAT),
    "infinite": (Sketch(dict(zip(blob(40), [math.inf, -math.inf, 1.0] * 14))), FLOAT),
    "overflow": (Sketch(dict.fromkeys(blob(40), 3e38), background=1e-40), FLOAT),
    "tiles alone": (Sketch(tiles=[(3, (4096 * i, 0, 0), i / 3) for i in range(150)]), FLOAT),
    "one voxel": (Sketch({(-1, -1, -1): 2.0}), FLOAT),
}


def stats(backend, grid, **how):
    tensor, buffers = on_device(backend, grid)
    found = gpu.grid_stats(tensor, read_header(grid), run=runner(backend), **how)
    assert buffers.intact()
    return found, tensor.cpu().numpy()


@pytest.mark.parametrize("name", SKETCHES)
def test_statistics_are_those_of_the_reference_bit_by_bit(backend, name):
    sketch, layout = SKETCHES[name]
    grid = sketch.grid(layout)
    header = read_header(grid)
    expected = reference_stats.grid_stats(grid, header)
    found, after = stats(backend, grid)
    assert found.host().tobytes() == expected.tobytes()
    np.testing.assert_array_equal(after, grid)

    found, after = stats(backend, grid, write=True)
    assert found.host().tobytes() == expected.tobytes()
    reference_stats.write_grid_stats(grid, header, expected)
    np.testing.assert_array_equal(after, grid)


def test_extremes_alone_are_those_of_the_reference(backend):
    grid = mixed().grid()
    header = read_header(grid)
    expected = reference_stats.grid_stats(grid, header, moments=False)
    found, after = stats(backend, grid, moments=False, write=True)
    assert found.host().tobytes() == expected.tobytes()
    reference_stats.write_grid_stats(grid, header, expected, moments=False)
    np.testing.assert_array_equal(after, grid)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_box_of_a_leaf_is_found_at_every_place(backend, axis):
    voxels = {}
    for leaf in range(36):  # all pairs first <= last along one axis
        first, last = [(a, b) for a in range(8) for b in range(a, 8)][leaf]
        for at in (first, last):
            ijk = [3, 5, 6]
            ijk[axis] = at
            voxels[tuple(v + o for v, o in zip(ijk, (8 * leaf, -8, 0)))] = 1.0
    grid = Sketch(voxels).grid()
    expected = reference_stats.grid_stats(grid, read_header(grid))
    assert stats(backend, grid)[0].host().tobytes() == expected.tobytes()


def test_statistics_do_not_depend_on_the_schedule(backend):
    backend.resident = 3
    far = dict.fromkeys([(4096 * i, 0, 0) for i in range(1, 5)], 0.5)
    grid = Sketch(voxels=blob(120) | far, tiles=mixed().tiles[:1]).grid()
    expected = reference_stats.grid_stats(grid, read_header(grid)).tobytes()
    assert read_header(grid).node_counts[2] > 4
    for _ in backend.repeats():
        assert stats(backend, grid)[0].host().tobytes() == expected


# ---- index grids --------------------------------------------------------------------------------


def converted_on(backend, grid, values):
    header = read_header(grid)
    tensor, buffers = on_device(backend, grid)
    out = buffers.new(converted(header, values.dtype).size, dtype=torch.uint8)
    assert (out == SENTINEL).all()
    given = buffers.new(len(values), dtype=torch.from_numpy(values).dtype)
    given.copy_(torch.from_numpy(values))
    gpu.index_to_grid(tensor, header, given, 2, out, runner(backend))
    assert buffers.intact()
    return out.cpu().numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sketch", ["mixed", "nothing", "bare nodes", "broken", "one voxel"])
def test_every_byte_of_a_converted_grid_is_that_of_the_reference(backend, sketch, kind):
    chosen, dtype = SKETCHES[sketch][0], KINDS[kind][1]
    grid = chosen.grid(ON_INDEX)
    with np.errstate(invalid="ignore"):
        values = chosen.values().astype(dtype)
    expected = reference.index_to_grid(grid, read_header(grid), values, 2)
    np.testing.assert_array_equal(converted_on(backend, grid, values), expected)


def test_an_index_behind_the_values_reads_the_background(backend):
    sketch = Sketch(voxels=blob(30), tiles=[(2, (1024, 0, 0), 1.0), (3, (8192, 0, 0), 2.0)])
    grid, values = sketch.grid(ON_INDEX), sketch.values()[:5]
    expected = reference.index_to_grid(grid, read_header(grid), values, 2)
    np.testing.assert_array_equal(converted_on(backend, grid, values), expected)


# ---- real files, and the public functions -------------------------------------------------------


@pytest.mark.parametrize("name", ["torus:0", "test_int32_grid:0", "test_index_grid:1"])
def test_real_grids_give_what_the_reference_gives(backend, data_dir, name):
    grid = real_grids(data_dir)[name]
    header = read_header(grid)
    assert checksum(backend, grid) == reference.checksum(grid, header)
    if header.layout is ON_INDEX:
        values = np.random.default_rng(0).normal(size=header.value_count).astype(np.float32)
        expected = reference.index_to_grid(grid, header, values, 2)
        np.testing.assert_array_equal(converted_on(backend, grid, values), expected)
    else:
        expected = reference_stats.grid_stats(grid, header)
        assert stats(backend, grid)[0].host().tobytes() == expected.tobytes()


@pytest.mark.gpu
def test_public_functions_run_on_the_device_of_the_grid():
    sketch = mixed()
    index, values = torch.from_numpy(sketch.grid(ON_INDEX)), torch.from_numpy(sketch.values())
    expected = grid_ops.index_to_grid(index, values)
    header = grid_ops.grid_header(index.cuda())
    made = grid_ops.index_to_grid(index.cuda(), values.cuda(), header)
    assert torch.equal(made.cpu(), expected)
    for grid in (expected, made):
        known = grid_ops.grid_header(grid)
        grid_ops.grid_stats(grid, known, write=True)
        grid_ops.store_checksum(grid, known)
    assert torch.equal(made.cpu(), expected)
    several = index[:0], index[:70_001], values, values[::3]
    for data in several:
        assert int(grid_ops.crc32_bits(data.cuda())) == int(grid_ops.crc32_bits(data))
    together = grid_ops.crc32_bits(*(data.cuda() for data in several))
    assert torch.equal(together.cpu(), grid_ops.crc32_bits(*several))
    moved = torch.cat([torch.zeros(4, dtype=torch.uint8, device="cuda"), made])[4:]
    assert grid_ops.checksum(moved) == grid_ops.checksum(expected)


@pytest.mark.gpu
def test_operators_run_on_the_current_stream_and_in_a_graph():
    grid = torch.from_numpy(mixed().grid()).cuda()
    header = grid_ops.grid_header(grid)
    expected = grid_ops.checksum_bits(grid, header).clone()
    records = grid_ops.grid_stats(grid, header).records.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bits = grid_ops.checksum_bits(grid, header)
        found = grid_ops.grid_stats(grid, header).records
    for _ in range(3):
        bits.zero_()
        found.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(bits, expected) and torch.equal(found, records)


@pytest.mark.parametrize(
    ("stem", "names"),
    [
        ("grid_ops_checksum", ["crc_chunks", "crc_messages", "crc_rows"]),
        ("grid_ops_diagonals", ["sum_diagonals", "fold_diagonals"]),
        ("grid_ops_stats", ["leaf_stats", "lower_stats", "top_stats"]),
        ("grid_ops_index", ["index_to_grid"]),
    ],
)
def test_every_kernel_waits_for_the_one_before(stem, names):
    assert all(cuda.waits_itself(stem, name) for name in names)
