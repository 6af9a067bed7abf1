"""Real voxelized frames, and the row counts that an independent simulation found for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

SHAPE_ZYX = (41, 1440, 1440)

ROWS = {
    "A": (17_748, 27_774, 18_711, 9_838, 4_142, 1_645),
    "B": (79_745, 69_276, 29_723, 10_751, 3_406, 1_115),
    "C": (105_086, 111_372, 54_512, 22_296, 7_540, 2_517),
}
"""Active rows of the six levels."""

TAPS = {
    "A": (3.3, 10.2, 12.5, 13.8, 14.6, 15.4),
    "B": (7.4, 14.0, 16.3, 16.7, 16.2, 15.3),
    "C": (6.1, 12.7, 14.7, 15.7, 15.8, 15.9),
}
"""Mean taps with an input in a 3x3x3 submanifold convolution of each level."""

BEV_ROWS = {"A": (5_921, 11_435), "B": (4_958, 8_023), "C": (11_318, 18_276)}
"""Rows after the merge of levels 4 to 6, and after the dilating convolution on them."""


def load_voxels(data: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, 5) float32 and coordinates (N, 4) int32 b, z, y, x of frame A or B."""
    folder = data / "sparseconv"
    if name == "A":
        features, coords_bxyz, *_ = torch.load(
            folder / "bevfusion_scn_input.pth", map_location="cpu", weights_only=True
        )
        return features.float(), coords_bxyz[:, [0, 3, 2, 1]].contiguous()
    header = 20
    features = np.fromfile(
        folder / "centerpoint" / "in_features.torch.fp16.tensor", np.float16, offset=header
    )
    coords = np.fromfile(
        folder / "centerpoint" / "in_indices_zyx.torch.int32.tensor", np.int32, offset=header
    )
    return (
        torch.from_numpy(features.astype(np.float32)).reshape(-1, 5),
        torch.from_numpy(coords).reshape(-1, 4),
    )


def load_points(data: Path) -> torch.Tensor:
    """Return the (271156, 5) float32 points of frame C: ten sweeps in one LiDAR frame."""
    (path,) = (data / "nuscenes" / "multisweep_points").glob("*.bin")
    return torch.from_numpy(np.fromfile(path, np.float16).astype(np.float32)).reshape(-1, 5)
