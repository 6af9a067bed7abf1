"""What the heads should say: heat around every object and one row that describes it.

Source: Yin et al., "Center-based 3D object detection and tracking", CVPR 2021, for heat and box
code; Chen et al., "VoxelNeXt", CVPR 2023, for their form on sparse rows: an object belongs to the
row nearest to its centre, and the heat is drawn around that row and around the centre. More rows
around the centre may describe it as well: the row whose heat is greatest in the end, and whose box
is the one that stays, is often another than the nearest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from driveRT_ros.core.bev_grid import HEAD_STRIDE
from driveRT_ros.core.boxes import SIZE_LWH, VELOCITY, YAW
from driveRT_ros.core.config import VoxelizationConfig
from driveRT_ros.train.config import LossConfig
from driveRT_ros.train.constants import constant_like

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
        left_out: Objects without a row near them, or off the grid; () int64, on the device,
            because nothing need wait for it.
    """

    heat: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor
    codes: torch.Tensor
    left_out: torch.Tensor


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
    low = constant_like(voxels.point_cloud_range[:2], boxes)
    return (boxes[:, :2] - low) / (HEAD_STRIDE * constant_like(voxels.voxel_size[:2], boxes))


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
    device = coords_bzyx.device
    every, names = torch.cat(tuple(boxes)), torch.cat(tuple(labels))
    if not len(coords_bzyx) or not len(names):
        none = names.new_zeros(0)
        heat = torch.zeros(len(coords_bzyx), num_classes, device=device)
        return Targets(heat, none, none, every.new_zeros(0, CODE_DIM), names.new_tensor(len(names)))
    centres = centres_in_cells(every, voxels)
    cell = constant_like(voxels.voxel_size[:2], every) * HEAD_STRIDE
    size_cells = every[:, 3:5] / cell.mean()
    reach = size_cells.norm(dim=1) / 2 + _SPARE_CELLS
    radius = heat_radius(size_cells, config.min_overlap).floor()
    sigma = (2 * radius.clamp(min=config.min_radius_cells) + 1) / 6
    # An object off the grid is within reach of no row.
    on_grid = ((centres >= 0) & (centres < _grid(voxels, centres))).all(dim=1)
    objects = _Objects(centres, torch.where(on_grid, reach, -1), 2 * sigma * sigma, names)
    cells_xy = coords_bzyx[:, 2:4].flip(1).to(every.dtype)
    frame = coords_bzyx[:, 0].contiguous()
    edges = torch.arange(len(boxes) + 1, dtype=frame.dtype, device=device)
    # Two waits for the whole batch: how many rows a frame has at most, and how many pairs.
    rows = _Frames.of(torch.searchsorted(frame, edges))
    first = list(itertools.accumulate(map(len, boxes), initial=0))
    mine = _Frames.of(torch.tensor(first).to(device, non_blocking=True), max(map(len, boxes)))
    heat, pairs = _draw(rows, mine, cells_xy, objects, num_classes, config.rows_per_object)
    chosen = pairs.usable.nonzero().squeeze(1)
    where, which = pairs.rows[chosen], pairs.which[chosen]
    left_out = len(names) - (chosen < mine.index.numel()).sum()
    codes = encode_boxes(every[which], cells_xy[where], voxels)
    at = frame.long() * rows.index.shape[1] + torch.arange(len(frame), device=device)
    heat = heat.transpose(1, 2).flatten(0, 1).index_select(0, at - rows.first[frame.long()])
    return Targets(heat, where, names[which], codes, left_out)


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


class _Frames(NamedTuple):
    """Rows of each frame side by side, as many as the fullest frame has.

    Args:
        first: (B,) the first row of each frame.
        index: (B, L) row at each place; any row where the frame has none left.
        there: (B, L) whether the frame has one.
    """

    first: torch.Tensor
    index: torch.Tensor
    there: torch.Tensor

    @classmethod
    def of(cls, edges: torch.Tensor, most: int | None = None) -> _Frames:
        """Return this of the first row of each frame and the end; waits for ``most`` if absent."""
        counts = edges.diff()
        most = int(counts.max()) if most is None else most
        place = torch.arange(most, device=edges.device)
        index = torch.minimum(edges[:-1, None] + place, edges[-1] - 1)
        return cls(edges[:-1], index, place < counts[:, None])


def _draw(
    rows: _Frames,
    mine: _Frames,
    cells_xy: torch.Tensor,
    objects: _Objects,
    num_classes: int,
    rows_per_object: int,
) -> tuple[torch.Tensor, _Pairs]:
    """Draw the heat (B, classes, L); pair objects with their nearest rows, and then with others.

    All frames at once: tensors are (B, M) objects by L rows, of the fullest frames.
    """
    centres, reach, spread, labels = (column[mine.index] for column in objects)
    cells = cells_xy[rows.index]
    absent = ~rows.there[:, None, :]
    to_centre = _squared_distances(centres, cells + 0.5).masked_fill_(absent, math.inf)
    nearest_sq, nearest = to_centre.min(dim=2)
    usable = mine.there & (reach >= 0) & (nearest_sq <= reach**2)
    nearest_cells = cells.gather(1, nearest[:, :, None].expand(-1, -1, 2))
    apart = torch.minimum(to_centre, _squared_distances(nearest_cells, cells))
    apart = apart.masked_fill_(absent, math.inf)
    bell = torch.exp(-apart / spread[:, :, None])
    drawn = torch.where(usable[:, :, None], bell, 0).float()
    heat = drawn.new_zeros(len(cells), num_classes, cells.shape[1])
    # The greatest of several values is the same in any order.
    heat.scatter_reduce_(1, labels[:, :, None].expand_as(drawn), drawn, "amax")
    # Others: those of most heat, each for the object of its class that it has most heat of.
    near = _least(apart, min(rows_per_object, cells.shape[1]))
    frames = torch.arange(len(cells), device=cells.device)[:, None]
    line = ((frames * num_classes + labels) * cells.shape[1])[:, :, None]
    mine_heat, greatest = drawn.gather(2, near), heat.flatten()[line + near]
    more = (mine_heat >= _LEAST_HEAT) & (mine_heat == greatest) & (near != nearest[:, :, None])
    first = rows.first[:, None]
    pairs = _Pairs(
        torch.cat((usable.flatten(), more.flatten())),
        torch.cat(((nearest + first).flatten(), (near + first[:, :, None]).flatten())),
        torch.cat((mine.index.flatten(), mine.index[:, :, None].expand_as(near).flatten())),
    )
    return heat, pairs


def _least(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return where the least of the last axis are; of equal ones the first, on any device.

    Args:
        values: (B, M, L), none below zero.
        count: How many.
    """
    # Floats that are not negative stand in the order of their bits.
    bits = values.float().view(torch.int32).long() << 32
    keys = bits + torch.arange(values.shape[2], device=values.device)
    return keys.topk(count, dim=2, largest=False).values & 0xFFFFFFFF


def _squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return (B, M, L) of (B, M, 2) and (B, L, 2); the difference first: close points matter."""
    one, two = a[:, :, None], b[:, None]
    return (one[..., 0] - two[..., 0]) ** 2 + (one[..., 1] - two[..., 1]) ** 2


def _grid(voxels: VoxelizationConfig, like: torch.Tensor) -> torch.Tensor:
    nx, ny, _ = voxels.grid_xyz
    return constant_like((math.ceil(nx / HEAD_STRIDE), math.ceil(ny / HEAD_STRIDE)), like)
