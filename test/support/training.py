"""A small network on a small grid, clouds with boxes in them, and frames made of these."""

from __future__ import annotations

import math

import numpy as np
import torch

from driveRT_ros.core.sparse_types import CoordMap
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.samples import Sample, pack, points_in_boxes, unpack
from driveRT_ros.train.tables import TableMap, TapGroup

GRID = {
    "point_cloud_range": (-9.6, -9.6, -3.0, 9.6, 9.6, 1.0),
    "voxel_size": (0.1, 0.1, 0.25),
}
HEADS = ("car", "truck,bus", "pedestrian")
SIZES = np.array([(4.2, 1.8, 1.6), (6.5, 2.4, 2.6), (8.0, 2.6, 3.0), (0.7, 0.7, 1.7)])


def small_config(**groups) -> TrainConfig:
    """Return a configuration of few channels on 192 x 192 x 16 voxels."""
    tree = {
        "voxelization": GRID,
        "model": {"channels": (6, 8, 12, 16, 16, 16), "heads": HEADS},
        "augment": {"paste_to": ()},
        "data": {"batch_size": 2, "workers": 1},
        "densification_params": {"num_past_frames": 1},
        "output": {"log_every": 1},
    }
    for name, values in groups.items():
        tree[name] = {**tree.get(name, {}), **values} if isinstance(values, dict) else values
    return TrainConfig.from_dict(tree)


def box_points(box: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return points (count, 3) on the four walls and the roof of a box."""
    unit = rng.uniform(-0.5, 0.5, (count, 3))
    axis = rng.integers(0, 3, count)
    unit[np.arange(count), axis] = np.where(
        axis == 2, 0.5, np.sign(unit[np.arange(count), axis]) / 2
    )
    local = unit * box[3:6] * 0.98
    cos, sin = math.cos(box[6]), math.sin(box[6])
    x = local[:, 0] * cos - local[:, 1] * sin
    y = local[:, 0] * sin + local[:, 1] * cos
    return np.stack((x, y, local[:, 2]), axis=1) + box[:3]


def small_sample(seed: int, objects: int = 3, ground: int = 1500, span: float = 8.0) -> Sample:
    """Return flat ground with boxes of the four classes of :data:`HEADS` that do not overlap."""
    rng = np.random.default_rng(seed)
    boxes: list[np.ndarray] = []
    labels = []
    while len(boxes) < objects:
        label = (len(boxes) + seed) % len(SIZES)
        x, y = rng.uniform(-span + 2, span - 2, 2)
        reach = np.hypot(*SIZES[label][:2]) / 2
        apart = [np.hypot(x - b[0], y - b[1]) - np.hypot(b[3], b[4]) / 2 for b in boxes]
        if any(gap < reach for gap in apart) or np.hypot(x, y) < reach:
            continue
        yaw = rng.uniform(-math.pi, math.pi)
        height = -2.0 + SIZES[label][2] / 2
        box = np.array([x, y, height, *SIZES[label], yaw, *rng.normal(size=2)])
        boxes.append(box.astype(np.float32))
        labels.append(label)
    flat = np.stack(
        (*rng.uniform(-span, span, (2, ground)), -2.0 + 0.02 * rng.random(ground)), axis=1
    )
    xyz = np.concatenate([flat, *(box_points(b, 250, rng) for b in boxes)])
    rest = np.stack((rng.uniform(0, 50, len(xyz)), np.zeros(len(xyz))), axis=1)
    packed = pack(np.concatenate((xyz, rest), axis=1).astype(np.float32))
    where = np.stack(boxes) if boxes else np.zeros((0, 9), np.float32)
    counts = [len(rows) for rows in points_in_boxes(unpack(packed), where)]
    return Sample(packed, where, np.array(labels, np.int64), np.array(counts, np.int64))


def dense_weights(coord_map: CoordMap, weight: torch.Tensor) -> torch.Tensor:
    """Return the (num_in * C_in, num_out * C_out) matrix of a convolution, pair by pair."""
    _, c_in, c_out = weight.shape
    full = weight.new_zeros(coord_map.num_in, c_in, coord_map.num_out, c_out)
    for k in range(len(coord_map.counts)):
        for i, o in zip(*(rows.tolist() for rows in coord_map.pairs(k))):
            full[i, :, o, :] += weight[k]
    return full.flatten(2).flatten(0, 1)


def table_map(coord_map: CoordMap) -> TableMap:
    """Return the neighbour tables of a map, pair by pair, the way back in two groups of rows."""
    taps = len(coord_map.counts)
    forward = torch.full((coord_map.num_out, taps), coord_map.num_in, dtype=torch.int32)
    backward = torch.full((coord_map.num_in, taps), coord_map.num_out, dtype=torch.int32)
    for k in range(taps):
        rows_in, rows_out = (rows.cpu() for rows in coord_map.pairs(k))
        forward[rows_out, k] = rows_in.int()
        backward[rows_in, k] = rows_out.int()
    everyone = torch.arange(coord_map.num_in)
    parts = everyone[1::2], everyone[::2]
    device = coord_map.in_rows.device
    groups = tuple(
        TapGroup(torch.arange(taps, device=device), backward[part].to(device)) for part in parts
    )
    return TableMap(forward.to(device), groups, torch.cat(parts).to(device))


def backward_table(tables: TableMap, num_out: int) -> torch.Tensor:
    """Return (num_in, K) int32 output row of each tap, the groups put together."""
    num_in = sum(len(group.table) for group in tables.groups)
    whole = torch.full((num_in, tables.forward_table.shape[1]), num_out, dtype=torch.int32)
    order = torch.arange(num_in) if tables.order is None else tables.order
    first = 0
    for taps, table in tables.groups:
        rows = order[first : first + len(table)]
        whole[rows[:, None], taps] = table
        first += len(table)
    return whole
