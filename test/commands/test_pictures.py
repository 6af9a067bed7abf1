"""Which boxes the pictures of ``drivert demo`` and ``run`` show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.commands import results
from driveRT_ros.commands.cameras import CameraRecorded
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections
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
