"""What of a batch no weight decides: voxels, maps and targets."""

from __future__ import annotations

from typing import NamedTuple

import torch

from driveRT_ros.models.voxelnext import FrameMaps
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.data import Batch
from driveRT_ros.train.module import VoxelNeXtModule
from driveRT_ros.train.tables import BatchTables
from driveRT_ros.train.targets import Targets, assign_targets
from driveRT_ros.train.voxels import voxelize_batch


class Ready(NamedTuple):
    """A batch to learn from.

    Args:
        features: (N, 5) mean point features of the voxels.
        maps: Of the network.
        targets: Of its heads.
    """

    features: torch.Tensor
    maps: BatchTables | FrameMaps
    targets: Targets


@torch.no_grad()
def make_ready(batch: Batch, module: VoxelNeXtModule, config: TrainConfig) -> Ready:
    """Return all that a step needs of a batch.

    Args:
        batch: Frames, on the device of the network.
        module: The network.
        config: Grid, classes and loss.
    """
    voxels = config.voxelization
    features, coords = voxelize_batch(batch.points(), batch.point_counts, voxels)
    maps = module.build_maps(coords, voxels.sparse_shape_zyx, len(batch))
    targets = assign_targets(
        module.head_cells(maps)[0],
        batch.boxes.split(batch.box_counts),
        batch.labels.split(batch.box_counts),
        len(config.model.class_names),
        voxels,
        config.loss,
    )
    return Ready(features, maps, targets)
