"""From messages to the points that the detector takes: on the host, or by the GPU it runs on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from driveRT_ros.core.config import InputConfig, LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.gpu.unpack_points import UnpackedCloud
from driveRT_ros.core.raw_cloud import Cloud, CloudSummary, RawCloud, exact
from driveRT_ros.core.rows import rows_for
from driveRT_ros.core.sweeps import sweeps_for
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.raw_pointcloud import read_raw


class CloudInput:
    """Decode and accumulate.

    Beside a GPU the host looks at the layout of a message alone, and the GPU does the rest; what
    its values turn out to be, :meth:`settle` tells once the frame is through.

    Args:
        config: Which past sweeps to join.
        device: Where sweeps are joined.
    """

    def __init__(self, config: LidarConfig, device: torch.device) -> None:
        self._make_rows, self._unpacks = rows_for(device), device.type == "cuda"
        self._sweeps = sweeps_for(config.densification_params, device)

    def clear(self) -> None:
        """Forget past sweeps."""
        self._sweeps.clear()

    def read(self, msg: Any, config: InputConfig) -> PointBatch | RawCloud:
        """Decode a PointCloud2, or check that it can be.

        Raises:
            InvalidFrame: If it cannot.
        """
        if self._unpacks:
            return read_raw(msg, config, self._make_rows)
        return decode(msg, config=config, make_rows=self._make_rows)

    def push(self, cloud: PointBatch | RawCloud, T_world_lidar: np.ndarray | None) -> Cloud:
        """Add a cloud and return it together with those before it.

        Args:
            cloud: What :meth:`read` returned.
            T_world_lidar: (4, 4) pose at its stamp; None without past sweeps.

        Raises:
            InvalidFrame: If the pose or the cloud cannot be used; it is not kept.
        """
        if isinstance(cloud, PointBatch):
            return self._sweeps.push(cloud, T_world_lidar)
        try:
            return self._sweeps.push_raw(cloud, T_world_lidar)
        except InvalidFrame:  # of the host, where the GPU cannot decode
            self._sweeps.take_back()
            raise

    def settle(
        self, cloud: PointBatch | RawCloud, points: Cloud
    ) -> tuple[PointBatch | CloudSummary, torch.Tensor]:
        """Return what decoding found and the points; waits for the GPU where it is not through.

        Args:
            cloud: What :meth:`push` took last.
            points: What it returned.

        Raises:
            InvalidFrame: If its values cannot be used; it is not kept.
        """
        if isinstance(cloud, PointBatch):
            return cloud, exact(points)
        if not isinstance(points, UnpackedCloud):
            return cloud.decode(), exact(points)
        try:
            return points.summary(), points.exact()
        except InvalidFrame:
            self._sweeps.take_back()
            raise
