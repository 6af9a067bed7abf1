"""Work on the GPU as a CUDA graph, and the time that its replays take."""

from __future__ import annotations

from collections.abc import Callable

import torch

from driveRT_ros.core.graph import WorkGraph, graph_of, run_twice


def captured(work: Callable[[], object]) -> WorkGraph:
    """Return ``work`` as a CUDA graph, after it ran twice; it keeps what ``work`` refers to."""
    return graph_of(work, run_twice([work]))


def replay_times(graph: torch.cuda.CUDAGraph, samples: int, replays: int) -> list[float]:
    """Return the mean microseconds of a replay, once a sample."""
    times = []
    graph.replay()
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / replays)
    return times
