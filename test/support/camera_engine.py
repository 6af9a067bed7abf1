"""The camera pipeline in tests: its Python for a GPU, its kernels on the CPU shim."""

from __future__ import annotations

from collections import Counter

from driveRT_ros.core import bev_pool, camera_pool, camera_rig
from driveRT_ros.core.gpu import scatter_map
from driveRT_ros.core.pool_plan import PoolGpu
from test.support.launch import Backend

SHIM = PoolGpu("CPU shim", 1 << 20)


class PoolingOnTheShim:
    """Lets ``CameraPipeline`` on the device ``cpu`` take the shim for a GPU, and counts.

    Args:
        monkeypatch: Of the test.

    Attributes:
        backend: Where the kernels run.
        launches: Times that each kernel ran.
        bound: Launches that pool and were prepared, the newest last.
    """

    def __init__(self, monkeypatch) -> None:
        self.backend = Backend("cpu-shim")
        self.launches: Counter[str] = Counter()
        self.bound: list = []
        monkeypatch.setattr(bev_pool, "_binder", lambda device: self._bind)
        monkeypatch.setattr(camera_pool, "_gpu", lambda device: SHIM)
        monkeypatch.setattr(camera_rig, "build_scatter_map", self._build)

    def _bind(self, launch, device, *, dependent=False):
        if launch.name.startswith("pool_"):
            self.bound.append(launch)

        def run():
            args = (launch.stem, launch.name, launch.grid, launch.block, launch.parameters)
            self.launches[launch.name] += 1
            self.backend.launch(*args, defines=dict(launch.defines))

        return run

    def _build(self, geometry, frustum, grid, *, device, rounding):
        def run(name, blocks, threads, *args):
            self.launches[name] += 1
            self.backend.launch("scatter_map", name, blocks, threads, *args)

        return scatter_map.build_scatter_map(geometry, frustum, grid, rounding, device, run)
