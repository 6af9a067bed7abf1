"""The byte layout of NanoVDB grids: sizes of the format, real files, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.nanovdb_layout import (
    FLOAT,
    GRID,
    HEAD,
    INT32,
    LAYOUTS,
    ON_INDEX,
    TREE,
    pack_version,
    read_header,
    unpack_version,
)
from test.support.nvdb_files import real_grids


def test_structs_have_the_sizes_of_the_format():
    assert (GRID.itemsize, TREE.itemsize, HEAD) == (672, 64, 736)
    sizes = {
        layout.name: [d.itemsize for d in (layout.root, layout.tile, *layout.nodes)]
        for layout in LAYOUTS.values()
    }
    assert sizes["float"] == sizes["int32"] == [64, 32, 2144, 33_856, 270_400]
    assert sizes["OnIndex"] == [96, 32, 96, 33_856, 270_400]


def test_fields_lie_where_the_format_has_them():
    def offsets(dtype, *names):
        return [dtype.fields[name][1] for name in names]

    assert offsets(GRID, "checksum_head", "version", "grid_size", "name") == [8, 16, 32, 40]
    assert offsets(GRID, "map", "grid_class", "grid_type") == [296, 632, 636]
    for layout in (FLOAT, INT32, ON_INDEX):
        assert offsets(layout.lower, "value_mask", "child_mask", "minimum", "table") == [
            *(32, 544, 1056, 1088)
        ]
        assert offsets(layout.upper, "value_mask", "child_mask", "minimum", "table") == [
            *(32, 4128, 8224, 8256)
        ]
    assert offsets(FLOAT.leaf, "value_mask", "minimum", "values") == [16, 80, 96]
    assert offsets(ON_INDEX.leaf, "value_mask", "offset", "prefix_sum") == [16, 80, 88]


def test_versions_are_packed_as_files_hold_them():
    assert pack_version((32, 6, 0)) == 0x04001800
    assert unpack_version(0x04000C03) == (32, 3, 3)


@pytest.mark.parametrize("version", [(31, 9, 0), (33, 0, 0), (32, 2, 9), (0, 0, 0)])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(ConfigError, match=r"version {}\.{}\.{}".format(*version)):
        unpack_version(pack_version(version))


def test_the_parts_of_real_grids_fill_them_without_a_gap(data_dir):
    grids = real_grids(data_dir)
    assert {read_header(grid).layout.name for grid in grids.values()} == {
        *("float", "int32", "OnIndex")
    }
    for grid in grids.values():
        header = read_header(grid)
        root_end = header.node_offsets[3] + header.layout.root.itemsize
        assert header.node_offsets[3] == HEAD
        assert header.node_offsets[2] == root_end + 32 * header.table_size
        blind = int(grid[: GRID.itemsize].view(GRID)[0]["blind_offset"])
        assert header.nodes_end == (blind or len(grid))
        assert header.size == len(grid)


def test_a_grid_that_is_cut_off_damaged_or_of_another_kind_is_refused(data_dir):
    grid = real_grids(data_dir)["torus:0"]

    def refused(sentence, changed):
        with pytest.raises(ConfigError, match=sentence):
            read_header(changed)

    def changed(offset, *bytes_):
        copy = grid.copy()
        copy[offset : offset + len(bytes_)] = bytes_
        return copy

    refused("at least 800 bytes", grid[:700])
    refused("2486559 bytes are there", grid[:-1])
    refused("begins with", changed(0, 0))
    refused("type 2; known are 1", changed(636, 2))
    refused("version 0.3.3", changed(18, 0, 0))
    refused("end at byte", changed(GRID.itemsize + 32, 255))
    refused("leaves of this grid begin", changed(GRID.itemsize, *np.zeros(8, np.uint8)))
    refused("root lies at byte", changed(GRID.itemsize + 24, *[255] * 8))
