"""The heads behind the engine: one copy brings counts and boxes, and says which path goes on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from driveRT_ros.core.gpu.back_end import EngineBackEnd
from driveRT_ros.core.gpu.counts import FrameCounts
from driveRT_ros.core.gpu.domains import BEV_DILATED
from driveRT_ros.core.gpu.engine_frame import EngineFrame
from driveRT_ros.core.gpu.growth import HighWater
from driveRT_ros.core.stages import StageClock
from test.support.head_cases import COUNTS, HeadsCase, config, front_result, rows_of, tensors_of


class Counts:
    """The counts of an engine that has one: the rows it needed."""

    size = COUNTS

    def __init__(self, device, capacity):
        self._capacity = capacity
        self.needed = torch.zeros(COUNTS, dtype=torch.int32, device=device)

    def pack(self, out):
        out.copy_(self.needed)

    def named(self, words: np.ndarray) -> FrameCounts:
        needed = int(words[0])
        rows = (0,) * BEV_DILATED + (needed,)
        over = {"rows": (needed, self._capacity)} if needed > self._capacity else {}
        return FrameCounts(rows, 0, 0, 0, over)


class Recorder:
    """A back end that only remembers what it was asked."""

    def __init__(self):
        self.seen = []

    def run(self, front, clock):
        self.seen.append(front)


@pytest.mark.parametrize("graph", [False, True])
def test_what_fits_comes_from_the_heads_and_what_does_not_from_the_reference(
    backend, monkeypatch, graph
):
    settings = config()
    case, other = HeadsCase(backend, monkeypatch, settings, tensors_of(settings)), Recorder()
    counts, bev = Counts(backend.device, 100), rows_of(100)
    engine = SimpleNamespace(maps=SimpleNamespace(counts=counts))
    back_end = EngineBackEnd(engine, case.heads, lambda engine: None, other, graph=graph)
    want, cloud = case.find(bev), torch.zeros(0, 5)
    made = []

    def again(overflow):
        made.append(overflow)
        return front_result(bev, **overflow)

    for needed in (100, 101, 90, 100):
        frame = EngineFrame(engine, cloud, again, HighWater(), {})
        case.put(bev, needed=min(needed, 100))
        counts.needed[0] = needed
        clock = StageClock(backend.device)
        found = back_end.run(frame, clock)
        assert list(clock.stage_ms) == ["head", "postprocess"]
        if needed == 100:
            for mine, theirs in zip(
                (found.boxes, found.scores, found.labels), (want.boxes, want.scores, want.labels)
            ):
                assert torch.equal(mine, theirs)
            assert found.dropped == want.dropped and len(want.boxes) > 5
            assert frame.rows == 100 and frame.overflow == {}
        if needed == 101:
            assert found is None and other.seen == [frame.result()]
            assert frame.result().overflow == frame.overflow == {"rows": (101, 100)}
            assert frame.voxels_per_level == () and frame.dropped == {}
    assert made == [{"rows": (101, 100)}]  # the reference ran once, on the frame that did not fit
    assert back_end.graphs.captured == (graph and backend.name == "cuda")
    assert back_end.graphs.note == ""


def test_a_cloud_that_the_engine_never_saw_goes_on_in_the_reference(backend, monkeypatch):
    settings = config()
    case, other = HeadsCase(backend, monkeypatch, settings, tensors_of(settings)), Recorder()
    made = front_result(rows_of(3), points=(30, 20))
    clock = StageClock(backend.device)
    engine = SimpleNamespace(maps=SimpleNamespace(counts=Counts(backend.device, 9)))
    EngineBackEnd(engine, case.heads, lambda engine: None, other).run(made, clock)
    assert other.seen == [made]


def test_rows_in_another_order_than_that_of_their_cells_are_left_to_whoever_can_sort_them(
    backend, monkeypatch
):
    settings, bev = config(), rows_of(5)
    case = HeadsCase(backend, monkeypatch, settings, tensors_of(settings))
    counts = Counts(backend.device, 100)
    engine = SimpleNamespace(maps=SimpleNamespace(counts=counts, in_cell_order=False))
    back_end = EngineBackEnd(engine, case.heads, lambda engine: None, Recorder())
    case.put(bev)
    counts.needed[0] = 5
    frame = EngineFrame(engine, torch.zeros(0, 5), lambda overflow: None, HighWater(), {})
    found = back_end.run(frame, StageClock(backend.device), with_row_crcs=True)
    assert found.row_crcs == {} and frame.rows == 5
