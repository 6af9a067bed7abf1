"""What a run says in the end, and which boxes the pictures of ``drivert demo`` show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.commands import results
from driveRT_ros.commands.cameras import CameraRecorded
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections
from driveRT_ros.io.bag import BagReader, BagWriter
from test.support.bags import START_NS, write_drive
from test.support.evaluation import boxes_of


def picture(bag: Path, found: Detections, *, untrained: bool) -> np.ndarray:
    recorded = results.Recorded({START_NS: found}, 1, untrained=untrained)
    topic = results.look_at_bag(str(bag), "")[1]
    (image,) = results._pictures(
        str(bag), topic, recorded, LidarConfig(), "drive", CameraRecorded()
    )
    return image


@pytest.mark.parametrize("untrained", [False, True])
def test_boxes_of_a_low_score_are_hidden_where_scores_mean_something(
    tmp_path: Path, untrained: bool
) -> None:
    bag = write_drive(tmp_path / "bag", 1, num_points=50)
    shown = []
    for score in (results.SHOWN_SCORE - 0.01, results.SHOWN_SCORE + 0.01):
        found = boxes_of([(10, 10), (-10, 20)], scores=[score, score])
        shown.append(picture(bag, found, untrained=untrained))
    nothing = picture(bag, Detections.empty(), untrained=untrained)
    assert np.array_equal(shown[0], nothing) != untrained
    assert not np.array_equal(shown[1], nothing)


def test_times_in_a_picture_stand_in_the_order_of_the_path() -> None:
    stages = ("total", "publish", "inference", "decode")  # as a bag may list its topics
    recorded = results.Recorded(messages=1, stage_ms={stage: [1.0] for stage in stages})
    assert list(recorded.frame_ms(0)) == ["decode", "inference", "publish", "total"]


def test_a_run_without_answers_on_a_bag_without_transforms_says_what_to_set(
    tmp_path: Path, capsys
) -> None:
    drive = write_drive(tmp_path / "drive", 2, num_points=50)
    with BagReader(drive) as reader, BagWriter(tmp_path / "bare") as writer:
        for message in reader.messages(["/points"]):
            writer.write("/points", message.type_name, message.raw, message.log_time_ns)
    hint = "--set densification_params.num_past_frames=0"
    for bag, said in ((drive, False), (tmp_path / "bare", True)):
        code = results.report(results.Recorded(), 2, tmp_path, bag=str(bag), seconds=1.0)
        text = capsys.readouterr().out
        assert code == 1 and "2 clouds got no answer" in text and (hint in text) == said
