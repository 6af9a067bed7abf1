"""Pooling by kernels: every tactic and format against float64, and what must not matter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from driveRT_ros.core.bev_pool import result_dtype
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pool_tactics import BASELINES, PoolShape, PoolTactic, default_tactic
from driveRT_ros.core.pool_work import balanced_slots, column_tiles
from driveRT_ros.core.reference.bev_pool import bev_pool, build_scatter_map, map_of_cells
from test.support.launch import Buffers
from test.support.pool_cases import (
    REAL_FRUSTUM,
    REAL_GRID,
    RIGS,
    empty_map,
    one_cell_map,
    random_map,
    real_rig,
    rig_map,
    tensors,
)

F32, F16, F8 = torch.float32, torch.float16, torch.float8_e4m3fn
TILES, BALANCED = PoolTactic("tiles"), PoolTactic("balanced")
TOLERANCE = {"exact": 2e-6, "half": 2e-3, "half sums": 2e-2}
"""Of the largest result: float32 sums; results or weights rounded to halves; sums in halves."""


def pool(backend, tactic, scatter_map, depth, context, *, out_dtype=None, scale=1.0):
    """Pool into a result that must be zero where there is no point; checks what lies behind it."""
    buffers = Buffers(backend.device)
    made = scatter_map.to(backend.device).trimmed()
    shape = (len(depth), *made.grid_shape_zyx, context.shape[-1])
    out = buffers.new(*shape, dtype=out_dtype or result_dtype(depth, context))
    flat = out.view(len(depth), -1, shape[-1])
    occupied = torch.zeros(made.cells, dtype=torch.bool, device=backend.device)
    occupied[made.ranks_bev.long()] = True
    flat[:, ~occupied] = 0
    inputs = (depth.to(backend.device), context.to(backend.device))
    launch = tactic.launch(*inputs, out, made, tactic.work(made), scale)
    args = (launch.stem, launch.name, launch.grid, launch.block, launch.parameters)
    backend.launch(*args, defines=dict(launch.defines))
    assert buffers.intact()
    return out.cpu()


def test_more_results_than_threads_have_numbers_are_refused():
    """Past 31 bits the number of a thread is negative, and so is that of its interval."""
    made = rig_map()
    many = torch.zeros(1, dtype=torch.int32).expand(2**28)
    crowded = dataclasses.replace(made, interval_starts=many, interval_lengths=many)
    depth, context = tensors(made, 16, F16, F16)
    out = torch.zeros(1, *made.grid_shape_zyx, 16, dtype=F16)
    with pytest.raises(ConfigError, match=r"'v2' numbers 16 results of each of 268435456 cells"):
        PoolTactic("v2").launch(depth, context, out, crowded, None, 1.0)


def check(backend, tactic, scatter_map, depth, context, *, out_dtype=None, scale=1.0):
    found = pool(backend, tactic, scatter_map, depth, context, out_dtype=out_dtype, scale=scale)
    exact = bev_pool(depth.double(), context.float().double(), scatter_map, scale=scale)
    halves = F16 in (found.dtype, depth.dtype) or tactic.kind == "tiles"
    kind = "half" if halves else "exact"
    kind = "half sums" if tactic.half_sum or tactic.kind == "v2_depth" else kind
    error = (found.double() - exact).abs().max() if exact.numel() else torch.tensor(0.0)
    limit = TOLERANCE[kind] * exact.abs().max().clamp(min=1e-30)
    assert error <= limit, f"{error:.3g} of {exact.abs().max():.3g}"
    assert not found.isnan().any()
    return found


# ---- formats and channels -----------------------------------------------------------------------


WIDTHS = (1, 3, 59, 64, 80, 128)
SOME = ((F8, 3), (F8, 80), (F8, 128))


@pytest.mark.parametrize(("features", "channels"), [*((F16, c) for c in WIDTHS), *SOME])
def test_tiles_pool_any_channels(backend, features, channels):
    depth, context = tensors(rig_map(16), channels, features, F16, seed=channels)
    tactic = PoolTactic("tiles", warps=8 if channels <= 96 else 4)
    check(backend, tactic, rig_map(16), depth, context)


@pytest.mark.parametrize(
    ("features", "channels"), [*((F32, c) for c in (*WIDTHS, 256)), (F16, 59), (F16, 80), *SOME]
)
def test_balanced_intervals_pool_any_channels(backend, features, channels):
    depth, context = tensors(rig_map(), channels, features, F32, seed=channels)
    check(backend, BALANCED, rig_map(), depth, context, out_dtype=F32)


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize(("features", "channels"), [(F32, 3), (F16, 80), (F8, 80)])
def test_baselines_pool_right(backend, kind, features, channels):
    depth, context = tensors(rig_map(), channels, features, F32)
    check(backend, PoolTactic(kind), rig_map(), depth, context)


@pytest.mark.parametrize("tactic", [TILES, BALANCED])
@pytest.mark.parametrize(("depth_dtype", "out_dtype"), [(F32, F16), (F16, F32)])
def test_depths_and_results_have_types_of_their_own(backend, tactic, depth_dtype, out_dtype):
    depth, context = tensors(rig_map(), 24, F16, depth_dtype, batch=2)
    check(backend, tactic, rig_map(), depth, context, out_dtype=out_dtype, scale=0.25)


@pytest.mark.parametrize(("warps", "steps", "groups"), [(1, 1, 1), (16, 1, 2), (4, 3, 5)])
def test_steps_of_a_tile_divide_over_warps_and_channels_over_blocks(backend, warps, steps, groups):
    tactic = PoolTactic("tiles", warps=warps, steps=steps, groups=groups)
    depth, context = tensors(rig_map(24), 80, F16, F16, batch=2)
    check(backend, tactic, rig_map(24), depth, context)


@pytest.mark.parametrize("features", [F16, F8])
@pytest.mark.parametrize("channels", [128, 256])
def test_wide_features_divide_over_blocks_by_default(backend, features, channels):
    depth, context = tensors(rig_map(), channels, features, F16)
    tactic = default_tactic(PoolShape.of(depth, context, F16), tuple(depth.shape[1:]))
    assert (tactic.kind, tactic.groups) == ("tiles", 2)
    check(backend, tactic, rig_map(), depth, context)


@pytest.mark.parametrize(
    ("features", "channels", "out_dtype", "changes"),
    [
        (F8, 256, F16, {"groups": 1, "passes": 2, "whole_sectors": True}),
        (F16, 128, F16, {"passes": 2, "whole_sectors": True}),
        (F8, 64, F32, {"vector": 8, "whole_sectors": True}),
    ],
)
def test_how_rows_are_loaded_and_written_changes_no_bit(
    backend, features, channels, out_dtype, changes
):
    plain = PoolTactic("tiles", warps=4, groups=channels // 64)
    depth, context = tensors(rig_map(), channels, features, F16)
    expected = check(backend, plain, rig_map(), depth, context, out_dtype=out_dtype)
    other = dataclasses.replace(plain, **{"groups": 1, **changes})
    found = pool(backend, other, rig_map(), depth, context, out_dtype=out_dtype)
    assert torch.equal(found, expected)


def test_groups_of_channels_that_are_no_multiple_of_a_vector_are_written_right(backend):
    depth, context = tensors(rig_map(), 72, F16, F16)
    tactic = PoolTactic("tiles", warps=4, groups=2, whole_sectors=True)  # 36 each, 72 bytes
    check(backend, tactic, rig_map(), depth, context)


@pytest.mark.parametrize("features", [F16, F8])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_sums_of_halves_are_an_option(backend, features, in_flight):
    tactic = PoolTactic("balanced", half_sum=True, in_flight=in_flight, chunk=4)
    depth, context = tensors(rig_map(), 24, features, F16)
    found = check(backend, tactic, rig_map(), depth, context, out_dtype=F32)
    exact = pool(backend, BALANCED, rig_map(), depth, context, out_dtype=F32)
    assert not torch.equal(found, exact), "the option changes something"


def test_every_code_of_eight_bits_has_its_value(backend):
    codes = torch.arange(256, dtype=torch.uint8).view(F8)
    context = codes.view(1, 1, 2, 2, 64)
    made = map_of_cells(torch.arange(4, dtype=torch.int32).view(1, 1, 2, 2), (1, 2, 2))
    depth = torch.ones(1, 1, 1, 2, 2)
    found = pool(backend, BALANCED, made, depth, context, out_dtype=F32).view(-1)
    np.testing.assert_array_equal(found, codes.float())
    # On tensor cores the two codes that are no number spread over their tile.
    finite = torch.where(codes.float().isnan(), torch.zeros(()), codes.float())
    found = pool(backend, TILES, made, depth, finite.to(F8).view(1, 1, 2, 2, 64), out_dtype=F32)
    np.testing.assert_array_equal(found.view(-1), finite)


# ---- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tactic", [TILES, BALANCED])
@pytest.mark.parametrize("features", [F16, F8])
@pytest.mark.parametrize(("offset", "slack"), [(8, 8), (2, 6), (59, 0)])
def test_a_slice_of_wider_features_pools_without_a_copy(backend, tactic, features, offset, slack):
    depth, context = tensors(rig_map(), 24, features, F16, offset=offset, slack=slack)
    assert context.storage_offset() == offset
    check(backend, tactic, rig_map(), depth, context)


def test_tiles_read_depths_in_any_layout(backend):
    depth, context = tensors(rig_map(), 16, F16, F16, batch=2)
    expected = pool(backend, TILES, rig_map(), depth, context)
    by_column = depth.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    assert by_column.stride() != depth.stride()
    assert torch.equal(pool(backend, TILES, rig_map(), by_column, context), expected)
    # A network gives depth and context as channels of one tensor.
    both = torch.cat([depth.permute(0, 1, 3, 4, 2), context], dim=-1)
    bins = depth.shape[2]
    parts = both[..., :bins].permute(0, 1, 4, 2, 3), both[..., bins:]
    assert torch.equal(pool(backend, TILES, rig_map(), *parts), expected)


def test_a_layout_that_a_kernel_cannot_address_is_refused(backend):
    depth, context = tensors(rig_map(), 16, F16, F16)
    by_column = depth.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    with pytest.raises(ConfigError, match="contiguous depths"):
        pool(backend, BALANCED, rig_map(), by_column, context)
    channels_first = context.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    with pytest.raises(ConfigError, match="contiguous last axis"):
        pool(backend, TILES, rig_map(), depth, channels_first)


@pytest.mark.parametrize("tactic", [TILES, BALANCED, PoolTactic("v3")])
def test_batch_items_use_their_own_pixels(backend, tactic):
    depth, context = tensors(rig_map(), 8, F16, F16, batch=3)
    found = check(backend, tactic, rig_map(), depth, context)
    for item in range(3):
        alone = (depth[item : item + 1], context[item : item + 1])
        assert torch.equal(pool(backend, tactic, rig_map(), *alone)[0], found[item])


# ---- maps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tactic", [TILES, BALANCED, *map(PoolTactic, BASELINES)])
def test_a_map_without_points_leaves_the_zeros(backend, tactic):
    made = empty_map((2, 3, 4, 5))
    depth, context = tensors(made, 8, F16, F16)
    assert not pool(backend, tactic, made, depth, context).any()


@pytest.mark.parametrize("tactic", [TILES, BALANCED, *map(PoolTactic, BASELINES)])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 70, 6, 5), (2, 3, 33, 20)])
def test_one_interval_may_hold_every_point(backend, tactic, shape):
    made = one_cell_map(shape)
    depth, context = tensors(made, 8, F16, F16)
    check(backend, tactic, made, depth, context)


def test_parts_of_an_interval_wait_for_each_other_at_every_round_of_channels(backend):
    # 131 channels: one a lane, 64 at once, so the parts meet three times in the same memory.
    made = one_cell_map((2, 70, 6, 5))
    depth, context = tensors(made, 131, F32, F32)
    check(backend, BALANCED, made, depth, context)


@pytest.mark.parametrize("tactic", [TILES, BALANCED])
@pytest.mark.parametrize("shape", [(1, 40, 3, 5), (3, 5, 17, 7), (2, 9, 16, 4), (2, 130, 2, 3)])
@pytest.mark.parametrize("cells", [3, 40])
def test_maps_of_no_camera_pool_as_well(backend, tactic, shape, cells):
    # Nothing may be assumed of a map made elsewhere: depths of a cell need not be neighbours.
    made = random_map(shape, (2, 4, 5), seed=shape[1], cells=cells)
    depth, context = tensors(made, 16, F16, F32)
    check(backend, tactic, made, depth, context)


def test_more_depths_of_a_row_than_an_entry_counts_take_several_steps(backend):
    made = one_cell_map((1, 200, 2, 1))
    slots = column_tiles(made).slots.tolist()
    assert [slot[1] for slot in slots] == [2, 2, *[0] * 6]  # 63 + 63, 63 + 11
    depth, context = tensors(made, 8, F16, F16)
    check(backend, TILES, made, depth, context)


@pytest.mark.parametrize("lengths", [[1], [3, 1, 9], [4, 5, 8, 9, 16, 17, 31, 64, 500]])
@pytest.mark.parametrize("slots", [1, 4, 16])
def test_intervals_are_cut_so_that_every_point_is_summed_once(lengths, slots):
    cells = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    made = map_of_cells(torch.from_numpy(cells).view(1, 1, 1, -1), (1, 1, len(lengths)))
    work = balanced_slots(made, slots, chunk=4)
    table = work.table.tolist()
    covered = sorted(i for first, count, _, _ in table for i in range(first, first + count))
    assert covered == list(range(sum(lengths)))
    for place, (_, count, cell, parts) in enumerate(table):
        part, total = parts & 0xFFFF, parts >> 16
        if cell < 0:
            assert (count, part, total) == (0, 0, 1)
            continue
        assert place % slots - part + total <= slots, "no interval straddles a block"
        assert table[place - part][2] == cell
        assert count <= 4 or total == slots
    assert len(table) % slots == 0
    most = [entry[3] >> 16 for entry in table]
    assert most == sorted(most, reverse=True)


def test_tiles_hold_every_point_of_the_map_once():
    made = rig_map(24)
    tiles = column_tiles(made)
    _, d, h, w = made.frustum_shape
    found = []
    for first, count, tile, _ in tiles.slots.tolist():
        cells = tiles.tile_cells[tile].tolist()
        for step in range(first, first + count):
            place = int(tiles.step_place[step]) & 0xFFFFFFFF
            u, block, camera = place & 0xFFFF, place >> 16 & 0xFF, place >> 24
            for lane, entries in enumerate((tiles.entries[step].int() & 0xFFFF).tolist()):
                g, t = divmod(lane, 4)
                for i, entry in enumerate(entries):
                    row, v = g + 8 * (i // 2 % 2), 16 * block + 4 * t + i % 2 + 2 * (i // 4)
                    for bin_ in range(entry & 1023, (entry & 1023) + (entry >> 10)):
                        found.append((cells[row], ((camera * d + bin_) * h + v) * w + u))
    expected = list(zip(made.ranks_bev.tolist(), made.ranks_depth.tolist()))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("warps", "chunk"), [(1, 2), (4, 1), (8, 2)])
def test_steps_of_a_tile_are_parts_of_one_block_dearest_first(warps, chunk):
    tiles = column_tiles(rig_map(24), warps, chunk)
    slots = tiles.slots.tolist()
    assert len(slots) % warps == 0
    steps = sorted(s for first, count, _, _ in slots for s in range(first, first + count))
    assert steps == list(range(len(tiles.step_place)))
    for place, (_, _, tile, parts) in enumerate(slots):
        part, total = parts & 0xFFFF, parts >> 16
        assert place % warps - part + total <= warps
        begin = slots[place - part]
        assert (begin[2], begin[3]) == (tile, total << 16)
    most = [slot[3] >> 16 for slot in slots]
    assert most == sorted(most, reverse=True)


# ---- repeatability, faults ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "tactic",
    [TILES, PoolTactic("tiles", warps=4, steps=1, groups=5), PoolTactic("balanced", chunk=4)],
)
def test_results_do_not_depend_on_the_schedule(backend, tactic):
    depth, context = tensors(rig_map(), 80, F16, F32)
    backend.resident, first = 3, None
    for _ in backend.repeats():
        bytes_ = pool(backend, tactic, rig_map(), depth, context).numpy().tobytes()
        first = first or bytes_
        assert bytes_ == first


@pytest.mark.parametrize("tactic", [TILES, BALANCED])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_depth_that_is_no_number_reaches_its_cell_only(backend, tactic, value):
    made = rig_map()
    depth, context = tensors(made, 8, F16, F32)
    point = int(made.ranks_depth[100])
    depth.view(-1)[point] = value
    found = pool(backend, tactic, made, depth, context).view(-1, 8)
    odd = torch.nonzero(~found.isfinite().all(1)).squeeze(1).tolist()
    assert odd == [int(made.ranks_bev[100])]


def test_a_feature_that_is_no_number_reaches_the_cells_of_its_pixel(backend):
    made = rig_map()
    depth, context = tensors(made, 8, F16, F32)
    pixel = int(made.ranks_feat[100])
    context.view(-1, 8)[pixel, 3] = float("nan")
    cells = set(made.ranks_bev[made.ranks_feat == pixel].tolist())
    found = pool(backend, BALANCED, made, depth, context).view(-1, 8)
    assert set(torch.nonzero(found.isnan().any(1)).squeeze(1).tolist()) == cells
    assert found[:, :3].isfinite().all()
    # On tensor cores also the other cells of the tiles that see it, and no more.
    found = pool(backend, TILES, made, depth, context).view(-1, 8)
    odd = set(torch.nonzero(found.isnan().any(1)).squeeze(1).tolist())
    near = {
        cell for row in column_tiles(made).tile_cells.tolist() if cells & set(row) for cell in row
    }
    assert cells <= odd <= near


def test_real_depths_and_features_pool_to_the_recorded_view(backend, data_dir):
    geometry, _ = real_rig(data_dir, RIGS[0])
    folder = data_dir / "bevpool"
    depth = torch.from_numpy(np.load(folder / "bevdet_r50_one_frame" / "dep.npy"))
    context = torch.from_numpy(np.load(folder / "bevdet_r50_one_frame" / "fea.npy"))
    expected = torch.from_numpy(np.load(folder / "bevpool_reference_scene0103_kf1.npz")["bev"])
    made = build_scatter_map(geometry, REAL_FRUSTUM, REAL_GRID, "floor")

    exact = pool(backend, BALANCED, made, depth, context)[0, 0]
    assert (exact - expected).abs().max() <= 1e-4

    # Rounding the inputs to halves alone moves 5 of 1,310,720 results by more than 1e-2, one by
    # 0.0125 (the largest is 197), however exact the sums are. What the kernel adds is the rounding
    # of weights where two depths of a pixel fall into one cell.
    halves = depth.half(), context.half()
    rounded = bev_pool(halves[0].double(), halves[1].double(), made)[0, 0]
    moved = (rounded - expected).abs()
    assert 0.012 < moved.max() < 0.013 and int((moved > 1e-2).sum()) == 5
    pooled = pool(backend, TILES, made, *halves, out_dtype=F32)[0, 0]
    assert (pooled - rounded).abs().max() <= 5e-4
    assert (pooled - expected).abs().max() <= moved.max() + 5e-4

    scale = float(context.abs().max() / 448)
    coded = (context / scale).to(F8)
    eight = pool(backend, TILES, made, halves[0], coded, out_dtype=F32, scale=scale)[0, 0]
    rounded = bev_pool(halves[0].double(), coded.float().double(), made, scale=scale)[0, 0]
    assert (eight - rounded).abs().max() <= 5e-4
    assert (eight - expected).norm() <= 3e-2 * expected.norm()
