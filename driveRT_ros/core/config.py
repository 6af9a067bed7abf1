"""Every parameter of the LiDAR detector: defaults, units and ranges. YAML only overrides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, group, param

FARTHEST_M = 8192.0
"""Coordinates beyond are spaced 1 mm or more in float32: too coarse for voxels."""

NUSCENES_FORWARD_YAW_DEG = 90.0
"""Where ahead is in clouds of nuScenes, and in simulated ones: along +y of the LiDAR."""


def _forward_yaw_deg(doc: str) -> Any:
    return param(NUSCENES_FORWARD_YAW_DEG, doc, unit="deg", ge=-360.0, le=360.0)


def _check_forward_yaw_deg(value: float) -> None:
    """Refuse what is a quarter or half turn in radians, to two digits after the point."""
    for quarters in (1, 2, 3):
        if abs(abs(value) - quarters * math.pi / 2) < 0.005:
            raise ConfigError(
                f"Parameter 'forward_yaw_deg' is in degrees, and {value:g} looks like radians; use "
                f"{math.copysign(90 * quarters, value):g}."
            )


@dataclass(frozen=True)
class VoxelizationConfig(Config):
    """The voxel grid; defaults are VoxelNeXt's for nuScenes (0.075 m)."""

    point_cloud_range: tuple[float, ...] = param(
        (-54.0, -54.0, -5.0, 54.0, 54.0, 3.0),
        "Range of points kept: x, y, z minimum, then maximum, in the frame of the network: that of "
        "the LiDAR, turned as 'input.forward_yaw_deg' says.",
        unit="m",
        lengths=(6,),
    )
    voxel_size: tuple[float, ...] = param(
        (0.075, 0.075, 0.2),
        "Voxel edge lengths x, y, z.",
        unit="m",
        ge=1e-3,
        lengths=(3,),
    )
    max_points_per_voxel: int = param(
        10, "Points averaged in a voxel: the first ones in input order.", ge=1, le=1024
    )
    max_voxels: int = param(
        160_000,
        "Voxels kept: the first ones in order of appearance. Also the room of the CUDA engine, "
        "which keeps more where 'overflow_policy' is 'retry'.",
        ge=1,
        le=4_000_000,
    )

    @property
    def grid_xyz(self) -> tuple[int, int, int]:
        """Cells along x, y, z."""
        low, high, size = (
            self.point_cloud_range[:3],
            self.point_cloud_range[3:],
            self.voxel_size,
        )
        nx, ny, nz = (round((b - a) / s) for a, b, s in zip(low, high, size))
        return nx, ny, nz

    @property
    def sparse_shape_zyx(self) -> tuple[int, int, int]:
        """Spatial shape of the sparse tensor; z has one spare cell, as VoxelNeXt was trained."""
        nx, ny, nz = self.grid_xyz
        return nz + 1, ny, nx

    def check(self) -> None:
        """Refuse an empty range."""
        for axis, low, high in zip("xyz", self.point_cloud_range[:3], self.point_cloud_range[3:]):
            if not low < high:
                raise ConfigError(
                    f"Parameter 'point_cloud_range' must have minimum < maximum on {axis}, "
                    f"got {low} and {high}."
                )
            if max(-low, high) > FARTHEST_M:
                raise ConfigError(
                    f"Parameter 'point_cloud_range' reaches {max(-low, high):g} m on {axis}; "
                    f"beyond {FARTHEST_M:g} m float32 moves points into other voxels. It is a "
                    "range in the LiDAR frame, not in the map."
                )
        if min(self.grid_xyz) < 1:
            raise ConfigError(
                f"Parameter 'voxel_size' {self.voxel_size} leaves no cell in the range "
                f"{self.point_cloud_range}."
            )


