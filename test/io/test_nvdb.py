"""NanoVDB files: what is written can be read by tools, by hand and back; no damage goes unseen."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import ConfigError, DriveRTError, InvalidFrame
from driveRT_ros.io import nvdb_checksum
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
from driveRT_ros.io.nvdb_file import RECORD, name_key
from test.support.nvdb_walk import Walk

PLACE = Placement((0.075, 0.1, 0.2), (-54.0, -40.0, -5.0))
REAL = ("rocks", "test_grid", "test_index_grid", "test_int32_grid", "torus")


def random_cells(seed: int, count: int = 400) -> np.ndarray:
    """Return distinct cells around the corner where eight upper nodes meet, and far away ones."""
    rng = np.random.default_rng(seed)
    near = rng.integers(-40, 40, (count, 3))
    far = rng.integers(-(2**31), 2**31 - 1, (5, 3))
    return rng.permutation(np.unique(np.concatenate((near, far)), axis=0))


def frame(count: int = 400) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return cells of a street-sized grid with channels of all kinds."""
    rng = np.random.default_rng(5)
    cells = np.unique(rng.integers(0, (40, 600, 600), (count, 3)), axis=0)
    return cells, {
        "intensity": rng.uniform(0, 255, len(cells)).astype(np.float32),
        "height": rng.normal(size=len(cells)),
        "point_count": rng.integers(1, 10, len(cells)),
        "feature": rng.normal(size=(len(cells), 3)).astype(np.float32),
    }


def signed(grid: NanoGrid, **fields: int) -> NanoGrid:
    """Return a grid with other words in its grid data, and the head checksum they need."""
    data = grid.data.copy()
    for name, value in fields.items():
        data[: layout.GRID.itemsize].view(layout.GRID)[name] = value
    head = nvdb_checksum.head_checksum(data)
    data[: layout.GRID.itemsize].view(layout.GRID)["checksum_head"] = head
    return NanoGrid(data, layout.read_header(data), grid.name)


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


def test_the_key_of_a_name_is_the_one_in_real_files() -> None:
    assert name_key(b"surface") == 10563006934741 and name_key(b"grid-1") == 141392145894
    assert name_key(b"") == 0 and name_key(b"a" * 40) < 2**64


# ---- damage -------------------------------------------------------------------------------------


def one_leaf_file(path: Path, codec: str, kind: str) -> bytes:
    cells = np.array([[0, 0, 0], [1, 2, 3], [7, 7, 7]])
    values = np.array([1.5, -2.0, 3.25], np.float32)
    if kind == "index":
        grid = build_index_grid(cells, {"v": values}, PLACE, name="small")
    else:
        grid = build_value_grid(cells, values, PLACE, name="small")
    write_nvdb(path, [grid], codec)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["value", "index"])
