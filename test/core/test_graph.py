"""Stages run in order, from graphs where the device can, and as they are where it cannot."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest
import torch

from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.graph import StageGraphs
from test.support.failing_gpu import GPU, lost, out_of_memory, refused


def test_on_a_cpu_the_stages_run_as_they_are_and_laps_come_after_each():
    log = []
    stages = {name: lambda n=name: log.append(n) for name in ("maps", "backbone")}
    graphs = StageGraphs(stages, torch.device("cpu"))
    graphs.run(lambda name: log.append(f"lap {name}"))
    graphs.capture()
    graphs.run()
    assert log == ["maps", "lap maps", "backbone", "lap backbone", "maps", "backbone"]
    assert not graphs.captured and graphs.note == ""


class FakeCuda:
    """torch.cuda where there is no GPU: a capture runs its work and raises what it is told."""

    OutOfMemoryError = torch.cuda.OutOfMemoryError
    device = stream = staticmethod(lambda _: contextlib.nullcontext())

    def __init__(self, during=None, at_end=None):
        self.during, self.at_end = during, at_end

    def Stream(self):  # noqa: N802 - named as torch names it
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    def set_stream(self, stream):
        pass

    @contextlib.contextmanager
    def graph(self, graph, stream, capture_error_mode):
        try:
            yield
            if self.during is not None:
                raise self.during
        finally:
            if self.at_end is not None:
                raise self.at_end


class Torch:
    def __init__(self, cuda):
        self.cuda = cuda

    def __getattr__(self, name):
        return getattr(torch, name)


def graphs_on(monkeypatch, cuda):
    monkeypatch.setattr("driveRT_ros.core.graph.torch", Torch(cuda))
    monkeypatch.setattr(
        "driveRT_ros.core.graph.WorkGraph", lambda: SimpleNamespace(replay=lambda: None)
    )
    return StageGraphs({"maps": lambda: None}, GPU)


INVALIDATED = RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize("at_end", [None, INVALIDATED], ids=["alone", "hidden by the end"])
@pytest.mark.parametrize("make", [out_of_memory, lost])
def test_a_capture_that_runs_out_of_memory_or_loses_the_device_is_no_refusal(
    make, at_end, monkeypatch
):
    """Swallowed, such a fault would cost every later frame its time, and nobody would know why."""
    fault = make()
    graphs = graphs_on(monkeypatch, FakeCuda(fault, at_end))
    with pytest.raises(type(fault)) as raised:
        graphs.run()
    assert raised.value is fault and graphs.note == "" and not graphs.captured
    monkeypatch.setattr("driveRT_ros.core.graph.torch", Torch(FakeCuda()))
    graphs.run()
    assert graphs.captured and graphs.note == ""


@pytest.mark.parametrize("fault", [refused(), INVALIDATED])
def test_any_other_fault_of_a_capture_is_noted_in_one_line_and_not_met_again(fault, monkeypatch):
    graphs = graphs_on(monkeypatch, FakeCuda(fault))
    graphs.run()
    note = graphs.note
    graphs.capture()
    assert not graphs.captured and graphs.note == note
    assert "refused to capture" in note and str(fault).rstrip(".") in note and "\n" not in note


class Device:
    """A counter on the GPU, and what the stages add to it."""

    def __init__(self):
        self.total = torch.zeros(4, device="cuda")
        self.step = torch.ones(4, device="cuda")

    def stages(self):
        return {
            "clear": self.total.zero_,
            "add": lambda: self.total.add_(self.step),
            "double": lambda: self.total.mul_(2),
        }


@pytest.mark.gpu
def test_graphs_do_what_the_stages_do_and_read_their_buffers_anew():
    device, laps = Device(), []
    graphs = StageGraphs(device.stages(), torch.device("cuda", 0))
    for step in (1.0, 3.0, 5.0):
        device.step.fill_(step)
        graphs.run(laps.append)
        assert device.total.tolist() == [2 * step] * 4
    assert graphs.captured and graphs.note == ""
    assert laps == ["clear", "add", "double"] * 3


@pytest.mark.gpu
def test_replays_never_wait_for_the_host():
    device = Device()
    graphs = StageGraphs(device.stages(), torch.device("cuda", 0))
    graphs.run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphs.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert device.total.tolist() == [2.0] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [RuntimeError("no"), DeviceError("no")])
def test_work_that_cannot_be_captured_runs_as_it_is_and_says_so(fault):
    device = Device()

    def forbidden():
        if torch.cuda.is_current_stream_capturing():
            raise fault
        device.total.add_(float(device.step[0]))

    stages = {"clear": device.total.zero_, "add": forbidden}
    graphs = StageGraphs(stages, torch.device("cuda", 0))
    for step in (1.0, 4.0):
        device.step.fill_(step)
        graphs.run()
        assert device.total.tolist() == [step] * 4
    assert not graphs.captured and f"({type(fault).__name__}: no)" in graphs.note
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.gpu
def test_other_threads_may_use_the_device_while_graphs_are_captured():
    stop, faults = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                # No random numbers: the generator of the device is one for all threads, and torch
                # refuses it outside of a capture that is under way.
                a = torch.ones(300, 300, device="cuda")
                float((a @ a).sum())  # allocates and waits
        except RuntimeError as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            device = Device()
            graphs = StageGraphs(device.stages(), torch.device("cuda", 0))
            graphs.run()
            assert graphs.captured, graphs.note
            assert device.total.tolist() == [2.0] * 4
    finally:
        stop.set()
        thread.join()
    assert faults == []