class DetectionHeads:
    """Names of the classes of a model whose parameter ``heads`` lists them, comma-separated."""

    heads: tuple[str, ...]

    @property
    def classes_per_head(self) -> tuple[tuple[str, ...], ...]:
        """Class names, one tuple a head."""
        return tuple(tuple(n.strip() for n in head.split(",")) for head in self.heads)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names in label order (heads concatenated)."""
        return tuple(name for head in self.classes_per_head for name in head)


@dataclass(frozen=True)
class ModelConfig(DetectionHeads, Config):
    """The VoxelNeXt graph."""

    channels: tuple[int, ...] = param(
        (16, 32, 64, 128, 128, 128),
        "Channels of the six backbone levels; levels 4 to 6 must be equal (they are summed).",
        ge=1,
        le=1024,
        lengths=(6,),
    )
    heads: tuple[str, ...] = param(
        (
            "car",
            "truck,construction_vehicle",
            "bus,trailer",
            "barrier",
            "motorcycle,bicycle",
            "pedestrian,traffic_cone",
        ),
        "Classes of each detection head, comma-separated, in the order of the checkpoint.",
    )
    forward_yaw_deg: float = _forward_yaw_deg(
        "Where the weights expect the street to lead: degrees counter-clockwise about z from +x. "
        "Ours say so themselves; a .pth cannot: 90 for one trained on nuScenes, 0 where x was "
        "ahead.",
    )

    def check(self) -> None:
        """Refuse radians, unequal merged levels, and empty or repeated class names."""
        _check_forward_yaw_deg(self.forward_yaw_deg)
        if len(set(self.channels[3:])) != 1:
            raise ConfigError(
                f"Parameter 'channels' must have equal levels 4 to 6, got {self.channels}."
            )
        names = self.class_names
        if not names or "" in names or len(set(names)) != len(names):
            raise ConfigError(
                f"Parameter 'heads' must name every class once, got {list(self.heads)}."
            )


@dataclass(frozen=True)
class DensificationConfig(Config):
    """How past sweeps are moved into the current one by ego motion."""

    world_frame_id: str = param("map", "Fixed frame in which the ego moves.")
    num_past_frames: int = param(
        9, "Past sweeps added to the current one; 0 needs no transform.", ge=0, le=63
    )
    max_time_lag_s: float = param(
        0.6, "Sweeps older than this are forgotten.", unit="s", ge=0.0, le=10.0
    )
    ego_radius_m: float = param(
        1.0,
        "Points of past sweeps with |x| and |y| below this are the vehicle itself and left out.",
        unit="m",
        ge=0.0,
        le=10.0,
    )


@dataclass(frozen=True)
class PostProcessConfig(Config):
    """From heat maps to boxes."""

    score_thresholds: tuple[float, ...] = param(
        (0.1,), "Least score of a box: one value, or one per class.", ge=0.0, le=1.0
    )
    selection: str = param(
        "nms",
        "What keeps one box an object: 'nms' drops boxes that overlap a better one of their head; "
        "'max_pool' takes only the cells whose heat is the greatest of its class among their eight "
        "neighbours, and compares no boxes.",
        choices=("nms", "max_pool"),
    )
    iou_nms_threshold: float = param(
        0.2,
        "Rotated bird's-eye-view IoU above which the lower score goes; only with 'nms'.",
        ge=0.0,
        le=1.0,
    )
    top_k: int = param(500, "Candidates kept a head before suppression.", ge=1, le=10_000)
    max_boxes_per_head: int = param(83, "Boxes kept a head.", ge=1, le=1000)
    center_range: tuple[float, ...] = param(
        (-61.2, -61.2, -10.0, 61.2, 61.2, 10.0),
        "Boxes with a centre outside are left out (inclusive bounds).",
        unit="m",
        lengths=(6,),
    )

    def check(self) -> None:
        """Refuse a range that no centre can lie in."""
        for axis, low, high in zip("xyz", self.center_range[:3], self.center_range[3:]):
            if low > high:
                raise ConfigError(
                    f"Parameter 'center_range' must have minimum <= maximum on {axis}, "
                    f"got {low} and {high}."
                )


@dataclass(frozen=True)
class InputConfig(Config):
    """What the node expects of a cloud."""

    forward_yaw_deg: float = _forward_yaw_deg(
        "Where ahead is in the frame of the clouds: degrees counter-clockwise about z from +x. 90 "
        "where y is ahead, as in nuScenes; 0 where x is, as REP-103 and most drivers have it. "
        "Points are turned for the network by it, and results turned back; 'point_cloud_range' and "
        "'center_range' are ranges of the turned frame.",
    )
    intensity_scale: float = param(
        1.0, "Factor to 0..255: 255 for a sensor that reports 0..1.", ge=0.0, le=1e6
    )
    intensity_clip: float = param(
        255.0, "Greatest intensity after scaling; more is clipped.", ge=0.0, le=1e6
    )
    default_intensity: float = param(
        0.0, "Intensity used where the cloud has none.", ge=0.0, le=1e6
    )
    point_capacity: int = param(
        400_000,
        "Points used of one cloud; more are thinned evenly and counted. Also the room of the CUDA "
        "engine for a cloud with its past sweeps; 'overflow_policy' says what a larger one meets.",
        ge=1,
    )
    default_frame_id: str = param("", "Used where a header has no frame; empty refuses it.")
    reliability: str = param(
        "best_effort",
        "Reliability of the cloud subscription.",
        choices=("best_effort", "reliable"),
    )
    queue_depth: int = param(5, "History depth of the cloud subscription.", ge=1, le=1000)
    tf_timeout_s: float = param(
        0.5, "How long a cloud waits for its transform.", unit="s", ge=0.0, le=60.0
    )
    back_pressure: bool = param(
        False,
        "Process every cloud in order (replay) instead of only the newest (live).",
    )

    def check(self) -> None:
        """Refuse radians."""
        _check_forward_yaw_deg(self.forward_yaw_deg)


@dataclass(frozen=True)
class BevConfig(Config):
    """The bird's-eye-view outputs."""

    resolution_m: float = param(0.6, "Cell size.", unit="m", ge=0.05, le=10.0)
    image_pixels_per_cell: int = param(4, "Scale of the picture topic.", ge=1, le=32)
    ego_frame_id: str = param(
        "base_link",
        "Frame whose +x is up in the picture topic, where TF knows it; else that of the cloud.",
    )
    ground_clearance_m: float = param(
        0.3,
        "A cell is occupied where its highest point stands further than this above the lowest "
        "point of the cell and its eight neighbours.",
        unit="m",
        ge=0.0,
        le=5.0,
    )


