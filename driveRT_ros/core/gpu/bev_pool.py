"""Pool camera features on a GPU: compiled kernels by tactic."""

from __future__ import annotations

import functools

import torch

from driveRT_ros.core.cuda import Kernel, Launch
from driveRT_ros.core.pool_tactics import PoolLaunch


@functools.cache
def _kernel(device: int, stem: str, name: str, defines: tuple[tuple[str, int], ...]) -> Kernel:
    return Kernel(stem, name, dict(defines), device=device)


def bind(launch: PoolLaunch, device: torch.device, *, dependent: bool = False) -> Launch:
    """Return a launch that can go any number of times while the tensors of ``launch`` live.

    Args:
        launch: The launch.
        device: CUDA device.
        dependent: See :class:`~driveRT_ros.core.cuda.Launch`.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    kernel = _kernel(index, launch.stem, launch.name, tuple(sorted(launch.defines.items())))
    return kernel.bind(launch.grid, launch.block, launch.parameters, dependent=dependent)
