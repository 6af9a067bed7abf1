"""Are two results the same boxes, as far as rounding does not decide?

About some boxes rounding decides (:mod:`driveRT_ros.core.box_match`). Every other box of one result
must have its like in the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driveRT_ros.core.box_match import box_differences, explain_unlike
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections

CLOSE = (1e-3, 1e-4)
"""Metres, radians or m/s, and score: float32 arithmetic."""
ROUGH = (0.1, 0.02)
"""The same for factors or features of eleven bits."""
EXACT = ("fp32", "fp32x3")
LEAST_MATCHED = 0.5
"""A result of less precision with a smaller share of the boxes is taken for a fault."""
MOST_TIES = 0.1
"""More boxes that lost against nearly equal ones, two apart from small results, are no accident."""


@dataclass(frozen=True)
class BoxCheck:
    """How one result compares with another.

    Args:
        boxes: Boxes of the result that was checked.
        wanted: Boxes of the other.
        matched: Boxes of the other that have their like.
        ties: Boxes of either that lost against another one of nearly equal score.
        unexplained: Boxes of either without their like, though rounding does not decide.
        error_box: Largest difference of matched boxes, in metres, radians or m/s.
        error_score: Largest difference of their scores.
    """

    boxes: int = 0
    wanted: int = 0
    matched: int = 0
    ties: int = 0
    unexplained: int = 0
    error_box: float = 0.0
    error_score: float = 0.0

    def fault(self, precision: str) -> str:
        """Return why the result is not acceptable in a precision, or an empty text."""
        if precision not in EXACT:
            too_few = self.matched < LEAST_MATCHED * self.wanted
            return f"only {self.matched} of {self.wanted} boxes were found" if too_few else ""
        if self.unexplained or self.ties > max(2, MOST_TIES * self.wanted):
            return (
                f"{self.unexplained + self.ties} boxes differ, {self.ties} of them by ties "
                f"({self.boxes} boxes, {self.wanted} wanted, {self.matched} the same)"
            )
        return ""


def compare_boxes(
    got: Detections, want: Detections, config: LidarConfig, precision: str = "fp32"
) -> BoxCheck:
    """Compare two results for one cloud.

    Args:
        got: The result to check.
        want: What it should be.
        config: Thresholds and heads of both.
        precision: Of ``got``; it decides how close is the same.
    """
    tolerance = CLOSE if precision in EXACT else ROUGH
    box, score = box_differences(want, got)
    same = (box <= tolerance[0]) & (score <= tolerance[1])
    nearest, index = torch.where(same, box, torch.inf).min(dim=1) if len(got) else _none(len(want))
    matched = torch.isfinite(nearest)
    rows = matched.nonzero()[:, 0]
    scores = score[rows, index[rows]]
    alone, new = ~same.any(dim=1), ~same.any(dim=0)
    unlike = explain_unlike(want, got, alone, new, box, config, tolerance[1])
    return BoxCheck(
        boxes=len(got),
        wanted=len(want),
        matched=len(rows),
        ties=unlike.ties,
        unexplained=unlike.unexplained,
        error_box=float(nearest[rows].max()) if len(rows) else 0.0,
        error_score=float(scores.max()) if len(rows) else 0.0,
    )


def _none(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((count,), torch.inf), torch.zeros(count, dtype=torch.int64)
