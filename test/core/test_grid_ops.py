"""Checksums, statistics and index grids on the CPU, against zlib, exact sums and real files."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch

from driveRT_ros.core import grid_ops
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.grid_types import keys_of
from driveRT_ros.core.nanovdb_layout import FLOAT, GRID, INT32, ON_INDEX, VOXEL_VOLUME, read_header
from driveRT_ros.core.reference.grid_ops import nodes_of, origins_of_keys
from test.support.nvdb_files import real_grids
from test.support.nvdb_grids import (
    KINDS,
    TAILS,
    Sketch,
    blob,
    dense_leaf,
    mixed,
    padded,
    root_key,
)

# ---- checksum -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", TAILS)
def test_the_tail_is_the_crc_of_the_crcs_of_blocks_the_last_of_which_is_longer(tail):
    grid = torch.from_numpy(padded(tail))
    raw = grid.numpy().tobytes()
    blocks = [raw[736:][i : i + 4096] for i in range(0, tail // 4096 * 4096, 4096)]
    if blocks:
        blocks[-1] += raw[736 + len(blocks) * 4096 :]
    crcs = b"".join(zlib.crc32(block).to_bytes(4, "little") for block in blocks)
    assert grid_ops.checksum(grid) == (zlib.crc32(raw[16:736]), zlib.crc32(crcs))
    assert tail >= 4096 or grid_ops.checksum(grid)[1] == 0


def test_the_stored_checksums_of_real_files_come_out(data_dir):
    checked = 0
    for name, grid in real_grids(data_dir).items():
        head, _ = read_header(grid).checksum
        if head != 0xFFFFFFFF:
            assert grid_ops.checksum(torch.from_numpy(grid))[0] == head, name
            checked += 1
    assert checked >= 4


def test_old_versions_sum_node_by_node_from_the_top(data_dir):
    grid = real_grids(data_dir)["torus:0"]
    header = read_header(grid)
    crcs = [
        zlib.crc32(node.tobytes()) for level in (2, 1, 0) for node in nodes_of(grid, header, level)
    ]
    assert grid_ops.checksum(torch.from_numpy(grid))[1] == zlib.crc32(np.array(crcs, "<u4"))


@pytest.mark.parametrize("version", [(32, 6, 1), (32, 3, 3)])
def test_every_byte_but_magic_and_checksum_counts(version):
    grid = torch.from_numpy(Sketch(voxels=blob(20)).grid(version=version))
    header = grid_ops.grid_header(grid)
    before = grid_ops.checksum(grid, header)
    rng = np.random.default_rng(1)
    for at in (16, 40, 735, 736, 800, len(grid) - 1, *rng.integers(800, len(grid), 20).tolist()):
        changed = grid.clone()
        changed[at] ^= 1 << int(rng.integers(8))
        assert grid_ops.checksum(changed, header) != before, at
    changed = grid.clone()
    changed[:16] = 7
    assert grid_ops.checksum(changed, header) == before


def test_a_stored_checksum_is_read_back():
    grid = torch.from_numpy(mixed().grid())
    grid_ops.store_checksum(grid)
    assert grid_ops.grid_header(grid).checksum == grid_ops.checksum(grid)


@pytest.mark.parametrize(
    "data",
    [
        torch.arange(10_000, dtype=torch.float32).view(100, 100).t(),
        torch.zeros(0, 5),
        torch.tensor(7, dtype=torch.int16),
    ],
)
def test_the_crc_of_a_tensor_is_that_of_its_bytes_in_order(data):
    bits = grid_ops.crc32_bits(data)
    assert int(bits) & 0xFFFFFFFF == zlib.crc32(data.contiguous().numpy().tobytes())


def test_the_crcs_of_several_tensors_come_together():
    parts = torch.arange(5000), torch.zeros(0, 5), torch.tensor(7, dtype=torch.int16)
    bits = grid_ops.crc32_bits(*parts)
    assert bits.tolist() == [int(grid_ops.crc32_bits(part)) for part in parts]


# ---- statistics ---------------------------------------------------------------------------------


def statistics(sketch, kind="float", **how):
    return grid_ops.grid_stats(torch.from_numpy(sketch.grid(KINDS[kind][0])), **how).whole()


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_equal_exact_sums_over_voxels_and_tiles(kind):
    sketch = mixed(whole=kind == "int32")
    found = statistics(sketch, kind)
    count, nans, mean, stddev = sketch.moments()
    values = [value for value, _ in sketch.weighted()]
    assert (found.count, found.nans) == (count, nans) and count > 4096**3
    assert (found.minimum, found.maximum) == (min(values), max(values))
    assert found.mean == pytest.approx(mean, rel=1e-14)
    assert found.stddev == pytest.approx(stddev, rel=1e-13)
    assert found.bbox_ijk == sketch.bbox()


def test_a_small_spread_far_from_zero_is_kept():
    # Sums of squares would lose it: 1e8 squared has no room for 1.
    sketch = dense_leaf([1e8 + 8 * (i % 2) for i in range(512)])
    found = statistics(sketch)
    assert found.mean == 1e8 + 4 and found.stddev == 4.0


def test_every_node_has_its_own_statistics():
    sketch = mixed()
    grid = sketch.grid()
    header = read_header(grid)
    records = grid_ops.grid_stats(torch.from_numpy(grid)).host()
    levels, _ = sketch.nodes()
    assert len(records) == sum(map(len, levels)) + 1
    at = 0
    for level, origins in enumerate(levels):
        for origin in origins:
            edge = (8, 128, 4096)[level]

            def inside(ijk, origin=origin, edge=edge):
                return all(o <= v < o + edge for o, v in zip(origin, ijk))

            part = Sketch(
                {k: v for k, v in sketch.voxels.items() if inside(k)},
                [t for t in sketch.tiles if t[0] <= level and inside(t[1])],
            )
            count, _, mean, _ = part.moments()
            assert records[at]["count"] == count
            assert records[at]["mean"] == pytest.approx(mean, rel=1e-13)
            if part.bbox():
                assert records[at]["bbox"].tolist() == [list(corner) for corner in part.bbox()]
            else:
                assert records[at]["bbox"][0, 0] > records[at]["bbox"][1, 0]
            at += 1
    assert header.node_counts == tuple(map(len, levels))


def test_values_that_are_no_number_are_counted_apart():
    sketch = Sketch(
        voxels={(0, 0, 0): math.nan, (0, 0, 5): 1.0, (7, 0, 0): 3.0, (100, 0, 0): math.nan},
        tiles=[(1, (8, 8, 8), math.nan), (2, (128, 0, 0), 2.0), (3, (8192, 0, 0), math.nan)],
    )
    found = statistics(sketch)
    assert (found.count, found.nans) == (2 + 128**3, 2 + 512 + 4096**3)
    assert (found.minimum, found.maximum, found.mean) == (1.0, 3.0, 2.0)
    assert found.bbox_ijk == sketch.bbox()


def test_infinite_values_are_extremes_and_leave_no_finite_mean():
    sketch = Sketch(voxels={(0, 0, 0): math.inf, (1, 0, 0): 1.0, (50, 0, 0): 2.0})
    found = statistics(sketch)
    assert (found.minimum, found.maximum) == (1.0, math.inf)
    assert not math.isfinite(found.mean) and math.isnan(found.stddev)


def test_negative_zero_is_less_than_zero_whatever_the_order():
    for values in ((0.0, -0.0), (-0.0, 0.0)):
        found = statistics(Sketch(voxels=dict(zip([(0, 0, 0), (90, 0, 0)], values))))
        assert math.copysign(1, found.minimum) == -1 and math.copysign(1, found.maximum) == 1


def test_keys_are_ordered_as_values_are():
    values = np.array([-np.inf, -2.5, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3e38, np.inf], np.float32)
    assert (np.diff(keys_of(values).astype(np.int64)) > 0).all()


@pytest.mark.parametrize("sketch", [Sketch(background=4.0), Sketch(bare=mixed().bare)])
def test_a_grid_without_active_values_has_its_background(sketch):
    sketch.background = 4.0
    grid = torch.from_numpy(sketch.grid())
    found = grid_ops.grid_stats(grid, write=True).whole()
    assert (found.count, found.nans, found.bbox_ijk) == (0, 0, None)
    assert found.minimum == found.maximum == found.mean == 4.0 and found.stddev == 0.0
    header = grid_ops.grid_header(grid)
    for level in range(4):
        for node in nodes_of(grid.numpy(), header, level):
            names = ("minimum", "maximum", "average", "stddev")
            assert [node[name] for name in names] == [4.0, 4.0, 4.0, 0.0]
    assert not grid[: GRID.itemsize].numpy().view(GRID)["world_bbox"].any()


def test_statistics_written_into_real_files_are_those_that_were_there(data_dir):
    for name, grid in real_grids(data_dir).items():
        if read_header(grid).layout is ON_INDEX:
            continue
        written = torch.from_numpy(grid.copy())
        grid_ops.grid_stats(written, write=True)
        differ = np.flatnonzero(written.numpy() != grid)
        # rocks.nvdb: six averages of leaves end on another float32: its sums had another order.
        assert len(differ) == (6 if name == "rocks:0" else 0), name
        for level in range(4):
            old, new = (nodes_of(g, read_header(grid), level) for g in (grid, written.numpy()))
            np.testing.assert_allclose(old["average"], new["average"], rtol=3e-7)


def test_without_moments_extremes_are_written_alone():
    grid = torch.from_numpy(mixed().grid())
    found = grid_ops.grid_stats(grid, moments=False, write=True).whole()
    assert found.mean == found.stddev == 0.0
    assert found.maximum == max(value for value, _ in mixed().weighted())
    root = nodes_of(grid.numpy(), grid_ops.grid_header(grid), 3)[0]
    assert root["maximum"] == found.maximum and root["average"] == root["stddev"] == 0
    assert grid_ops.grid_header(grid).flags & 30 == 6


# ---- index grids --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_grid_and_its_values_are_the_grid_of_values(kind):
    layout, dtype = KINDS[kind]
    sketch = mixed(whole=kind == "int32")
    values = torch.from_numpy(sketch.values(dtype))
    made = grid_ops.index_to_grid(
        torch.from_numpy(sketch.grid(ON_INDEX)), values, grid_class=VOXEL_VOLUME
    )
    np.testing.assert_array_equal(made.numpy(), sketch.grid(layout))


def test_real_index_grids_become_grids_of_their_values(data_dir):
    grids = {k: g for k, g in real_grids(data_dir).items() if read_header(g).layout is ON_INDEX}
    assert grids
    for grid in grids.values():
        header = read_header(grid)
        values = torch.arange(header.value_count, dtype=torch.int32)
        made = grid_ops.index_to_grid(torch.from_numpy(grid), values)
        found = grid_ops.grid_stats(made).whole()
        assert (found.minimum, found.maximum) == (1, header.value_count - 1)
        assert found.count == header.value_count - 1
        assert found.bbox_ijk == tuple(map(tuple, nodes_of(grid, header, 3)[0]["bbox"].tolist()))


def test_an_index_without_a_value_gives_the_background():
    sketch = Sketch(voxels={(0, 0, 0): 1.0, (1, 0, 0): 2.0}, background=9.0)
    grid = sketch.grid(ON_INDEX)
    header = read_header(grid)
    nodes_of(grid, header, 0)["offset"] = 2
    made = grid_ops.index_to_grid(torch.from_numpy(grid), torch.tensor([9.0, 1.0, 2.0]))
    values = nodes_of(made.numpy(), read_header(made.numpy()), 0)[0]["values"]
    assert values[0] == 2.0 and values[64] == 9.0


def test_the_origin_of_a_tile_follows_from_its_key():
    origins = [(0, 0, 0), (-4096, 4096, -8192), (2**31 - 4096, -(2**31), 0)]
    keys = np.array([root_key(origin) for origin in origins], np.uint64)
    assert origins_of_keys(keys).tolist() == [list(origin) for origin in origins]


# ---- refusals -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    index, floats = (torch.from_numpy(mixed().grid(kind)) for kind in (ON_INDEX, FLOAT))
    values = torch.from_numpy(mixed().values())
    with pytest.raises(ConfigError, match="no values to compute statistics of"):
        grid_ops.grid_stats(index)
    with pytest.raises(ConfigError, match="grid of float values, not of indices"):
        grid_ops.index_to_grid(floats, values)
    with pytest.raises(ConfigError, match=rf"needs \({len(values)},\) float32 or int32"):
        grid_ops.index_to_grid(index, values[:-1])
    with pytest.raises(ConfigError, match="float32 or int32"):
        grid_ops.index_to_grid(index, values.double())
    with pytest.raises(ConfigError, match="The result is"):
        grid_ops.index_to_grid(index, values, out=torch.empty(5, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="uint8 tensor"):
        grid_ops.checksum(floats.float())
    header = grid_ops.grid_header(floats)
    for operator in (grid_ops.checksum, grid_ops.checksum_bits, grid_ops.grid_stats):
        with pytest.raises(ConfigError, match=f"{len(floats)} bytes, {len(floats) - 1} are there"):
            operator(floats[:-1], header)


def test_int32_grids_have_integer_extremes():
    found = statistics(Sketch(voxels={(0, 0, 0): -(2**31), (9, 0, 0): 2**31 - 1}), "int32")
    assert (found.minimum, found.maximum) == (-(2**31), 2**31 - 1)
    assert found.mean == -0.5 and INT32.value.kind == "i"
