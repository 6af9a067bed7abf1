"""Percentiles by stage: figures that were measured, shown with their unit."""

import io
import json
import math

import pytest
from rich.console import Console

from driveRT_ros.io.latency_table import (
    latency_json,
    print_latency,
    summarize,
    write_latency_json,
)


def printed(stage_ms):
    out = io.StringIO()
    print_latency(stage_ms, Console(file=out, width=100, color_system=None))
    return out.getvalue()


def test_percentiles_of_one_to_a_hundred_are_the_numbers_themselves():
    (row,) = summarize({"head": list(range(100, 0, -1))})
    assert (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms, row.count) == (50, 95, 99, 100, 100)


def test_every_percentile_is_a_time_that_was_measured():
    times = [3.0, 50.0]  # interpolation would report 26.5 ms, which no frame took
    (row,) = summarize({"head": times})
    assert row.p50_ms == 3.0 and row.p99_ms == 50.0


def test_one_frame_is_its_own_percentile():
    (row,) = summarize({"head": [7.25]})
    assert {row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms} == {7.25} and row.count == 1


def test_stages_keep_their_order_and_the_total_comes_last():
    rows = summarize({"total": [9], "decode": [1], "backbone": [5], "publish": [3]})
    assert [row.stage for row in rows] == ["decode", "backbone", "publish", "total"]


def test_times_that_are_not_finite_are_left_out_and_counted():
    (row,) = summarize({"head": [1.0, math.nan, 2.0, math.inf]})
    assert (row.count, row.max_ms, row.not_finite) == (2, 2.0, 2)
    assert "2 not finite" in printed({"head": [1.0, math.nan, 2.0, math.inf]})


def test_a_stage_without_a_measurement_has_no_row():
    assert summarize({"head": [], "maps": [math.nan]}) == ()
    assert "no frame was measured" in printed({"head": []})


def test_the_table_names_unit_method_and_every_figure():
    text = printed({"decode": [1.5, 2.5, 3.25], "total": [10.0, 1234.5]})
    for part in ("p50 ms", "p95 ms", "p99 ms", "max ms", "frames", "nearest-rank"):
        assert part in text
    (line,) = (line for line in text.splitlines() if "decode" in line)
    assert [f for f in line.replace("│", " ").split() if f != "decode"] == [
        "2.50",
        "3.25",
        "3.25",
        "3.25",
        "3",
    ]
    assert "1,234.50" in text


def test_the_json_holds_the_same_figures_with_unit_and_method(tmp_path):
    rows = summarize({"decode": [1.5, 2.5], "total": [10.0]})
    path = write_latency_json(rows, tmp_path / "new" / "latency.json")
    assert path.read_text() == latency_json(rows)
    document = json.loads(path.read_text())
    assert document["unit"] == "ms" and document["quantile_method"] == "nearest_rank"
    assert document["stages"][0] == {
        "stage": "decode",
        "count": 2,
        "p50_ms": 1.5,
        "p95_ms": 2.5,
        "p99_ms": 2.5,
        "max_ms": 2.5,
        "not_finite": 0,
    }


def test_the_rows_of_no_stage_are_valid_json():
    assert json.loads(latency_json(()))["stages"] == []


def test_the_order_of_the_frames_does_not_matter():
    times = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert summarize({"head": times}) == summarize({"head": sorted(times)})
    assert summarize({"head": times})[0].p50_ms == pytest.approx(3.0)
