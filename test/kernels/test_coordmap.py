"""Coordinate maps: masks, tiles and tables against the dictionary oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from test.support.kernel_cases import (
    cells_of,
    decode_map,
    expected_entries,
    random_cloud,
    run_frame,
)
from test.support.launch import DOWN, FLAT, SUBMANIFOLD

NINE_GROUPS = [replace(spec, groups=9, tile_rows=32) for spec in SUBMANIFOLD[2:4] + DOWN[2:4]]
WIDE_TILES = [replace(spec, tile_rows=128) for spec in (SUBMANIFOLD[1], DOWN[0])]
FLAT_THREE = [replace(spec, groups=3, tile_rows=32) for spec in FLAT]
WHOLE = [
    replace(spec, groups=1, tile_rows=rows)
    for spec, rows in zip((*SUBMANIFOLD[:3], *DOWN[:3]), (16, 32, 128, 16, 64, 32))
]
SPECS = SUBMANIFOLD + DOWN + FLAT + NINE_GROUPS + WIDE_TILES + FLAT_THREE + WHOLE


def check_map(conv_map, levels):
    """Compare a map whose tiles all fit with the oracle; rows that do not fit are left out."""
    spec, cap = conv_map.spec, conv_map.row_capacity
    in_cap = conv_map.frame.levels[spec.in_level]["row_capacity"]
    active = expected_entries(conv_map, levels)
    rows = min(len(levels[spec.out_level]), cap)
    masks = conv_map.fields["mask"][:rows].tolist()
    for row, mask in enumerate(masks):
        taps = {k for k in range(27) if (k, row) in active}
        assert {k for k in range(32) if mask >> k & 1} == taps
    executed, placed = decode_map(conv_map)
    found = {key: in_row for key, in_row in executed.items() if in_row >= 0}
    assert found == {
        (k, row): in_row for (k, row), in_row in active.items() if row < cap and in_row < in_cap
    }
    for group, in_group in enumerate(placed):
        used = ((1 << spec.group_taps) - 1) << group * spec.group_taps
        wanted = [row for row in range(rows) if masks[row] & used or spec.groups == 1]
        assert sorted(in_group) == wanted, (
            "rows that use the group, or all where it is the only one"
        )
    tile_taps = [bin(mask).count("1") for mask in conv_map.host("tile_mask").tolist()]
    tiles, executed_work, useful_work = conv_map.fields["counts"].tolist()
    assert tiles == len(tile_taps)
    assert executed_work == sum(tile_taps) * spec.tile_rows
    assert useful_work == sum(row < cap for _, row in active)
    rank = conv_map.host("tile_rank").tolist()
    assert sorted(rank) == list(range(tiles))
    ranked = [tile_taps[tile] for tile in rank]
    assert ranked == sorted(ranked, reverse=True), "dearest first"


@pytest.mark.parametrize("points", [0, 1, 31, 32, 33, 700])
def test_maps_hold_every_pair_of_the_definition_once(backend, points):
    frame = run_frame(backend, random_cloud(points, seed=points), average=False)
    maps = frame.build_maps(SPECS)
    levels = [cells_of(frame, level) for level in range(8)]
    for conv_map in maps:
        check_map(conv_map, levels)
    assert frame.buffers.intact()


def test_a_full_grid_has_every_tap(backend):
    """Dense cells: the pattern with all bits set, in tiles that are full."""
    from test.support.kernel_cases import CONFIG  # the grid that is filled here

    nx, ny = 20, 20
    cells = [(x, y, z) for z in range(10) for y in range(ny) for x in range(nx)]
    points = random_cloud(len(cells))
    for axis in range(3):
        low, size = CONFIG.point_cloud_range[axis], CONFIG.voxel_size[axis]
        points[:, axis] = points.new_tensor([low + (cell[axis] + 0.5) * size for cell in cells])
    frame = run_frame(backend, points, average=False)
    maps = frame.build_maps([SUBMANIFOLD[0], DOWN[0]])
    levels = [cells_of(frame, level) for level in range(8)]
    for conv_map in maps:
        check_map(conv_map, levels)
    inner = [mask for mask in maps[0].fields["mask"][: len(cells)].tolist() if mask == 2**27 - 1]
    assert len(inner) == (nx - 2) * (ny - 2) * 8


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_rows_beyond_the_capacity_are_left_out_of_the_maps(backend, more):
    points = random_cloud(300, seed=11)
    whole = run_frame(backend, points, average=False)
    levels = [cells_of(whole, level) for level in range(8)]
    sizes = [max(len(level) + more, 1) for level in levels]
    frame = run_frame(backend, points, average=False, row_capacity=sizes)
    for conv_map in frame.build_maps(SPECS):
        check_map(conv_map, levels)
    assert frame.buffers.intact()


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("spec", [SUBMANIFOLD[1], DOWN[1], FLAT[0], NINE_GROUPS[0], WHOLE[0]])
def test_tiles_beyond_the_capacity_are_counted_but_not_written(backend, spec, more):
    points = random_cloud(300, seed=11)
    frame = run_frame(backend, points, average=False)
    levels = [cells_of(frame, level) for level in range(8)]
    (whole,) = frame.build_maps([spec])
    (conv_map,) = frame.build_maps([spec], tile_capacity=whole.tiles + more)
    assert conv_map.tiles == whole.tiles
    if more >= 0:
        check_map(conv_map, levels)
    active = expected_entries(conv_map, levels)
    for key, in_row in decode_map(conv_map)[0].items():
        assert in_row in (-1, active.get(key))
    fits = whole.tiles + min(more, 0)
    assert sorted(conv_map.host("tile_rank").tolist()) == list(range(fits))
    assert frame.buffers.intact()


def test_maps_do_not_depend_on_the_schedule_but_for_rows_of_equal_pattern(backend):
    """Which rows of 27 taps share a run of 1024 does depend on it, so their tiles may differ."""
    points = random_cloud(500, seed=13)
    backend.resident, first = 3, None
    for seed in backend.repeats():
        frame = run_frame(backend, points, average=False)
        maps = frame.build_maps(SPECS)
        counts = [m.fields["counts"].tolist() for m in maps]
        result = [
            ((tiles, useful), (executed, m.host("tile_mask").tolist()) * (m.spec.group_taps < 27))
            for m, (tiles, executed, useful) in zip(maps, counts)
        ]
        if seed % 20 == 0 or backend.name == "cpu-shim":  # decoding takes most of the time
            pairs = [{k: v for k, v in decode_map(m)[0].items() if v >= 0} for m in maps]
        first = first or (result, pairs)
        assert (result, pairs) == first


def test_rows_of_27_taps_lie_together_when_their_patterns_are_equal(backend):
    """Whole patterns, not the nine taps that the first sort looks at, in each run of 1024 rows."""
    frame = run_frame(backend, random_cloud(1500, seed=3), average=False)
    for conv_map in frame.build_maps(WHOLE):
        masks, order = conv_map.fields["mask"].tolist(), conv_map.host("order").flatten().tolist()
        rows = [row for row in order if row >= 0]
        assert len(rows) > 1024 or conv_map.spec.out_level > 1
        for begin in range(0, len(rows), 1024):
            run = [masks[row] for row in rows[begin : begin + 1024]]
            changes = sum(a != b for a, b in zip(run, run[1:]))
            assert changes == len(set(run)) - 1
            assert max(run) > 0


@pytest.mark.parametrize("blocks", [2, 9, 30])
def test_blocks_share_the_rows_of_all_maps_evenly(backend, blocks):
    """Many units a map, one, or fewer blocks than maps: no row is lost or taken twice."""
    frame = run_frame(backend, random_cloud(1500, seed=4), average=False, blocks=blocks)
    levels = [cells_of(frame, level) for level in range(8)]
    specs = [SUBMANIFOLD[0], DOWN[0], NINE_GROUPS[2]]
    for conv_map in frame.build_maps(specs):
        check_map(conv_map, levels)
    assert frame.buffers.intact()
