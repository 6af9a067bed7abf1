"""Frames that benchmarks and the tuner run on: simulated ones, and the real ones A, B and C."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from driveRT_ros.core.config import LidarConfig, VoxelizationConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import SceneFrame
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate

SIMULATED = {"S1": (1, 1), "S5": (3, 5), "S10": (0, 10), "S15": (2, 15)}
"""Seed and sweeps of the simulated frames: 18, 65, 95 and 140 thousand voxels."""
SHAPE_ZYX = (41, 1440, 1440)
"""Grid of the real frames."""
ROWS = {
    "A": (17_748, 27_774, 18_711, 9_838, 4_142, 1_645),
    "B": (79_745, 69_276, 29_723, 10_751, 3_406, 1_115),
    "C": (105_086, 111_372, 54_512, 22_296, 7_540, 2_517),
}
"""Active rows of the six levels of the real frames, from an independent simulation."""

TUNING_SWEEPS = (10, 1, 3, 6, 15)
"""Sweeps of the tuning frames of one drive; the first is the one that results are checked on."""
_TUNING_SEED = 1000
_HELD_OUT_DRIVES = 4
_LAG_S = 10.0  # as many sweeps as are asked for, however old


@dataclasses.dataclass(frozen=True, eq=False)
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


# ---- simulated ----------------------------------------------------------------------------------


def simulated(seed: int, sweeps: int, config: LidarConfig) -> Frame:
    """Return the newest sweep of a simulated drive joined with those before it."""
    (frame,) = drive(seed, (sweeps,), config)
    return frame


def drive(seed: int, sweeps: Sequence[int], config: LidarConfig) -> Iterator[Frame]:
    """Yield the end of one simulated drive, joined from as many sweeps as named, one frame each.

    Args:
        seed: Of the drive.
        sweeps: Sweeps of each frame.
        config: How sweeps are joined; its number of past sweeps and their age are replaced.
    """
    recorded = list(simulate(SimConfig(seed=seed, num_sweeps=max(sweeps))))
    for count in sweeps:
        points = joined(recorded[-count:], config, count - 1)
        source = f"simulator, seed {seed}, {count} sweeps"
        yield Frame(f"seed{seed}-{count}sweeps", source, points)


def joined(recorded: Iterable[SceneFrame], config: LidarConfig, past: int) -> torch.Tensor:
    """Return the last of some sweeps, joined with ``past`` before it."""
    rules = dataclasses.replace(
        config.densification_params, num_past_frames=past, max_time_lag_s=_LAG_S
    )
    buffer, points = SweepBuffer(rules), torch.zeros(0, 5)
    for frame in recorded:
        T_world_ego = frame.T_world_ego
        pose = None if T_world_ego is None else T_world_ego @ frame.T_ego_lidar
        points = buffer.push(frame.points, pose)
    return points


def tuning_frames(config: LidarConfig) -> Iterator[tuple[bool, Frame]]:
    """Yield 5 calibration frames (True) of one drive, then 20 held-out ones of four others."""
    for number in range(1 + _HELD_OUT_DRIVES):
        for frame in drive(_TUNING_SEED + number, TUNING_SWEEPS, config):
            yield number == 0, frame


# ---- real ---------------------------------------------------------------------------------------


def load_voxels(data: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, 5) float32 and coordinates (N, 4) int32 b, z, y, x of frame A or B."""
    folder = data / "sparseconv"
    if name == "A":
        features, coords_bxyz, *_ = torch.load(
            folder / "bevfusion_scn_input.pth", map_location="cpu", weights_only=True
        )
        return features.float(), coords_bxyz[:, [0, 3, 2, 1]].contiguous()
    header = 20
    features = np.fromfile(
        folder / "centerpoint" / "in_features.torch.fp16.tensor", np.float16, offset=header
    )
    coords = np.fromfile(
        folder / "centerpoint" / "in_indices_zyx.torch.int32.tensor", np.int32, offset=header
    )
    return (
        torch.from_numpy(features.astype(np.float32)).reshape(-1, 5),
        torch.from_numpy(coords).reshape(-1, 4),
    )


def load_points(data: Path) -> torch.Tensor:
    """Return the (271156, 5) float32 points of frame C: ten sweeps in one LiDAR frame."""
    (path,) = (data / "nuscenes" / "multisweep_points").glob("*.bin")
    return torch.from_numpy(np.fromfile(path, np.float16).astype(np.float32)).reshape(-1, 5)


def real(name: str, data: Path, config: LidarConfig) -> Frame:
    """Return frame A, B or C.

    Raises:
        ConfigError: If it is not there, or the grid is another one.
    """
    if config.voxelization.sparse_shape_zyx != SHAPE_ZYX:
        raise ConfigError(
            f"Frame {name} belongs to a grid of {SHAPE_ZYX} cells, the configuration has "
            f"{config.voxelization.sparse_shape_zyx}; use simulated frames."
        )
    try:
        if name == "C":
            return Frame(name, "nuScenes, 10 sweeps", load_points(data), ROWS[name])
        _, coords = load_voxels(data, name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"Frame {name} cannot be read from '{data}': {error}.") from None
    points = points_at_centres(coords, config.voxelization)
    return Frame(name, "voxel centres of a real frame", points, ROWS[name])


def present(data: Path | None) -> list[str]:
    """Return which of A, B and C a folder holds."""
    if data is None:
        return []
    places = {
        "A": "sparseconv/bevfusion_scn_input.pth",
        "B": "sparseconv/centerpoint/in_indices_zyx.torch.int32.tensor",
        "C": "nuscenes/multisweep_points/*.bin",
    }
    return [name for name, pattern in places.items() if any(data.glob(pattern))]


def load_frames(names: Sequence[str], data: Path | None, config: LidarConfig) -> Iterator[Frame]:
    """Yield the frames named, in that order.

    Args:
        names: ``A``, ``B``, ``C`` or a key of :data:`SIMULATED`.
        data: Folder of the real frames; None where there is none.
        config: Grid.

    Raises:
        ConfigError: If there is no such frame.
    """
    for name in names:
        if name in SIMULATED:
            yield dataclasses.replace(simulated(*SIMULATED[name], config), name=name)
        elif name in ROWS and data is not None:
            yield real(name, data, config)
        else:
            raise ConfigError(
                f"There is no frame '{name}'; there are {', '.join(SIMULATED)}"
                + (f" and {', '.join(ROWS)}." if data else ", and with --data A, B, C.")
            )


# ---- what candidates get ------------------------------------------------------------------------


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


def voxels_of(
    points: torch.Tensor, config: LidarConfig, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features and (N, 4) coordinates that every peer gets, on the device.

    Voxels lie in order of first appearance, as a LiDAR records them.
    """
    voxels = Ops.for_device("cpu").voxelize(points, config.voxelization)
    return voxels.features.to(device), voxels.coords_bzyx.to(device)


def network_tensors(
    config: LidarConfig, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return seeded weights on the device, float32 values, with biases that are not zero."""
    generator = torch.Generator().manual_seed(1)
    tensors = untrained_weights(config.model, 0).to("cpu", torch.float32)
    for name in sorted(tensors):
        if name.endswith(".bias"):
            noise = torch.randn(tensors[name].shape, generator=generator)
            tensors[name] = tensors[name] + 0.1 * noise
    return {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
