"""Scalar rectangle overlap by successive clipping, in Python floats: an oracle for rotated IoU."""

from __future__ import annotations

import math

Point = tuple[float, float]


def rectangle(box: list[float]) -> list[Point]:
    """Return the corners of x, y, z, l, w, h, yaw counter-clockwise."""
    x, y, _, length, width, _, yaw = box[:7]
    out = []
    for forward, left in ((1, 1), (-1, 1), (-1, -1), (1, -1)):
        u, v = forward * length / 2, left * width / 2
        out.append(
            (x + u * math.cos(yaw) - v * math.sin(yaw), y + u * math.sin(yaw) + v * math.cos(yaw))
        )
    return out


def _side(a: Point, b: Point, p: Point) -> float:
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])


def clip(subject: list[Point], a: Point, b: Point) -> list[Point]:
    """Return the part of a convex polygon to the left of the line from a to b."""
    out: list[Point] = []
    for index, current in enumerate(subject):
        previous = subject[index - 1]
        s_previous, s_current = _side(a, b, previous), _side(a, b, current)
        if (s_previous >= 0) != (s_current >= 0):
            t = s_previous / (s_previous - s_current)
            out.append(
                (
                    previous[0] + t * (current[0] - previous[0]),
                    previous[1] + t * (current[1] - previous[1]),
                )
            )
        if s_current >= 0:
            out.append(current)
    return out


def area(polygon: list[Point]) -> float:
    """Return the area of a counter-clockwise polygon."""
    return 0.5 * sum(
        polygon[i - 1][0] * p[1] - p[0] * polygon[i - 1][1] for i, p in enumerate(polygon)
    )


def iou(box_a: list[float], box_b: list[float]) -> float:
    """Return the IoU of two rotated boxes seen from above."""
    # Work around the first centre: products of large coordinates would cancel.
    ox, oy = box_a[0], box_a[1]
    box_a = [0.0, 0.0, *box_a[2:]]
    box_b = [box_b[0] - ox, box_b[1] - oy, *box_b[2:]]
    window = rectangle(box_a)
    polygon = rectangle(box_b)
    for index in range(4):
        if polygon:
            polygon = clip(polygon, window[index - 1], window[index])
    shared = max(area(polygon), 0.0) if len(polygon) > 2 else 0.0
    union = box_a[3] * box_a[4] + box_b[3] * box_b[4] - shared
    return shared / union if union > 0 else 0.0


def nms(boxes: list[list[float]], scores: list[float], threshold: float, limit: int) -> list[int]:
    """Return the rows kept by greedy suppression, best first, ties by row."""
    kept: list[int] = []
    for row in sorted(range(len(boxes)), key=lambda r: (-scores[r], r)):
        if len(kept) < limit and all(iou(boxes[k], boxes[row]) <= threshold for k in kept):
            kept.append(row)
    return kept
