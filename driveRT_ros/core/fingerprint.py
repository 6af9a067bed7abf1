"""Numbers that identify the result of a frame."""

from __future__ import annotations

import torch

from driveRT_ros.core.front_end import FrontResult
from driveRT_ros.core.reference.coordmap import cell_keys
from driveRT_ros.core.stages import crc32

Triple = tuple[int, int, int]


def frame_fingerprint(
    front: FrontResult, voxel_shape_zyx: Triple, *detections: torch.Tensor
) -> dict[str, int]:
    """Return the CRC-32 of the bytes of each stage.

    Rows are taken in ascending (z, y, x) order, whatever order they were computed in. ``coords``
    (int32 z, y, x) and ``features`` of the voxels are then the same on every device in float32.
    ``bev`` and ``detections`` are the same wherever the additions have the same order: on one
    device, with one Plan.

    Args:
        front: What the heads were given.
        voxel_shape_zyx: Cells of the voxel grid.
        detections: Boxes, scores and labels, as published.
    """
    voxels = _cell_order(torch.nn.functional.pad(front.voxel_coords_zyx, (1, 0)), voxel_shape_zyx)
    bev = _cell_order(front.bev.coords_bzyx, front.bev.spatial_shape_zyx)
    return {
        "coords": crc32(front.voxel_coords_zyx[voxels]),
        "features": crc32(front.voxel_features[voxels]),
        "bev": crc32(front.bev.features[bev]),
        "detections": crc32(*detections),
    }


def _cell_order(coords_bzyx: torch.Tensor, shape_zyx: Triple) -> torch.Tensor:
    return cell_keys(coords_bzyx, shape_zyx).argsort()