@dataclass(frozen=True)
class DiagnosticsConfig(Config):
    """When a slow or odd frame is reported."""

    max_allowed_processing_time_ms: float = param(
        200.0, "A slower frame is a deadline miss and a WARN.", unit="ms", ge=0.0
    )
    max_acceptable_consecutive_delay_ms: float = param(
        1000.0, "Misses in a row for longer than this are an ERROR.", unit="ms", ge=0.0
    )
    validation_callback_interval_ms: float = param(
        100.0, "Period of the diagnostics check.", unit="ms", ge=10.0
    )
    latency_window: int = param(200, "Frames in the latency percentiles.", ge=1, le=100_000)
    no_data_hint_s: float = param(
        5.0,
        "Silence after which a present but unheard publisher is reported.",
        unit="s",
        ge=0.1,
    )


@dataclass(frozen=True)
class LidarDiagnosticsConfig(DiagnosticsConfig):
    """What is reported of LiDAR frames beside."""

    sparsity: bool = param(
        False,
        "Report the sparsity of every frame, and its predicted beside its measured time; builds "
        "every coordinate map once more.",
    )
    nanovdb_dir: str = param(
        "",
        "Folder for the voxels of frames as NanoVDB files, written beside the detector; empty "
        "writes none.",
    )
    nanovdb_every: int = param(10, "Frames from one that is written to the next.", ge=1)
    nanovdb_keep: int = param(
        20, "Frames whose files are kept in nanovdb_dir; older ones are removed.", ge=1, le=100_000
    )


def device_loss_param() -> Any:
    """Declare ``on_device_loss``, which the nodes of all sensors have."""
    return param(
        "cpu",
        "What to do once CUDA is lost to the process (an illegal address, an ECC error): 'cpu' "
        "goes on there, slowly; 'exit' ends the node with code 1, for a launch file that starts "
        "it again.",
        choices=("cpu", "exit"),
    )


@dataclass(frozen=True)
class LidarConfig(Config):
    """Everything the LiDAR node and pipeline take."""

    checkpoint_path: str = param(
        "",
        "Weights (.safetensors, or OpenPCDet .pth); empty runs those of the package "
        "(use_shipped_weights), or else seeded untrained ones.",
    )
    use_shipped_weights: bool = param(
        True,
        "Where checkpoint_path is empty, run the trained weights that come with the package, and "
        "their model, unless 'model', 'voxelization.voxel_size' or the z of "
        "'voxelization.point_cloud_range' was changed to another.",
    )
    checkpoint_layout: str = param(
        "auto",
        "Weight layout of a .pth: needed where the file cannot tell.",
        choices=("auto", "KRSC", "RSCK", "RSKC"),
    )
    plan_path: str = param(
        "",
        "Tuned Plan of the CUDA engine; empty, or one that does not fit GPU, precision and "
        "weights, runs the safe default. A precision that it says failed ('drivert qualify') is "
        "refused.",
    )
    precision: str = param(
        "fp32",
        "Arithmetic of the sparse backbone: 'fp32' is float32 or better; 'fp32x3' sums three "
        "products of halves, close to float32; 'tf32' rounds factors to 11 bits; 'fp16' also "
        "rounds features to half. A CPU runs 'fp32' only.",
        choices=("fp32", "fp32x3", "tf32", "fp16"),
    )
    overflow_policy: str = param(
        "retry",
        "What happens to a cloud that needs more room than the CUDA engine has: 'retry' runs it "
        "again on a larger engine, which stays; 'strict' drops it; 'degrade' takes the slow "
        "reference path, which keeps 'voxelization.max_voxels'.",
        choices=("retry", "strict", "degrade"),
    )
    device: str = param("auto", "'auto', 'cpu', 'cuda' or 'cuda:N'.")
    on_device_loss: str = device_loss_param()
    seed: int = param(0, "Seed of untrained weights.", ge=0)
    num_threads: int = param(0, "CPU threads; 0 uses every core.", ge=0, le=1024)
    autostart: bool = param(True, "Configure and activate at start.")
    build_only: bool = param(False, "Configure (compile, load, warm up), then exit.")
    voxelization: VoxelizationConfig = group(VoxelizationConfig)
    model: ModelConfig = group(ModelConfig)
    densification_params: DensificationConfig = group(DensificationConfig)
    post_process_params: PostProcessConfig = group(PostProcessConfig)
    input: InputConfig = group(InputConfig)
    bev: BevConfig = group(BevConfig)
    diagnostics: LidarDiagnosticsConfig = group(LidarDiagnosticsConfig)

    def check(self) -> None:
        """Refuse a number of score thresholds that is neither one nor one per class."""
        got, names = (
            len(self.post_process_params.score_thresholds),
            self.model.class_names,
        )
        if got not in (1, len(names)):
            raise ConfigError(
                "Parameter 'post_process_params.score_thresholds' must hold 1 value or one for "
                f"each of the {len(names)} classes, got {got}."
            )
