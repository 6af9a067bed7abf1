"""A whole detector around the network of a peer or of the oracle: eager torch on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from driveRT_ros.bench.networks import Network
from driveRT_ros.core.back_end import ReferenceBackEnd
from driveRT_ros.core.bev_grid import HEAD_STRIDE
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections, FrameReport
from driveRT_ros.core.front_end import FrontResult
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.core.stages import StageClock
from driveRT_ros.models.graph import build_graph


class PeerDetector:
    """Voxels, heads and suppression in eager torch, with the sparse network of another package.

    The heads run on all rows for the heat, and on rows above the threshold for the boxes: less work
    than the usual evaluation of every branch at every row.

    Args:
        make: Builds the network.
        config: Grid, thresholds and limits.
        tensors: Folded weights on the device; their dtype is that of the heads.
    """

    def __init__(
        self, make: Callable[[], Network], config: LidarConfig, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.config, first = config, next(iter(tensors.values()))
        self.device, self._dtype = first.device, first.dtype
        self._network = make()
        self.version = self._network.version
        self._ops = Ops.for_device(self.device)
        self._back_end = ReferenceBackEnd(config, tensors, self._ops)
        graph = build_graph(config.model)
        self._last = graph.bev[-1].map_key
        self._levels = [level[-1].map_key for level in graph.levels]
        _, ny, nx = config.voxelization.sparse_shape_zyx
        self._shape = (1, math.ceil(ny / HEAD_STRIDE), math.ceil(nx / HEAD_STRIDE))

    def process(self, points: torch.Tensor) -> Detections:
        """Detect objects in one cloud.

        Args:
            points: (N, 5) float32 on the CPU.

        Returns:
            Boxes on the CPU.
        """
        allowed = torch.backends.cuda.matmul.allow_tf32
        try:
            with torch.no_grad():
                return self._process(points)
        finally:  # a network sets it for its own precision; others must not inherit it
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def _process(self, points: torch.Tensor) -> Detections:
        clock = StageClock(self.device)
        cloud = points.to(self.device)
        voxels = self._ops.voxelize(cloud, self.config.voxelization)
        clock.lap("voxelize")
        self._network.load((voxels.features, voxels.coords_bzyx))
        self._network.run()
        outputs = self._network.outputs()
        features, coords_zyx = outputs[self._last]
        coords = torch.nn.functional.pad(coords_zyx, (1, 0))  # batch 0
        front = FrontResult(
            bev=SparseTensor(features.to(self._dtype), coords, self._shape),
            voxel_coords_zyx=voxels.coords_bzyx[:, 1:],
            voxel_features=voxels.features,
            voxels_per_level=tuple(len(outputs[name][0]) for name in self._levels),
            dropped=voxels.dropped,
        )
        clock.lap("backbone")
        found = self._back_end.run(front, clock)
        report = FrameReport(
            stage_ms=clock.stage_ms,
            num_points=len(cloud),
            num_voxels=len(voxels.features),
            voxels_per_level=front.voxels_per_level,
            dropped={**voxels.dropped, **found.dropped},
        )
        names = self.config.model.class_names
        return Detections(found.boxes, found.scores, found.labels, names, report)
