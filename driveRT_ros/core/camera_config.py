"""Every parameter of the camera model and its node: defaults, units and ranges.

The defaults are a small model whose grid is the one of the LiDAR bird's-eye view (+-54 m in cells
of 0.6 m), so that layers of both sensors lie on each other cell for cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from driveRT_ros.core.config import (
    FARTHEST_M,
    DetectionHeads,
    DiagnosticsConfig,
    PostProcessConfig,
    device_loss_param,
)
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, group, param

FEATURE_STRIDE = 16
"""Pixels of the network input along one edge of a feature cell."""
INPUT_MULTIPLE = 32
"""The deepest backbone level has this stride, so it must divide the network input."""
BACKBONES = ("efficientnet_lite0", "resnet50")


@dataclass(frozen=True)
class ImageConfig(Config):
    """From a camera image to the network input; defaults are EfficientNet-Lite's."""

    size_hw: tuple[int, ...] = param(
        (256, 704), "Network input: height, width; multiples of 32.", ge=32, le=4096, lengths=(2,)
    )
    resize: float = param(
        0.0, "Factor from the camera image to the network input; 0 fits the width.", ge=0.0, le=4.0
    )
    crop_top: float = param(
        1.0,
        "Share of the rows left over after resizing that goes at the top, the rest at the bottom.",
        ge=0.0,
        le=1.0,
    )
    channel_order: str = param(
        "rgb", "Order of colours the network was trained with.", choices=("rgb", "bgr")
    )
    mean: tuple[float, ...] = param(
        (127.0, 127.0, 127.0),
        "Subtracted from each colour 0..255, in the order of the network.",
        lengths=(3,),
    )
    std: tuple[float, ...] = param(
        (128.0, 128.0, 128.0), "Divides each colour after that.", ge=1e-3, lengths=(3,)
    )

    @property
    def feature_size_hw(self) -> tuple[int, int]:
        """Rows and columns of the feature map of one camera."""
        height, width = self.size_hw
        return height // FEATURE_STRIDE, width // FEATURE_STRIDE

    def check(self) -> None:
        """Refuse an input that the deepest feature map does not divide."""
        for name, pixels in zip(("height", "width"), self.size_hw):
            if pixels % INPUT_MULTIPLE:
                raise ConfigError(
                    f"Parameter 'size_hw' must hold multiples of {INPUT_MULTIPLE}, got the {name} "
                    f"{pixels}; nearest are {pixels // INPUT_MULTIPLE * INPUT_MULTIPLE} and "
                    f"{(pixels // INPUT_MULTIPLE + 1) * INPUT_MULTIPLE}."
                )


