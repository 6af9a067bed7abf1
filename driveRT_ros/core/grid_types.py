"""What the operators on NanoVDB grids give back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from driveRT_ros.core.nanovdb_layout import GridHeader, Layout

STATS = np.dtype(
    [
        ("count", "<u8"),
        ("nans", "<u8"),
        ("mean", "<f8"),
        ("m2", "<f8"),
        ("minimum", "<i4"),
        ("maximum", "<i4"),
        ("bbox", "<i4", (2, 3)),
    ]
)
"""Statistics of one node: active values that are numbers, active values that are not, their mean,
the sum of their squared distances from it, keys of the extremes, and the first and last active
voxel along each axis (the last included)."""

NO_MINIMUM, NO_MAXIMUM = 2**31 - 1, -(2**31)
"""Extremes, or edges of a box, of nothing."""


def empty_stats(shape: int | tuple[int, ...]) -> np.ndarray:
    """Return statistics of nothing."""
    found = np.zeros(shape, STATS)
    found["minimum"], found["maximum"] = NO_MINIMUM, NO_MAXIMUM
    found["bbox"][..., 0, :], found["bbox"][..., 1, :] = NO_MINIMUM, NO_MAXIMUM
    return found


def keys_of(values: np.ndarray) -> np.ndarray:
    """Return int32 keys that are ordered as the values are, and -0 before +0.

    Args:
        values: float32 without NaN, or int32, which are their own keys.
    """
    if values.dtype.kind == "i":
        return values
    bits = np.ascontiguousarray(values).view(np.int32)
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def values_of(keys: np.ndarray, layout: Layout) -> np.ndarray:
    """Return the values that keys stand for."""
    if layout.value.kind == "i":
        return keys
    return (keys ^ (keys >> 31 & 0x7FFFFFFF)).astype(np.int32).view(np.float32)


@dataclass(frozen=True)
class Statistics:
    """Statistics of the active values of one grid.

    Args:
        count: Values that are numbers; a tile counts as the voxels that it stands for.
        nans: Values that are not; they are in no other figure but the box.
        minimum: Least value; the background where there is none. -0 is less than +0.
        maximum: Largest value; the background where there is none.
        mean: Their mean; the background where there is none, not finite where a value is not.
        stddev: Population standard deviation; not a number where a value is infinite.
        bbox_ijk: First and last active voxel along each axis, or None where there is none.
    """

    count: int
    nans: int
    minimum: float
    maximum: float
    mean: float
    stddev: float
    bbox_ijk: tuple[tuple[int, int, int], tuple[int, int, int]] | None


@dataclass(frozen=True)
class GridStats:
    """Statistics of every node of a grid; they may still be on their way.

    Args:
        records: (leaves + lower nodes + upper nodes + 1, 64) uint8, each a ``STATS``; the last one
            is that of the whole grid.
        background: (4,) uint8, bytes of the grid: the background.
        header: Of the grid.
    """

    records: torch.Tensor
    background: torch.Tensor
    header: GridHeader

    def host(self) -> np.ndarray:
        """Return the records as ``STATS``, waiting for them."""
        return self.records.cpu().numpy().reshape(-1).view(STATS)

    def whole(self) -> Statistics:
        """Return the statistics of the whole grid, waiting for them."""
        record = self.records[-1].cpu().numpy().view(STATS)[0]
        background = self.background.cpu().numpy().view(self.header.layout.value)[0].item()
        count, bbox = int(record["count"]), record["bbox"].tolist()
        extremes = values_of(np.array([record["minimum"], record["maximum"]]), self.header.layout)
        known = count > 0
        return Statistics(
            count=count,
            nans=int(record["nans"]),
            minimum=extremes[0].item() if known else background,
            maximum=extremes[1].item() if known else background,
            mean=float(record["mean"]) if known else float(background),
            stddev=float(np.sqrt(record["m2"] / count)) if known else 0.0,
            bbox_ijk=(tuple(bbox[0]), tuple(bbox[1])) if bbox[0][0] <= bbox[1][0] else None,
        )
