"""The hot path: points in, detections out."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.bev_grid import build_bev_grid
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import Detections, FrameReport
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_types import NUM_FEATURES, SparseTensor
from driveRT_ros.models.head import Heads, Proposals
from driveRT_ros.models.voxelnext import Backbone, VoxelNeXtWeights, untrained_weights

FAULTY_SHARE = 0.01
"""Share of faulty head outputs above which the frame carries the note ``faulty_head_output``."""


class LidarPipeline:
    """VoxelNeXt on one device.

    Args:
        config: Grid, model and post-processing.
        weights: Weights of this model; None runs seeded untrained ones and says so in the report.
        device: ``auto`` (CUDA where there is a device), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: float32, or float64 to verify it; of every feature and of the boxes returned.

    Raises:
        ConfigError: If the weights belong to another model, or the device or dtype is unusable.
    """

    def __init__(
        self,
        config: LidarConfig,
        weights: VoxelNeXtWeights | None = None,
        device: str | torch.device = "auto",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        weights = weights or untrained_weights(config.model, config.seed)
        if weights.config != config.model:
            raise ConfigError(
                f"The weights of '{weights.source}' are for {weights.config.to_dict()}, but "
                f"parameter group 'model' is {config.model.to_dict()}; make them agree."
            )
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"'dtype' must be torch.float32 or torch.float64, got {dtype}.")
        self.config = config
        self.weights = weights
        self.device = _device(device)
        self.dtype = dtype
        self.ops = Ops.for_device(self.device)
        self._shape_zyx = config.voxelization.sparse_shape_zyx
        tensors = weights.to(self.device, dtype)
        self._backbone = Backbone(config.model, tensors, self.ops)
        self._heads = Heads(config, tensors, self.ops.rotated_nms)

    @torch.no_grad()
    def process(
        self, points: torch.Tensor | npt.NDArray[np.floating], *, with_bev: bool = False
    ) -> Detections:
        """Detect objects in one cloud.

        Args:
            points: (N, 5) float32 or float64 x, y, z in metres in the LiDAR frame, intensity
                0..255, time lag in seconds >= 0. N = 0 is an ordinary frame without objects.
            with_bev: Attach the bird's-eye-view layers.

        Returns:
            Boxes on the CPU in the frame of the points, in the order of the heads and best first
            within a head, with a full report.

        Raises:
            InvalidFrame: If ``points`` has another shape or dtype.
        """
        clock = _StageClock(self.device)
        cloud = self._checked(points)

        # Points to voxels: the mean of the first points of each occupied cell.
        voxels = self.ops.voxelize(cloud, self.config.voxelization)
        clock.lap("voxelize")

        # Every coordinate map of the frame; none depends on a feature.
        maps = self._backbone.build_maps(voxels.coords_bzyx, self._shape_zyx)
        clock.lap("maps")

        # Six sparse levels, the last three merged in the bird's-eye view.
        bev = self._backbone.run(voxels.features, maps)
        clock.lap("backbone")

        # Heat at every row, boxes only where it passes the threshold.
        heat = self._heads.heat(bev.features)
        proposals, faults = self._heads.propose(bev, heat)
        clock.lap("head")

        # Overlapping boxes go, head by head.
        found = self._heads.suppress(proposals)
        boxes, scores, labels = (t.cpu() for t in (found.boxes, found.scores, found.labels))
        clock.lap("postprocess")

        # What happened to this frame, and what identifies its result.
        report = FrameReport(
            stage_ms=clock.stage_ms,
            num_points=len(cloud),
            num_voxels=len(voxels),
            voxels_per_level=tuple(len(coords) for coords in maps.level_coords),
            dropped={**voxels.dropped, **faults},
            notes=self._notes(len(cloud), len(voxels), proposals, faults),
            fingerprint={
                "coords": _crc32(voxels.coords_bzyx),
                "features": _crc32(voxels.features),
                "bev": _crc32(bev.features),
                "detections": _crc32(boxes, scores, labels),
            },
        )
        grid = build_bev_grid(cloud, self.config, self._layers(bev, heat)) if with_bev else None
        return Detections(boxes, scores, labels, self.config.model.class_names, report, grid)

    def _checked(self, points: torch.Tensor | npt.NDArray[np.floating]) -> torch.Tensor:
        """Return the points on the device in the dtype of the pipeline."""
        if isinstance(points, np.ndarray):
            dtype = points.dtype.name
        elif isinstance(points, torch.Tensor):
            dtype = str(points.dtype).removeprefix("torch.")
        else:
            kind = type(points).__name__
            raise InvalidFrame("Points must be an array.", "points", kind, "torch or numpy array")
        if points.ndim != 2 or points.shape[1] != NUM_FEATURES:
            raise InvalidFrame(
                "Points must be rows of x, y, z, intensity, time lag.",
                "points",
                tuple(points.shape),
                f"(N, {NUM_FEATURES})",
            )
        if dtype not in ("float32", "float64"):
            raise InvalidFrame(
                "Points of another type may have lost precision; convert them where they are made.",
                "points",
                dtype,
                "float32 or float64",
            )
        if isinstance(points, np.ndarray):  # of any byte order, strides and protection
            points = torch.from_numpy(np.array(points, dtype=dtype, order="C"))
        return points.to(device=self.device, dtype=self.dtype)

    def _notes(
        self, points: int, voxels: int, proposals: list[Proposals], faults: Mapping[str, int]
    ) -> tuple[str, ...]:
        """Return the short keys of everything about this frame that a person should know."""
        faulty = faults["non_finite_boxes"] + faults["implausible_boxes"]
        proposed = faulty + faults["out_of_range_boxes"] + sum(len(p.boxes) for p in proposals)
        notes = {
            "untrained_weights": not self.weights.trained,
            "empty_input": points == 0,
            "no_voxels": points > 0 and voxels == 0,
            "top_k_reached": faults["over_top_k_candidates"] > 0,
            "faulty_head_output": faults["non_finite_heat"] > 0 or faulty > FAULTY_SHARE * proposed,
        }
        return tuple(key for key, present in notes.items() if present)

    def _layers(
        self, bev: SparseTensor, heat: list[torch.Tensor]
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return the score of every class on the grid of the head, NaN where no row is."""
        scores = torch.sigmoid(torch.cat(heat, dim=1)).T.float().cpu()
        _, rows, cols = bev.spatial_shape_zyx
        layers = torch.full((len(scores), rows, cols), torch.nan)
        y, x = bev.coords_bzyx[:, 2].long().cpu(), bev.coords_bzyx[:, 3].long().cpu()
        layers[:, y, x] = scores
        return dict(zip(self.config.model.class_names, layers.numpy()))


class _StageClock:
    """Milliseconds between laps; on CUDA each lap waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.stage_ms: dict[str, float] = {}
        self._last_s = self._now_s()

    def lap(self, stage: str) -> None:
        now_s = self._now_s()
        self.stage_ms[stage] = (now_s - self._last_s) * 1e3
        self._last_s = now_s

    def _now_s(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def _device(name: str | torch.device) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Parameter 'device' '{name}' cannot be used: {error}. Use 'cpu' or 'auto'."
        ) from None
    return device


def _crc32(*tensors: torch.Tensor) -> int:
    """Return the CRC-32 of the bytes of the tensors, one after the other."""
    crc = 0
    for tensor in tensors:
        crc = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), crc)
    return crc
