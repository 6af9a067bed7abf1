"""The whole camera frame in tests: kernels on the CPU shim, CUDA graphs of a stand-in."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from driveRT_ros.core import camera_stages, graph
from driveRT_ros.core.gpu.camera_input import CameraInput
from driveRT_ros.core.graph import StageGraphs
from test.core.test_graph import FakeCuda, Torch
from test.support.camera_engine import PoolingOnTheShim
from test.support.failing_gpu import GPU


class GraphsOnTheShim(PoolingOnTheShim):
    """Lets the camera pipeline on the device ``cpu`` believe that it captures CUDA graphs.

    A replay runs what was captured, on the buffers that it was captured with.

    Args:
        monkeypatch: Of the test.

    Attributes:
        captures: Times that each stage was captured.
        replays: Times that each was replayed.
        faults: Raised by the next captures of a stage, by its name.
    """

    def __init__(self, monkeypatch) -> None:
        super().__init__(monkeypatch)
        self.captures: Counter[str] = Counter()
        self.replays: Counter[str] = Counter()
        self.faults: dict[str, list[Exception]] = {}
        monkeypatch.setattr(camera_stages, "_input", self._make_input)
        monkeypatch.setattr(camera_stages, "StageGraphs", self._stage_graphs)
        monkeypatch.setattr(graph, "torch", Torch(FakeCuda()))
        monkeypatch.setattr(graph, "graph_of", self._captured)

    def _make_input(self, config, present):
        def bind(blocks, threads, value):
            def run():
                self.launches["fit_images"] += 1
                self.backend.launch("fit_images", "fit_images", blocks, threads, value)

            return run

        return CameraInput(config.model.image, present, bind, threads=2)

    def _stage_graphs(self, stages, device, *, enabled):
        (stage,) = stages
        named = {stage: _Named(stage, stages[stage])}
        return StageGraphs(named, GPU, enabled=enabled)

    def _captured(self, work, stream):
        for fault in self.faults.get(work.stage, ())[:1]:
            del self.faults[work.stage][0]
            raise fault
        self.captures[work.stage] += 1
        # What a graph holds are addresses: the launch of this moment, not what takes its place.
        frozen = work.frozen()

        def replay():
            self.replays[work.stage] += 1
            frozen()

        return SimpleNamespace(replay=replay)


class _Named:
    """A stage that knows its name."""

    def __init__(self, stage, work) -> None:
        self.stage, self._work = stage, work

    def __call__(self):
        return self._work()

    def frozen(self):
        """Return the stage with the launches that it has now."""
        stages = self._work.__self__
        fit, pool = getattr(stages._input, "fit", None), stages.pool._pool

        def run():
            now = stages._input.fit, stages.pool._pool
            stages._input.fit, stages.pool._pool = fit, pool
            try:
                self._work()
            finally:
                stages._input.fit, stages.pool._pool = now

        return run
