"""``drivert bench grid``: grids of a wanted size, results that are checked, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from driveRT_ros.bench import grid
from driveRT_ros.bench.grid_cases import fog_sphere, index_grid, occupancy
from driveRT_ros.cli import main
from driveRT_ros.core.nanovdb_layout import FLOAT, HEAD, ON_INDEX, converted, read_header
from driveRT_ros.core.reference.grid_ops import nodes_of
from test.commands.test_cli import refused
from test.support.nvdb_grids import Sketch

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
OPERATORS = {grid.CHECKSUM, grid.STATS, grid.EXTREMES, grid.INDEX, grid.ZLIB}


# ---- grids --------------------------------------------------------------------------------------


def test_the_grid_of_some_leaves_is_the_one_made_voxel_by_voxel():
    rng = np.random.default_rng(0)
    centres = rng.choice([0, 120, 900, 4090, 9000], (60, 3))
    cells = np.unique(np.abs(centres + rng.integers(-9, 30, (60, 3))), axis=0)
    sketch = Sketch(voxels={tuple(int(v) for v in cell): 1.0 for cell in cells})
    leaves, of_voxel = np.unique(cells // 8, axis=0, return_inverse=True)
    masks = np.zeros((len(leaves), 8), np.uint64)
    for row, (x, y, z) in zip(of_voxel.ravel(), cells % 8):
        masks[row, x] |= np.uint64(1) << np.uint64(y * 8 + z)
    shuffled = rng.permutation(len(leaves))
    made = index_grid(leaves[shuffled] * 8, masks[shuffled])
    header = read_header(made)
    expected = sketch.grid(ON_INDEX)
    assert header.value_count == len(cells) + 1 == read_header(expected).value_count

    def linked(data):
        """Return where every leaf is found from the root, and what it holds."""
        found = {}
        at = HEAD + ON_INDEX.root.itemsize
        for tile in data[at : at + 32 * header.table_size].view(ON_INDEX.tile):
            upper = HEAD + int(tile["child"])
            for lower, path in children(data, upper, ON_INDEX.upper, (int(tile["key"]),)):
                for leaf, place in children(data, lower, ON_INDEX.lower, path):
                    node = data[leaf : leaf + 96].view(ON_INDEX.leaf)[0]
                    found[place] = (node["value_mask"].tolist(), int(node["prefix_sum"]))
        return found

    def children(data, begin, dtype, path):
        node = data[begin : begin + dtype.itemsize].view(dtype)[0]
        bits = np.unpackbits(node["child_mask"].view(np.uint8), bitorder="little")
        for slot in np.flatnonzero(bits):
            yield begin + int(node["table"][slot]), (*path, int(slot))

    assert linked(made) == linked(expected) and len(linked(made)) == len(leaves)
    offsets = nodes_of(made, header, 0)["offset"]
    counts = [
        int(sum(bin(int(w)).count("1") for w in m)) for m in nodes_of(made, header, 0)["value_mask"]
    ]
    assert offsets.tolist() == (1 + np.cumsum([0, *counts[:-1]])).tolist()


@pytest.mark.parametrize("make", [fog_sphere, occupancy])
@pytest.mark.parametrize("mb", [1, 30])
def test_grids_have_about_the_wanted_size(make, mb):
    header = read_header(make(mb))
    size = converted(header, FLOAT.value).size
    assert 0.6 * mb * 1e6 < size < 1.6 * mb * 1e6


def test_a_ball_holds_the_voxels_that_a_ball_does():
    header = read_header(fog_sphere(3))
    voxels = header.value_count - 1
    radius = (voxels * 3 / (4 * np.pi)) ** (1 / 3)
    leaves = header.node_counts[0] * 512
    assert voxels < leaves < (radius + 14) ** 3 * 4 * np.pi / 3


# ---- the command --------------------------------------------------------------------------------


def test_every_operator_is_checked_and_timed_beside_zlib(tmp_path, capsys):
    output = tmp_path / "result.json"
    assert main([
        "bench", "grid", "--device", "cpu", "--sizes", "0.5", "--rounds", "2",
        "--output", str(output),
    ]) == 0  # fmt: skip
    report = json.loads(output.read_text())
    assert report["suite"] == "grid" and report["cpu"] and report["date"]
    assert set(report["grids"]) == {"fog sphere, 0.5 MB", "occupancy, 0.5 MB"}
    for record in report["grids"].values():
        assert set(record["operators"]) == OPERATORS
        for found in record["operators"].values():
            assert found["wall_us"]["n"] == 2 and found["gb_per_s"] > 0
            rate = found["moved_mb"] * 1e6 / found["wall_us"]["median"] / 1e3
            assert found["gb_per_s"] == pytest.approx(rate, rel=0.02, abs=2e-3)
    text = capsys.readouterr().out
    assert "index to grid" in text and "zlib on one core" in text


def flipped(made):
    made[-1] ^= 1
    return made


@pytest.mark.parametrize(
    ("function", "operator", "fault"),
    [
        ("checksum", grid.CHECKSUM, lambda bits: (bits[0], bits[1] ^ 1)),
        ("index_to_grid", grid.INDEX, flipped),
    ],
)
def test_an_operator_that_is_wrong_has_no_time(monkeypatch, function, operator, fault):
    right = getattr(grid.grid_ops, function)
    bench = grid.GridBench(fog_sphere(0.4), torch.device("cpu"))
    monkeypatch.setattr(grid.grid_ops, function, lambda *a, **k: fault(right(*a, **k)))
    found = grid._record(bench, 1, {})["operators"]
    assert "absent" in found[operator] and "wall_us" not in found[operator]
    assert "wall_us" in found[grid.STATS]
    lines = grid.table({"grids": {"x": {"bytes": 1, "operators": found}}})
    assert any(", absent: " in cell for line in lines for cell in line)


def test_statistics_that_are_off_are_noticed():
    bench = grid.GridBench(fog_sphere(0.4), torch.device("cpu"))
    assert not any(bench.failures().values())
    bench.values[5] = 9.0  # the grid keeps the old one
    failures = bench.failures()
    assert "instead of" in failures[grid.STATS] and "differ" in failures[grid.INDEX]
    assert not failures[grid.CHECKSUM]


# ---- refusals -----------------------------------------------------------------------------------


@no_gpu
def test_without_a_gpu_it_says_so_in_a_sentence(capsys):
    error = refused(capsys, "bench", "grid")
    assert "finds no CUDA device to measure on" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("grid", "--device", "cpu", "--sizes", "0"), "from 0.3 to 4200"),
        (("grid", "--device", "cpu", "--sizes", "7,x"), "got '7,x'"),
        (("grid", "--device", "cpu", "--peers", "torch"), "--peers belongs to"),
        (("sparse", "--device", "cpu", "--sizes", "7"), "--sizes belongs to 'drivert bench grid'"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "bench", *arguments)
