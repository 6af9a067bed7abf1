"""What the host asks of the driver, counted: unlike times, it is the same on a busy machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import torch

_WORK = re.compile(r"cu(da)?(Launch|GraphLaunch|Mem(cpy|set))")


def work_enqueued(work: Callable[[], object]) -> Counter[str]:
    """Return how often each call that gives the device work is made, of a GPU that is warm."""
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    return Counter(event.name for event in found.events() if _WORK.match(event.name))


def graph_launches(calls: Counter[str]) -> int:
    """Return how many of the calls launch a CUDA graph."""
    return sum(count for name, count in calls.items() if "GraphLaunch" in name)
