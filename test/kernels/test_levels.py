"""The coordinate structure of a frame: cells, their rows, and what happens when they do not fit."""

from __future__ import annotations

import pytest

from test.support.kernel_cases import (
    CLOUDS,
    cells_of,
    edge_cloud,
    expected_levels,
    is_untouched,
    leaves_of,
    random_cloud,
    reference_cells,
    run_frame,
)
from test.support.launch import NO_POINT


@pytest.mark.parametrize("cloud", CLOUDS)
def test_levels_hold_the_cells_that_the_definition_makes_active(backend, cloud):
    points = CLOUDS[cloud]()
    frame = run_frame(backend, points, average=False)
    voxels, cells = reference_cells(points)
    for level, expected in enumerate(expected_levels(cells)):
        assert frame.count(level) == (leaves_of(expected), len(expected))
        assert cells_of(frame, level) == expected
        rest = frame.levels[level]["coords"][len(expected) :]
        assert is_untouched(rest)
    dropped = [voxels.dropped["non_finite_points"], voxels.dropped["out_of_range_points"]]
    assert frame.dropped.tolist() == dropped
    assert frame.buffers.intact()


def test_edge_points_reach_the_cells_on_both_sides(backend):
    """A cloud of edge points that all fell into one cell would prove nothing."""
    frame = run_frame(backend, edge_cloud(), average=False)
    assert len({x for _, _, x in cells_of(frame, 0)}) > 70
    assert frame.dropped.tolist()[1] > 0


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_rows_beyond_the_capacity_are_counted_but_not_written(backend, more):
    points = random_cloud(400, seed=7)
    _, cells = reference_cells(points)
    expected = expected_levels(cells)
    sizes = [max(len(level) + more, 0) for level in expected]
    frame = run_frame(backend, points, row_capacity=sizes)
    for level, rows in enumerate(expected):
        assert frame.count(level) == (leaves_of(rows), len(rows))
        assert cells_of(frame, level) == rows[: sizes[level]]
    assert frame.buffers.intact()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_leaves_beyond_the_capacity_are_counted_but_not_written(backend, more):
    points = random_cloud(400, seed=7)
    _, cells = reference_cells(points)
    expected = expected_levels(cells)
    sizes = [max(leaves_of(level) + more, 0) for level in expected]
    frame = run_frame(backend, points, leaf_capacity=sizes)
    for level, rows in enumerate(expected):
        assert frame.count(level) == (leaves_of(rows), len(rows))
        assert cells_of(frame, level) == rows
    assert frame.buffers.intact()


@pytest.mark.parametrize("sizes", [{}, {"row_capacity": 9}, {"leaf_capacity": 1}])
def test_a_frame_leaves_no_cell_behind_for_the_next(backend, sizes):
    frame = run_frame(backend, random_cloud(400, seed=7), **sizes)
    assert not any(bool(level["cells"].any()) for level in frame.levels)
    assert bool((frame.lists == NO_POINT).all())


@pytest.mark.parametrize("chunk_words", [1, 2, 8])
def test_the_size_of_a_chunk_does_not_matter(backend, chunk_words):
    points = random_cloud(1200, seed=2)
    _, cells = reference_cells(points)
    frame = run_frame(backend, points, average=False, chunk_words=chunk_words)
    assert [cells_of(frame, level) for level in range(8)] == expected_levels(cells)
    assert frame.buffers.intact()


@pytest.mark.parametrize("resident", [1, 5])
def test_the_number_and_the_mix_of_blocks_do_not_matter(backend, resident):
    """Chunks of a prefix sum then wait for chunks that other blocks have not finished."""
    backend.resident = resident
    points = random_cloud(1200, seed=2)
    _, cells = reference_cells(points)
    expected = expected_levels(cells)
    for blocks in (1, 7):
        for backend.seed in range(2):
            frame = run_frame(backend, points, average=False, blocks=blocks)
            assert [cells_of(frame, level) for level in range(8)] == expected
