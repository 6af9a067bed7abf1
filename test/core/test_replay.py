"""Work as a CUDA graph: its memory lives as long as it does."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from driveRT_ros.core import graph
from driveRT_ros.core.gpu import replay


class Recorded:
    """Stands in for a CUDA graph: like one, it keeps nothing that it was captured from."""


@pytest.fixture
def no_gpu(monkeypatch):
    """Let work be captured on a machine without a GPU."""

    def graph_of_torch(graph, stream, capture_error_mode):
        return contextlib.nullcontext()

    def stream():
        return SimpleNamespace(wait_stream=lambda other: None)

    monkeypatch.setattr(graph, "WorkGraph", Recorded)
    for name, stand_in in {
        "Stream": stream,
        "current_stream": stream,
        "stream": contextlib.nullcontext,
        "graph": graph_of_torch,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


def test_a_graph_keeps_the_operands_of_its_work_and_no_longer(no_gpu):
    """Operands that only the work knew were freed while the graph still had their addresses."""

    def product():
        a, b, out = torch.ones(4, 4), torch.ones(4, 4), torch.empty(4, 4)
        made = replay.captured(lambda: torch.mm(a, b, out=out))
        return made, [weakref.ref(tensor) for tensor in (a, b, out)]

    made, operands = product()
    gc.collect()
    assert [found().shape for found in operands] == [(4, 4)] * 3
    assert (operands[2]() == 4).all()
    del made
    assert [found() for found in operands] == [None] * 3  # at once: nothing is in a cycle


@pytest.mark.gpu
def test_on_a_gpu_memory_of_a_graph_is_given_to_nobody_else():
    """Others of the same size took the place of the operands; the next capture unmapped it."""
    shape = (2048, 2048)  # 16 MiB: segments of their own, which a capture returns to the driver
    out = torch.empty(shape, device="cuda")

    def product():
        a, b = torch.eye(2048, device="cuda"), torch.full(shape, 3.0, device="cuda")
        return replay.captured(lambda: torch.mm(a, b, out=out))

    made = product()
    others = [torch.full(shape, torch.nan, device="cuda") for _ in range(3)]
    for _ in range(2):
        out.zero_()
        assert replay.replay_times(made, 1, 2)[0] > 0
        assert (out == 3).all()
        others.clear()
        replay.captured(lambda: out.fill_(1.0))
