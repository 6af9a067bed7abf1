"""Are two results the same boxes, as far as rounding does not decide?

Rounding decides about a box whose score is at the threshold, or at the last place of a full head,
and, now and then, about which of two overlapping boxes with nearly equal scores stays. Every other
box of one result must have its like in the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.nms import rotated_iou_bev

CLOSE = (1e-3, 1e-4)
"""Metres, radians or m/s, and score: float32 arithmetic."""
ROUGH = (0.1, 0.02)
"""The same for factors or features of eleven bits."""
EXACT = ("fp32", "fp32x3")
LEAST_MATCHED = 0.5
"""A result of less precision with a smaller share of the boxes is taken for a fault."""
MOST_TIES = 0.1
"""More boxes that lost against nearly equal ones, two apart from small results, are no accident."""
_APART = 0.25  # metres, radians or m/s; closer boxes are one box that moved


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
    box, score = _differences(want, got)
    same = (box <= tolerance[0]) & (score <= tolerance[1])
    nearest, index = torch.where(same, box, torch.inf).min(dim=1) if len(got) else _none(len(want))
    matched = torch.isfinite(nearest)
    rows = matched.nonzero()[:, 0]
    scores = score[rows, index[rows]]
    found = _missing(want, got, same, box, config, tolerance[1])
    lost = _missing(got, want, same.T, box.T, config, tolerance[1])
    return BoxCheck(
        boxes=len(got),
        wanted=len(want),
        matched=len(rows),
        ties=found[0] + lost[0],
        unexplained=found[1] + lost[1],
        error_box=float(nearest[rows].max()) if len(rows) else 0.0,
        error_score=float(scores.max()) if len(rows) else 0.0,
    )


def _none(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((count,), torch.inf), torch.zeros(count, dtype=torch.int64)


def _differences(a: Detections, b: Detections) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (A, B) largest difference of box values, infinite between classes, and scores."""
    difference = (a.boxes[:, None].double() - b.boxes[None].double()).abs()
    yaw = difference[..., 6] % (2 * torch.pi)
    difference[..., 6] = torch.minimum(yaw, 2 * torch.pi - yaw)
    largest = difference.amax(dim=2)
    largest[a.labels[:, None] != b.labels[None]] = torch.inf
    return largest, (a.scores[:, None].double() - b.scores[None].double()).abs()


def _missing(
    ones: Detections,
    others: Detections,
    same: torch.Tensor,
    difference: torch.Tensor,
    config: LidarConfig,
    margin: float,
) -> tuple[int, int]:
    """Return how many boxes of ``ones`` the others lack because of a tie, and for no good reason.

    Args:
        ones: Their boxes are looked for.
        others: Where.
        same: (M, N) pairs that are the same.
        difference: (M, N) largest difference of their values.
        config: Thresholds and heads of both.
        margin: Scores closer than this are equal.
    """
    post = config.post_process_params
    heads = config.model.classes_per_head
    head_of = torch.tensor([number for number, names in enumerate(heads) for _ in names])
    limits = torch.tensor(post.score_thresholds, dtype=torch.float64)
    limits = limits.expand(len(head_of)) if len(limits) == 1 else limits
    mine, theirs = head_of[ones.labels], head_of[others.labels]
    limit = limits[ones.labels]
    for head in range(len(heads)):
        scores = others.scores[theirs == head].double()
        if len(scores) >= post.max_boxes_per_head:  # full: its last place is a threshold too
            limit[mine == head] = limit[mine == head].clamp(min=float(scores.min()))
    missing = ~same.any(dim=1) & (ones.scores.double() > limit + margin)
    overlap = rotated_iou_bev(ones.boxes.double(), others.boxes.double())
    beaten = (overlap > post.iou_nms_threshold - 1e-3) & (mine[:, None] == theirs[None])
    beaten &= others.scores[None].double() >= ones.scores[:, None].double() - margin
    tied = missing & (beaten & (difference > _APART)).any(dim=1)
    return int(tied.sum()), int((missing & ~tied).sum())
