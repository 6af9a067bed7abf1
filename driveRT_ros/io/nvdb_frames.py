"""Voxels of clouds as NanoVDB files, one by one or beside a detector that waits for no disk."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.sparse_types import Voxels
from driveRT_ros.core.turn import Turn
from driveRT_ros.core.voxelize import voxelize
from driveRT_ros.io.nvdb import INDEX_SUFFIX, SUFFIX, write_frame_grid

_STAMP = 19 * "[0-9]"
"""Stamps in names of files, as patterns have them."""
_HEIGHT, _INTENSITY = 2, 3
"""Columns of the voxel features."""
_NICE = 10
"""How far the thread that writes stands back for others."""
_LATE = (
    "The voxels of a frame are not written, because those of the one before still are; raise "
    "diagnostics.nanovdb_every."
)


def write_cloud_grid(
    path: Path,
    points: torch.Tensor,
    config: LidarConfig,
    features: Callable[[Voxels], torch.Tensor] | None = None,
    codec: str = "zip",
) -> Voxels:
    """Write the voxels of a cloud as two files; see :func:`io.nvdb.write_frame_grid`.

    Args:
        path: The file of float grids.
        points: (N, 5) float32 on the CPU.
        config: How they are voxelized: turned for the network. The grids lie in their own frame.
        features: Gives (V, C) features of voxels, written as another channel.
        codec: ``zip`` or ``none``.

    Returns:
        The voxels.
    """
    grid, turn = config.voxelization, Turn.to_network(config)
    voxels = voxelize(turn.rows(points), grid)
    channels = {
        "intensity": voxels.features[:, _INTENSITY].numpy(),
        "height": voxels.features[:, _HEIGHT].numpy(),
        "point_count": voxels.num_points.numpy(),
    }
    if features is not None:
        channels["feature"] = features(voxels).numpy()
    cells_zyx = voxels.coords_bzyx[:, 1:].numpy()
    (size_x, size_y, size_z), (low_x, low_y, low_z, *_) = grid.voxel_size, grid.point_cloud_range
    size_xyz, low_xyz = (size_x, size_y, size_z), (low_x, low_y, low_z)
    write_frame_grid(path, cells_zyx, channels, size_xyz, low_xyz, turn=turn.back, codec=codec)
    return voxels


class GridFiles:
    """Write the voxels of every so manieth frame, in a thread of low priority, and keep the newest.

    A frame that comes while one is still being written is left out: nothing waits for a disk,
    nothing piles up. Points on a GPU are copied to the host first, and for that copy, of 20 bytes a
    point, the caller does wait. Files are complete or not there. One thread calls this.

    Args:
        owner: Name of the node; files of others in the same folder stay.
    """

    def __init__(self, owner: str = "") -> None:
        self._prefix = prefix_of(owner)
        self._frames = 0
        self._thread: threading.Thread | None = None
        self._faults: dict[str, str] = {}
        self._lock = threading.Lock()

    def frame(self, stamp_ns: int, points: torch.Tensor, config: LidarConfig) -> dict[str, str]:
        """Take a frame.

        Args:
            stamp_ns: Names the files.
            points: (N, 5) float32, on any device; nobody may change them any more.
            config: Where to write how often, and how points are voxelized.

        Returns:
            What went wrong since the last frame: sentence by kind of fault.
        """
        with self._lock:
            faults, self._faults = self._faults, {}
        settings = config.diagnostics
        if settings.nanovdb_dir:
            if self._frames % settings.nanovdb_every == 0 and not self._begin(
                stamp_ns, points, config
            ):
                faults["nanovdb_late"] = _LATE
            self._frames += 1
        return faults

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is being written; return False on timeout."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _begin(self, stamp_ns: int, points: torch.Tensor, config: LidarConfig) -> bool:
        if not self.wait(0.0):
            return False
        self._thread = threading.Thread(
            target=self._write, args=(stamp_ns, points.cpu(), config), name="nanovdb", daemon=True
        )
        self._thread.start()
        return True

    def _write(self, stamp_ns: int, points: torch.Tensor, config: LidarConfig) -> None:
        folder = Path(config.diagnostics.nanovdb_dir).expanduser()
        try:
            if sys.platform == "linux":  # where a thread has a priority of its own
                own = os.PRIO_PROCESS, threading.get_native_id()
                os.setpriority(*own, max(_NICE, os.getpriority(*own)))
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self._prefix}{stamp_ns:019d}{SUFFIX}"
            try:
                write_cloud_grid(path, points, config)
            finally:  # a disk may be full: old files go all the same
                keep_newest(folder, config.diagnostics.nanovdb_keep, self._prefix)
        except Exception as error:  # whatever it is, detection goes on, and the node tells of it
            reason = str(error) if isinstance(error, ConfigError) else f"{error}."
            with self._lock:
                self._faults["nanovdb_failed"] = (
                    f"The voxels of a frame are not written into diagnostics.nanovdb_dir: {reason}"
                )


def prefix_of(owner: str) -> str:
    """Return what stands before the stamp in names of files.

    Args:
        owner: Name of a node, such as ``/front/lidar_node``; empty for none.
    """
    name = owner.strip("/").replace("/", ".")
    return f"{name}_voxels_" if name else "voxels_"


def keep_newest(folder: Path, frames: int, prefix: str) -> None:
    """Remove files of all but the newest frames, and what was left half-written.

    Args:
        folder: Where :class:`GridFiles` writes; other files stay.
        frames: How many frames to keep.
        prefix: See :func:`prefix_of`.
    """
    for partial in folder.glob(f"{prefix}{_STAMP}.*.part"):
        partial.unlink(missing_ok=True)
    files = list(folder.glob(f"{prefix}{_STAMP}{SUFFIX}"))
    files.sort(key=lambda file: (file.stat().st_mtime_ns, file.name))
    for file in files[: max(0, len(files) - frames)]:
        file.with_name(file.name.removesuffix(SUFFIX) + INDEX_SUFFIX).unlink(missing_ok=True)
        file.unlink(missing_ok=True)
