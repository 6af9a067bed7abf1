"""The operators of the LiDAR hot path as one value, so that no caller branches on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from driveRT_ros.core.reference import bev_merge, coordmap, nms, sparse_conv, voxelize
from driveRT_ros.core.sparse_types import CoordMap, SparseTensor, Voxels


@dataclass(frozen=True)
class Ops:
    """One implementation of every operator; inputs were validated at the border.

    Args:
        name: Which implementation this is, for reports.
        voxelize: ``(points, config) -> Voxels``.
        submanifold_map: ``(coords_bzyx, shape, kernel, dilation) -> CoordMap``.
        strided_map: ``(coords_bzyx, shape, kernel, stride, padding, dilation) -> CoordMap``.
        inverse_map: ``(forward) -> CoordMap``.
        gather_gemm_scatter: ``(features, weight, coord_map, *, bias, residual, relu) -> features``.
        bev_merge: ``(levels, scales) -> SparseTensor`` on a grid of one z cell.
        rotated_nms: ``(boxes, scores, iou_threshold, max_boxes) -> rows kept``.
    """

    name: str
    voxelize: Callable[..., Voxels]
    submanifold_map: Callable[..., CoordMap]
    strided_map: Callable[..., CoordMap]
    inverse_map: Callable[[CoordMap], CoordMap]
    gather_gemm_scatter: Callable[..., torch.Tensor]
    bev_merge: Callable[..., SparseTensor]
    rotated_nms: Callable[..., torch.Tensor]

    @staticmethod
    def for_device(device: torch.device | str) -> Ops:
        """Return the operators for tensors on ``device``: the reference serves every device."""
        torch.device(device)  # an unknown name fails here, not inside an operator
        return Ops(
            name="reference",
            voxelize=voxelize.voxelize,
            submanifold_map=coordmap.submanifold_map,
            strided_map=coordmap.strided_map,
            inverse_map=coordmap.inverse_map,
            gather_gemm_scatter=sparse_conv.gather_gemm_scatter,
            bev_merge=bev_merge.bev_merge,
            rotated_nms=nms.rotated_nms,
        )
