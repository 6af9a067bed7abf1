"""The network of full size learns a real frame by heart: graph, targets and decoding agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driveRT_ros.cli import main

REPO = Path(__file__).resolve().parents[2]
ANNOTATED = 69
"""Boxes of the frame; one of them has none of the ten classes, and counts as missed here."""


@pytest.mark.gpu
def test_the_network_of_full_size_learns_a_real_frame_by_heart(
    tmp_path: Path, data_dir: Path
) -> None:
    scene, run = data_dir / "nuscenes" / "scene-0061", tmp_path / "run"
    config = str(REPO / "config" / "train_one_frame.yaml")
    assert main(["train", "--config", config, "--data", str(scene), "--out", str(run)]) == 0
    options = ["--keyframes-only", "--every-box", "--worst", "0", "--out", str(tmp_path / "out")]
    arguments = ["eval", "--nuscenes", str(scene), "--config", str(run / "detector.yaml")]
    assert main([*arguments, *options]) == 0
    point = json.loads((tmp_path / "out" / "report.json").read_text())["at_fixed_score"]
    assert point["hits"] / ANNOTATED >= 0.95 and point["precision"] >= 0.9
