"""Ten small held-out scenes: a quick check that weights still find what they found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.models.checkpoint import load_weights, model_of
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.train.config import FIRST_TRAINING_SEED
from driveRT_ros.train.eval_boxes import EvalSettings
from driveRT_ros.train.eval_sources import Detector, compare, simulated
from driveRT_ros.train.evaluate import Evaluation, Evaluator

SCENES = 10
FIRST_SEED = FIRST_TRAINING_SEED - 1_000
"""Held out, and not among the first scenes that an evaluation takes."""
PAST_SWEEPS = 4
REACH_M = 30.0


def small_evaluation(path: Path, sim: SimConfig | None = None, scenes: int = SCENES) -> Evaluation:
    """Return how well weights detect in the small scenes, on the CPU.

    Args:
        path: Weights of the LiDAR detector.
        sim: What is simulated, beside the seed; default: a drive as it comes.
        scenes: How many.

    Raises:
        CheckpointError: If the file holds no such weights.
    """
    config = LidarConfig.from_dict(
        {
            "voxelization.point_cloud_range": [-REACH_M, -REACH_M, -5.0, REACH_M, REACH_M, 3.0],
            "densification_params.num_past_frames": PAST_SWEEPS,
        }
    )
    config = dataclasses.replace(config, model=model_of(path))
    detector = Detector(LidarPipeline(config, load_weights(path, config), "cpu"))
    evaluator = Evaluator()
    # Boxes at the edge of the range are seen in part; they count neither way.
    settings = EvalSettings(min_points=5, max_range_m=REACH_M - 2.0)
    compare(simulated(scenes, FIRST_SEED, PAST_SWEEPS, sim), detector, evaluator, settings)
    return evaluator.result()
