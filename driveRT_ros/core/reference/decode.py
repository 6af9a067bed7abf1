"""From heat maps and regression outputs to boxes, in plain torch: any device, any float dtype.

The threshold is monotone in the score, so taking the candidates above it first and the best of
those second gives the same set as ranking every row: the five regression branches are needed at
the chosen rows only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from driveRT_ros.core.boxes import CENTER, SIZE_LWH, VELOCITY

MAX_SIZE_M = 100.0
"""A longer box is a fault of the weights, not an object."""
MAX_SPEED_MPS = 150.0
"""A faster object is a fault of the weights as well."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The candidates of one head, best first; the tensors share their first dimension K.

    Args:
        rows: (K,) int64 feature row.
        classes: (K,) int64 class within the head.
        scores: (K,) sigmoid of the heat.
        dropped: Counts by reason: ``non_finite_heat`` values, ``over_top_k_candidates``.
    """

    rows: torch.Tensor
    classes: torch.Tensor
    scores: torch.Tensor
    dropped: Mapping[str, int]


def select_candidates(
    heat: torch.Tensor,
    thresholds: Sequence[float],
    top_k: int,
    cells: torch.Tensor | None = None,
    allowed: torch.Tensor | None = None,
) -> Selection:
    """Choose the best heat values of one head.

    A candidate's score must be strictly above the threshold of its class, both in the dtype of the
    heat. The order is score descending, then class, then cell ascending, so ties are defined, and
    the choice does not depend on the order of the rows. Heat that is not finite is never a
    candidate.

    Args:
        heat: (N, classes) logits.
        thresholds: One score per class of this head.
        top_k: Candidates kept at most, over all classes of the head.
        cells: (N,) int64 number of each row's cell, below 2^32; by default the row itself.
        allowed: (N, classes) bool, the values to choose from; by default all.
    """
    # Class after class, so that a stable sort leaves ties in the order of class, then cell.
    logits = heat.T.contiguous()
    limits = heat.new_tensor(thresholds).unsqueeze(1)
    finite = torch.isfinite(logits)
    scores = torch.sigmoid(logits)
    open_to = finite & (scores > limits)
    if allowed is not None:
        open_to &= allowed.T
    classes, rows = open_to.nonzero(as_tuple=True)
    if cells is not None:
        by_cell = (classes << 32 | cells[rows]).argsort()
        classes, rows = classes[by_cell], rows[by_cell]
    values, order = torch.sort(scores[classes, rows], descending=True, stable=True)
    order = order[:top_k]
    return Selection(
        rows=rows[order],
        classes=classes[order],
        scores=values[:top_k],
        dropped={
            "non_finite_heat": int(logits.numel() - int(finite.sum())),
            "over_top_k_candidates": max(len(rows) - top_k, 0),
        },
    )


def local_maxima(heat: torch.Tensor, cells_yx: torch.Tensor) -> torch.Tensor:
    """Tell which heat values no neighbour of their class exceeds: peaks of a sparse map.

    Neighbours are the rows in the eight cells around; a cell without a row has no heat. Of equal
    neighbours the one that comes first, by (y, x), stays. Heat that is not finite is no peak and
    hides none. Source: Zhou et al., "Objects as Points", 2019, on active cells only as in Chen et
    al., "VoxelNeXt", CVPR 2023.

    Args:
        heat: (N, classes) logits.
        cells_yx: (N, 2) cell of each row, from (0, 0) on, all different.

    Returns:
        (N, classes) bool.
    """
    peaks = torch.isfinite(heat)
    if len(heat) == 0:
        return peaks
    y, x = cells_yx.long().unbind(dim=1)
    # One cell of margin all around, so that every neighbour can be looked up.
    row_of = torch.full((int(y.max()) + 3, int(x.max()) + 3), -1, device=heat.device)
    row_of[y + 1, x + 1] = torch.arange(len(heat), device=heat.device)
    silent = torch.where(peaks, heat, -torch.inf)
    for dy, dx in itertools.product((-1, 0, 1), repeat=2):
        if (dy, dx) == (0, 0):
            continue
        row = row_of[y + 1 + dy, x + 1 + dx]
        other = torch.where((row >= 0).unsqueeze(1), silent[row], -torch.inf)
        peaks &= ~(other >= heat if (dy, dx) < (0, 0) else other > heat)
    return peaks


def decode_boxes(
    branches: Mapping[str, torch.Tensor],
    cells_yx: torch.Tensor,
    origin_xy: Sequence[float],
    voxel_size_xy: Sequence[float],
    stride: int,
) -> torch.Tensor:
    """Turn regression outputs into boxes.

    ``x = (column + center_x) * stride * voxel_size_x + origin_x`` and likewise y; z is
    ``center_z``; the size is ``exp(dim)``; the yaw is ``atan2(rot[1], rot[0])``, rot being
    (cos, sin).

    Args:
        branches: ``center`` (K, 2), ``center_z`` (K, 1), ``dim`` (K, 3), ``rot`` (K, 2) and
            ``vel`` (K, 2).
        cells_yx: (K, 2) bird's-eye-view cell of each row.
        origin_xy: Lower corner of the grid, metres.
        voxel_size_xy: Voxel edge lengths, metres.
        stride: Voxels along one edge of a cell.

    Returns:
        (K, 9) boxes, not yet checked; the size may have overflowed.
    """
    center = branches["center"]
    cells_xy = cells_yx.flip(1).to(center.dtype)
    step = center.new_tensor(voxel_size_xy)
    xy = (cells_xy + center) * stride * step + center.new_tensor(origin_xy)
    rot = branches["rot"]
    yaw = torch.atan2(rot[:, 1:2], rot[:, 0:1])
    size = torch.exp(branches["dim"])
    return torch.cat((xy, branches["center_z"], size, yaw, branches["vel"]), dim=1)


def usable_boxes(
    boxes: torch.Tensor, center_range: Sequence[float]
) -> tuple[torch.Tensor, dict[str, int]]:
    """Tell which decoded boxes can be published.

    Args:
        boxes: (K, 9).
        center_range: Least x, y, z of a centre, then greatest, inclusive.

    Returns:
        (K,) bool, and counts by reason: ``non_finite_boxes``, ``implausible_boxes`` (size or speed
        no object has) and ``out_of_range_boxes``. Each box is counted once, under the first.
    """
    finite = torch.isfinite(boxes).all(dim=1)
    size = boxes[:, SIZE_LWH]
    plausible = ((size > 0) & (size <= MAX_SIZE_M)).all(dim=1)
    plausible &= torch.linalg.vector_norm(boxes[:, VELOCITY], dim=1) <= MAX_SPEED_MPS
    low, high = boxes.new_tensor(center_range[:3]), boxes.new_tensor(center_range[3:])
    inside = ((boxes[:, CENTER] >= low) & (boxes[:, CENTER] <= high)).all(dim=1)
    dropped = {
        "non_finite_boxes": int((~finite).sum()),
        "implausible_boxes": int((finite & ~plausible).sum()),
        "out_of_range_boxes": int((finite & plausible & ~inside).sum()),
    }
    return finite & plausible & inside, dropped