@pytest.mark.parametrize("codec", ["none", "zip"])
def test_one_wrong_byte_anywhere_is_detected(codec: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.nvdb"
    whole = one_leaf_file(path, codec, kind)
    rng = np.random.default_rng(9)
    behind = 16 + RECORD.itemsize + 6
    places = np.r_[:behind, rng.choice(np.arange(behind, len(whole)), 400, replace=False)]
    if codec == "none":  # more of the grid's head and of what stands at the end
        places = np.r_[places, behind : behind + 736 : 3, len(whole) - 300 : len(whole) : 2]
    for place in places.tolist():
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with pytest.raises(DriveRTError):
            read_nvdb(path)
            pytest.fail(f"byte {place} of {len(whole)} was wrong and nobody noticed")


@pytest.mark.parametrize("codec", ["none", "zip"])
def test_damage_is_named_by_grid_and_part_with_both_sums(codec: str, tmp_path: Path) -> None:
    """The stored stream is rebuilt around the wrong byte: only the sums of the grid can tell."""
    cells, given = frame(50)
    path = write_frame_grid(tmp_path / "a.nvdb", cells, given, (1, 1, 1), (0, 0, 0))[0]
    grids = read_nvdb(path)
    head, leaf = layout.GRID.fields["voxel_size"][1], grids[2].header.node_offsets[0] + 100
    for place, part, number in ((head, "header", 1), (leaf, "tree", 2)):
        data = grids[number].data.copy()
        data[place] ^= 1
        changed = NanoGrid(data, grids[number].header, grids[number].name)
        write_nvdb(tmp_path / "b.nvdb", [*grids[:number], changed, *grids[number + 1 :]], codec)
        with pytest.raises(InvalidFrame) as caught:
            read_nvdb(tmp_path / "b.nvdb")
        name = grids[number].name
        assert f"The {part} of grid '{name}' (number {number} in" in str(caught.value)
        stored = data[: layout.GRID.itemsize].view(layout.GRID)[0]
        expected = stored["checksum_head" if part == "header" else "data0"]
        assert caught.value.expected == f"{expected:08x}" != caught.value.got
        assert caught.value.code == "checksum"


def test_a_wrong_bit_in_a_compressed_stream_is_still_named_by_part(tmp_path: Path) -> None:
    """Stored blocks of deflate keep bytes as they are, so that one can be changed in place."""
    grid = build_value_grid(np.array([[0, 0, 0]]), np.ones(1, "f4"), PLACE, name="s")
    write_nvdb(tmp_path / "a.nvdb", [grid], "zip")
    whole = (tmp_path / "a.nvdb").read_bytes()
    begin = 16 + RECORD.itemsize + 2
    stream = bytearray(zlib.compress(grid.data.tobytes(), 0))
    head = bytearray(whole[:begin])
    head[16 + 8 : 16 + 16] = (8 + len(stream)).to_bytes(8, "little")
    size = len(stream).to_bytes(8, "little")
    (tmp_path / "b.nvdb").write_bytes(head + size + stream)
    assert read_nvdb(tmp_path / "b.nvdb")[0].data.tobytes() == grid.data.tobytes()
    stream[-10] ^= 4
    (tmp_path / "b.nvdb").write_bytes(head + size + stream)
    with pytest.raises(InvalidFrame, match="tree of grid 's'"):
        read_nvdb(tmp_path / "b.nvdb")
    stream[-10] ^= 4
    stream[-1] ^= 4
    (tmp_path / "b.nvdb").write_bytes(head + size + stream)
    with pytest.raises(InvalidFrame, match="grid 's' .* Adler-32"):
        read_nvdb(tmp_path / "b.nvdb")


def test_damage_in_a_grid_without_tail_checksum_is_found_by_that_of_the_stream(
    data_dir: Path, tmp_path: Path
) -> None:
    whole = bytearray((data_dir / "nanovdb" / "torus.nvdb").read_bytes())
    whole[-1000] ^= 16
    (tmp_path / "a.nvdb").write_bytes(whole)
    with pytest.raises(InvalidFrame, match="grid 'surface' .* is damaged"):
        read_nvdb(tmp_path / "a.nvdb")


def test_a_file_that_is_cut_off_or_goes_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.nvdb"
    whole = one_leaf_file(path, "zip", "value")
    for size in (0, 1, 15, 16, 100, 193, 198, 400, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidFrame, match="cut off or damaged"):
            read_nvdb(path)
    path.write_bytes(whole + b"more and more and more")
    with pytest.raises(InvalidFrame, match="follow its last grid"):
        read_nvdb(path)
    path.write_bytes(whole + whole)
    assert [grid.name for grid in read_nvdb(path)] == ["small", "small"]


@pytest.mark.parametrize("item", ["<u4", "<u8"])
def test_old_tail_checksums_of_either_platform_are_verified(item: str, tmp_path: Path) -> None:
    """Sums of nodes were kept in 4 bytes on some platforms and in 8 on others."""
    grid = build_value_grid(random_cells(1), np.ones(len(random_cells(1)), "f4"), PLACE, name="o")
    sums = [zlib.crc32(n.tobytes()) for level in (2, 1, 0) for n in grid.nodes(level)]
    tail = zlib.crc32(np.array(sums, item).tobytes())
    old = signed(grid, data0=0, data1=0, checksum_tail=tail)
    write_nvdb(tmp_path / "a.nvdb", [old])
    assert read_nvdb(tmp_path / "a.nvdb")[0].protected == "all"
    data = old.data.copy()
    data[-1] ^= 1
    write_nvdb(tmp_path / "b.nvdb", [NanoGrid(data, old.header, "o")])
    with pytest.raises(InvalidFrame, match="tree of grid 'o'"):
        read_nvdb(tmp_path / "b.nvdb")


# ---- what cannot be read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (b"NanoVDB0\x00\x24\x00\x04\x01\x00\x02\x00", "compressed by BLOSC"),
        (b"NanoVDB0\x00\x24\x00\x04\x01\x00\x07\x00", "impossible number"),
        (b"NanoVDB0\x00\x24\x00\x04\x00\x00\x01\x00", "impossible number"),
        (b"NanoVDB0\x00\x24\x20\x04\x01\x00\x01\x00", "ABI version 33.9.0"),
        (b"NanoVDB1\x00\x24\x00\x04\x01\x00\x01\x00", "bare NanoVDB grids"),
        (b" BDV\x00\x00\x00\x00\x00\x24\x00\x04\x01\x00\x01\x00", "nanovdb_convert"),
        (b"solid cube\nfacet normal", "is no NanoVDB file"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(
    start: bytes, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "a.nvdb").write_bytes(start + bytes(1000))
    with pytest.raises(DriveRTError, match=sentence):
        read_nvdb(tmp_path / "a.nvdb")


def test_paths_and_codecs_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    grid = build_value_grid(np.zeros((1, 3), int), np.ones(1, "f4"), PLACE, name="a")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_nvdb(tmp_path / "none.nvdb")
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_nvdb(tmp_path / "none" / "a.nvdb", [grid])
    with pytest.raises(ConfigError, match="'none' or 'zip', got 'blosc'"):
        write_nvdb(tmp_path / "a.nvdb", [grid], "blosc")
    with pytest.raises(ConfigError, match="got 0"):
        write_nvdb(tmp_path / "a.nvdb", [])
    (tmp_path / "a.nvdb").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_nvdb(tmp_path / "a.nvdb", [grid])
    assert [p.name for p in tmp_path.iterdir()] == ["a.nvdb"]  # no half of a file is left


# ---- tools of OpenVDB ---------------------------------------------------------------------------


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian package libnanovdb-tools)")
    return path


def run(*command: object) -> str:
    """Run a tool and return all it says; it must end by itself with exit code 0."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def refuses(file: Path) -> bool:
    """Tell whether the validator finds fault: its exit code is 0 then, too."""
    done = subprocess.run(
        [tool("nanovdb_validate"), str(file)], capture_output=True, text=True, timeout=60
    )
    return bool(done.returncode or "failed" in done.stdout)


@pytest.mark.parametrize("codec", ["none", "zip"])
@pytest.mark.parametrize("case", ["street", "corner", "empty"])
def test_files_pass_the_validator_of_openvdb(case: str, codec: str, tmp_path: Path) -> None:
    validate, show = tool("nanovdb_validate"), tool("nanovdb_print")
    cells, given = frame(3000)
    if case == "corner":
        cells = random_cells(8)
        given = {"height": np.arange(len(cells))}
    elif case == "empty":
        cells, given = cells[:0], {name: values[:0] for name, values in given.items()}
    size = (0.075, 0.075, 0.2)
    paths = write_frame_grid(tmp_path / "a.nvdb", cells, given, size, (-54, -54, -5), codec=codec)
    # Tools before 32.6 do not know OnIndex grids at all.
    version = re.search(r"NanoVDB version (\d+)\.(\d+)", run(validate, "--version"))
    assert version, "the validator no longer tells its version"
    knows_index = (int(version[1]), int(version[2])) >= (32, 6)
    for path in paths if knows_index else paths[:1]:
        names = [grid.name for grid in read_nvdb(path)]
        said = run(validate, "-v", path)
        assert [f'Grid named "{n}": passed' in said for n in names] == [True] * len(names), said
        assert "failed" not in said.lower()
        printed = run(show, path)
        assert all(name in printed for name in names) and "(0.075,0.075,0.2)" in printed
        assert len(re.findall(rf"\) +{len(cells)} +-?\d+ x", printed)) == len(names)


def test_the_validator_of_openvdb_is_not_content_with_anything(tmp_path: Path) -> None:
    cells, given = frame(100)
    path = write_frame_grid(tmp_path / "a.nvdb", cells, given, (1, 1, 1), (0, 0, 0), codec="none")[
        0
    ]
    assert not refuses(path)
    data = bytearray(path.read_bytes())
    begin = len(data) - sum(len(grid.data) for grid in read_nvdb(path))
    data[begin + layout.GRID.fields["voxel_size"][1]] ^= 1
    path.write_bytes(data)
    assert refuses(path)
