"""What of a batch no weight decides, made while the step before it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    batches: Iterator[T], prepare: Callable[[T], R], device: torch.device, count: int
) -> Iterator[R]:
    """Prepare one batch after the other, each in a thread while the one before it is learned from.

    On a GPU the thread has a stream of its own; the caller's stream waits for what was prepared.
    Tensors belong to the stream that allocated them: once freed, their memory is free at once for
    whatever that stream does next, even if another stream still has work to do with them. So batch
    n + 2 is begun only after an event that follows all work of step n in the caller's stream. Until
    then nobody frees batch n: this generator and the caller hold it. No tensor need be recorded.

    Args:
        batches: Taken by the caller's thread.
        prepare: Called in the other thread, one batch after the other.
        device: Where tensors are.
        count: How many are wanted; no more are taken.

    Yields:
        What ``prepare`` returned; to be held until the next is asked for, all work with it queued
        in the stream that is then the current one.
    """
    side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def work(batch: T, before: torch.cuda.Event | None) -> tuple[R, torch.cuda.Event | None]:
        if side is None or before is None:
            return prepare(batch), None
        with torch.cuda.stream(side):  # the device, too: both are a matter of the thread
            side.wait_event(before)
            return prepare(batch), side.record_event()

    def mark() -> torch.cuda.Event | None:
        return torch.cuda.current_stream(device).record_event() if side is not None else None

    def handed(pending: Future[tuple[R, torch.cuda.Event | None]]) -> R:
        ready, made = pending.result()
        if made is not None:
            torch.cuda.current_stream(device).wait_event(made)
        return ready

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare") as pool:
        pending = None
        for batch in itertools.islice(batches, count):
            ready = handed(pending) if pending is not None else None
            first, pending = pending is None, pool.submit(work, batch, mark())
            if not first:
                yield ready
        if pending is not None:
            yield handed(pending)
