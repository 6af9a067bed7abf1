"""Real voxelized frames, and the row counts that an independent simulation found for them."""

from __future__ import annotations

from driveRT_ros.bench.frames import ROWS, SHAPE_ZYX, load_points, load_voxels

__all__ = ["BEV_ROWS", "ROWS", "SHAPE_ZYX", "TAPS", "load_points", "load_voxels"]

TAPS = {
    "A": (3.3, 10.2, 12.5, 13.8, 14.6, 15.4),
    "B": (7.4, 14.0, 16.3, 16.7, 16.2, 15.3),
    "C": (6.1, 12.7, 14.7, 15.7, 15.8, 15.9),
}
"""Mean taps with an input in a 3x3x3 submanifold convolution of each level."""

BEV_ROWS = {"A": (5_921, 11_435), "B": (4_958, 8_023), "C": (11_318, 18_276)}
"""Rows after the merge of levels 4 to 6, and after the dilating convolution on them."""
