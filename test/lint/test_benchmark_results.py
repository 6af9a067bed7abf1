"""Results of benchmarks say where they come from, and every table shows what they hold."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from benchmarks import report
from driveRT_ros.bench import timing

REPO = Path(__file__).resolve().parents[2]
RESULTS = sorted((REPO / "benchmarks" / "results").glob("*.json"))
NAME = re.compile(r"(?P<suite>[a-z]+)-(?P<gpu>[a-z0-9-]+)-(?P<date>\d{4}-\d{2}-\d{2})(-\w+)?\.json")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
LARGEST_ERROR = {"fp32": 1e-4, "fp32x3": 1e-5, "tf32": 1e-2, "fp16": 5e-2}
COMMIT = re.compile(r"[0-9a-f]{7,40}")


def times(median):
    return {"median": median, "p5": median * 0.9, "p95": median * 1.1, "n": 24}


def example():
    """Return a small result with all kinds of entries."""
    ours = {
        "precision": "fp32",
        "error": {"conv_input": 1e-7, "subm1": 4e-7, "bev": 3e-7},
        "graph_us": {
            "frame": times(2000.0),
            "maps": times(120.0),
            "conv_input": times(20.0),
            "subm1": times(88.0),
            "bev": times(9.0),
        },
        "voxel_features_us": 33.0,
        "wall_us": times(2345.0),
        "eager_us": times(2300.0),
        "useful_gflop": {"conv_input": 0.1, "subm1": 1.5},
        "executed_over_useful": {"subm1": 1.05, "all": 1.0625},
    }

    def peer(precision, total, stage):
        return {
            "precision": precision,
            "error": {"subm1": 2e-6},
            "wall_us": times(11_000.0),
            "eager_us": times(10_000.0),
            "kernels_us": {
                "total": times(total),
                "launches": 401,
                "stages": {"maps": times(900.0), "subm1": times(stage)},
            },
        }

    frame = {
        "source": "a frame",
        "points": 9,
        "rows": [105_086, 1, 1, 1, 1, 1, 1, 1],
        "candidates": {
            "ours fp32": ours,
            "spconv fp32 MaskImplicitGemm": peer("fp32", 8000.0, 777.0),
            "spconv fp32 Native": peer("fp32", 9000.0, 555.0),
            "spconv fp16 Native": {
                "precision": "fp16",
                "absent": "RuntimeError: no kernel (last line of a log)",
            },
            "cuBLAS fp32": {"precision": "fp32", "shapes": {}, "graph_us": {"subm1": times(80.0)}},
        },
    }
    return {
        "suite": "sparse", "gpu": "A GPU", "driver": "1.2", "torch": "2.0", "date": "2026-01-02",
        "commit": "abcdef1", "clocks": [{"when": "frame C", "sm_mhz": "1980 MHz"}],
        "frames": {"C": frame}, "start": {"cold": {"absent": "no compiler"}},
        "edges": {"0": {"graph_us": times(77.0), "overflow": {"rows of level 1": [5, 4]}}},
        "ceilings": {"copy_tb_per_s": 4.2},
    }  # fmt: skip


# ---- result files -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_names_its_gpu_date_and_commit(path):
    assert NAME.fullmatch(path.name), "name it <suite>-<gpu>-<date>.json"
    result = json.loads(path.read_text())
    assert result["suite"] == NAME.fullmatch(path.name)["suite"]
    assert result["date"] == NAME.fullmatch(path.name)["date"]
    assert result["gpu"]
    assert COMMIT.fullmatch(result["commit"])


@pytest.mark.parametrize("path", [p for p in RESULTS if p.name.startswith("sparse-")], ids=str)
def test_a_sparse_result_holds_clocks_and_a_check_beside_every_time(path):
    result = json.loads(path.read_text())
    assert len(result["clocks"]) >= 2
    assert all(clock["sm_mhz"] for clock in result["clocks"])
    for frame in result["frames"].values():
        for name, found in frame["candidates"].items():
            if "absent" in found:
                assert found["absent"], name
                assert "wall_us" not in found, f"{name} failed, so it has no time"
            elif not name.startswith("cuBLAS"):
                limit = {"fp32": 1e-4, "fp32x3": 1e-5, "tf32": 1e-2, "fp16": 5e-2}[
                    found["precision"]
                ]
                assert all(error <= limit for error in found["error"].values()), name
                assert found["wall_us"]["n"] >= 20


def test_the_tables_of_the_kernels_are_those_of_the_newest_result():
    text = report.README.read_text()
    for suite, tables in report.SUITES.items():
        path = report.newest(suite=suite)
        if path is None:
            assert report.begin(suite) not in text
            continue
        between = text.split(report.begin(suite))[1].split(report.END)[0].strip()
        expected = tables(report.load(path), path.name)
        assert between == expected, "run: python benchmarks/report.py --write"


# ---- the report ---------------------------------------------------------------------------------


def test_a_table_shows_medians_ratios_and_why_something_is_absent():
    text = report.tables(example(), "sparse-x-2026-01-02.json")
    assert "commit abcdef1" in text and "1980 MHz" in text and "sparse-x-2026-01-02.json" in text
    assert "| ours fp32 | 2,000, wall 2,345, error 4.0e-07 |" in text
    assert "| spconv fp32 MaskImplicitGemm | 8,000 (4.00×), wall 11,000, error 2.0e-06 |" in text
    assert "| absent: RuntimeError: no kernel |" in text and "of a log" not in text
    assert "| subm1 | 1.50 | 88.0 | 4.0e-07 | 80.0 | 1.10 | 777.0 | 8.83 |" in text
    assert "| maps |  | 120.0 |  |  |  | 900.0 | 7.50 |" in text
    assert "rows of level 1: 5 of 4" in text and "cold start: absent: no compiler" in text
    assert "executed / useful work 1.062" in text


def test_a_peer_is_compared_with_ours_of_its_own_precision():
    result = example()
    found = result["frames"]["C"]["candidates"]
    found["ours fp16"] = copy.deepcopy(found["ours fp32"])
    found["ours fp16"]["graph_us"]["frame"]["median"] = 1000.0
    found["spconv fp16 Native"] = copy.deepcopy(found["spconv fp32 Native"])
    text = report.tables(result, "x.json")
    assert "| spconv fp32 Native | 9,000 (4.50×)" in text
    assert "| spconv fp16 Native | 9,000 (9.00×)" in text
    assert text.count("frame C, stage") == 2 and "ours fp16 µs" in text


def test_the_faster_algorithm_of_a_peer_is_the_one_compared():
    result = example()
    peers = result["frames"]["C"]["candidates"]
    assert report._fastest(peers, "spconv fp32") == "spconv fp32 MaskImplicitGemm"
    peers["spconv fp32 Native"]["kernels_us"]["total"]["median"] = 7000.0
    assert report._fastest(peers, "spconv fp32") == "spconv fp32 Native"
    assert report._fastest(peers, "spconv fp16") == ""


def test_a_frame_that_our_engine_fails_shows_no_time_of_ours():
    result = example()
    broken = copy.deepcopy(result)
    broken["frames"]["C"]["candidates"]["ours fp32"] = {"absent": "error 3e-1", "error": {}}
    text = report.tables(broken, "x.json")
    assert "| ours fp32 | absent: error 3e-1 |" in text
    assert "×" not in text and "frame C, stage" not in text


def measured():
    """Return where and when the example was measured."""
    return {key: example()[key] for key in ("gpu", "driver", "torch", "date", "commit")}


def test_whole_frames_show_boxes_and_what_a_peer_takes_over_ours():
    def detector(matched, points, message):
        walls = {"points": points, "message": message}
        forms = {form: {"wall_us": times(wall)} for form, wall in walls.items()}
        return {"boxes": {"matched": matched, "wanted": 119}, **forms}

    result = {
        **measured(),
        "frames": {
            "C": {
                "candidates": {
                    "ours fp16": detector(119, 2000.0, 2500.0),
                    "spconv fp16 Native": detector(114, 30_000.0, 40_000.0),
                    "spconv fp16 MaskImplicitGemm": {"absent": "RuntimeError: no kernel"},
                }
            }
        },
    }
    text = report.frame_tables(result, "frame-x.json")
    assert "commit abcdef1" in text and "frame-x.json" in text
    assert "| C, ours fp16 | 119/119 | 2.00 | 2.50 |" in text
    assert "| C, spconv fp16 Native | 114/119 | 30.00 (15.0×) | 40.00 (16.0×) |" in text
    assert "| C, spconv fp16 MaskImplicitGemm | absent: RuntimeError: no kernel |  |  |" in text


def test_the_node_over_dds_shows_what_became_of_every_cloud():
    latency = {"p50": 5.04, "p95": 6.0, "p99": 7.0, "max": 8.0}
    counts = {"sent": 1200, "answered": 1190, "dropped": 7, "lost": 3}
    result = {
        **measured(),
        "precision": "fp16",
        "transports": "fastdds.xml",
        "cases": [{"data_bytes": 693_760, "rate_hz": 20.0, **counts, "latency_ms": latency}],
    }
    text = report.ros_tables(result, "ros-x.json")
    assert "commit abcdef1" in text and "fp16" in text and "fastdds.xml" in text
    assert "| 0.694, 20 | 1,200 | 1,190 | 7 | 3 | 5.0 | 6.0 | 7.0 | 8.0 |" in text


def test_the_newest_result_is_the_one_with_the_latest_date(tmp_path):
    assert report.newest(tmp_path) is None
    for name, date in (("sparse-b-x.json", "2026-01-02"), ("sparse-a-x.json", "2026-11-30")):
        (tmp_path / name).write_text(json.dumps({"date": date}))
    assert report.newest(tmp_path).name == "sparse-a-x.json"


def test_tables_are_put_between_the_markers_and_nowhere_else():
    other = f"{report.begin('grid')}\nkept\n{report.END}\n"
    text = f"{other}above\n{report.begin('sparse')}\nold\n{report.END}\nbelow\n"
    once = report.with_tables(text, "new", "sparse")
    assert once == text.replace("old", "new")
    assert report.with_tables(once, "new", "sparse") == once
    with pytest.raises(ValueError, match="results:sparse"):
        report.with_tables("no markers", "new", "sparse")


def test_the_first_result_of_a_suite_gets_markers_at_the_end_of_its_section():
    text = "# Kernels\n\n## Grids\n\nWords.\n\n## More\n\nOther words.\n"
    marked = report.with_markers(text, "grid")
    assert marked == text.replace("Words.\n", f"Words.\n\n{report.begin('grid')}\n{report.END}\n")
    assert report.with_markers(marked, "grid") == marked
    assert report.with_markers(text, "sparse") == text
    assert "\n## Grids\n" in report.README.read_text()


def test_pooling_shows_every_format_beside_its_baselines_and_the_floor():
    contenders = {
        "tiles fp16": {"warm_us": times(6.0)},
        "V3-style fp16": {"warm_us": times(60.0)},
        "tiles fp8": {"warm_us": times(5.0)},
    }
    floor = {"fp16": {"us": 1.6}, "fp8": {"us": 1.5}}
    case = {"points": 209167, "channels": 80, "floor": floor, "contenders": contenders}
    origin = dict.fromkeys(("gpu", "driver", "torch", "date", "commit"), "x")
    text = report.pool_tables({**origin, "cases": {"canonical": case}}, "bevpool-x.json")
    line = "| canonical, fp16 | 209,167 | 80 | 6.0 |  |  | 60.0 (10.0×) |  | 1.6 |"
    assert line in text and "| canonical, fp8 | 209,167 | 80 | 5.0 |  |  |  |  | 1.5 |" in text


def test_operators_on_grids_show_peers_over_both_ways_to_call_ours():
    ours = {"graph_us": times(17.0), "wall_us": times(110.0), "repeated_us": times(38.0)}
    ours |= {"gb_per_s": 542.0, "of_read": 0.12, "host_us": times(21.0)}
    peer = {"wall_us": times(220.0), "over_ours": {"wall_us": 2.0, "repeated_us": 5.79}}
    operators = {"checksum": ours, "after: checksum": peer, "after: checksum, allocating": peer}
    origin = dict.fromkeys(("gpu", "driver", "torch", "date", "commit"), "x")
    fog = {"operators": operators, "idle_call_us": times(19.0), "load": [0.5]}
    result = {**origin, "grids": {"fog, 7 MB": fog}}
    result["ceilings"] = {"copy_tb_per_s": 2.7, "read_tb_per_s": 4.45}
    text = report.grid_tables(result, "grid-x.json")
    line = "| fog, 7 MB, checksum | 17.0 | 542 | 12% | 21.0 | 110.0 | 38.0 | 220.0 (2.0×, 5.8×) |"
    assert line in text and "took 19 to 19 µs" in text and "allocating" not in text


# ---- kernel sums --------------------------------------------------------------------------------

MARKER = "at::cuda::spin_kernel(long)"


def test_kernels_count_for_the_stage_between_markers_and_never_the_markers():
    begin = 1_796_010_733_518_331_076  # nanoseconds of day and hour: floats would tie neighbours
    names = [MARKER, "a", MARKER, "b", "c", MARKER, "a", MARKER, "outside"]
    kernels = [(begin + i, 2.0, name) for i, name in enumerate(names)]
    kernels += [(begin + 100 + i, 3.0, name) for i, name in enumerate(names)]
    marks = ["maps", "conv", "maps", "end"] * 2
    found = timing.sum_by_stage(kernels[::-1], marks, repeats=2)
    assert found["stages"]["maps"]["median"] == 5.0  # 2 + 2 in one run, 3 + 3 in the other
    assert found["stages"]["conv"]["median"] == 5.0
    assert found["total"]["median"] == 10.0
    assert found["launches"] == 4


def test_a_lost_marker_is_an_error_and_no_number():
    with pytest.raises(RuntimeError, match="1 of 2 markers"):
        timing.sum_by_stage([(1, 1.0, MARKER), (2, 1.0, "a")], ["conv", "end"], repeats=1)


def test_a_summary_has_the_median_and_what_lies_around_it():
    assert timing.summary([float(v) for v in range(101)]) == {
        "median": 50.0, "p5": 5.0, "p95": 95.0, "n": 101,
    }  # fmt: skip
    assert timing.summary([3.0]) == {"median": 3.0, "p5": 3.0, "p95": 3.0, "n": 1}
