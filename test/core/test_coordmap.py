"""Coordinate maps against the worked grids, the dictionary oracle and their own invariants."""

import resource

import numpy as np
import pytest
import torch

from driveRT_ros.core.coordmap import CoordMap, inverse_map, strided_map, submanifold_map
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from test.support import oracle
from test.support.grids import (
    CELLS_4X5,
    CELLS_5X5,
    SHAPE_4X5,
    SHAPE_5X5,
    flat_coords,
    random_coords,
)

FLAT = (1, 3, 3)
ONE = (1, 1, 1)
ROW_COUNTS = (0, 1, 31, 32, 33)


def entries(coord_map: CoordMap) -> set[tuple[int, int, int]]:
    """Return (tap, input row, output row) of every pair, and check that none repeats."""
    found = [
        (k, i, o)
        for k in range(len(coord_map.counts))
        for i, o in zip(*(rows.tolist() for rows in coord_map.pairs(k)))
    ]
    assert len(found) == len(set(found)) == coord_map.offset_starts[-1]
    return set(found)


def assert_well_formed(coord_map: CoordMap) -> None:
    assert coord_map.in_rows.dtype == coord_map.out_rows.dtype == torch.int64
    assert coord_map.out_coords_bzyx.dtype == torch.int32
    assert sum(coord_map.counts) == len(coord_map.in_rows) == len(coord_map.out_rows)
    for k in range(len(coord_map.counts)):
        _, out_rows = coord_map.pairs(k)
        assert bool((out_rows[1:] > out_rows[:-1]).all())


def rows_named(coord_map: CoordMap, out_row: int) -> int:
    return sum(1 for _, _, o in entries(coord_map) if o == out_row)


# --- the worked grids -------------------------------------------------------------------------


def test_four_cells_dilate_to_seventeen_with_thirty_entries():
    dense = strided_map(flat_coords(CELLS_4X5), SHAPE_4X5, FLAT, 1, (0, 1, 1))
    assert dense.num_out == 17
    assert len(entries(dense)) == 30
    empty = {(y, x) for y in range(4) for x in range(5)} - {
        (y, x) for _, _, y, x in dense.out_coords_bzyx.tolist()
    }
    assert empty == {(0, 3), (0, 4), (3, 0)}


def test_four_cells_have_ten_submanifold_entries():
    subm = submanifold_map(flat_coords(CELLS_4X5), SHAPE_4X5, FLAT)
    assert subm.num_out == 4
    assert len(entries(subm)) == 10


def test_first_cell_meets_nine_outputs_densely_and_two_submanifold():
    coords = flat_coords(CELLS_4X5)
    dense = strided_map(coords, SHAPE_4X5, FLAT, 1, (0, 1, 1))
    subm = submanifold_map(coords, SHAPE_4X5, FLAT)
    assert sum(i == 0 for _, i, _ in entries(dense)) == 9
    assert {(k, o) for k, i, o in entries(subm) if i == 0} == {(4, 0), (0, 1)}


def test_input_lies_at_output_plus_offset():
    """The corner output (0, 0) sees the input (1, 1) through the offset (1, 1), tap 8."""
    dense = strided_map(flat_coords([(1, 1)]), SHAPE_4X5, FLAT, 1, (0, 1, 1))
    assert dense.out_coords_bzyx[0].tolist() == [0, 0, 0, 0]
    taps_of_outputs = {o: k for k, _, o in entries(dense)}
    assert taps_of_outputs == {row: 8 - row for row in range(9)}


def test_five_cells_give_eleven_entries_in_groups_of_2_1_5_1_2():
    subm = submanifold_map(flat_coords(CELLS_5X5), SHAPE_5X5, FLAT)
    assert subm.counts == (2, 1, 0, 0, 5, 0, 0, 1, 2)
    # The group of offset (-1, -1): P0 contributes to Q1, P3 to Q4.
    assert [rows.tolist() for rows in subm.pairs(0)] == [[0, 3], [1, 4]]
    assert rows_named(subm, out_row=2) == 1  # the isolated cell meets itself alone


# --- the dictionary oracle --------------------------------------------------------------------

