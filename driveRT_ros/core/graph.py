"""The stages of a frame as CUDA graphs: the host enqueues a stage with one call.

One graph a stage, not one a frame: stages are timed by ordinary events between them, and another
threshold captures the graphs of the heads alone. A graph is enqueued while the one before it is at
work, so its launch costs the frame nothing but that of the first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

import torch

from driveRT_ros.core.device_faults import OUT_OF_MEMORY, device_fault, first_line
from driveRT_ros.core.errors import DeviceError

Stages = Mapping[str, Callable[[], object]]

_capturing = threading.RLock()  # torch captures one graph at a time in a process


class WorkGraph(torch.cuda.CUDAGraph):
    """A CUDA graph that keeps the work which it replays, and so every tensor that it uses.

    A CUDA graph alone holds addresses: what they name may be freed, given to others and, as the
    next capture returns unused memory to the driver, unmapped.
    """

    work: Callable[[], object]


def run_twice(works: Collection[Callable[[], object]]) -> torch.cuda.Stream:
    """Enqueue all of ``works`` in order, twice; return the stream that is to capture them.

    What they need once (kernels of torch, its workspaces) must not be captured.
    """
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(2):
            for work in works:
                work()
    current.wait_stream(stream)
    return stream


def graph_of(work: Callable[[], object], stream: torch.cuda.Stream) -> WorkGraph:
    """Return ``work`` as a CUDA graph, captured on ``stream``; it keeps what ``work`` refers to."""
    graph, current = WorkGraph(), torch.cuda.current_stream()
    graph.work = work
    try:
        # Other threads may go on using CUDA: only what this one does is captured and checked.
        with _capturing, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
    except BaseException:
        torch.cuda.set_stream(current)  # torch stays on the other where its end fails, too
        raise
    return graph


class StageGraphs:
    """Work of a frame, stage by stage, replayed from CUDA graphs where that can be.

    Graphs are captured before the first run, after the stages ran twice on what is in their
    buffers. Where the device refuses to capture, and on a CPU, the stages run as they are.

    Args:
        stages: What each enqueues on torch's current stream, in order: kernels, copies and clears
            over fixed buffers, without waiting. All of them in order must be repeatable.
        device: Where they run.
        enabled: False runs them as they are.

    Attributes:
        note: A sentence on why no graph could be captured, or "".
    """

    def __init__(self, stages: Stages, device: torch.device, *, enabled: bool = True) -> None:
        self._stages, self._device = stages, device
        self._wanted = enabled and device.type == "cuda"
        self._replays: Stages | None = None
        self.note = ""

    @property
    def captured(self) -> bool:
        """Whether the next run replays graphs."""
        return self._replays is not None

    def run(self, lap: Callable[[str], None] = lambda stage: None) -> None:
        """Enqueue every stage on torch's current stream.

        Args:
            lap: Called after each stage with its name.
        """
        if self._wanted:
            self.capture()
        for stage, enqueue in (self._replays or self._stages).items():
            enqueue()
            lap(stage)

    def capture(self) -> None:
        """Capture the graphs, unless that was tried before; waits for the device.

        Raises:
            RuntimeError, DeviceError: As torch or the driver raises, where the device has run out
                of memory or is lost: then kernel by kernel would fail, too. The next call tries
                again.
        """
        if not self._wanted:
            return
        with torch.cuda.device(self._device):
            stream = run_twice(self._stages.values())
            try:
                graphs = {name: graph_of(do, stream) for name, do in self._stages.items()}
            except (RuntimeError, DeviceError) as error:
                # An end of a capture that fails, too, hides what went wrong before.
                for fault in (error.__context__, error):
                    if fault is not None and _is_fatal(fault):
                        raise fault from None
                self._wanted = False
                self.note = (
                    "The frame is not replayed from CUDA graphs, which costs the time of its "
                    f"launches: the device refused to capture ({first_line(error)})."
                )
                return
        self._wanted = False
        self._replays = {name: graph.replay for name, graph in graphs.items()}


def _is_fatal(error: BaseException) -> bool:
    fault = device_fault(error)
    return fault is not None and (fault.reason == OUT_OF_MEMORY or fault.context_lost)
