"""NanoVDB files: what is written can be read by hand, by this package and from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.nvdb import (
    NanoGrid,
    Placement,
    active_tiles,
    active_voxels,
    build_index_grid,
    build_value_grid,
    channels,
    read_nvdb,
    write_frame_grid,
    write_nvdb,
)
from driveRT_ros.io.nvdb_file import name_key
from test.support.nvdb_cells import PLACE, frame, random_cells, signed
from test.support.nvdb_walk import Walk

REAL = ("rocks", "test_grid", "test_index_grid", "test_int32_grid", "torus")


# ---- building -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_every_voxel_of_a_value_grid_is_found_by_a_walk_from_its_root(kind: str) -> None:
    cells = random_cells(1)
    values = np.random.default_rng(2).normal(0, 1000, len(cells)).astype(kind)
    grid = build_value_grid(cells, values, PLACE, name="v", background=-7)
    walk = Walk(grid.data.tobytes())
    assert [walk.value(x, y, z) for z, y, x in cells.tolist()] == values.tolist()
    present = {tuple(c) for c in cells.tolist()}
    around = {tuple(c) for c in (cells[:, None] + np.eye(3, dtype=int)).reshape(-1, 3).tolist()}
    absent = [c for c in around - present if max(map(abs, c)) < 2**31]
    assert absent and all(walk.value(x, y, z) is None for z, y, x in absent)
    leaves = grid.nodes(0)
    assert np.isin(-7, leaves["values"]) and leaves["values"][0, 0] in (-7, *values)
    assert grid.voxel_count == len(cells) and grid.header.node_counts[2] >= 8


def test_rows_of_channels_belong_to_the_voxels_that_number_them() -> None:
    cells = random_cells(3)
    ident = np.arange(len(cells), dtype=np.int32)
    grid = build_index_grid(cells, {"id": ident, "half": ident.astype("f4") / 2}, PLACE, name="i")
    walk = Walk(grid.data.tobytes())
    kind, begin, rows = walk.channel("id")
    assert (kind, rows) == (4, len(cells) + 1) and walk.number("Q", 656) == rows
    found = [walk.number("i", begin + 4 * walk.value(x, y, z)) for z, y, x in cells.tolist()]
    assert found == ident.tolist()
    kind, begin, _ = walk.channel("half")
    assert kind == 1 and walk.number("f", begin) == 0  # the background
    read = active_voxels(grid)
    assert read.values.tolist() == list(range(1, rows))
    assert np.array_equal(cells[channels(grid)["id"][read.values]], read.coords_zyx)


def test_statistics_and_boxes_of_all_nodes_are_those_of_the_voxels_below() -> None:
    cells = random_cells(4)
    values = np.random.default_rng(1).normal(100, 3, len(cells)).astype(np.float32)
    grid = build_value_grid(cells, values, PLACE, name="v")
    for level, edge in ((0, 8), (1, 128), (2, 4096)):
        below: dict[tuple[int, ...], list[int]] = {}
        for i, cell in enumerate(cells):
            below.setdefault(tuple((cell // edge).tolist()), []).append(i)
        nodes = grid.nodes(level)
        assert len(nodes) == len(below)
        for node in nodes:
            low = node["bbox_min"] if level == 0 else node["bbox"][0]
            high = low + node["bbox_extent"] if level == 0 else node["bbox"][1]
            rows = below.pop(tuple((low[::-1].astype(np.int64) // edge).tolist()))
            assert np.array_equal(low[::-1], cells[rows].min(axis=0))
            assert np.array_equal(high[::-1], cells[rows].max(axis=0))
            check_statistics(node, values[rows])
    check_statistics(grid.root, values)
    assert np.array_equal(grid.root["bbox"][:, ::-1], [cells.min(axis=0), cells.max(axis=0)])


def check_statistics(node: np.void, values: np.ndarray) -> None:
    assert (node["minimum"], node["maximum"]) == (values.min(), values.max())
    # float32 of a float64 sum: half a unit in the last place, and what the order of adding does
    assert node["average"] == pytest.approx(values.astype(float).mean(), rel=1e-7)
    assert node["stddev"] == pytest.approx(values.astype(float).std(), rel=1e-6, abs=1e-9)


def test_the_order_of_the_input_changes_no_byte() -> None:
    cells = random_cells(6)
    values = np.arange(len(cells), dtype=np.float32)
    shuffle = np.random.default_rng(0).permutation(len(cells))
    for build in (
        lambda c, v: build_value_grid(c, v, PLACE, name="a"),
        lambda c, v: build_index_grid(c, {"v": v}, PLACE, name="a"),
    ):
        one, two = build(cells, values), build(cells[shuffle], values[shuffle])
        assert one.data.tobytes() == two.data.tobytes()


def test_a_whole_index_is_the_centre_of_a_cell_in_metres() -> None:
    grid = build_value_grid(np.array([[1, 2, 3]]), np.ones(1, "f4"), PLACE, name="a")
    centre = grid.T_lidar_voxel @ (3, 2, 1, 1)
    assert np.allclose(centre[:3], (-54 + 3.5 * 0.075, -40 + 2.5 * 0.1, -5 + 1.5 * 0.2))
    inverse = grid.record["map"]["inverse"]
    assert np.allclose(inverse @ grid.record["map"]["matrix"], np.eye(3))
    low, high = grid.record["world_bbox"]
    assert np.allclose(low, centre[:3]) and np.allclose(high - low, PLACE.voxel_size_xyz)


@pytest.mark.parametrize(
    ("cells", "values", "sentence"),
    [
        (np.zeros((2, 3), int), np.ones(2, "f4"), "is there twice"),
        (np.zeros((1, 3)), np.ones(1, "f4"), "(V, 3) integers"),
        (np.zeros((1, 2), int), np.ones(1, "f4"), "(V, 3) integers"),
        (np.full((1, 3), 2**31 - 1), np.ones(1, "f4"), "32 bits"),
        (np.zeros((1, 3), int), np.ones(2, "f4"), "(1,) float32 or int32"),
        (np.zeros((1, 3), int), np.ones(1), "float64 (1,)"),
        (np.zeros((1, 3), int), np.array([np.nan], "f4"), "1 of 1"),
    ],
)
def test_voxels_that_cannot_be_stored_are_refused(cells, values, sentence: str) -> None:
    with pytest.raises(InvalidFrame, match=re.escape(sentence)):
        build_value_grid(cells, values, PLACE, name="a")


def test_names_and_places_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    cell, one = np.zeros((1, 3), int), np.ones(1, "f4")
    with pytest.raises(ConfigError, match="at most 255 bytes, got 256"):
        build_value_grid(cell, one, PLACE, name="ä" * 128)
    assert len(build_value_grid(cell, one, PLACE, name="a" * 255).name) == 255
    with pytest.raises(ConfigError, match="positive voxel sizes"):
        Placement((0.1, 0.0, 0.1), (0, 0, 0))
    with pytest.raises(ConfigError, match=r"\*.nvdb"):
        write_frame_grid(tmp_path / "a.vdb", cell, {}, (1, 1, 1), (0, 0, 0))
    with pytest.raises(InvalidFrame, match="does not fit into 32 bits"):
        big = {"n": np.array([2**40])}
        write_frame_grid(tmp_path / "a.nvdb", cell, big, (1, 1, 1), (0, 0, 0))


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zip"])
def test_a_frame_comes_back_with_all_its_channels(codec: str, tmp_path: Path) -> None:
    cells, given = frame()
    size, origin = PLACE.voxel_size_xyz, PLACE.origin_xyz
    paths = write_frame_grid(tmp_path / "a.nvdb", cells, given, size, origin, codec=codec)
    assert [p.name for p in paths] == ["a.nvdb", "a.index.nvdb"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.index.nvdb", "a.nvdb"]
    grids = {grid.name: grid for grid in read_nvdb(paths[0])}
    assert list(grids) == ["occupancy", "intensity", "height", "point_count", "feature_norm"]
    norm = np.linalg.norm(given["feature"].astype(float), axis=1)
    shown = given | {"occupancy": np.ones(len(cells)), "feature_norm": norm}
    for name, grid in grids.items():
        voxels = active_voxels(grid)
        rows = rows_of(cells, voxels.coords_zyx)
        assert grid.kind == "float" and grid.protected == "all" and len(active_tiles(grid)) == 0
        assert np.array_equal(voxels.values, shown[name][rows].astype(np.float32))
    (index,) = read_nvdb(paths[1])
    voxels, columns = active_voxels(index), channels(index)
    rows = rows_of(cells, voxels.coords_zyx)
    assert list(columns) == [
        "intensity", "height", "point_count", "feature_0", "feature_1", "feature_2",
    ]  # fmt: skip
    assert columns["point_count"].dtype == np.int32 and index.protected == "all"
    for name in ("intensity", "height", "point_count"):
        expected = given[name][rows].astype(columns[name].dtype)
        assert np.array_equal(columns[name][voxels.values], expected)
    assert np.array_equal(columns["feature_2"][voxels.values], given["feature"][rows, 2])


def rows_of(cells: np.ndarray, wanted: np.ndarray) -> list[int]:
    """Return the row of each wanted cell; all must be there, none twice."""
    where = {tuple(cell): i for i, cell in enumerate(cells.tolist())}
    rows = [where.pop(tuple(cell)) for cell in wanted.tolist()]
    assert not where
    return rows


def test_a_frame_without_voxels_is_an_ordinary_file(tmp_path: Path) -> None:
    none = {"height": np.zeros(0), "feature": np.zeros((0, 4))}
    paths = write_frame_grid(tmp_path / "e.nvdb", np.zeros((0, 3), int), none, (1, 1, 1), (0, 0, 0))
    grids = [grid for path in paths for grid in read_nvdb(path)]
    assert [len(active_voxels(grid)) for grid in grids] == [0, 0, 0, 0]
    assert {name: c.tolist() for name, c in channels(grids[-1]).items()} == {
        "height": [0.0], "feature_0": [0.0], "feature_1": [0.0], "feature_2": [0.0],
        "feature_3": [0.0],
    }  # fmt: skip
    # Tools look for bare grids first, and never return from a file shorter than one grid's head.
    assert all(path.stat().st_size > layout.GRID.itemsize for path in paths)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("codec", ["none", "zip"])
def test_real_files_come_back_byte_for_byte(
    name: str, codec: str, data_dir: Path, tmp_path: Path
) -> None:
    grids = read_nvdb(data_dir / "nanovdb" / f"{name}.nvdb")
    write_nvdb(tmp_path / "again.nvdb", grids, codec)
    again = read_nvdb(tmp_path / "again.nvdb")
    assert len(grids) == len(again) == (2 if name == "test_index_grid" else 1)
    for one, two in zip(grids, again):
        assert one.data.tobytes() == two.data.tobytes() and one.name == two.name
        assert one.header.checksum == two.header.checksum
        assert one.protected == ("nothing" if name == "test_index_grid" else "header")
        assert len(active_voxels(one)) == one.voxel_count and len(active_tiles(one)) == 0
        low, high = one.root["bbox"]
        coords = active_voxels(one).coords_zyx[:, ::-1]
        if name != "test_index_grid":  # boxes there are those of the nodes' inactive corners
            assert np.array_equal([coords.min(axis=0), coords.max(axis=0)], [low, high])


@pytest.mark.parametrize("name", ["test_grid", "test_int32_grid"])
def test_a_real_grid_built_anew_from_its_voxels_has_the_same_nodes(
    name: str, data_dir: Path
) -> None:
    (real,) = read_nvdb(data_dir / "nanovdb" / f"{name}.nvdb")
    voxels = active_voxels(real)
    place = Placement((0.25,) * 3, (-0.125,) * 3)
    built = build_value_grid(
        voxels.coords_zyx, voxels.values, place, name="", background=real.root["background"]
    )
    assert np.array_equal(built.record["map"], real.record["map"])
    assert np.array_equal(built.record["world_bbox"], real.record["world_bbox"])
    assert np.array_equal(built.tree, real.tree)
    one, two = built.data[layout.HEAD :].copy(), real.data[layout.HEAD :].copy()
    for data in (one, two):  # means may differ in the last place
        again = NanoGrid(np.concatenate((real.data[: layout.HEAD], data)), real.header, "")
        for level in (0, 1, 2):
            nodes = again.nodes(level)
            for field in ("average", "stddev"):
                assert np.allclose(nodes[field], real.nodes(level)[field], rtol=1e-6)
                nodes[field] = 0
        again.root["average"] = again.root["stddev"] = 0
        data[:] = again.data[layout.HEAD :]
    assert one.tobytes() == two.tobytes()


def test_active_tiles_of_every_level_are_read() -> None:
    grid = build_value_grid(np.array([[-1, -1, -1]]), np.ones(1, "f4"), PLACE, name="a")
    data = grid.data.copy()
    changed = NanoGrid(data, grid.header, "a")
    changed.nodes(1)["value_mask"][0, 0] |= np.uint64(2)  # second entry of the lower node
    changed.nodes(1)["table"][0, 1] = int(np.array([2.5], "<f4").view("<u4")[0])
    changed.nodes(2)["value_mask"][0, 511] |= np.uint64(1)  # entry 32704: x 31, y 30, z 0
    changed.nodes(2)["table"][0, 32704] = int(np.array([-4.0], "<f4").view("<u4")[0])
    tiles = active_tiles(changed)
    assert tiles.first_zyx.tolist() == [[-120, -128, -128], [-4096, -256, -128]]
    assert tiles.edge.tolist() == [8, 128] and tiles.values.tolist() == [2.5, -4.0]
    changed.tiles()["child"], changed.tiles()["state"], changed.tiles()["value"] = 0, 1, 9.0
    top = active_tiles(changed)
    assert top.first_zyx[-1].tolist() == [-4096] * 3 and top.edge[-1] == 4096
    assert top.values[-1] == 9.0


def test_a_name_that_is_no_utf8_comes_back_as_it_was(tmp_path: Path) -> None:
    grid = build_value_grid(np.zeros((1, 3), int), np.ones(1, "f4"), PLACE, name="a")
    foreign = signed(grid, name=b"caf\xe9")
    write_nvdb(tmp_path / "a.nvdb", [foreign])
    (again,) = read_nvdb(tmp_path / "a.nvdb")
    assert bytes(again.record["name"]) == b"caf\xe9" and again.name == "caf\ufffd"
    write_nvdb(tmp_path / "b.nvdb", [again])
    assert (tmp_path / "a.nvdb").read_bytes() == (tmp_path / "b.nvdb").read_bytes()


def test_the_key_of_a_name_is_the_one_in_real_files() -> None:
    assert name_key(b"surface") == 10563006934741 and name_key(b"grid-1") == 141392145894
    assert name_key(b"") == 0 and name_key(b"a" * 40) < 2**64
