"""Depth logits and features of one rig, and their sums, in memory that stays between frames."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.bev_pool import StaticBevPool
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.plan import needs_no_plan
from driveRT_ros.core.pool_plan import PoolGpu, PoolSizes, choose_tactic
from driveRT_ros.core.pool_tactics import PoolShape
from driveRT_ros.core.pool_types import ScatterMap


class CameraPool:
    """Pools with the tactic of the Plan; what depends on the calibration is made once for each.

    The softmax over depths is part of pooling: on CUDA the weights of points are never written.
    Only :meth:`use` with another map waits for the device. What :meth:`load` and a call enqueue
    may be captured: the former as long as this lives, the latter until another map is used.

    Args:
        config: Cameras, model and Plan.
        device: Of the network.
        dtype: Of logits, features and results.

    Attributes:
        logits: (1, N, D, H, W) of the last frame.
        context: (1, N, H, W, C) of the last frame.
        present: (N,) float32, 1 where a camera is there; the others weigh nothing.
        out: (1, Z, Y, X, C) sums of the last frame.
        sizes: What decides which tactic is fastest.
        tactic: The one that runs on CUDA.
        plan_note: A sentence on why ``plan_path`` is not used, or "".
    """

    def __init__(self, config: CameraConfig, device: torch.device, dtype: torch.dtype) -> None:
        model, cameras = config.model, len(config.cameras)
        rows, cols = model.image.feature_size_hw
        new = {"dtype": dtype, "device": device}
        channels = model.network.context_channels
        self.logits = torch.zeros((1, cameras, model.depth.bins, rows, cols), **new)
        self.context = torch.zeros((1, cameras, rows, cols, channels), **new)
        self.sizes = PoolSizes(
            PoolShape.of(self.logits, self.context, dtype, logits=True),
            (cameras, model.depth.bins, rows, cols),
            int(np.prod(model.grid.shape_zyx)),
        )
        gpu = _gpu(device)
        if gpu is not None:
            self.tactic, self.plan_note = choose_tactic(config.plan_path, self.sizes, gpu)
        else:
            self.tactic, self.plan_note = self.sizes.default(), ""
        if gpu is None and config.plan_path:
            self.plan_note = needs_no_plan(config.plan_path, f"pooling on device '{device}'")
        if self.tactic.kind == "tiles":
            # The bins of a pixel side by side, as networks on a GPU leave them: the cells of a tile
            # mostly lie on one ray, so their logits share sectors.
            by_pixel = torch.zeros((1, cameras, rows, cols, model.depth.bins), **new)
            self.logits = by_pixel.movedim(-1, 2)
        self._has_image: npt.NDArray[np.bool_] = np.ones(cameras, np.bool_)
        self.present = torch.ones(cameras, device=device)
        self.out = torch.zeros((1, *model.grid.shape_zyx, channels), **new)
        self._map: ScatterMap | None = None
        self._pool: StaticBevPool | None = None

    def use(self, scatter_map: ScatterMap) -> bool:
        """Pool with this map from now on; return whether that is another one than before."""
        if scatter_map is self._map:
            return False
        self._pool = StaticBevPool(
            scatter_map,
            self.logits,
            self.context,
            logits=True,
            present=self.present,
            out=self.out,
            tactic=self.tactic,
        )
        self._map = scatter_map
        return True

    def mark(self, has_image: npt.NDArray[np.bool_]) -> None:
        """Say which cameras are there in the next frame.

        Args:
            has_image: (N,).
        """
        if np.array_equal(has_image, self._has_image):
            return
        present = torch.from_numpy(has_image.astype(np.float32))
        if self.present.is_cuda:
            present = present.pin_memory()  # from pageable memory the copy would wait
        self.present.copy_(present, non_blocking=True)
        self._has_image = has_image.copy()

    def load(self, logits: torch.Tensor, context: torch.Tensor) -> None:
        """Take what one frame was lifted to.

        Args:
            logits: (1, N, D, H, W), finite.
            context: (1, N, H, W, C).
        """
        self.logits.copy_(logits)
        self.context.copy_(context)

    def __call__(self) -> torch.Tensor:
        """Pool what was loaded; returns :attr:`out`."""
        assert self._pool is not None, "a map comes first"
        return self._pool()


def _gpu(device: torch.device) -> PoolGpu | None:
    """Return the GPU whose kernels pool, None where the reference does."""
    return PoolGpu.of(device) if device.type == "cuda" else None
