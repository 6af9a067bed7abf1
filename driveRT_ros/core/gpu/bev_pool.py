"""Pool camera features on a GPU: compiled kernels by tactic."""

from __future__ import annotations

import torch

from driveRT_ros.core.cuda import Launch, kernel_on
from driveRT_ros.core.pool_tactics import PoolLaunch


def bind(launch: PoolLaunch, device: torch.device, *, dependent: bool = False) -> Launch:
    """Return a launch that can go any number of times while the tensors of ``launch`` live.

    Args:
        launch: The launch.
        device: CUDA device.
        dependent: See :class:`~driveRT_ros.core.cuda.Launch`.
    """
    kernel = kernel_on(device, launch.stem, launch.name, launch.defines)
    return kernel.bind(launch.grid, launch.block, launch.parameters, dependent=dependent)
