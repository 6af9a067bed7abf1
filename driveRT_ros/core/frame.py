"""The value types that cross a border between io, core and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from driveRT_ros.core.sparsity import SparsityReport

NUSCENES_CLASSES = (
    "car",
    "truck",
    "construction_vehicle",
    "bus",
    "trailer",
    "barrier",
    "motorcycle",
    "bicycle",
    "pedestrian",
    "traffic_cone",
)
"""Class names in the order of VoxelNeXt's six nuScenes heads; a label is an index into this."""


@dataclass(frozen=True)
class DecodeReport:
    """What decoding a cloud left out, and what it had to assume.

    Args:
        num_input: Points in the message.
        dropped: Points left out, by reason (``non_finite``, ``over_capacity`` ...).
        notes: Short stable keys of assumptions made (``intensity_missing``,
            ``intensity_out_of_range``, ``row_padding`` ...).
    """

    num_input: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PointBatch:
    """One decoded LiDAR cloud; the arrays share their first dimension N.

    Args:
        xyz: (N, 3) float32, metres, in ``frame_id``.
        intensity: (N,) float32, 0..255 after the configured scale.
        time_lag_s: (N,) float32, seconds >= 0 from the point to ``stamp_ns`` (current - source).
        ring: (N,) int32 beam index, or None where the cloud has none.
        stamp_ns: Header stamp, integer nanoseconds.
        frame_id: Header frame.
        report: Dropped counts by reason, and assumptions.
        rows: (N, 5) float32 whose columns ``xyz``, ``intensity`` and ``time_lag_s`` are, where they
            were made that way; None where they are arrays of their own.
    """

    xyz: np.ndarray
    intensity: np.ndarray
    time_lag_s: np.ndarray
    ring: np.ndarray | None
    stamp_ns: int
    frame_id: str
    report: DecodeReport = field(default_factory=DecodeReport)
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.xyz)


@dataclass(frozen=True)
class CameraFrame:
    """One camera image with the calibration that belongs to its stamp.

    Args:
        name: Camera name, such as ``CAM_FRONT``.
        stamp_ns: Header stamp, integer nanoseconds.
        frame_id: Optical frame: x right, y down, z forward.
        image: (H, W, 3) uint8 RGB, or None while only ``encoded`` is known.
        encoded: Compressed bytes as recorded, or None.
        format: ``jpeg`` or ``png`` where ``encoded`` is set.
        K: (3, 3) float64 intrinsics in pixels.
        D: (n,) float64 distortion coefficients; empty means none.
        distortion_model: ``plumb_bob``, ``rational_polynomial`` or ``equidistant``.
        size_wh: Image width and height in pixels.
        T_ego_camera: (4, 4) float64 camera to ego frame.
    """

    name: str
    stamp_ns: int
    frame_id: str
    image: np.ndarray | None
    encoded: bytes | None
    format: str
    K: np.ndarray
    D: np.ndarray
    distortion_model: str
    size_wh: tuple[int, int]
    T_ego_camera: np.ndarray


@dataclass(frozen=True)
class FrameReport:
    """How one frame went: counts, milliseconds by stage, and everything that was left out.

    Args:
        stage_ms: Milliseconds by stage (``voxelize``, ``maps``, ``backbone``, ``head``,
            ``postprocess``; nodes add ``decode``, ``preprocess``, ``publish``, ``total``).
        num_points: Points given to the pipeline.
        num_voxels: Voxels kept.
        voxels_per_level: Active rows of each backbone level.
        dropped: Counts of what was left out, by reason (``out_of_range_points``,
            ``over_capacity_voxels``, ``non_finite_boxes``, ``over_top_k_candidates`` ...).
        notes: Short stable keys (``untrained_weights``, ``empty_input`` ...).
        fingerprint: CRC-32 by stage of the bytes that define the result, where it was asked for.
        overflow: What was needed and what there was room for, by name, where a frame did not fit
            the buffers of the GPU engine: then a larger one took its place (note ``engine_grown``)
            or the reference path made the frame (``engine_overflow``).
        high_water: The most that any frame so far needed of the GPU engine, and what there is room
            for, by name.
        sparsity: How sparse the frame is and what that should cost, where it was asked for.
    """

    stage_ms: Mapping[str, float] = field(default_factory=dict)
    num_points: int = 0
    num_voxels: int = 0
    voxels_per_level: tuple[int, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fingerprint: Mapping[str, int] = field(default_factory=dict)
    overflow: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    high_water: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sparsity: SparsityReport | None = None


@dataclass(frozen=True)
class BevGrid:
    """Named bird's-eye-view layers on one regular grid in ``frame_id``.

    Row r, column c covers x in [x0 + c*res, x0 + (c+1)*res) and y likewise with r: rows grow with
    +y and columns with +x, as nav_msgs/OccupancyGrid stores them.

    Args:
        layers: Name -> (rows, cols) float32; NaN means unknown.
        resolution_m: Cell size in metres.
        origin_xy: Lower-left corner (x0, y0) in metres.
    """

    layers: Mapping[str, np.ndarray]
    resolution_m: float
    origin_xy: tuple[float, float]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows (y) and columns (x)."""
        first = next(iter(self.layers.values()), np.empty((0, 0), np.float32))
        return first.shape[0], first.shape[1]


@dataclass(frozen=True)
class Detections:
    """3-D boxes of one frame, on the CPU, in the frame of the input points.

    Args:
        boxes: (M, 9) float32: centre x, y, z, length, width, height in metres, yaw in radians
            counter-clockwise about +z from +x, velocity vx, vy in m/s (NaN where unknown).
        scores: (M,) float32 in (0, 1]; 1 for ground truth.
        labels: (M,) int64 index into ``class_names``.
        class_names: Names by label.
        report: How the frame went.
        bev: BEV layers, present where they were asked for.
        num_points: (M,) int64 LiDAR points in each box, known for ground truth only.
        track_ids: (M,) int64 object identity over time, known for ground truth only.
    """

    boxes: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor
    class_names: tuple[str, ...] = NUSCENES_CLASSES
    report: FrameReport = field(default_factory=FrameReport)
    bev: BevGrid | None = None
    num_points: torch.Tensor | None = None
    track_ids: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @staticmethod
    def empty(
        class_names: tuple[str, ...] = NUSCENES_CLASSES,
        report: FrameReport | None = None,
    ) -> Detections:
        """Return no boxes, in the shapes and dtypes of a full result."""
        return Detections(
            boxes=torch.zeros(0, 9),
            scores=torch.zeros(0),
            labels=torch.zeros(0, dtype=torch.int64),
            class_names=class_names,
            report=report or FrameReport(),
        )


@dataclass(frozen=True)
class SceneFrame:
    """One recorded or simulated instant: what a data set, the simulator and a bag exchange.

    Args:
        points: The LiDAR sweep, in the LiDAR frame.
        T_world_ego: (4, 4) float64 ego to world at ``points.stamp_ns``; None where unknown.
        T_ego_lidar: (4, 4) float64 LiDAR to ego.
        ground_truth: Boxes in the LiDAR frame; None where the instant is not annotated.
        cameras: Images of this instant, possibly none.
    """

    points: PointBatch
    T_world_ego: np.ndarray | None
    T_ego_lidar: np.ndarray
    ground_truth: Detections | None = None
    cameras: tuple[CameraFrame, ...] = ()
