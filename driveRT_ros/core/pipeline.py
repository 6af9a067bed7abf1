"""The hot path: points in, detections out."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.back_end import BackEnd, Found, ReferenceBackEnd
from driveRT_ros.core.bev_grid import build_bev_grid
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.fingerprint import frame_fingerprint, row_crcs
from driveRT_ros.core.frame import Detections, FrameReport
from driveRT_ros.core.front_end import FrontFrame, make_front_end
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.raw_cloud import Cloud, CountedRows, exact
from driveRT_ros.core.sparse_types import NUM_FEATURES, SparseTensor
from driveRT_ros.core.sparsity import SparsityMonitor
from driveRT_ros.core.stages import StageClock, device_named
from driveRT_ros.core.turn import Turn
from driveRT_ros.models.voxelnext import VoxelNeXtWeights, untrained_weights

__all__ = ["CameraPipeline", "LidarPipeline"]

FAULTY_SHARE = 0.01
"""Share of faulty head outputs above which the frame carries the note ``faulty_head_output``."""


class LidarPipeline:
    """VoxelNeXt on one device.

    On a CUDA device the sparse engine runs, in the precision and with the Plan of the
    configuration; on a CPU, and in float64, the reference.

    Args:
        config: Grid, model, precision, Plan and post-processing.
        weights: Weights of this model; None runs seeded untrained ones and says so in the report.
        device: ``auto`` (CUDA where there is a device), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: float32, or float64 to verify it; of every feature and of the boxes returned.
        graph: Replay the frames of the engine from CUDA graphs; False enqueues kernel by kernel.

    Attributes:
        plan: What the engine runs; None for the reference.
        plan_note: A sentence on why ``plan_path`` is not used, or "".

    Raises:
        ConfigError: If the weights belong to another model, the device or dtype is unusable, or
            the model or the precision cannot run there.
        DeviceError: If the GPU, its driver or its compiler refuses.
    """

    def __init__(
        self,
        config: LidarConfig,
        weights: VoxelNeXtWeights | None = None,
        device: str | torch.device = "auto",
        dtype: torch.dtype = torch.float32,
        *,
        graph: bool = True,
    ) -> None:
        weights = weights or untrained_weights(config.model, config.seed)
        weights.require(config.model)
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"'dtype' must be torch.float32 or torch.float64, got {dtype}.")
        self.config = config
        self._turn = Turn.to_network(config)
        self.weights = weights
        self._sparsity = SparsityMonitor(config)
        self.device = device_named(device)
        self.dtype = dtype
        self.ops = Ops.for_device(self.device)
        self._tensors = weights.to(self.device, dtype)
        self._front_end, self.plan, self.plan_note = make_front_end(
            config, weights, self._tensors, self.device, dtype, graph=graph
        )
        self._graph = graph
        self._class_names = config.model.class_names
        self._back_end = self._make_back_end(config)

    @property
    def graph_note(self) -> str:
        """A sentence on why frames are not replayed from CUDA graphs, though they should, or ""."""
        return self._front_end.note or self._back_end.note

    def reconfigured(self, config: LidarConfig) -> LidarPipeline:
        """Return a pipeline with another configuration of the same model.

        Where grid, capacities, precision and Plan stay, it shares weights and engine with this one,
        so that changing a threshold costs nothing; the two must not run at the same time.
        """
        if _engine_settings(config) != _engine_settings(self.config):
            return LidarPipeline(config, self.weights, self.device, self.dtype, graph=self._graph)
        other = copy.copy(self)
        other.config = config
        other._turn = Turn.to_network(config)
        other._back_end = other._make_back_end(config)
        return other

    def warm_up(self) -> None:
        """Run two small frames, one with all that may be asked for, so that no real one is slow."""
        self.process(_warm_up_cloud(self.config), with_bev=True, with_fingerprint=True)
        self.process(np.zeros((0, NUM_FEATURES), np.float32))

    @torch.no_grad()
    def process(
        self,
        points: Cloud | npt.NDArray[np.floating],
        *,
        with_bev: bool = False,
        with_fingerprint: bool = False,
        with_sparsity: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> Detections:
        """Detect objects in one cloud.

        Args:
            points: (N, 5) float32 or float64 x, y, z in metres in the LiDAR frame (ahead is where
                ``input.forward_yaw_deg`` says), intensity 0..255, time lag in seconds >= 0. N = 0
                is an ordinary frame without objects. Where only the device knows how many they are,
                the engine does not ask.
            with_bev: Attach the bird's-eye-view layers.
            with_fingerprint: Put CRC-32 numbers into the report.
            with_sparsity: Put the sparsity of the frame, with predicted and measured time, into
                the report; builds every coordinate map once more.
            meanwhile: Called once the engine has its work, before the host waits for it: what comes
                next may be sent to the device. Never called by the reference.

        Returns:
            Boxes on the CPU in the frame of the points, with a full report. Their order is that of
            the heads, within a head the best score first, equal scores by class, then by cell
            (y, x); it is the same on every device.

        Raises:
            InvalidFrame: If ``points`` has another shape or dtype.
        """
        clock = StageClock(self.device, meanwhile)
        given = points if isinstance(points, CountedRows) else _checked(points)
        taken = self._front_end.take(self._turn.points(given))

        # Voxels, coordinate maps, six sparse levels: points to rows of the bird's-eye view.
        frame = self._front_end.run(taken, clock)

        # Heat at every row, boxes where it passes the threshold, overlapping ones suppressed.
        found = self._back_end.run(frame, clock, with_row_crcs=with_fingerprint)
        boxes, scores, labels = self._turn.back.boxes(found.boxes), found.scores, found.labels

        # What happened to this frame, and what identifies its result.
        cloud, grid = exact(taken), None
        if with_bev:
            layers = self._layers(frame.result().bev, found.heat())
            own = cloud if self._turn.is_none else exact(given)
            grid = build_bev_grid(own, self.config, layers)
        fingerprint = {}
        if with_fingerprint:
            shape = self.config.voxelization.sparse_shape_zyx
            rows = found.row_crcs or row_crcs(cloud, frame.result(), shape)
            fingerprint = frame_fingerprint(rows, grid, boxes, scores, labels)
        stage_ms, points_given = clock.stage_ms, cloud.shape[0]
        report = FrameReport(
            stage_ms=stage_ms,
            num_points=points_given,
            num_voxels=frame.voxels_per_level[0],
            voxels_per_level=frame.voxels_per_level,
            dropped={**frame.dropped, **found.dropped},
            notes=self._notes(points_given, frame, found),
            fingerprint=fingerprint,
            overflow=frame.overflow,
            high_water=self._front_end.high_water,
            sparsity=self._sparsity.look(frame.result(), stage_ms) if with_sparsity else None,
        )
        return Detections(boxes, scores, labels, self._class_names, report, grid)

    def _make_back_end(self, config: LidarConfig) -> BackEnd:
        reference = ReferenceBackEnd(config, self._tensors, self.ops)
        return self._front_end.back_end(config, reference)

    def _notes(self, points: int, frame: FrontFrame, found: Found) -> tuple[str, ...]:
        """Return the short keys of everything about this frame that a person should know."""
        dropped = found.dropped
        faulty = dropped["non_finite_boxes"] + dropped["implausible_boxes"]
        faulty_share = faulty / max(found.decoded, 1)
        notes = {
            "untrained_weights": not self.weights.trained,
            "empty_input": points == 0,
            "no_voxels": points > 0 and frame.voxels_per_level[0] == 0,
            "plan_not_used": self.plan_note != "",
            "precision_not_qualified": self.plan is not None and not self.plan.is_qualified,
            "graph_not_used": self.graph_note != "",
            "engine_overflow": bool(frame.overflow) and not frame.grown,
            "engine_grown": frame.grown,
            "top_k_reached": dropped["over_top_k_candidates"] > 0,
            "faulty_head_output": dropped["non_finite_heat"] > 0 or faulty_share > FAULTY_SHARE,
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
        return dict(zip(self._class_names, layers.numpy()))


def _checked(points: torch.Tensor | npt.NDArray[np.floating]) -> torch.Tensor:
    """Return the points as a tensor, of the same memory where torch can use it."""
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
    if isinstance(points, torch.Tensor):
        return points
    flags = points.flags
    if not (points.dtype.isnative and flags.c_contiguous and flags.writeable and flags.aligned):
        points = np.array(points, dtype=dtype, order="C")
    return torch.from_numpy(points)


def _engine_settings(config: LidarConfig) -> tuple[object, ...]:
    """Return all that a front end is built from."""
    return (
        config.voxelization,
        config.model,
        config.input.point_capacity,
        config.precision,
        config.plan_path,
        config.overflow_policy,
    )


def _warm_up_cloud(config: LidarConfig) -> npt.NDArray[np.float32]:
    """Return a (2000, 5) float32 patch of ground with a wall, in the middle of the range."""
    low, high = np.split(np.asarray(config.voxelization.point_cloud_range, np.float32), 2)
    rng = np.random.default_rng(0)
    xyz = (low + high) / 2 + rng.uniform((-5, -5, -0.5), (5, 5, 0.5), (2000, 3))
    xyz[1000:, 0] = xyz[0, 0]
    return np.concatenate((xyz, np.zeros((2000, 2))), axis=1, dtype=np.float32)
