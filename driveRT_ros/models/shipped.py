"""The trained weights that come with the package, and who runs them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TypeVar

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig, VoxelizationConfig
from driveRT_ros.models import checkpoint, lss_weights
from driveRT_ros.models.stored import FileFormat

FOLDER = Path(__file__).resolve().parent / "weights"


@dataclasses.dataclass(frozen=True)
class Shipped:
    """One set of weights of the package.

    Args:
        name: Of the file, without suffix; its model card lies beside it.
        format: Of the file.
        max_bytes: The file may not be larger.
    """

    name: str
    format: FileFormat
    max_bytes: int

    def path(self, folder: Path | None = None) -> Path:
        """Return where the weights are, or would be."""
        return (folder or FOLDER) / f"{self.name}.safetensors"

    def card(self, folder: Path | None = None) -> Path:
        """Return where their model card is, or would be."""
        return (folder or FOLDER) / f"{self.name}.md"


LIDAR = Shipped("voxelnext_small_sim", checkpoint.FORMAT, max_bytes=6_000_000)
CAMERA = Shipped("lss_small_sim", lss_weights.FORMAT, max_bytes=12_000_000)

C = TypeVar("C", LidarConfig, CameraConfig)


def with_shipped_weights(config: C) -> C:
    """Return what a node or a command runs that was told no weights.

    Where the package holds trained weights, ``checkpoint_path`` and ``model`` become theirs. They
    stay as they are where weights are named, where shipped ones are not wanted, and where the model
    was chosen and is another one, or has voxels of another size or another range of z: the network
    knows heights by their place in that range. Any range of x and y will do.

    Args:
        config: As asked for.

    Raises:
        CheckpointError: If the file of the package cannot be read.
    """
    shipped = LIDAR if isinstance(config, LidarConfig) else CAMERA
    path = shipped.path()
    if config.checkpoint_path or not config.use_shipped_weights or not path.is_file():
        return config
    usual = _grid(VoxelizationConfig())
    if isinstance(config, LidarConfig) and _grid(config.voxelization) != usual:
        return config
    model = shipped.format.model(path, type(config.model))
    if config.model not in (type(config.model)(), model):
        return config
    return dataclasses.replace(config, checkpoint_path=str(path), model=model)


def _grid(voxels: VoxelizationConfig) -> tuple[float, ...]:
    """Return what a network depends on: voxel size, and bottom and top of the range."""
    return (*voxels.voxel_size, *voxels.point_cloud_range[2::3])
