"""Depths and features of one rig, and their sums, in memory that stays from frame to frame."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.bev_pool import StaticBevPool
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.pool_plan import PoolGpu, PoolSizes, choose_tactic
from driveRT_ros.core.pool_tactics import PoolShape
from driveRT_ros.core.pool_types import ScatterMap


class CameraPool:
    """Pools with the tactic of the Plan; what depends on the calibration is made once for each.

    Only :meth:`use` with another map waits for the device.

    Args:
        config: Cameras, model and Plan.
        device: Of the network.
        dtype: Of depths, features and results.

    Attributes:
        depth: (1, N, D, H, W) of the last frame.
        context: (1, N, H, W, C) of the last frame.
        sizes: What decides which tactic is fastest.
        tactic: The one that runs on CUDA.
        plan_note: A sentence on why ``plan_path`` is not used, or "".
    """

    def __init__(self, config: CameraConfig, device: torch.device, dtype: torch.dtype) -> None:
        model, cameras = config.model, len(config.cameras)
        rows, cols = model.image.feature_size_hw
        new = {"dtype": dtype, "device": device}
        channels = model.network.context_channels
        self.depth = torch.zeros((1, cameras, model.depth.bins, rows, cols), **new)
        self.context = torch.zeros((1, cameras, rows, cols, channels), **new)
        self.sizes = PoolSizes(
            PoolShape.of(self.depth, self.context, dtype),
            (cameras, model.depth.bins, rows, cols),
            int(np.prod(model.grid.shape_zyx)),
        )
        gpu = _gpu(device)
        if gpu is not None:
            self.tactic, self.plan_note = choose_tactic(config.plan_path, self.sizes, gpu)
        else:
            self.tactic, self.plan_note = self.sizes.default(), ""
        if gpu is None and config.plan_path:
            self.plan_note = (
                f"Plan '{config.plan_path}' is not used: device '{device}' runs the reference of "
                "pooling, which needs none; leave 'plan_path' empty or set 'device' to a CUDA "
                "device."
            )
        self._has_image: npt.NDArray[np.bool_] = np.ones(cameras, np.bool_)
        self._weights = torch.ones((1, cameras, 1, 1, 1), **new)
        self._map: ScatterMap | None = None
        self._pool: StaticBevPool | None = None

    def use(self, scatter_map: ScatterMap) -> None:
        """Pool with this map from now on."""
        if scatter_map is not self._map:
            self._pool = StaticBevPool(
                scatter_map,
                self.depth,
                self.context,
                out_dtype=self.context.dtype,
                tactic=self.tactic,
            )
            self._map = scatter_map

    def load(
        self, depth: torch.Tensor, context: torch.Tensor, has_image: npt.NDArray[np.bool_]
    ) -> None:
        """Take what one frame was lifted to.

        Args:
            depth: (1, N, D, H, W), finite.
            context: (1, N, H, W, C).
            has_image: (N,), cameras that are there; the others weigh nothing.
        """
        if not np.array_equal(has_image, self._has_image):  # a copy that waits, but rare
            self._weights.copy_(torch.from_numpy(has_image).reshape(self._weights.shape))
            self._has_image = has_image.copy()
        torch.mul(depth, self._weights, out=self.depth)
        self.context.copy_(context)

    def __call__(self) -> torch.Tensor:
        """Return (1, Z, Y, X, C), the same tensor until another map is used."""
        assert self._pool is not None, "a map comes first"
        return self._pool()


def _gpu(device: torch.device) -> PoolGpu | None:
    """Return the GPU whose kernels pool, None where the reference does."""
    return PoolGpu.of(device) if device.type == "cuda" else None
