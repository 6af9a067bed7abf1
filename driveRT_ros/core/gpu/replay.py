"""Work on the GPU as a CUDA graph, and the time that its replays take."""

from __future__ import annotations

from collections.abc import Callable

import torch


class WorkGraph(torch.cuda.CUDAGraph):
    """A CUDA graph that keeps the work which it replays, and so every tensor that it uses.

    A CUDA graph alone holds addresses: what they name may be freed, given to others and, as the
    next capture returns unused memory to the driver, unmapped.
    """

    work: Callable[[], None]


def captured(work: Callable[[], None]) -> WorkGraph:
    """Return ``work`` as a CUDA graph, after it ran twice; it keeps what ``work`` refers to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        work()
    torch.cuda.synchronize()
    graph = WorkGraph()
    graph.work = work
    with torch.cuda.graph(graph, stream=stream):
        work()
    torch.cuda.synchronize()
    return graph


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
