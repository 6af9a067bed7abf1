"""Rotated bird's-eye-view IoU and greedy suppression in plain torch: any device, any float dtype.

The area that rectangle B shares with rectangle A is found without listing the vertices of the
overlap. In A's own frame A is ``|x| <= p, |y| <= q``, and for the convex B walked counter-clockwise

    area = - sum over the edges of B of the integral of clamp(y, -q, q) dx over |x| <= p

because the upper boundary runs towards -x and the lower one towards +x. Each edge is a straight
line, so each integral is exact, and coinciding edges, shared corners and contained boxes need no
special case: the result depends continuously on the boxes.
"""

from __future__ import annotations

import torch

from driveRT_ros.core.boxes import YAW, bev_corners

_BLOCK = 128  # boxes decided at a time; the result does not depend on it


def _clamped_mean(y_start: torch.Tensor, y_end: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the mean of clamp(y, -q, q) for y running evenly from ``y_start`` to ``y_end``."""
    low, high = torch.minimum(y_start, y_end), torch.maximum(y_start, y_end)
    span = high - low
    below = torch.minimum((-q - low).clamp(min=0), span)
    above = torch.minimum((high - q).clamp(min=0), span)
    low_in, high_in = torch.clamp(low, -q, q), torch.clamp(high, -q, q)
    middle = (low_in + high_in) / 2
    total = q * (above - below) + middle * (span - below - above)
    return torch.where(span > 0, total / torch.where(span > 0, span, 1), middle)


def intersection_area(boxes_a: torch.Tensor, boxes_b: torch.Tensor) -> torch.Tensor:
    """Return the ground area shared by each pair of boxes.

    Args:
        boxes_a: (P, 7 or more), sizes >= 0.
        boxes_b: (P, 7 or more).

    Returns:
        (P,) square metres.
    """
    relative = boxes_b[:, :7].clone()
    dx, dy = (boxes_b[:, :2] - boxes_a[:, :2]).unbind(dim=-1)
    cos, sin = torch.cos(boxes_a[:, YAW]), torch.sin(boxes_a[:, YAW])
    relative[:, 0] = cos * dx + sin * dy
    relative[:, 1] = cos * dy - sin * dx
    relative[:, YAW] = boxes_b[:, YAW] - boxes_a[:, YAW]
    p, q = (boxes_a[:, 3] / 2)[:, None], (boxes_a[:, 4] / 2)[:, None]

    start = bev_corners(relative)
    end = torch.roll(start, -1, dims=1)
    x0, y0 = start.unbind(dim=-1)
    x1, y1 = end.unbind(dim=-1)
    run = x1 - x0
    safe_run = torch.where(run == 0, 1, run)
    x0_in, x1_in = torch.clamp(x0, -p, p), torch.clamp(x1, -p, p)
    slope = (y1 - y0) / safe_run
    y0_in = y0 + (x0_in - x0) * slope  # exactly y0 where the edge is not cut at this end
    y1_in = y1 + (x1_in - x1) * slope
    area = -((x1_in - x0_in) * _clamped_mean(y0_in, y1_in, q)).sum(dim=1)
    return area.clamp(min=0)


def paired_iou_bev(boxes_a: torch.Tensor, boxes_b: torch.Tensor) -> torch.Tensor:
    """Return the rotated bird's-eye-view IoU of each pair; 0 where both areas are 0.

    Args:
        boxes_a: (P, 7 or more).
        boxes_b: (P, 7 or more).

    Returns:
        (P,) in [0, 1].
    """
    shared = intersection_area(boxes_a, boxes_b)
    area_a, area_b = boxes_a[:, 3] * boxes_a[:, 4], boxes_b[:, 3] * boxes_b[:, 4]
    shared = torch.minimum(shared, torch.minimum(area_a, area_b))
    union = area_a + area_b - shared
    return torch.where(union > 0, shared / torch.where(union > 0, union, 1), 0)


def _suppression(better: torch.Tensor, worse: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the (M, N) mask of pairs with a greater IoU, on the CPU."""
    radius_a = torch.hypot(better[:, 3], better[:, 4]) / 2
    radius_b = torch.hypot(worse[:, 3], worse[:, 4]) / 2
    dx = better[:, None, 0] - worse[None, :, 0]
    dy = better[:, None, 1] - worse[None, :, 1]
    reach = radius_a[:, None] + radius_b[None, :]
    # Only boxes whose circumscribed circles meet can overlap.
    i, j = (dx * dx + dy * dy <= reach * reach).nonzero(as_tuple=True)
    hit = paired_iou_bev(better[i], worse[j]) > iou_threshold
    mask = torch.zeros((len(better), len(worse)), dtype=torch.bool)
    mask[i[hit].cpu(), j[hit].cpu()] = True
    return mask


def rotated_nms(
    boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float, max_boxes: int
) -> torch.Tensor:
    """Keep the best boxes that overlap no better kept box by more than the threshold.

    Boxes are visited by (score descending, row ascending). A row whose box or score is not finite
    is never kept.

    Args:
        boxes: (M, 7 or more).
        scores: (M,).
        iou_threshold: A rotated IoU strictly above this suppresses.
        max_boxes: Boxes kept at most.

    Returns:
        (K,) int64 rows of ``boxes`` in the order in which they were kept, on the same device.
    """
    usable = torch.isfinite(boxes[:, :7]).all(dim=1) & torch.isfinite(scores)
    rows = usable.nonzero(as_tuple=True)[0]
    rows = rows[torch.sort(scores[rows], descending=True, stable=True)[1]]
    kept: list[torch.Tensor] = []
    room = max_boxes
    while len(rows) and room > 0:
        # Decide a block among itself, then let its survivors thin out everything behind it.
        block, rows = rows[:_BLOCK], rows[_BLOCK:]
        mask = _suppression(boxes[block], boxes[block], iou_threshold).numpy()
        gone = torch.zeros(len(block), dtype=torch.bool).numpy()
        for rank in range(len(block)):
            if not gone[rank]:
                gone[rank + 1 :] |= mask[rank, rank + 1 :]
        best = block[torch.from_numpy(~gone).to(block.device)][:room]
        kept.append(best)
        room -= len(best)
        if len(rows) and room > 0:
            hidden = _suppression(boxes[best], boxes[rows], iou_threshold).any(dim=0)
            rows = rows[~hidden.to(rows.device)]
    return torch.cat(kept) if kept else rows