SUBMANIFOLD_CASES = [
    ((3, 3, 3), ONE),
    ((1, 3, 3), ONE),
    ((3, 1, 5), ONE),
    ((1, 1, 1), ONE),
    ((3, 3, 3), (1, 2, 3)),
    ((5, 3, 3), (2, 1, 1)),
]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("kernel", "dilation"), SUBMANIFOLD_CASES)
def test_submanifold_map_equals_the_oracle(kernel, dilation, ordered):
    shape = (5, 7, 6)
    coords = random_coords(140, shape, seed=1, batches=2, ordered=ordered)
    subm = submanifold_map(coords, shape, kernel, dilation)
    padding = tuple(k // 2 * d for k, d in zip(kernel, dilation))
    expected = oracle.map_entries(coords, oracle.cells(coords), kernel, ONE, padding, dilation)
    assert entries(subm) == expected
    assert_well_formed(subm)
    assert torch.equal(subm.out_coords_bzyx, coords)
    assert subm.out_shape_zyx == shape


STRIDED_CASES = [
    ((3, 3, 3), (2, 2, 2), (1, 1, 1), ONE),
    ((2, 2, 2), (2, 2, 2), (0, 0, 0), ONE),
    ((3, 3, 3), (1, 1, 1), (1, 1, 1), ONE),
    ((1, 3, 3), (1, 2, 2), (0, 1, 1), ONE),
    ((3, 1, 1), (2, 1, 1), (0, 0, 0), ONE),
    ((2, 3, 4), (3, 2, 1), (1, 0, 2), ONE),
    ((2, 2, 2), (3, 3, 3), (0, 0, 0), ONE),  # the stride skips cells
    ((3, 3, 3), (2, 2, 2), (2, 2, 2), (2, 1, 2)),
]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), STRIDED_CASES)
def test_strided_map_equals_the_oracle(kernel, stride, padding, dilation, ordered):
    shape = (6, 9, 8)
    coords = random_coords(90, shape, seed=2, batches=2, ordered=ordered)
    strided = strided_map(coords, shape, kernel, stride, padding, dilation)
    outputs = oracle.active_outputs(coords, shape, kernel, stride, padding, dilation)
    assert oracle.cells(strided.out_coords_bzyx) == outputs  # ascending (b, z, y, x)
    expected = oracle.map_entries(coords, outputs, kernel, stride, padding, dilation)
    assert entries(strided) == expected
    assert strided.out_shape_zyx == oracle.out_shape(shape, kernel, stride, padding, dilation)
    assert_well_formed(strided)


@pytest.mark.parametrize("num", ROW_COUNTS)
def test_maps_equal_the_oracle_at_every_small_row_count(num):
    """Zero rows and counts around a warp are where launches and tiles go wrong."""
    shape = (4, 5, 6)
    coords = random_coords(num, shape, seed=num)
    subm = submanifold_map(coords, shape)
    assert entries(subm) == oracle.map_entries(
        coords, oracle.cells(coords), (3, 3, 3), ONE, (1, 1, 1)
    )
    strided = strided_map(coords, shape, 3, 2, 1)
    outputs = oracle.active_outputs(coords, shape, (3, 3, 3), (2, 2, 2), (1, 1, 1))
    assert oracle.cells(strided.out_coords_bzyx) == outputs
    assert entries(strided) == oracle.map_entries(coords, outputs, (3, 3, 3), (2, 2, 2), (1, 1, 1))
    assert strided.out_coords_bzyx.shape == (len(outputs), 4)
    assert_well_formed(inverse_map(strided))


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), STRIDED_CASES)
def test_inverse_map_swaps_the_rows_and_keeps_the_taps(kernel, stride, padding, dilation):
    shape = (6, 9, 8)
    coords = random_coords(90, shape, seed=3)
    forward = strided_map(coords, shape, kernel, stride, padding, dilation)
    back = inverse_map(forward)
    assert entries(back) == {(k, o, i) for k, i, o in entries(forward)}
    assert torch.equal(back.out_coords_bzyx, coords)
    assert torch.equal(back.in_coords_bzyx, forward.out_coords_bzyx)
    assert (back.in_shape_zyx, back.out_shape_zyx) == (forward.out_shape_zyx, shape)
    assert_well_formed(back)


# --- invariants -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_mirrored_taps_have_equal_counts_and_the_centre_maps_every_row_to_itself(seed):
    shape = (6, 8, 10)
    subm = submanifold_map(random_coords(200, shape, seed=seed, batches=2), shape)
    assert subm.counts == subm.counts[::-1]
    assert subm.identity_offset == 13
    for rows in subm.pairs(13):
        assert rows.tolist() == list(range(200))


