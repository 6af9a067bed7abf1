"""The nuScenes submission file of the detection task.

Source: the format of the nuScenes detection task: ``meta`` with five flags on what was used, and
``results`` with every sample of a split and at most 500 boxes each, in the global frame; sizes are
width, length, height, rotations w, x, y, z.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.boxes import CENTER, SIZE_LWH, VELOCITY, YAW, yaw_to_quat_xyzw
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections, SceneFrame
from driveRT_ros.train.eval_boxes import MAX_BOXES, upright_boxes
from driveRT_ros.train.matching import EvalBoxes

USED = ("use_camera", "use_lidar", "use_radar", "use_map", "use_external")


class Submission:
    """Collect the detections of each sample.

    Args:
        used: Which of :data:`USED` the detector looked at.
    """

    def __init__(self, used: Sequence[str] = ("use_lidar",)) -> None:
        self._meta = {name: name in used for name in USED}
        self._results: dict[str, list[dict[str, Any]]] = {}

    def add(self, token: str, frame: SceneFrame, found: Detections) -> None:
        """Take one frame.

        Args:
            token: Sample token.
            frame: Where the detections are.
            found: In the frame of its points; the best 500 are kept.

        Raises:
            ConfigError: If the pose of its vehicle is unknown: its boxes have no global place.
        """
        if frame.T_world_ego is None:
            raise ConfigError(
                f"Frame '{token}' has no pose, and a submission holds boxes in the global "
                "frame; leave out --submission for this source."
            )
        boxes = upright_boxes(frame, found)
        best = np.argsort(-boxes.scores, kind="stable")[:MAX_BOXES]
        self._results[token] = _rows(token, boxes.select(best))

    def write(self, path: str | Path) -> None:
        """Write the file.

        Raises:
            ConfigError: If it cannot be written.
        """
        document = {"meta": self._meta, "results": self._results}
        try:
            Path(path).write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"Submission '{path}' cannot be written: {error}.") from None


def _rows(token: str, found: EvalBoxes) -> list[dict[str, Any]]:
    quats_xyzw = yaw_to_quat_xyzw(torch.from_numpy(found.boxes[:, YAW])).tolist()
    rows: list[dict[str, Any]] = []
    for box, quat, label, score, attribute in zip(
        found.boxes, quats_xyzw, found.labels, found.scores, found.attributes
    ):
        length, width, height = box[SIZE_LWH].tolist()
        x, y, z, w = quat
        rows.append(
            {
                "sample_token": token,
                "translation": box[CENTER].tolist(),
                "size": [width, length, height],
                "rotation": [w, x, y, z],
                # JSON has no NaN, and the task asks for two numbers
                "velocity": [0.0 if math.isnan(v) else v for v in box[VELOCITY].tolist()],
                "detection_name": NUSCENES_CLASSES[label],
                "detection_score": float(score),
                "attribute_name": attribute,
            }
        )
    return rows
