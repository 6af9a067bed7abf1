"""The configurations that pooling is timed with are what they are said to be."""

from __future__ import annotations

import pytest

from driveRT_ros.bench.pool_cases import CASES
from driveRT_ros.core.pool_work import column_tiles

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("name", "points", "shape", "grid"),
    [
        ("small", 105_000, (6, 30, 16, 44), (1, 128, 128)),
        ("canonical", 209_167, (6, 59, 16, 44), (1, 200, 200)),
        ("large", 572_000, (6, 85, 24, 66), (1, 200, 200)),
        ("bevdet_r50", None, (6, 59, 16, 44), (1, 128, 128)),
    ],
)
def test_a_configuration_has_the_points_and_sizes_it_is_named_for(name, points, shape, grid):
    made = BY_NAME[name].scatter_map()
    assert made.frustum_shape == shape
    assert made.grid_shape_zyx == grid
    # BEVDet's published map of another car keeps 177,749.
    assert int(made.counts[0]) == points or (points is None and 170_000 < made.counts[0] < 190_000)


def test_the_wide_configurations_differ_from_the_canonical_one_in_channels_only():
    canonical = BY_NAME["canonical"]
    for name, channels in (("wide_c128", 128), ("wide_c256", 256)):
        wide = BY_NAME[name]
        assert wide.channels == channels
        assert (wide.depth, wide.grid_xy, wide.points) == (
            canonical.depth,
            canonical.grid_xy,
            canonical.points,
        )


def test_sixteen_cells_share_their_columns():
    """The estimate in kernels/bev_pool_tiles.cu: one step of 16 x 16 is good for 86 points."""
    made = BY_NAME["canonical"].scatter_map()
    tiles = column_tiles(made)
    assert int(made.interval_lengths.max()) == 336
    assert (len(tiles.tile_cells), len(tiles.step_place)) == (956, 2446)
    assert int(tiles.slots[:, 1].max()) <= 3, "no warp has more than three steps"