def test_shuffling_the_rows_only_renames_them():
    shape = (5, 8, 8)
    coords = random_coords(100, shape, seed=4)
    order = torch.from_numpy(np.random.default_rng(5).permutation(100))
    first, second = (strided_map(c, shape, 3, 2, 1) for c in (coords, coords[order]))
    assert torch.equal(first.out_coords_bzyx, second.out_coords_bzyx)
    renamed = {(k, int(order[i]), o) for k, i, o in entries(second)}
    assert renamed == entries(first)


def test_neighbours_do_not_wrap_around_the_edges_of_the_grid_or_of_the_batch():
    shape = (5, 4, 5)
    last_then_first = torch.tensor(
        [[0, 0, 0, 4], [0, 0, 1, 0], [0, 1, 3, 4], [0, 2, 0, 0], [0, 4, 3, 4], [1, 0, 0, 0]],
        dtype=torch.int32,
    )
    assert sum(submanifold_map(last_then_first, shape).counts) == 6  # centres alone


# --- reported faults --------------------------------------------------------------------------


def test_kernel_two_with_stride_two_accepts_a_cube_and_a_single_voxel():
    """Fault class: even kernels, and a level with one row, raised exceptions."""
    cube = torch.tensor(
        [[0, 4 + z, 74 + y, 76 + x] for z in (0, 1) for y in (0, 1) for x in (0, 1)],
        dtype=torch.int32,
    )
    shape = (40, 100, 100)
    for coords in (cube, cube[:1]):
        strided = strided_map(coords, shape, 2, 2, 0)
        assert strided.out_coords_bzyx.tolist() == [[0, 2, 37, 38]]
        assert entries(strided) == {(k, k, 0) for k in range(len(coords))}


def test_every_level_accepts_voxels_that_all_vanish_on_the_way_down():
    """Fault class: a rare frame whose rows all vanish at one level crashed the next map."""
    coords, shape = torch.tensor([[0, 7, 7, 7]], dtype=torch.int32), (8, 8, 8)
    counts = []
    for _ in range(2):  # kernel 1, stride 2 keeps even coordinates alone
        level = strided_map(coords, shape, 1, 2, 0)
        coords, shape = level.out_coords_bzyx, level.out_shape_zyx
        counts.append(level.num_out)
        subm = submanifold_map(coords, shape)
        assert subm.counts == (0,) * 27
        assert coords.shape == (0, 4)
    assert counts == [0, 0]


def test_grids_beyond_32_bits_find_the_same_neighbours_as_the_oracle():
    """Fault class: a linear index in 32 bits wraps silently; here 3.2e11 cells and 26 batches."""
    near = random_coords(60, (6, 6, 6), seed=6, batches=2)
    for shape, batch in (((200, 40000, 40000), 1), ((41, 1440, 1440), 26)):
        corner = torch.tensor([batch - 1, *(s - 6 for s in shape)], dtype=torch.int32)
        both = torch.cat((near, near + corner))
        coords = torch.unique(both, dim=0)
        coords = coords[torch.arange(len(coords)).flip(0)]
        subm = submanifold_map(coords, shape)
        assert entries(subm) == oracle.map_entries(
            coords, oracle.cells(coords), (3, 3, 3), ONE, (1, 1, 1)
        )
        strided = strided_map(coords, shape, 3, 2, 1)
        outputs = oracle.active_outputs(coords, shape, (3, 3, 3), (2, 2, 2), (1, 1, 1))
        assert oracle.cells(strided.out_coords_bzyx) == outputs
        assert entries(strided) == oracle.map_entries(
            coords, outputs, (3, 3, 3), (2, 2, 2), (1, 1, 1)
        )


def test_cells_that_agree_modulo_2_to_the_32_are_different_cells():
    """Fault class: keys cut to 32 bits make far cells neighbours or duplicates."""
    nx = ny = 1 << 16
    coords = torch.tensor([[0, z, 5, 5] for z in range(0, 8, 2)], dtype=torch.int32)
    assert sum(submanifold_map(coords, (8, ny, nx)).counts) == 4


