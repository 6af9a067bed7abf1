"""NanoVDB files that are damaged, foreign or unusable: each is named, none passes."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import ConfigError, DriveRTError, InvalidFrame
from driveRT_ros.io.nvdb import (
    NanoGrid,
    build_index_grid,
    build_value_grid,
    read_nvdb,
    write_frame_grid,
    write_nvdb,
)
from driveRT_ros.io.nvdb_file import RECORD
from test.support.nvdb_cells import PLACE, frame, random_cells, signed


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
