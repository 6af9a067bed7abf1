"""Points as rows, and where their memory comes from: plain, or page-locked beside a GPU.

Whoever asks for rows owns them. Page-locked memory comes from torch's cache of it and goes back
there with the last reference, so a stream of clouds touches no fresh pages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.sparse_types import NUM_FEATURES

Rows = npt.NDArray[np.float32]
"""(N, 5) float32 x, y, z, intensity, time lag."""

RowMaker = Callable[[int], Rows]
"""Returns that many rows, C-contiguous, with any values in them."""


def plain_rows(count: int) -> Rows:
    """Return rows of ordinary memory."""
    return np.empty((count, NUM_FEATURES), np.float32)


def pinned_rows(count: int) -> Rows:
    """Return rows that a CUDA device fetches by itself, without a copy on the host.

    Where CUDA refuses, they are of ordinary memory: slower, with the same result, and for a device
    that is lost the CPU goes on. What ails the device, its next frame tells.
    """
    try:
        rows = torch.empty((count, NUM_FEATURES), dtype=torch.float32, pin_memory=True)
    except RuntimeError:
        return plain_rows(count)
    return rows.numpy()


def rows_for(device: torch.device) -> RowMaker:
    """Return what makes rows that are on their way to a device."""
    return pinned_rows if device.type == "cuda" else plain_rows