def test_a_grid_beyond_63_bits_is_refused():
    coords = torch.tensor([[9, 0, 0, 0]], dtype=torch.int32)
    with pytest.raises(ConfigError, match="63 bits"):
        submanifold_map(coords, (2_000_000, 2_000_000, 2_000_000))
    with pytest.raises(ConfigError, match="63 bits"):
        strided_map(coords, (2_000_000, 2_000_000, 2_000_000), 3, 1, 1)


def test_the_key_range_is_proved_for_the_output_grid_and_every_batch():
    wide = {"kernel_size": 1, "stride": 1, "padding": (0, (1 << 30) - 1, (1 << 30) - 1)}
    coords = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.int32)
    assert strided_map(coords, 1, **wide).out_coords_bzyx[1].tolist() == [
        1,
        0,
        (1 << 30) - 1,
        (1 << 30) - 1,
    ]
    coords[1, 0] = 2  # three grids of about 2**62 cells
    with pytest.raises(ConfigError, match="63 bits"):
        strided_map(coords, 1, **wide)


def test_memory_depends_on_the_rows_and_not_on_the_grid():
    """Fault class: a dense table over a sparse grid asked for 12 GB, or more than there is."""
    coords = random_coords(40_000, (200, 3000, 5000), seed=7, ordered=True)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    subm = submanifold_map(coords, (200, 3000, 5000))
    down = strided_map(coords, (200, 3000, 5000), 3, 2, 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 500 * 1024
    assert len(coords) < down.num_out <= 8 * len(coords)
    huge = submanifold_map(coords, (200, 1 << 22, 1 << 22))  # a table would take 14 PB
    assert torch.equal(huge.in_rows, subm.in_rows)


@pytest.mark.parametrize(
    ("row", "axis"),
    [
        ((0, 5, 0, 0), "z"),
        ((0, 0, 6, 0), "y"),
        ((0, 0, 0, 7), "x"),
        ((0, 0, -1, 0), "y"),
        ((-1, 0, 0, 0), "b"),
    ],
)
@pytest.mark.parametrize("build", [submanifold_map, strided_map])
def test_coordinates_outside_the_grid_are_refused_by_axis(build, row, axis):
    coords = torch.tensor([(0, 0, 0, 0), row], dtype=torch.int32)
    with pytest.raises(InvalidFrame, match=f"along {axis}") as caught:
        build(coords, (5, 6, 7))
    assert caught.value.code == "coords_out_of_range"


@pytest.mark.parametrize("build", [submanifold_map, strided_map])
def test_repeated_coordinates_are_refused_every_time_with_their_number(build):
    """Fault class: with duplicates, which row answers a lookup was decided by a race."""
    coords = random_coords(1000, (10, 20, 20), seed=8)
    coords[700:] = coords[:300]
    for _ in range(3):
        with pytest.raises(InvalidFrame, match="300 repeated rows") as caught:
            build(coords, (10, 20, 20))
        assert caught.value.code == "coords_repeated"


def test_wrong_arguments_are_refused_with_the_value():
    coords = random_coords(5, (4, 4, 4), seed=9)
    with pytest.raises(ConfigError, match="must be odd"):
        submanifold_map(coords, (4, 4, 4), 2)
    with pytest.raises(ConfigError, match="does not fit"):
        strided_map(coords, (4, 4, 4), 5, 1, 0)
    with pytest.raises(ConfigError, match="'stride'.*got 0"):
        strided_map(coords, (4, 4, 4), 3, 0, 1)
    with pytest.raises(ConfigError, match="'kernel_size'"):
        submanifold_map(coords, (4, 4, 4), (3, 3))
    with pytest.raises(InvalidFrame, match="int32"):
        submanifold_map(coords.long(), (4, 4, 4))
    with pytest.raises(InvalidFrame, match="batch, z, y, x"):
        submanifold_map(coords[:, 1:], (4, 4, 4))


def test_a_map_is_the_same_bytes_on_any_number_of_threads():
    shape = (41, 400, 400)
    coords = random_coords(20_000, (20, 60, 60), seed=10)
    before = torch.get_num_threads()
    seen = set()
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            subm, down = submanifold_map(coords, shape), strided_map(coords, shape, 3, 2, 1)
            seen.add(
                b"".join(
                    t.numpy().tobytes()
                    for m in (subm, down)
                    for t in (m.in_rows, m.out_rows, m.out_coords_bzyx)
                )
            )
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1
