"""From points to the bird's-eye-view rows that the heads share: one seam, two implementations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from driveRT_ros.core.back_end import BackEnd
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.plan import Plan, needs_no_plan
from driveRT_ros.core.raw_cloud import Cloud, exact
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.core.stages import StageClock
from driveRT_ros.models.voxelnext import Backbone, VoxelNeXtWeights


@dataclass(frozen=True, eq=False)
class FrontResult:
    """What the front end made of one cloud; its tensors hold until the next cloud.

    The order of the rows is the implementation's own.

    Args:
        bev: (M, C) rows on the bird's-eye-view grid, one z cell, on the device.
        voxel_coords_zyx: (V, 3) int32 cells of the voxels.
        voxel_features: (V, 5) mean of the points of each.
        voxels_per_level: Active rows of the six backbone levels.
        dropped: Counts of what was left out, by reason.
        overflow: What was needed and what there was room for, by name, where the buffers of the
            engine were too small.
        grown: Then a larger engine made this result, else the reference path.
        in_cell_order: Whether all rows are in the order of :mod:`driveRT_ros.core.fingerprint`.
    """

    bev: SparseTensor
    voxel_coords_zyx: torch.Tensor
    voxel_features: torch.Tensor
    voxels_per_level: tuple[int, ...]
    dropped: Mapping[str, int]
    overflow: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    grown: bool = False
    in_cell_order: bool = False

    def result(self) -> FrontResult:
        """Return itself: there is nothing to wait for."""
        return self


class FrontFrame(Protocol):
    """A cloud on its way through the front end; whatever is asked of it may wait for the device."""

    @property
    def voxels_per_level(self) -> tuple[int, ...]:
        """Active rows of the six backbone levels; those of the first are the voxels."""
        ...

    @property
    def dropped(self) -> Mapping[str, int]:
        """Counts of what was left out, by reason."""
        ...

    @property
    def overflow(self) -> Mapping[str, tuple[int, int]]:
        """See :class:`FrontResult`."""
        ...

    @property
    def grown(self) -> bool:
        """See :class:`FrontResult`."""
        ...

    def result(self) -> FrontResult:
        """Return what was made of it: the tensors, which not every frame is asked for."""
        ...


class FrontEnd(Protocol):
    """One implementation on one device."""

    @property
    def note(self) -> str:
        """A sentence on what makes it slower than it could be, or ""."""
        ...

    @property
    def high_water(self) -> Mapping[str, tuple[int, int]]:
        """The most that any frame needed, and what there is room for, by name."""
        ...

    def take(self, points: Cloud) -> Cloud:
        """Return a cloud on the device, in the dtype of the pipeline, perhaps still on its way.

        Args:
            points: (N, 5) float32 or float64 x, y, z, intensity, time lag, on any device. The cloud
                may share their memory, and holds until the next one.
        """
        ...

    def run(self, cloud: Cloud, clock: StageClock) -> FrontFrame:
        """Take one cloud as far as the heads, perhaps without waiting for the end.

        Args:
            cloud: What :meth:`take` returned last.
            clock: Given a lap after each of ``voxelize``, ``maps`` and ``backbone``.
        """
        ...

    def back_end(self, config: LidarConfig, reference: BackEnd) -> BackEnd:
        """Return what takes the rows of this front end to boxes.

        Args:
            config: Thresholds and limits; the model is that of the front end.
            reference: What serves any rows on the device.
        """
        ...


class ReferenceFrontEnd:
    """The operators of :class:`Ops`: any device, float32 and float64.

    Args:
        config: Grid and channels.
        tensors: Folded weights on the device.
        ops: The operators to run.
    """

    def __init__(self, config: LidarConfig, tensors: Mapping[str, torch.Tensor], ops: Ops) -> None:
        self._voxelization = config.voxelization
        self._ops = ops
        self._backbone = Backbone(config.model, tensors, ops)
        self._like = next(iter(tensors.values()))
        self.note = ""
        self.high_water: dict[str, tuple[int, int]] = {}

    def take(self, points: Cloud) -> torch.Tensor:
        """See :class:`FrontEnd`."""
        return exact(points).to(self._like)

    def run(self, cloud: Cloud, clock: StageClock) -> FrontResult:
        """See :class:`FrontEnd`."""
        # Points to voxels: the mean of the first points of each occupied cell.
        voxels = self._ops.voxelize(exact(cloud), self._voxelization)
        clock.lap("voxelize")

        # Every coordinate map of the frame; none depends on a feature.
        shape = self._voxelization.sparse_shape_zyx
        maps = self._backbone.build_maps(voxels.coords_bzyx, shape)
        clock.lap("maps")

        # Six sparse levels, the last three merged in the bird's-eye view.
        bev = self._backbone.run(voxels.features, maps)
        clock.lap("backbone")
        return FrontResult(
            bev=bev,
            voxel_coords_zyx=voxels.coords_bzyx[:, 1:],
            voxel_features=voxels.features,
            voxels_per_level=tuple(len(coords) for coords in maps.level_coords),
            dropped=voxels.dropped,
        )

    def back_end(self, config: LidarConfig, reference: BackEnd) -> BackEnd:
        """See :class:`FrontEnd`."""
        return reference


def make_front_end(
    config: LidarConfig,
    weights: VoxelNeXtWeights,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    dtype: torch.dtype,
    *,
    graph: bool = True,
) -> tuple[FrontEnd, Plan | None, str]:
    """Return the CUDA engine for float32 on a CUDA device, else the reference.

    Args:
        config: Grid, capacities, channels, precision and ``plan_path``.
        weights: Identify what a Plan was tuned with.
        tensors: The same weights on the device, in ``dtype``.
        device: Where to run.
        dtype: float32 or float64.
        graph: Replay the engine's frames from CUDA graphs.

    Returns:
        The front end, the Plan of the engine (None for the reference), and a sentence on why
        ``plan_path`` is not used, or "".

    Raises:
        ConfigError: If the precision or the model cannot run there.
    """
    reference = ReferenceFrontEnd(config, tensors, Ops.for_device(device))
    if device.type == "cuda" and dtype == torch.float32:
        from driveRT_ros.core.gpu.front_end import make_engine  # nothing a CPU needs

        return make_engine(config, weights, tensors, device, reference, graph=graph)
    where = f"{str(dtype).removeprefix('torch.')} on device '{device}'"
    if config.precision != "fp32":
        raise ConfigError(
            f"Parameter 'precision' is '{config.precision}', which needs a CUDA device, but this "
            f"is {where}; use 'fp32', or set 'device' to a CUDA device."
        )
    return reference, None, needs_no_plan(config.plan_path, where) if config.plan_path else ""
