"""Every parameter of training the camera model: defaults, units and ranges. YAML only overrides."""

from __future__ import annotations

from dataclasses import dataclass

from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, group, param
from driveRT_ros.train.config import DrivesConfig, OptimizerConfig, OutputConfig

KIND = "camera"
"""Value of the parameter ``kind`` that tells these files from those of the LiDAR detector."""

LAYERS = ("vehicle", "pedestrian", "drivable_area")
"""What the simulator knows the truth of."""


@dataclass(frozen=True)
class CameraDataConfig(DrivesConfig):
    """Which images are seen, and what counts as truth."""

    batch_size: int = param(16, "Frames of all cameras a step and GPU.", ge=1, le=1024)
    workers: int = param(
        0, "Processes that render, and threads that make batches; 0 uses every core.", ge=0, le=512
    )
    sweeps_between_frames: int = param(
        60, "LiDAR sweeps from one frame of a drive to the next.", ge=1, le=10_000
    )
    oversampling: float = param(
        1.5,
        "Width of rendered images over that of the network input: what is left to make smaller "
        "smooths edges, as it does in real images.",
        ge=0.5,
        le=4.0,
    )
    jpeg_quality: int = param(92, "Quality of the images on disk.", ge=1, le=100)
    min_pixels: float = param(
        20.0,
        "Pixels of the network inputs, all cameras together, from which an object counts as "
        "visible; hidden ones are neither sought nor refused.",
        ge=0.0,
        le=1e6,
    )


@dataclass(frozen=True)
class CameraAugmentConfig(Config):
    """How a frame is changed each time it is seen; the geometry follows exactly."""

    flip_images: bool = param(True, "Mirror each image in half of the cases.")
    max_resize: float = param(0.1, "Resize by up to this more or less.", ge=0.0, le=0.5)
    max_shift_px: float = param(
        24.0, "Move the crop by up to this along both axes.", unit="px", ge=0.0, le=1000.0
    )
    max_light: float = param(
        0.2, "Change brightness and contrast by up to this share.", ge=0.0, le=1.0
    )
    flip_x: bool = param(True, "Mirror front and back of the grid in half of the frames.")
    flip_y: bool = param(True, "Mirror left and right of the grid in half of the frames.")


@dataclass(frozen=True)
class CameraLossConfig(Config):
    """What a wrong answer costs."""

    layer_weights: tuple[float, ...] = param(
        (1.0, 0.3, 0.5), "Weight of each layer of segmentation.", ge=0.0, le=100.0
    )
    positive_weights: tuple[float, ...] = param(
        (2.0, 3.0, 1.0),
        "Weight of a cell that a layer covers against one it does not, one value a layer.",
        ge=1e-3,
        le=1000.0,
    )
    overlap_weight: float = param(
        0.5, "Weight of 1 - soft IoU beside the cross-entropy.", ge=0.0, le=100.0
    )
    depth_weight: float = param(
        0.25,
        "Weight of the cross-entropy between predicted and rendered depths; 0 leaves it out.",
        ge=0.0,
        le=100.0,
    )


@dataclass(frozen=True)
class CameraTrainConfig(Config):
    """Everything ``drivert train`` takes for cameras; ``model`` is that of the camera node."""

    kind: str = param(KIND, "What is trained.", choices=(KIND,))
    seed: int = param(0, "Seed of weights, order and augmentation.", ge=0, le=2**31 - 1)
    imagenet: bool = param(True, "Start with a backbone that was trained on ImageNet.")
    backbone_path: str = param(
        "", "File with its weights; empty takes that of the package with the weights."
    )
    model: CameraModelConfig = group(CameraModelConfig)
    data: CameraDataConfig = group(CameraDataConfig)
    augment: CameraAugmentConfig = group(CameraAugmentConfig)
    loss: CameraLossConfig = group(CameraLossConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    output: OutputConfig = group(OutputConfig)

    def check(self) -> None:
        """Refuse outputs without truth, lists that fit no layers, and mirrors off centre."""
        layers, heads = self.model.network.segmentation, self.model.network.heads
        unknown = [name for name in layers if name not in LAYERS]
        if heads or unknown or not layers:
            raise ConfigError(
                "Parameter 'model.network.segmentation' must name layers out of "
                f"{', '.join(LAYERS)}, and 'model.network.heads' must be empty, to be trained on "
                f"the simulator; got {list(layers)} and {list(heads)}."
            )
        for axis in "xy":
            low, high = getattr(self.model.grid, f"{axis}_range_m")
            if getattr(self.augment, f"flip_{axis}") and low != -high:
                raise ConfigError(
                    f"Parameter 'augment.flip_{axis}' mirrors the cells of the grid about 0, but "
                    f"'model.grid.{axis}_range_m' is [{low:g}, {high:g}]; set it to false."
                )
        for name in ("layer_weights", "positive_weights"):
            got = len(getattr(self.loss, name))
            if got != len(layers):
                raise ConfigError(
                    f"Parameter 'loss.{name}' must hold one value for each of the {len(layers)} "
                    f"layers, got {got}."
                )

    @property
    def camera(self) -> CameraConfig:
        """The camera node that runs what is trained here, otherwise at its defaults."""
        return CameraConfig(model=self.model)
