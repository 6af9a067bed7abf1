"""The whole sparse engine in tests: on a GPU, or the same Python and kernels on the CPU shim."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import torch

from driveRT_ros.bench.frames import network_tensors
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu import backbone as backbone_module
from driveRT_ros.core.gpu import frame_maps as frame_maps_module
from driveRT_ros.core.gpu import heads as heads_module
from driveRT_ros.core.gpu import row_crcs as row_crcs_module
from driveRT_ros.core.ops import Ops
from driveRT_ros.models.voxelnext import Backbone
from test.support.launch import Backend

GPU = "CPU shim"
BACKEND = Backend("cpu-shim")

SMALL = {
    "voxelization.point_cloud_range": [-4.8, -3.6, -5.0, 4.8, 3.6, 3.0],
    "voxelization.voxel_size": [0.15, 0.15, 0.2],
    "voxelization.max_voxels": 1500,
    "input.point_capacity": 2000,
    "model.channels": [16] * 6,
}
"""A narrow network on 64 x 48 x 40 cells, with little room; the bird's-eye view has 8 x 6."""


class ShimKernel:
    """What ``core.cuda.Kernel`` is, but it runs on the shim."""

    def __init__(self, stem, name, defines=None, *, shared_bytes=0, device=None):
        assert device == torch.device("cpu")
        self.stem, self.name, self.shared = stem, name, shared_bytes
        self.defines = dict(defines or {})

    def bind(self, grid, block, *args, dependent=False):
        def launch(stream=None):
            how = {"defines": self.defines, "shared": self.shared}
            BACKEND.launch(self.stem, self.name, grid, block, *args, **how)

        return launch


class ShimBranch:
    """What ``core.cuda.Branch`` is where everything runs in order."""

    def __init__(self, device):
        assert device == torch.device("cpu")

    def fork(self):
        return 0

    def current(self):
        return contextlib.nullcontext()

    def join(self):
        pass


def put_on_the_shim(monkeypatch, capability=(9, 0)):
    """Let the engine on the device ``cpu`` take the shim for a small GPU."""
    monkeypatch.setattr(backbone_module, "Kernel", ShimKernel)
    monkeypatch.setattr(backbone_module, "Branch", ShimBranch)
    monkeypatch.setattr(frame_maps_module, "Kernel", ShimKernel)
    monkeypatch.setattr(heads_module, "Kernel", ShimKernel)
    monkeypatch.setattr(
        row_crcs_module,
        "grid_kernel",
        lambda stem, name, device: ShimKernel(stem, name, device=device),
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: GPU)
    properties = SimpleNamespace(multi_processor_count=1, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)


def street(count: int, seed: int, edge_m=(12.0, 9.6)) -> torch.Tensor:
    """Return points on a ground plane, a wall and crowded lumps, some outside the grid.

    Args:
        count: Points.
        seed: Of the generator.
        edge_m: Half the grid along x and y; z goes from -5 to 3.
    """
    rng = np.random.default_rng(seed)
    x, y = edge_m
    xyz = rng.uniform((-1.2 * x, -1.15 * y, -2), (1.2 * x, 1.15 * y, -1.7), (count, 3))
    wall, lump = count // 3, count // 10
    xyz[:wall] = rng.uniform((x / 3, -0.9 * y, -2), (x / 3 + 0.2, 0.9 * y, 2.8), (wall, 3))
    xyz[wall : wall + lump] = rng.normal((x / 6, y / 5, -1), 0.3, (lump, 3))
    extra = np.stack([rng.uniform(0, 255, count), rng.choice([0, 0.05, 0.1], count)], axis=1)
    return torch.from_numpy(np.concatenate([xyz, extra], axis=1).astype(np.float32))


def tensors_of(config: LidarConfig, device="cpu", dtype=torch.float32):
    """Return seeded weights with biases that are not zero."""
    return network_tensors(config, device, dtype)


def reference(config: LidarConfig, points: torch.Tensor):
    """Return voxels, maps and the rows of the float64 network on the CPU."""
    ops = Ops.for_device("cpu")
    backbone = Backbone(config.model, tensors_of(config, dtype=torch.float64), ops)
    voxels = ops.voxelize(points, config.voxelization)
    maps = backbone.build_maps(voxels.coords_bzyx, config.voxelization.sparse_shape_zyx)
    return voxels, maps, backbone.run(voxels.features.double(), maps)


def in_order(coords: torch.Tensor) -> torch.Tensor:
    """Return the order of rows by b, z, y, x."""
    b, z, y, x = coords.long().cpu().unbind(1)
    return (((b << 12 | z) << 16 | y) << 16 | x).argsort()


TOLERANCE = {"fp32": 1e-5, "fp32x3": 1e-5, "tf32": 2e-2, "fp16": 2e-2}
"""Largest error by precision, relative to the largest value of the result in float64."""


def check_result(backbone, config, points, tolerance, known=None):
    """Compare the last frame of an engine with the float64 network; ``known`` is its result."""
    voxels, maps, expected = known or reference(config, points)
    got = backbone.rows()
    assert backbone.maps.overflow() == {}
    for level, coords in zip(backbone.maps.levels, maps.level_coords):
        assert int(level.counts[1]) == len(coords)
    assert backbone.maps.dropped.tolist() == [
        voxels.dropped["non_finite_points"],
        voxels.dropped["out_of_range_points"],
    ]
    mine, theirs = in_order(got.coords_bzyx), in_order(expected.coords_bzyx)
    assert torch.equal(got.coords_bzyx.cpu()[mine], expected.coords_bzyx[theirs])
    assert got.features.dtype == torch.float32
    if len(theirs):
        error = (got.features.cpu().double()[mine] - expected.features[theirs]).abs().max()
        assert float(error) <= tolerance * float(expected.features.abs().max())
