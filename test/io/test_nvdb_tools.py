"""NanoVDB files before the tools of OpenVDB, where they are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.io.nvdb import read_nvdb, write_frame_grid
from test.support.nvdb_cells import frame, random_cells


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian package libnanovdb-tools)")
    return path


def run(*command: object) -> str:
    """Run a tool and return all it says; it must end by itself with exit code 0."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def refuses(file: Path) -> bool:
    """Tell whether the validator finds fault: its exit code is 0 then, too."""
    done = subprocess.run(
        [tool("nanovdb_validate"), str(file)], capture_output=True, text=True, timeout=300
    )
    return bool(done.returncode or "failed" in done.stdout)


def write_case(case: str, codec: str, folder: Path) -> tuple[tuple[Path, Path], int]:
    """Write one frame; return its files and the number of its voxels."""
    cells, given = frame(3000)
    if case == "corner":
        cells = random_cells(8)
        given = {"height": np.arange(len(cells))}
    elif case == "empty":
        cells, given = cells[:0], {name: values[:0] for name, values in given.items()}
    size = (0.075, 0.075, 0.2)
    path = folder / "a.nvdb"
    return write_frame_grid(path, cells, given, size, (-54, -54, -5), codec=codec), len(cells)


def check_file(path: Path, voxels: int) -> None:
    """Ask the validator and the printer about every grid of a file."""
    names = [grid.name for grid in read_nvdb(path)]
    said = run(tool("nanovdb_validate"), "-v", path)
    assert [f'Grid named "{n}": passed' in said for n in names] == [True] * len(names), said
    assert "failed" not in said.lower()
    printed = run(tool("nanovdb_print"), path)
    assert all(name in printed for name in names) and "(0.075,0.075,0.2)" in printed
    assert len(re.findall(rf"\) +{voxels} +-?\d+ x", printed)) == len(names)


@pytest.mark.parametrize("codec", ["none", "zip"])
@pytest.mark.parametrize("case", ["street", "corner", "empty"])
def test_float_grids_pass_the_validator_of_openvdb(case: str, codec: str, tmp_path: Path) -> None:
    tool("nanovdb_validate")
    (path, _), voxels = write_case(case, codec, tmp_path)
    check_file(path, voxels)


@pytest.mark.parametrize("codec", ["none", "zip"])
@pytest.mark.parametrize("case", ["street", "corner", "empty"])
def test_index_grids_pass_a_validator_that_knows_them(
    case: str, codec: str, tmp_path: Path
) -> None:
    version = re.search(r"NanoVDB version (\d+)\.(\d+)", run(tool("nanovdb_validate"), "--version"))
    assert version, "the validator no longer tells its version"
    if (int(version[1]), int(version[2])) < (32, 6):
        pytest.skip(f"OnIndex grids need NanoVDB 32.6; the tools here are {version[0][16:]}")
    (_, path), voxels = write_case(case, codec, tmp_path)
    check_file(path, voxels)


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
