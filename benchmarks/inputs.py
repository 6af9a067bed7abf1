"""Frames of the GPU benchmarks as point clouds, and the voxels that every candidate gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "test")]

from support import frames  # noqa: E402

from driveRT_ros.core.config import LidarConfig, VoxelizationConfig  # noqa: E402
from driveRT_ros.core.ops import Ops  # noqa: E402
from driveRT_ros.core.sweeps import SweepBuffer  # noqa: E402
from driveRT_ros.models.untrained import untrained_weights  # noqa: E402

SIMULATED = {"S10": (0, 10), "S1": (1, 1)}
"""Seed and sweeps of the simulated frames."""


@dataclass(frozen=True)
class Frame:
    """One cloud.

    Args:
        name: Short name.
        source: What it is.
        points: (N, 5) float32 x, y, z, intensity, time lag on the CPU.
        rows: Active rows of the six levels where a table holds them, else empty.
    """

    name: str
    source: str
    points: torch.Tensor
    rows: tuple[int, ...] = ()


def points_at_centres(coords_bzyx: torch.Tensor, config: VoxelizationConfig) -> torch.Tensor:
    """Return one point in the middle of every voxel, intensity and time lag drawn with seed 0."""
    rng = np.random.default_rng(0)
    low = np.array(config.point_cloud_range[:3])
    xyz = low + (coords_bzyx[:, [3, 2, 1]].numpy() + 0.5) * np.array(config.voxel_size)
    count = len(xyz)
    rest = np.stack([rng.uniform(0, 255, count), rng.integers(0, 10, count) * 0.05], axis=1)
    return torch.from_numpy(np.concatenate([xyz, rest], axis=1).astype(np.float32))


def distinct_voxels(count: int, config: VoxelizationConfig) -> torch.Tensor:
    """Return points in ``count`` voxels drawn with seed 0."""
    nx, ny, nz = config.grid_xyz
    cells = np.random.default_rng(0).choice(nx * ny * nz, count, replace=False)
    z, y, x = np.unravel_index(cells, (nz, ny, nx))
    coords = np.stack([np.zeros_like(z), z, y, x], axis=1)
    return points_at_centres(torch.from_numpy(coords), config)


def simulated(seed: int, sweeps: int, config: LidarConfig) -> torch.Tensor:
    """Return the newest of ``sweeps`` simulated sweeps joined with those before it."""
    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.sim.simulate import simulate

    buffer = SweepBuffer(config.densification_params)
    points = torch.zeros(0, 5)
    for frame in simulate(SimConfig(seed=seed, num_sweeps=sweeps)):
        points = buffer.push(frame.points, frame.T_world_ego @ frame.T_ego_lidar)
    return points


def load_frames(data: Path, names: list[str], config: LidarConfig) -> Iterator[Frame]:
    """Yield the frames named, in that order.

    Args:
        data: Folder of the real frames A, B and C.
        names: ``A``, ``B``, ``C`` or a key of :data:`SIMULATED`.
        config: Grid.

    Raises:
        SystemExit: If a real frame is not there.
    """
    for name in names:
        if name in SIMULATED:
            seed, sweeps = SIMULATED[name]
            source = f"simulator, seed {seed}, {sweeps} sweeps"
            yield Frame(name, source, simulated(seed, sweeps, config))
            continue
        try:
            if name == "C":
                points, source = frames.load_points(data), "nuScenes, 10 sweeps"
            else:
                _, coords = frames.load_voxels(data, name)
                points = points_at_centres(coords, config.voxelization)
                source = "voxel centres of a real frame"
        except (OSError, ValueError) as error:
            sys.exit(f"Frame {name} cannot be read from '{data}': {error}.")
        yield Frame(name, source, points, frames.ROWS[name])


def voxels_of(points: torch.Tensor, config: LidarConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features and (N, 4) coordinates that every peer gets, on the GPU.

    Voxels lie in order of first appearance, as a LiDAR records them.
    """
    voxels = Ops.for_device("cpu").voxelize(points, config.voxelization)
    return voxels.features.cuda(), voxels.coords_bzyx.cuda()


def network_tensors(config: LidarConfig) -> dict[str, torch.Tensor]:
    """Return seeded float32 weights on the GPU, with biases that are not zero."""
    generator = torch.Generator().manual_seed(1)
    tensors = untrained_weights(config.model, 0).to("cpu", torch.float32)
    for name in sorted(tensors):
        if name.endswith(".bias"):
            noise = torch.randn(tensors[name].shape, generator=generator)
            tensors[name] = tensors[name] + 0.1 * noise
    return {name: tensor.cuda() for name, tensor in tensors.items()}
