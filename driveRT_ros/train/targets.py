"""What the heads should say: heat around every object and one row that describes it.

Source: Yin et al., "Center-based 3D object detection and tracking", CVPR 2021, for heat and box
code; Chen et al., "VoxelNeXt", CVPR 2023, for their form on sparse rows: an object belongs to the
row nearest to its centre, and the heat is drawn around that row and around the centre. More rows
around the centre may describe it as well: the row whose heat is greatest in the end, and whose box
is the one that stays, is often another than the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from driveRT_ros.core.bev_grid import HEAD_STRIDE
from driveRT_ros.core.boxes import SIZE_LWH, VELOCITY, YAW
from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.train.config import LossConfig

CODE_DIM = 10
"""Centre x, y from the corner of the row's cell, z, log l, w, h, cos and sin of the yaw, vx, vy."""

_SPARE_CELLS = 2.0
"""An object is left out where no row lies within half its diagonal and this."""
_LEAST_HEAT = 0.2
"""A row with less heat of an object does not describe it, unless it is the nearest one."""


@dataclass(frozen=True, eq=False)
class Targets:
    """What the heads of one batch should say; P pairs of an object and a row that describes it.

    Args:
        heat: (N, classes of all heads) in [0, 1]; 1 at the row nearest to an object.
        rows: (P,) int64 row of each pair; at first the nearest ones, object after object.
        labels: (P,) int64 class of its object over all heads.
        codes: (P, 10) box code; NaN where the velocity is unknown.
        left_out: Objects without a row near them, or off the grid.
    """

    heat: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor
    codes: torch.Tensor
    left_out: int


def heat_radius(size_cells: torch.Tensor, min_overlap: float) -> torch.Tensor:
    """Return how far a box may move along both axes and still keep an IoU.

    A box of w x l cells moved by r on both axes keeps (w - r)(l - r) in common; the least r over
    that case, a box smaller by r on every side and one larger by r is returned, each the root of a
    quadratic equation.

    Args:
        size_cells: (M, 2) length and width.
        min_overlap: The IoU.

    Returns:
        (M,) cells.

    Source: Law and Deng, "CornerNet", ECCV 2018, with the roots of the equations as printed there
    corrected.
    """
    total, area = size_cells.sum(dim=1), size_cells.prod(dim=1)
    keep = min_overlap
    cases = (
        # moved: (w - r)(l - r) = keep * (2 w l - (w - r)(l - r))
        (1.0, -total, area * (1 - keep) / (1 + keep)),
        # smaller: (w - 2 r)(l - 2 r) = keep * w l
        (4.0, -2 * total, area * (1 - keep)),
        # larger: w l = keep * (w + 2 r)(l + 2 r)
        (-4 * keep, -2 * keep * total, area * (1 - keep)),
    )
    # The least positive root of a r^2 + b r + c with b < 0 < c.
    roots = [2 * c / (-b + torch.sqrt((b * b - 4 * a * c).clamp(min=0))) for a, b, c in cases]
    return torch.stack(roots).amin(dim=0)


def encode_boxes(
    boxes: torch.Tensor, cells_xy: torch.Tensor, voxels: VoxelizationConfig
) -> torch.Tensor:
    """Return the code (P, 10) that ``decode_boxes`` turns back into the boxes.

    Args:
        boxes: (P, 9).
        cells_xy: (P, 2) column and row of the cell that describes each.
        voxels: Grid.
    """
    yaw = boxes[:, YAW]
    return torch.cat(
        (
            centres_in_cells(boxes, voxels) - cells_xy,
            boxes[:, 2:3],
            torch.log(boxes[:, SIZE_LWH].clamp(min=1e-3)),
            torch.cos(yaw)[:, None],
            torch.sin(yaw)[:, None],
            boxes[:, VELOCITY],
        ),
        dim=1,
    )


def centres_in_cells(boxes: torch.Tensor, voxels: VoxelizationConfig) -> torch.Tensor:
    """Return (P, 2) column and row of the box centres, with fractions."""
    low = boxes.new_tensor(voxels.point_cloud_range[:2])
    return (boxes[:, :2] - low) / (HEAD_STRIDE * boxes.new_tensor(voxels.voxel_size[:2]))


