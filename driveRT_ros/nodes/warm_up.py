"""What a perception node does before its first frame, so that this is no slower than the next."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import torch

from driveRT_ros.core.cuda import device_arch
from driveRT_ros.core.kernel_builds import KernelBuild, compile_builds
from driveRT_ros.nodes.progress import Progress


def compile_kernels(builds: Sequence[KernelBuild], device: torch.device, log: Any) -> None:
    """Compile ahead what a pipeline will ask for, and say how far that is.

    Args:
        builds: The kernels; none on a CPU.
        device: Where they will run.
        log: A ROS logger.

    Raises:
        DeviceError: If there is no compiler, or it refuses a kernel.
    """
    if not builds:
        return
    arch, start_s = device_arch(device.index or 0), time.monotonic()
    log.info(f"Compiling {len(builds)} kernels for {arch}, or taking them from the cache.")
    with Progress(len(builds), log.info, "kernels compiled", bar=False) as progress:
        compile_builds(builds, arch, progress)
    log.info(f"All kernels are ready after {time.monotonic() - start_s:.1f} s.")


def warm_up(pipeline: Any, log: Any) -> None:
    """Run a pipeline on made-up data; say how long that took, and what it showed to be missing.

    Then look for garbage in everything that was imported and built. Python does so by itself once
    enough is new since the last time, which start-up may have left to any frame; it stops all
    threads for a tenth of a second.
    """
    start_s = time.monotonic()
    pipeline.warm_up()
    gc.collect()
    log.info(f"Warmed up in {time.monotonic() - start_s:.2f} s.")
    if note := getattr(pipeline, "graph_note", ""):  # not known before
        log.warning(note)
