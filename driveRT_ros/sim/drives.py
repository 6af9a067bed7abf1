"""Many drives, simulated on several processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import torch

from driveRT_ros.core.frame import SceneFrame
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate


def simulate_all(drives: Sequence[SimConfig], jobs: int = 1) -> Iterator[list[SceneFrame]]:
    """Yield the frames of each drive, in the order given; the number of processes changes nothing.

    Args:
        drives: What to simulate.
        jobs: Processes; with 1 this process simulates.
    """
    jobs = min(jobs, len(drives))
    if jobs <= 1:
        yield from map(_frames_of, drives)
        return
    # spawned, not forked: CUDA and threads of this process do not survive a fork
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,))
    ahead: deque[Future[list[SceneFrame]]] = deque()
    try:
        for drive in drives:
            ahead.append(pool.submit(_frames_of, drive))
            if len(ahead) > 2 * jobs:  # so that a slow reader does not pile up clouds
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _frames_of(drive: SimConfig) -> list[SceneFrame]:
    return list(simulate(drive))