def assign_targets(
    coords_bzyx: torch.Tensor,
    boxes: Sequence[torch.Tensor],
    labels: Sequence[torch.Tensor],
    num_classes: int,
    voxels: VoxelizationConfig,
    config: LossConfig,
) -> Targets:
    """Return the targets of a batch.

    Args:
        coords_bzyx: (N, 4) int32 rows of the bird's-eye view, frame after frame.
        boxes: For each frame (M, 9) on the same device.
        labels: For each frame (M,) int64 class over all heads.
        num_classes: Of all heads.
        voxels: Grid.
        config: Size of the heat.
    """
    heat = torch.zeros(num_classes, len(coords_bzyx), device=coords_bzyx.device)
    counts = torch.bincount(coords_bzyx[:, 0].long(), minlength=len(boxes)).tolist()
    every, names = torch.cat(tuple(boxes)), torch.cat(tuple(labels))
    centres = centres_in_cells(every, voxels)
    cell = every.new_tensor(voxels.voxel_size[:2]) * HEAD_STRIDE
    size_cells = every[:, 3:5] / cell.mean()
    reach = size_cells.norm(dim=1) / 2 + _SPARE_CELLS
    radius = heat_radius(size_cells, config.min_overlap).floor()
    sigma = (2 * radius.clamp(min=config.min_radius_cells) + 1) / 6
    # An object off the grid is within reach of no row.
    on_grid = ((centres >= 0) & (centres < _grid(voxels, centres))).all(dim=1)
    objects = _Objects(centres, torch.where(on_grid, reach, -1), 2 * sigma * sigma, names)
    cells_xy = coords_bzyx[:, 2:4].flip(1).to(every.dtype)
    parts: list[_Pairs] = []
    first, first_row = 0, 0
    for count, size in zip(counts, map(len, boxes)):
        mine = _Objects(*(column[first : first + size] for column in objects))
        here = slice(first_row, first_row + count)
        found = _draw(heat[:, here], cells_xy[here], mine, config.rows_per_object)
        parts += [p._replace(rows=p.rows + first_row, which=p.which + first) for p in found]
        first, first_row = first + size, first_row + count
    # The nearest rows of all frames, then the others.
    pairs = _Pairs(*map(torch.cat, zip(*parts[::2], *parts[1::2])))
    # Two waits for the whole batch: how many pairs there are, and how many objects.
    chosen = pairs.usable.nonzero().squeeze(1)
    where, which = pairs.rows[chosen], pairs.which[chosen]
    left_out = len(names) - int((chosen < len(names)).sum())
    codes = encode_boxes(every[which], cells_xy[where], voxels)
    return Targets(heat.T.contiguous(), where, names[which], codes, left_out)


class _Objects(NamedTuple):
    """Centres (M, 2) and reach (M,) in cells, twice the variance of the bell, and class."""

    centres: torch.Tensor
    reach: torch.Tensor
    spread: torch.Tensor
    labels: torch.Tensor


class _Pairs(NamedTuple):
    """Rows (K,), the objects (K,) they may describe, and whether they do (K,)."""

    usable: torch.Tensor
    rows: torch.Tensor
    which: torch.Tensor


def _draw(
    heat: torch.Tensor, cells_xy: torch.Tensor, objects: _Objects, rows_per_object: int
) -> tuple[_Pairs, _Pairs]:
    """Draw the heat (classes, N) of one frame; pair objects with their nearest rows, and others."""
    which = torch.arange(len(objects.labels), device=heat.device)
    if len(cells_xy) == 0 or len(which) == 0:
        none = torch.zeros_like(which)
        return _Pairs(none.bool(), none, which), _Pairs(none[:0].bool(), none[:0], which[:0])
    to_centre = _squared_distances(objects.centres, cells_xy + 0.5)
    nearest_sq, rows = to_centre.min(dim=1)
    usable = (objects.reach >= 0) & (nearest_sq <= objects.reach**2)
    apart = torch.minimum(to_centre, _squared_distances(cells_xy[rows], cells_xy))
    bell = torch.exp(-apart / objects.spread[:, None])
    drawn = torch.where(usable[:, None], bell, 0).to(heat.dtype)
    # The greatest of several values is the same in any order.
    index = objects.labels[:, None].expand_as(drawn)
    heat.scatter_reduce_(0, index, drawn, "amax")
    # Others: those of most heat, each for the object of its class that it has most heat of.
    near = apart.topk(min(rows_per_object, len(cells_xy)), dim=1, largest=False).indices
    mine = drawn.gather(1, near)
    greatest = heat[objects.labels[:, None], near]
    more = (mine >= _LEAST_HEAT) & (mine == greatest) & (near != rows[:, None])
    others = _Pairs(more.flatten(), near.flatten(), which[:, None].expand_as(near).flatten())
    return _Pairs(usable, rows, which), others


def _squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return (M, N); the difference first, because close points matter."""
    return (a[:, None, 0] - b[None, :, 0]) ** 2 + (a[:, None, 1] - b[None, :, 1]) ** 2


def _grid(voxels: VoxelizationConfig, like: torch.Tensor) -> torch.Tensor:
    nx, ny, _ = voxels.grid_xyz
    return like.new_tensor((math.ceil(nx / HEAD_STRIDE), math.ceil(ny / HEAD_STRIDE)))
