"""Rotated bird's-eye-view IoU and greedy suppression: the checked entry points."""

from __future__ import annotations

import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.reference import nms as reference


def _check_boxes(name: str, boxes: torch.Tensor) -> None:
    if boxes.ndim != 2 or boxes.shape[1] < 7 or not boxes.is_floating_point():
        raise ConfigError(
            f"'{name}' must be a floating-point (M, 7 or more) tensor x, y, z, l, w, h, yaw; "
            f"got shape {tuple(boxes.shape)} of {boxes.dtype}."
        )


def rotated_iou_bev(boxes_a: torch.Tensor, boxes_b: torch.Tensor) -> torch.Tensor:
    """Return the rotated bird's-eye-view IoU of every box of one set with every one of another.

    Args:
        boxes_a: (M, 7 or more) x, y, z, l, w, h, yaw counter-clockwise.
        boxes_b: (N, 7 or more).

    Returns:
        (M, N) in [0, 1]; 0 where both boxes have no area.

    Raises:
        ConfigError: If an argument has the wrong shape or type.
    """
    _check_boxes("boxes_a", boxes_a)
    _check_boxes("boxes_b", boxes_b)
    m, n = len(boxes_a), len(boxes_b)
    left = boxes_a[:, None, :7].expand(m, n, 7).reshape(m * n, 7)
    right = boxes_b[None, :, :7].expand(m, n, 7).reshape(m * n, 7)
    return reference.paired_iou_bev(left, right).reshape(m, n)


def rotated_nms(
    boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float, max_boxes: int
) -> torch.Tensor:
    """Keep the best boxes that overlap no better kept box by more than the threshold.

    Boxes are visited by (score descending, row ascending), so ties are defined. A row whose box or
    score is not finite is never kept.

    Args:
        boxes: (M, 7 or more) x, y, z, l, w, h, yaw counter-clockwise.
        scores: (M,).
        iou_threshold: A rotated IoU strictly above this suppresses.
        max_boxes: Boxes kept at most.

    Returns:
        (K,) int64 rows of ``boxes`` in the order in which they were kept.

    Raises:
        ConfigError: If an argument has the wrong shape or type.
    """
    _check_boxes("boxes", boxes)
    if scores.shape != (len(boxes),):
        raise ConfigError(
            f"'scores' must hold one value for each of the {len(boxes)} boxes, "
            f"got shape {tuple(scores.shape)}."
        )
    if max_boxes < 1:
        raise ConfigError(f"'max_boxes' must be at least 1, got {max_boxes}.")
    return reference.rotated_nms(boxes, scores, iou_threshold, max_boxes)
