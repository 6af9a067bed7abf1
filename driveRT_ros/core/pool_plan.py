"""Which way to pool runs: the one of a Plan where it belongs here, else a safe default.

What is fastest depends on whether all that is read and written stays in the L2 cache, and on how
many features of which type a pixel has. A Plan records one tactic for each such key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from driveRT_ros.core.errors import ConfigError, PlanMismatch
from driveRT_ros.core.plan import Plan, default_instead
from driveRT_ros.core.pool_tactics import PoolShape, PoolTactic, default_tactic

FITS_L2, EXCEEDS_L2 = "fits_l2", "exceeds_l2"
_BYTES_OF_POINT = 12  # its ranks of depth, feature and cell, 32 bits each


@dataclass(frozen=True)
class PoolGpu:
    """What pooling needs to know of a GPU.

    Args:
        name: As torch gives it.
        l2_bytes: Size of its L2 cache.
    """

    name: str
    l2_bytes: int

    @staticmethod
    def of(device: torch.device) -> PoolGpu:
        """Return a CUDA device."""
        properties = torch.cuda.get_device_properties(device)
        return PoolGpu(torch.cuda.get_device_name(device), properties.L2_cache_size)


@dataclass(frozen=True)
class PoolSizes:
    """All that decides which tactic is fastest.

    Args:
        shape: Channels and types.
        frustum_shape: N, D, H, W.
        cells: Of the grid, all z levels.
    """

    shape: PoolShape
    frustum_shape: tuple[int, int, int, int]
    cells: int

    @property
    def working_set_bytes(self) -> int:
        """Depths, features, results, and the map with every frustum point in the grid."""
        n, _, h, w = self.frustum_shape
        per_point = self.shape.depth.itemsize + _BYTES_OF_POINT
        features = n * h * w * self.shape.features.itemsize
        results = self.cells * self.shape.out.itemsize
        points = math.prod(self.frustum_shape)
        return points * per_point + self.shape.channels * (features + results)

    def key(self, l2_bytes: int) -> str:
        """Return under which name a Plan holds the tactic, such as ``float16_c64_fits_l2``."""
        features = str(self.shape.features).removeprefix("torch.")
        fits = FITS_L2 if self.working_set_bytes <= l2_bytes else EXCEEDS_L2
        return f"{features}_c{self.shape.channels}_{fits}"

    def default(self) -> PoolTactic:
        """Return the tactic that runs without a Plan."""
        return default_tactic(self.shape, self.frustum_shape)


def choose_tactic(path: str | Path, sizes: PoolSizes, gpu: PoolGpu) -> tuple[PoolTactic, str]:
    """Return the tactic of a Plan, or the default where that is stale or foreign, and why.

    Args:
        path: File of the Plan; empty for the default.
        sizes: What is to be pooled.
        gpu: Where.

    Returns:
        A tactic that runs, and a sentence on what kept the file from being used, or "".
    """
    if not path:
        return sizes.default(), ""
    try:
        plan = Plan.load(path)
        plan.check_device(gpu.name)
        key = sizes.key(gpu.l2_bytes)
        if key not in plan.pools:
            known = f"only for {', '.join(sorted(plan.pools))}" if plan.pools else "for none"
            raise PlanMismatch(
                f"It has no way to pool for '{key}', {known}; tune again with 'drivert tune "
                "--camera'."
            )
        reason = plan.pools[key].supports(sizes.shape, sizes.frustum_shape)
        if reason:
            raise PlanMismatch(f"Its way to pool for '{key}' cannot run: {reason}.")
    except (ConfigError, PlanMismatch) as error:
        return sizes.default(), default_instead(path, error)
    return plan.pools[key], ""
