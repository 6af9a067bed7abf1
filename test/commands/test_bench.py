"""``drivert bench sparse``: the reference on the CPU, the tables, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
import torch

from driveRT_ros.bench import frames, reference, sparse, timing
from driveRT_ros.bench.sparse import plan_record
from driveRT_ros.bench.table import device_us, stage_table, whole_table
from driveRT_ros.cli import main
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.plan import default_plan
from test.commands.test_cli import refused
from test.support.demo_files import tiny_network

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def times(median):
    return {"median": median, "p5": median, "p95": median, "n": 3}


# ---- the reference ------------------------------------------------------------------------------


def test_the_reference_is_checked_and_timed_stage_by_stage(tmp_path, capsys):
    output = tmp_path / "result.json"
    code = main([
        "bench", "sparse", "--device", "cpu", "--rounds", "2", "--output", str(output),
        "--config", str(tiny_network(tmp_path)),
    ])  # fmt: skip
    assert code == 0
    report = json.loads(output.read_text())
    found = report["frames"]["S1"]["candidates"]["reference fp32"]
    assert report["date"] and report["cpu"] and report["torch"] and report["version"]
    assert found["wall_us"]["n"] == 2
    stages = found["stage_us"]
    assert set(stages) == {"voxel features", "maps", *found["error"]}
    total = sum(stage["median"] for stage in stages.values())
    assert total == pytest.approx(found["wall_us"]["median"], rel=0.2)
    assert max(found["error"].values()) <= 1e-5
    text = capsys.readouterr().out
    assert "reference fp32" in text and "subm4" in text and f"Wrote {output}." in text


def test_a_reference_that_is_wrong_has_no_time(monkeypatch):
    class Wrong(reference.TorchNetwork):
        def outputs(self):
            found = super().outputs()
            if found["subm2"][0].dtype == torch.float32:
                features, coords = found["subm2"]
                found["subm2"] = (features * 1.001, coords)
            return found

    monkeypatch.setattr(reference, "TorchNetwork", Wrong)
    config = LidarConfig.from_dict({"model.channels": [4, 4, 4, 8, 8, 8]})
    frame = frames.Frame("x", "made up", torch.rand(200, 5) * 3)
    report = reference.measure_reference(config, [frame], 1)
    found = report["frames"]["x"]["candidates"][reference.NAME]
    assert "subm2" in found["absent"] and "wall_us" not in found


# ---- frames -------------------------------------------------------------------------------------


def test_simulated_frames_reach_from_twenty_thousand_voxels_up():
    (frame,) = frames.load_frames(["S1"], None, LidarConfig())
    (again,) = frames.load_frames(["S1"], None, LidarConfig())
    features, coords = frames.voxels_of(frame.points, LidarConfig(), "cpu")
    assert frame.name == "S1" and 15_000 < len(coords) < 25_000 and len(features) == len(coords)
    assert torch.equal(frame.points, again.points)


def test_real_frames_are_those_of_the_folder(data_dir: Path, tmp_path):
    assert frames.present(data_dir) == ["A", "B", "C"]
    assert frames.present(tmp_path) == [] == frames.present(None)
    (frame,) = frames.load_frames(["A"], data_dir, LidarConfig())
    assert len(frame.points) == frame.rows[0] == 17_748


def test_frames_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no frame 'D'"):
        list(frames.load_frames(["D"], tmp_path, LidarConfig()))
    with pytest.raises(ConfigError, match="with --data A, B, C"):
        list(frames.load_frames(["A"], None, LidarConfig()))
    with pytest.raises(ConfigError, match="Frame B cannot be read"):
        list(frames.load_frames(["B"], tmp_path, LidarConfig()))
    coarse = LidarConfig.from_dict({"voxelization.voxel_size": [0.15, 0.15, 0.2]})
    with pytest.raises(ConfigError, match="belongs to a grid"):
        list(frames.load_frames(["A"], tmp_path, coarse))


# ---- reports ------------------------------------------------------------------------------------


def report():
    """Return a small report with all kinds of candidates."""
    ours = {
        "precision": "fp32",
        "error": {"subm1": 4e-7},
        "graph_us": {"frame": times(2000.0), "maps": times(120.0), "subm1": times(88.0)},
        "wall_us": times(2345.0),
    }
    peer = {
        "error": {"subm1": 2e-6}, "wall_us": times(11_000.0),
        "kernels_us": {"total": times(8000.0), "stages": {}},
    }  # fmt: skip
    candidates = {
        "ours fp32": ours,
        "spconv fp32": peer,
        "spconv fp16": {"absent": "ModuleNotFoundError: No module named 'spconv'"},
        "cuBLAS fp32": {"graph_us": {"subm1": times(80.0), "subm2": times(20.0)}},
    }
    few = {"rows": [17], "candidates": {"ours fp32": {"absent": "error 3e-1", "error": {}}}}
    return {"frames": {"C": {"rows": [105_086], "candidates": candidates}, "few": few}}


def test_a_table_shows_times_errors_and_what_is_absent():
    head, *lines = whole_table(report())
    assert head[1:] == ["C: 105,086", "few: 17"]
    assert lines == [
        ["ours fp32", "2,000, 2,345, 4e-07", "absent: error 3e-1"],
        ["spconv fp32", "8,000, 11,000, 2e-06", ""],
        ["spconv fp16", "absent: ModuleNotFoundError: No module named 'spconv'", ""],
        ["cuBLAS fp32", "100 all stages", ""],
    ]


def test_the_stages_of_a_candidate_are_shown_only_where_it_was_right():
    head, *lines = stage_table(report(), "ours fp32")
    assert head == ["ours fp32: median µs", "C"]
    assert lines == [["frame", "2,000.0"], ["maps", "120.0"], ["subm1", "88.0"]]


def test_a_candidate_without_device_times_has_none():
    assert device_us({"wall_us": times(1.0)}) != device_us({"wall_us": times(1.0)})


def test_the_hash_of_a_plan_is_that_of_its_tactics_alone():
    plan = default_plan(LidarConfig().model.channels, (9, 0))
    other = default_plan(LidarConfig().model.channels, (9, 0), "tf32")
    named = dataclasses.replace(plan, gpu="A GPU", measured={"date": "today"})
    assert plan_record(plan)["sha256"] == plan_record(named)["sha256"]
    assert plan_record(plan)["sha256"] != plan_record(other)["sha256"]
    assert plan_record(named)["tuned_on"] == "A GPU"


def test_the_commit_is_that_of_the_work_tree_and_not_of_a_folder_around_it(tmp_path, monkeypatch):
    module = tmp_path / "timing.py"
    module.write_text("")
    monkeypatch.setattr(timing, "__file__", str(module))
    assert timing.work_tree_commit() == ""

    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", tmp_path, *arguments],
            check=True, capture_output=True,
        )  # fmt: skip

    git("init")
    git("commit", "--allow-empty", "-m", "x")
    assert timing.work_tree_commit() == ""  # the file is not tracked there
    git("add", "timing.py")
    git("commit", "-m", "y")
    assert len(timing.work_tree_commit()) >= 7


# ---- the command on a GPU -----------------------------------------------------------------------


class FakeBench:
    """Takes what ``SparseBench`` takes, and measures nothing."""

    made: list[FakeBench] = []

    def __init__(self, config, plans, peers, protocol):
        self.plans, self.peers, self.protocol = plans, list(peers), protocol
        self.report = {
            **report(), "gpu": "A GPU", "driver": "1.2", "torch": "2", "date": "2026-01-02",
            "commit": "", "clocks": [],
        }  # fmt: skip
        self.done = []
        FakeBench.made.append(self)

    def time_frame(self, frame):
        self.done.append(("time", frame.name))

    def time_edges(self):
        self.done.append(("edges",))
        return {}

    def profile_frame(self, frame):
        self.done.append(("profile", frame.name))


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sparse, "SparseBench", FakeBench)
    monkeypatch.setattr(sparse, "warm_profiler", lambda: None)
    monkeypatch.setattr(sparse, "clocks", lambda when: {"when": when})
    monkeypatch.setattr(frames, "simulated", lambda *a: frames.Frame("", "", torch.zeros(1, 5)))
    FakeBench.made.clear()


def test_every_frame_is_timed_then_the_edges_and_the_result_is_written(on_a_gpu, tmp_path, capsys):
    output = tmp_path / "result.json"
    assert main(["bench", "sparse", "--precision", "fp16", "--output", str(output)]) == 0
    (bench,) = FakeBench.made
    assert bench.plans == [("fp16", None)]
    assert bench.done == [("time", n) for n in ("S1", "S5", "S10", "S15")] + [("edges",)]
    text = capsys.readouterr().out
    assert "A GPU, driver 1.2" in text and "ours fp32" in text and "88.0" in text
    assert json.loads(output.read_text())["frames"]["C"]


def test_the_kernels_of_peers_are_profiled_last(on_a_gpu):
    assert main(["bench", "sparse", "--peers", "torch", "--frames", "S1,S5"]) == 0
    (bench,) = FakeBench.made
    assert bench.done[2:] == [("edges",), ("profile", "S1"), ("profile", "S5")]


def test_a_plan_is_timed_beside_the_default_of_its_precision(on_a_gpu, tmp_path):
    path = tmp_path / "plan.json"
    default_plan(LidarConfig().model.channels, (9, 0), "tf32").save(path)
    assert main(["bench", "sparse", "--plan", str(path), "--frames", "S1", "--rounds", "2"]) == 0
    (bench,) = FakeBench.made
    assert bench.plans == [("tf32", None), ("tf32", path)]
    assert bench.protocol.rounds == 2


# ---- refusals -----------------------------------------------------------------------------------


@no_gpu
def test_without_a_gpu_it_says_so_in_a_sentence(capsys):
    error = refused(capsys, "bench", "sparse")
    assert "finds no CUDA device to measure on" in error and error.count("\n") == 1
    assert "drivert bench sparse --device cpu" in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "suite"),
        (("radar",), "invalid choice"),
        (("sparse", "--device", "cpu", "--precision", "fp16"), "need a GPU"),
        (("sparse", "--device", "cpu", "--peers", "spconv"), "need a GPU"),
        (("sparse", "--device", "cpu", "--frames", "S99"), "no frame 'S99'"),
        (("sparse", "--rounds", "0"), "--rounds must be at least 1"),
        (("sparse", "--output", "no/folder/x.json"), "does not exist"),
        (("sparse", "--output", "/"), "names a file, but '/' is a folder"),
        (("sparse", "--device", "cpu", "--data", "nowhere"), "none of the frames"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "bench", *arguments)


def test_a_peer_that_does_not_exist_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "no peer sponge" in refused(capsys, "bench", "sparse", "--peers", "torch,sponge")
