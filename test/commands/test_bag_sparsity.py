"""``drivert info --sparsity``: the numbers are those of the clouds as the detector joins them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from driveRT_ros.cli import main
from driveRT_ros.commands.fresh_pass import joined_clouds
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from test.support.bags import write_drive
from test.support.demo_files import tiny_network


def test_table_and_histogram_are_those_of_the_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag, network = write_drive(tmp_path / "bag", 3, num_points=500), tiny_network(tmp_path)
    assert main(["info", str(bag), "--sparsity", "--config", str(network), "--frames", "2"]) == 0
    text = capsys.readouterr().out
    config = LidarConfig.from_yaml(network)
    pipeline = LidarPipeline(config, None, "cpu")
    first, second = (
        pipeline.process(cloud.points, with_sparsity=True).report.sparsity
        for cloud in joined_clouds(str(bag), "", config, print, 2)
    )
    assert first.voxels_per_level[0] < second.voxels_per_level[0]  # the second joins two sweeps
    for level in (1, 4):
        a, b = first.voxels_per_level[level - 1], second.voxels_per_level[level - 1]
        assert re.search(rf"level {level} +\S+ +{min(a, b):,} +{max(a, b):,}", text), text
    lonely = first.degree_histogram[0] + second.degree_histogram[0]
    assert re.search(rf"^ +0 +{lonely:,} +\d+\.\d +█", text, re.MULTILINE), text
    assert "Sparsity of 2 clouds" in text and "/points" in text


def test_what_cannot_be_counted_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "--sparsity"]) == 2
    assert "needs a bag" in capsys.readouterr().err
    assert main(["info", "--frames", "3"]) == 2
    assert "Option --frames is for --sparsity" in capsys.readouterr().err
    bag, network = write_drive(tmp_path / "bag", 1, num_points=50), tiny_network(tmp_path)
    assert main(["info", str(bag), "--sparsity", "--frames", "0"]) == 2
    assert "--frames" in capsys.readouterr().err
    network.write_text(network.read_text() + "densification_params: {world_frame_id: nowhere}\n")
    assert main(["info", str(bag), "--sparsity", "--config", str(network)]) == 2
    got = capsys.readouterr()
    assert "No transform from LIDAR_TOP to nowhere" in got.out and "can be used" in got.err
