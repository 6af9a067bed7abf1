"""Boxes of one result beside those of another: how far apart, and why one is missing.

Rounding decides about a box whose score is at its threshold, or at the last place of a full head,
and, now and then, about which of two overlapping boxes with nearly equal scores stays, where boxes
are compared at all: selection 'max_pool' lets overlapping ones stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.nms import rotated_iou_bev

APART = 0.25
"""Metres, radians or m/s; boxes that differ by less are one box that moved."""
_OVERLAP_MARGIN = 1e-3


@dataclass(frozen=True)
class Missing:
    """Boxes that another result lacks, by reason.

    Args:
        near_limit: Their score is at the threshold, or at the last place of a full head.
        ties: A box of the other result that overlaps them, and that suppression lets stay in
            their place, has a nearly equal score.
        unexplained: Rounding does not decide about them.
    """

    near_limit: int
    ties: int
    unexplained: int


def box_differences(a: Detections, b: Detections) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (A, B) largest difference of box values, infinite between classes, and scores."""
    difference = (a.boxes[:, None].double() - b.boxes[None].double()).abs()
    yaw = difference[..., 6] % (2 * torch.pi)
    difference[..., 6] = torch.minimum(yaw, 2 * torch.pi - yaw)
    largest = difference.amax(dim=2)
    largest[a.labels[:, None] != b.labels[None]] = torch.inf
    return largest, (a.scores[:, None].double() - b.scores[None].double()).abs()


def explain_unlike(
    want: Detections,
    got: Detections,
    lost: torch.Tensor,
    new: torch.Tensor,
    difference: torch.Tensor,
    config: LidarConfig,
    margin: float,
) -> Missing:
    """Return why two results lack boxes of each other, all of them together.

    Args:
        want: One result.
        got: The other.
        lost: (M,) bool, which of ``want`` the other lacks.
        new: (N,) bool, which of ``got`` the first lacks.
        difference: (M, N) largest difference of their values; see :func:`box_differences`.
        config: Thresholds and heads of both.
        margin: Scores closer than this are equal.
    """
    a = explain_missing(want, got, lost, difference, config, margin)
    b = explain_missing(got, want, new, difference.T, config, margin)
    return Missing(a.near_limit + b.near_limit, a.ties + b.ties, a.unexplained + b.unexplained)


def explain_missing(
    ones: Detections,
    others: Detections,
    absent: torch.Tensor,
    difference: torch.Tensor,
    config: LidarConfig,
    margin: float,
) -> Missing:
    """Return why another result lacks some boxes.

    Args:
        ones: The result that has them.
        others: The result that lacks them.
        absent: (M,) bool, which of ``ones``.
        difference: (M, N) largest difference of their values; see :func:`box_differences`.
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
    missing = absent & (ones.scores.double() > limit + margin)
    overlap = rotated_iou_bev(ones.boxes.double(), others.boxes.double())
    beaten = (overlap > post.iou_nms_threshold - _OVERLAP_MARGIN) & (mine[:, None] == theirs[None])
    beaten &= others.scores[None].double() >= ones.scores[:, None].double() - margin
    tied = missing & (beaten & (difference > APART)).any(dim=1)
    tied &= post.selection == "nms"  # nothing else suppresses a box
    return Missing(
        near_limit=int((absent & ~missing).sum()),
        ties=int(tied.sum()),
        unexplained=int((missing & ~tied).sum()),
    )
