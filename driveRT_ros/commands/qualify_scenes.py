"""Average precision of one detector on simulated scenes, for the comparison of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.train.eval_boxes import EvalSettings
from driveRT_ros.train.eval_sources import compared_frame, simulated
from driveRT_ros.train.evaluate import HELD_OUT_SEED, Evaluator

if TYPE_CHECKING:
    import torch

    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.qualify import Detect
    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.train.eval_sources import Moment


class Scenes:
    """Simulated once, for as many detectors as there are to compare.

    Args:
        number: Drives; the last sweep of each counts.
        config: How sweeps are joined.
        jobs: Processes that simulate.
        told: Called after each scene.
        sim: Everything else about the scenes.
    """

    def __init__(
        self,
        number: int,
        config: LidarConfig,
        jobs: int,
        told: Callable[[], None],
        sim: SimConfig | None = None,
    ) -> None:
        past = config.densification_params.num_past_frames
        sweeps = SweepBuffer(config.densification_params)
        self._scenes: list[tuple[torch.Tensor, Moment]] = []
        for moment in simulated(number, HELD_OUT_SEED, past, sim, jobs):
            frame = moment.frame
            known = frame.T_world_ego is not None
            pose = frame.T_world_ego @ frame.T_ego_lidar if known else None
            points = sweeps.push(frame.points, pose)
            if moment.wanted:
                self._scenes.append((points, moment))
                told()

    def __len__(self) -> int:
        return len(self._scenes)

    def mean_ap(self, detect: Detect, told: Callable[[], None]) -> float:
        """Return the nuScenes mAP over the classes that the scenes have.

        Args:
            detect: The detector.
            told: Called after each scene.
        """
        evaluator, settings = Evaluator(), EvalSettings()
        for points, moment in self._scenes:
            evaluator.add(compared_frame(moment, detect(points), settings)[1])
            told()
        return evaluator.result().mean_ap_present
