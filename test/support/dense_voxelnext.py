"""VoxelNeXt on dense grids in float64: an oracle that shares no code with the detector.

Every sparse tensor is a dense one and a mask of active cells. Batch norm is applied as trained, not
folded. Suppression uses the scalar polygon oracle. Small grids only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from test.support import polygons

State = Mapping[str, torch.Tensor]


@dataclass
class Settings:
    """What the oracle needs to know of the configuration."""

    low: tuple[float, float, float]
    voxel: tuple[float, float, float]
    grid_xyz: tuple[int, int, int]
    max_points: int
    classes_per_head: Sequence[int]
    threshold: float
    top_k: int
    max_boxes: int
    nms_iou: float
    center_range: Sequence[float]


def detect(points: Sequence[Sequence[float]], state: State, settings: Settings):
    """Return a list of (box of nine floats, score, label) in output order."""
    x, mask = voxelize(points, settings)
    bev, active = backbone(x, mask, state)
    found = []
    first = 0
    for head, classes in enumerate(settings.classes_per_head):
        found += _head(bev, active, state, settings, head, classes, first)
        first += classes
    return found


def voxelize(points, settings: Settings):
    """Return (5, Z, Y, X) means and the (Z, Y, X) mask."""
    nx, ny, nz = settings.grid_xyz
    cells: dict[tuple[int, int, int], list[Sequence[float]]] = {}
    for point in points:
        x, y, z = (
            math.floor((p - low) / size)
            for p, low, size in zip(point, settings.low, settings.voxel)
        )
        if 0 <= x < nx and 0 <= y < ny and 0 <= z < nz:
            cells.setdefault((z, y, x), []).append(point)
    grid = torch.zeros(5, nz + 1, ny, nx, dtype=torch.float64)
    mask = torch.zeros(nz + 1, ny, nx, dtype=torch.float64)
    for (z, y, x), members in cells.items():
        kept = members[: settings.max_points]
        grid[:, z, y, x] = torch.tensor(kept, dtype=torch.float64).sum(0) / len(kept)
        mask[z, y, x] = 1
    return grid, mask


def backbone(x: torch.Tensor, mask: torch.Tensor, state: State):
    """Return the (C, Y, X) shared features and the (Y, X) mask."""
    tops = []
    for level in range(1, 7):
        if level == 1:
            x = _conv(x, mask, state, "backbone_3d.conv_input.0")
            x = torch.relu(_norm(x, state, "backbone_3d.conv_input.1", 1e-3)) * mask
        else:
            name = f"backbone_3d.conv{level}.0"
            mask = _seen(mask, stride=2)
            x = _conv(x, mask, state, f"{name}.0", stride=2)
            x = torch.relu(_norm(x, state, f"{name}.1", 1e-3)) * mask
        for block in (0, 1) if level == 1 else (1, 2):
            name = f"backbone_3d.conv{level}.{block}"
            y = _conv(x, mask, state, f"{name}.conv1")
            y = torch.relu(_norm(y, state, f"{name}.bn1", 1e-3)) * mask
            y = _conv(y, mask, state, f"{name}.conv2")
            x = torch.relu(_norm(y, state, f"{name}.bn2", 1e-3) + x) * mask
        tops.append((x, mask))
    bev, active = _flatten(tops[3:])
    active = _seen(active, stride=1)
    bev = _conv(bev, active, state, "backbone_3d.conv_out.0")
    bev = torch.relu(_norm(bev, state, "backbone_3d.conv_out.1", 1e-3)) * active
    bev = _conv(bev, active, state, "backbone_3d.shared_conv.0")
    bev = torch.relu(_norm(bev, state, "backbone_3d.shared_conv.1", 1e-5)) * active
    return bev, active


def _conv(x, mask, state, key, stride=1):
    """Convolve densely with a kernel stored as out, (z,) y, x, in; only active outputs count."""
    weight = state[f"{key}.weight"].double()
    weight = weight.movedim(-1, 1)
    bias = state[f"{key}.bias"].double() if f"{key}.bias" in state else None
    convolve = functional.conv3d if weight.ndim == 5 else functional.conv2d
    padding = weight.shape[-1] // 2
    return convolve(x[None], weight, bias, stride=stride, padding=padding)[0] * mask


def _norm(x, state, key, eps):
    mean, var, scale, shift = (
        state[f"{key}.{part}"].double()
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    return functional.batch_norm(x[None], mean, var, scale, shift, eps=eps)[0]


def _seen(mask, stride):
    """Return where a kernel of 3 sees an active cell."""
    convolve = functional.conv3d if mask.ndim == 3 else functional.conv2d
    ones = torch.ones((1, 1, *(3,) * mask.ndim), dtype=mask.dtype)
    return (convolve(mask[None, None], ones, stride=stride, padding=1)[0, 0] > 0.5).double()


def _flatten(levels):
    channels, (ny, nx) = levels[0][0].shape[0], levels[0][0].shape[2:]
    bev = torch.zeros(channels, ny, nx, dtype=torch.float64)
    active = torch.zeros(ny, nx, dtype=torch.float64)
    for (x, mask), scale in zip(levels, (1, 2, 4)):
        for z, row, col in mask.nonzero().tolist():
            bev[:, row * scale, col * scale] += x[:, z, row, col]
            active[row * scale, col * scale] = 1
    return bev, active


def _branch(bev, active, state, head, name):
    prefix = f"dense_head.heads_list.{head}.{name}"
    hidden = _conv(bev, active, state, f"{prefix}.0.0")
    hidden = torch.relu(_norm(hidden, state, f"{prefix}.0.1", 1e-5)) * active
    return _conv(hidden, active, state, f"{prefix}.1")


def _head(bev, active, state, settings: Settings, head, classes, first_label):
    """Evaluate every branch everywhere, then rank, mask and suppress."""
    out = {n: _branch(bev, active, state, head, n) for n in ("center", "center_z", "dim", "rot")}
    out["vel"] = _branch(bev, active, state, head, "vel")
    heat = torch.sigmoid(_branch(bev, active, state, head, "hm"))
    ranked = []
    for row, col in active.nonzero().tolist():
        box = _box({n: v[:, row, col].tolist() for n, v in out.items()}, row, col, settings)
        for label in range(classes):
            ranked.append((-heat[label, row, col].item(), label, (row, col), box))
    ranked.sort(key=lambda item: item[:3])
    low, high = settings.center_range[:3], settings.center_range[3:]
    best = [
        item
        for item in ranked[: settings.top_k]
        if -item[0] > settings.threshold and all(a <= c <= b for a, c, b in zip(low, item[3], high))
    ]
    boxes, scores = [item[3] for item in best], [-item[0] for item in best]
    kept = polygons.nms(boxes, scores, settings.nms_iou, settings.max_boxes)
    return [(boxes[k], scores[k], first_label + best[k][1]) for k in kept]


def _box(values, row, col, settings: Settings):
    (cx, cy), (z,), dim = values["center"], values["center_z"], values["dim"]
    cos, sin = values["rot"]
    x = (col + cx) * 8 * settings.voxel[0] + settings.low[0]
    y = (row + cy) * 8 * settings.voxel[1] + settings.low[1]
    return [x, y, z, *(math.exp(d) for d in dim), math.atan2(sin, cos), *values["vel"]]
