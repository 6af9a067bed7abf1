"""Sweeps that are joined and unpacked by the kernels of a GPU, on the CPU shim."""

from __future__ import annotations

import functools
from typing import Any

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.gpu.sweeps import DeviceSweepBuffer
from test.support.launch import Backend


def shim_sweeps(rules: DensificationConfig, shim: Backend) -> DeviceSweepBuffer:
    """Return what a GPU has, with every kernel on the shim."""

    def bind(name: str, grid: Any, block: int, *args: Any, dependent: bool = False) -> Any:
        return functools.partial(shim.launch, "unpack_points", name, grid, block, *args)

    run = functools.partial(shim.launch, "sweeps")
    return DeviceSweepBuffer(rules, shim.device, run=run, bind=bind)
