"""Peers of the operators on grids: built from headers given, checked, and set beside ours."""

from __future__ import annotations

import argparse

import pytest
import torch

from benchmarks import peers_openvdb as openvdb
from driveRT_ros.bench import grid
from driveRT_ros.bench.grid_cases import fog_sphere
from driveRT_ros.core.errors import ConfigError


@pytest.fixture(scope="module")
def bench():
    return grid.GridBench(fog_sphere(0.5), torch.device("cpu"))


class Stopped:
    """A peer with known times: one operator right, one wrong, one that fails when it is timed."""

    name = "other"

    def __init__(self):
        self.kept = []

    def operators(self, bench):
        def fails(rounds):
            raise ConfigError("out of memory")

        def sums(rounds):
            return [1e9 if self.kept[-1:] != [False] else 3e9] * rounds

        return {
            grid.CHECKSUM: (
                lambda rounds: [1e9 if self.kept[-1:] != [False] else 3e9] * rounds,
                "",
            ),
            grid.STATS: (lambda rounds: [1.0] * rounds, "extremes differ"),
            grid.INDEX: (fails, ""),
        }

    def keep_memory(self, keep):
        self.kept.append(keep)


def test_a_peer_stands_beside_ours_with_its_best_case_and_as_it_comes():
    saved = []
    report = grid.measure(
        [0.5],
        device=torch.device("cpu"),
        cases=["fog sphere"],
        rounds=2,
        peers=[Stopped()],
        saved=lambda report: saved.append(list(report["grids"])),
    )
    (record,) = report["grids"].values()
    found = record["operators"]["other: checksum"]
    assert found["wall_us"]["median"] == 1e9 and found["as_is_us"]["median"] == 3e9
    ours = record["operators"]["checksum"]["wall_us"]["median"]
    assert found["over_ours"]["wall_us"] == pytest.approx(1e9 / ours, rel=1e-3)
    assert record["operators"]["other: statistics"] == {"absent": "extremes differ"}
    assert record["operators"]["other: index to grid"] == {"absent": "out of memory"}
    assert saved == [["fog sphere, 0.5 MB"]]
    cells = [line[1] for line in grid.table(report)]
    assert "other: statistics, absent: extremes differ" in cells


def test_a_node_that_differs_in_one_byte_is_noticed(bench):
    out = bench.grid.clone()
    out[: bench.header.node_offsets[2]] = 7  # the head is not compared
    assert openvdb.wrong_nodes(bench, out) == ""
    out[-1] ^= 1
    assert openvdb.wrong_nodes(bench, out) == "1 bytes of nodes differ from ours"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_statistics_that_differ_in_one_node_are_noticed(bench, level):
    written = bench.with_statistics(moments=True).clone()
    assert openvdb.wrong_statistics(bench, written, moments=True) == ""
    node = bench.header.layout.nodes[level]
    begin = bench.header.node_offsets[level]
    for field, name in (("minimum", "extremes"), ("stddev", "means or deviations")):
        at = begin + node.fields[field][1]
        changed = written.clone()
        changed[at : at + 4].view(torch.float32).mul_(1.001)
        wrong = openvdb.wrong_statistics(bench, changed, moments=True)
        assert f"{name} of nodes of level {level} differ" in wrong
    assert openvdb.wrong_statistics(bench, changed, moments=False) == ""


@pytest.mark.parametrize("text", ["after", "=folder", "after=", "a b=folder"])
def test_a_peer_without_name_or_folder_is_refused(text):
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--openvdb", type=openvdb.parse)
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args(["--openvdb", text])


def test_folders_without_headers_are_named(tmp_path):
    assert openvdb.parse(f"pr-2250={tmp_path}") == ("pr-2250", tmp_path)
    with pytest.raises(ConfigError, match="holds no nanovdb/NanoVDB.h"):
        openvdb.build("after", tmp_path, tmp_path)


def test_every_function_that_is_called_is_there():
    source = openvdb.SOURCE.read_text()
    called = openvdb.__loader__.get_source(openvdb.__name__)
    for name in ("checksum", "statistics", "index_to_grid", "index_to_grid_allocating", "error"):
        assert f"peer_{name}(" in source and f"peer_{name}" in called