@dataclass(frozen=True)
class DepthConfig(Config):
    """The depths at which the features of a pixel may lie: min, min + step ... below max."""

    min_m: float = param(1.0, "Nearest depth along the optical axis.", unit="m", ge=0.1, le=1000.0)
    max_m: float = param(60.0, "Depths stay below this.", unit="m", ge=0.2, le=1000.0)
    step_m: float = param(1.0, "Distance between depths.", unit="m", ge=0.05, le=100.0)

    @property
    def bins(self) -> int:
        """Number of depths."""
        # Rounding keeps (60 - 1) / 0.1 = 589.9999999999999 from losing its last depth.
        return -int(-round((self.max_m - self.min_m) / self.step_m, 6) // 1)

    def check(self) -> None:
        """Refuse an empty or enormous range."""
        if self.min_m >= self.max_m:
            raise ConfigError(
                f"Parameter 'min_m' must be below 'max_m', got {self.min_m:g} and {self.max_m:g} m."
            )
        if self.bins > 512:
            raise ConfigError(
                f"Parameter 'step_m' {self.step_m:g} makes {self.bins} depths; use at most 512."
            )


@dataclass(frozen=True)
class GridConfig(Config):
    """The bird's-eye-view grid in the ego frame: x forward, y left, z up."""

    x_range_m: tuple[float, ...] = param(
        (-54.0, 54.0), "Range of x.", unit="m", ge=-FARTHEST_M, le=FARTHEST_M, lengths=(2,)
    )
    y_range_m: tuple[float, ...] = param(
        (-54.0, 54.0), "Range of y.", unit="m", ge=-FARTHEST_M, le=FARTHEST_M, lengths=(2,)
    )
    z_range_m: tuple[float, ...] = param(
        (-5.0, 3.0), "Range of z.", unit="m", ge=-FARTHEST_M, le=FARTHEST_M, lengths=(2,)
    )
    resolution_m: float = param(0.6, "Cell size along x and y.", unit="m", ge=0.05, le=10.0)
    z_cells: int = param(1, "Cells along z; their features are concatenated.", ge=1, le=64)
    rounding: str = param(
        "floor",
        "'floor' puts a point into the cell it lies in; 'trunc' also draws points up to one cell "
        "below the range into the first cell, as published checkpoints were trained.",
        choices=("floor", "trunc"),
    )

    @property
    def shape_zyx(self) -> tuple[int, int, int]:
        """Cells along z, y, x."""
        y, x = (round((b - a) / self.resolution_m) for a, b in (self.y_range_m, self.x_range_m))
        return self.z_cells, y, x

    def check(self) -> None:
        """Refuse empty ranges, and ranges that are no whole number of cells."""
        for name in ("x_range_m", "y_range_m", "z_range_m"):
            low, high = getattr(self, name)
            if low >= high:
                raise ConfigError(
                    f"Parameter '{name}' must have minimum < maximum, got {low:g} and {high:g} m."
                )
            cells = (high - low) / self.resolution_m
            if name != "z_range_m" and (abs(cells - round(cells)) > 1e-6 or round(cells) < 8):
                raise ConfigError(
                    f"Parameter '{name}' must be a whole number of cells of {self.resolution_m:g} "
                    f"m, at least 8, got {low:g} to {high:g} m, which is {cells:g} cells."
                )


@dataclass(frozen=True)
class NetworkConfig(DetectionHeads, Config):
    """Channels and outputs of the network."""

    backbone: str = param("efficientnet_lite0", "Image backbone.", choices=BACKBONES)
    neck_channels: int = param(128, "Channels of the image feature map.", ge=8, le=2048)
    neck_norm: bool = param(
        True, "Batch norm and ReLU after the convolutions of the image neck (BEVDet has neither)."
    )
    context_channels: int = param(64, "Features lifted from each pixel.", ge=1, le=1024)
    bev_channels: tuple[int, ...] = param(
        (64, 96, 128),
        "Channels of the three levels of the bird's-eye-view encoder.",
        ge=8,
        le=2048,
        lengths=(3,),
    )
    bev_out_channels: int = param(64, "Channels that the outputs share.", ge=8, le=1024)
    head_channels: int = param(64, "Hidden channels of every output.", ge=8, le=1024)
    segmentation: tuple[str, ...] = param(
        ("vehicle", "pedestrian", "drivable_area"),
        "Layers of probability, one output each; a single empty name means none.",
    )
    heads: tuple[str, ...] = param(
        (),
        "Classes of each detection head, comma-separated; a single empty name means none.",
    )

    def check(self) -> None:
        """Refuse a network without outputs, and empty or repeated names."""
        for field in ("segmentation", "heads"):
            if getattr(self, field) == ("",):  # ROS parameter files cannot hold an empty list
                object.__setattr__(self, field, ())
        if not self.segmentation and not self.heads:
            raise ConfigError(
                "Parameter 'segmentation' or 'heads' must name at least one output, got neither."
            )
        for field, names in (("segmentation", self.segmentation), ("heads", self.class_names)):
            if "" in names or len(set(names)) != len(names):
                raise ConfigError(
                    f"Parameter '{field}' must name every output once, "
                    f"got {list(getattr(self, field))}."
                )


@dataclass(frozen=True)
class CameraModelConfig(Config):
    """All that a set of weights belongs to."""

    image: ImageConfig = group(ImageConfig)
    depth: DepthConfig = group(DepthConfig)
    grid: GridConfig = group(GridConfig)
    network: NetworkConfig = group(NetworkConfig)


@dataclass(frozen=True)
class CameraPostProcessConfig(PostProcessConfig):
    """From heat maps to boxes."""

    nms_size_factors: tuple[float, ...] = param(
        (1.0,),
        "Factor on length and width while overlaps are measured, one value or one per class: "
        "below 1 lets large neighbours stand, above 1 thins small ones.",
        ge=0.1,
        le=20.0,
    )


@dataclass(frozen=True)
class SyncConfig(Config):
    """How images of several cameras become one frame.

    The default window fits cameras that fire as a LiDAR of 20 turns a second sweeps over them: the
    six of nuScenes do so within 40.3 to 42.6 ms (81 sets of its mini split), 12 times a second. The
    next set begins 59 ms or more after the fourth of them, so none of its images can fill a gap of
    a set that has one of the first four. At 20 Hz a set is still no longer than one turn.
    """

    window_s: float = param(
        0.05,
        "Greatest difference between the stamps of one frame: a little more than the time within "
        "which its cameras fire; much more lets in images of the next frame.",
        unit="s",
        ge=0.0,
        le=10.0,
    )
    timeout_s: float = param(
        0.15,
        "How long a frame waits for cameras after its first image; then it goes without them.",
        unit="s",
        ge=0.0,
        le=10.0,
    )
    min_cameras: int = param(1, "Frames with fewer images are dropped.", ge=1, le=64)


@dataclass(frozen=True)
class CameraInputConfig(Config):
    """What the node expects of its topics."""

    transport: str = param("raw", "Type of the image topics.", choices=("raw", "compressed"))
    ego_frame_id: str = param("base_link", "Frame of the grid and of the boxes.")
    reliability: str = param(
        "best_effort",
        "Reliability of the image subscriptions.",
        choices=("best_effort", "reliable"),
    )
    queue_depth: int = param(5, "History depth of every subscription.", ge=1, le=1000)
    tf_timeout_s: float = param(
        0.5, "How long an image waits for its transform.", unit="s", ge=0.0, le=60.0
    )
    back_pressure: bool = param(
        False, "Process every frame in order (replay) instead of only the newest (live)."
    )


@dataclass(frozen=True)
class CameraBevConfig(Config):
    """The bird's-eye-view outputs."""

    image_pixels_per_cell: int = param(4, "Scale of the picture topic.", ge=1, le=32)
    occupancy_layers: tuple[str, ...] = param(
        ("vehicle", "pedestrian"),
        "Layers whose greatest probability is the occupancy; boxes of detection heads count too.",
    )


@dataclass(frozen=True)
class CameraConfig(Config):
    """Everything the camera node and pipeline take."""

    cameras: tuple[str, ...] = param(
        (
            "CAM_FRONT_LEFT",
            "CAM_FRONT",
            "CAM_FRONT_RIGHT",
            "CAM_BACK_LEFT",
            "CAM_BACK",
            "CAM_BACK_RIGHT",
        ),
        "Names of the cameras in the order of the input topics; any number.",
    )
    checkpoint_path: str = param(
        "",
        "Weights (.safetensors, or BEVDet .pth); empty runs those of the package "
        "(use_shipped_weights), or else seeded untrained ones.",
    )
    use_shipped_weights: bool = param(
        True,
        "Where checkpoint_path is empty, run the trained weights that come with the package, and "
        "their model, unless 'model' was changed to another.",
    )
    plan_path: str = param("", "Tuned Plan; empty uses the safe default.")
    precision: str = param(
        "fp32",
        "Numeric precision; 'tf32' and 'fp16' need a CUDA device.",
        choices=("fp32", "tf32", "fp16"),
    )
    device: str = param("auto", "'auto', 'cpu', 'cuda' or 'cuda:N'.")
    on_device_loss: str = device_loss_param()
    seed: int = param(0, "Seed of untrained weights.", ge=0)
    num_threads: int = param(0, "CPU threads; 0 uses every core.", ge=0, le=1024)
    autostart: bool = param(True, "Configure and activate at start.")
    build_only: bool = param(False, "Configure (compile, load, warm up), then exit.")
    model: CameraModelConfig = group(CameraModelConfig)
    post_process_params: CameraPostProcessConfig = group(CameraPostProcessConfig)
    sync: SyncConfig = group(SyncConfig)
    input: CameraInputConfig = group(CameraInputConfig)
    bev: CameraBevConfig = group(CameraBevConfig)
    diagnostics: DiagnosticsConfig = group(DiagnosticsConfig)

    def check(self) -> None:
        """Refuse unusable camera names, and lists that fit neither one nor every class."""
        names = self.cameras
        if not names or "" in names or len(set(names)) != len(names):
            raise ConfigError(
                f"Parameter 'cameras' must name every camera once, at least one, got {list(names)}."
            )
        if self.sync.min_cameras > len(names):
            raise ConfigError(
                f"Parameter 'sync.min_cameras' must be at most the number of cameras, "
                f"{len(names)}, got {self.sync.min_cameras}."
            )
        classes = len(self.model.network.class_names)
        for name in ("score_thresholds", "nms_size_factors"):
            got = len(getattr(self.post_process_params, name))
            if got not in (1, classes):
                raise ConfigError(
                    f"Parameter 'post_process_params.{name}' must hold 1 value or one for each of "
                    f"the {classes} classes, got {got}."
                )


def bevdet_r50() -> CameraConfig:
    """Return the configuration of BEVDet-R50 as published for nuScenes, for its checkpoints.

    Its boxes and grid lie in the ego frame. Its images reach the network with red and blue
    swapped, and it was trained with truncation towards the first cell: both are kept.

    Source: the public configuration ``bevdet-r50-cbgs`` of BEVDet 2 (Huang et al., "BEVDet",
    2021; Huang and Huang, "BEVPoolv2", 2022).
    """
    return CameraConfig.from_dict(
        {
            "model": {
                "image": {
                    "channel_order": "bgr",
                    "mean": (123.675, 116.28, 103.53),
                    "std": (58.395, 57.12, 57.375),
                },
                "grid": {
                    "x_range_m": (-51.2, 51.2),
                    "y_range_m": (-51.2, 51.2),
                    "resolution_m": 0.8,
                    "rounding": "trunc",
                },
                "network": {
                    "backbone": "resnet50",
                    "neck_channels": 256,
                    "neck_norm": False,
                    "bev_channels": (128, 256, 512),
                    "bev_out_channels": 256,
                    "segmentation": (),
                    "heads": (
                        "car,truck,construction_vehicle,bus,trailer,barrier,motorcycle,bicycle,"
                        "pedestrian,traffic_cone",
                    ),
                },
            },
            "post_process_params": {
                "max_boxes_per_head": 500,
                "nms_size_factors": (1.0, 0.7, 0.7, 0.4, 0.55, 1.1, 1.0, 1.0, 1.5, 3.5),
            },
        }
    )
