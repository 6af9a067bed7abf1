"""Every parameter of training: defaults, units and ranges. YAML only overrides."""

from __future__ import annotations

from dataclasses import dataclass

from driveRT_ros.core.config import (
    NUSCENES_FORWARD_YAW_DEG,
    DensificationConfig,
    LidarConfig,
    ModelConfig,
    VoxelizationConfig,
)
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, group, param
from driveRT_ros.io.nuscenes_eval import SPLITS

FIRST_TRAINING_SEED = 1_000_000
"""Drives with smaller seeds are never trained on: they are free for validation and tests."""


@dataclass(frozen=True)
class DrivesConfig(Config):
    """Which drives of the simulator are seen: the same for everything that is trained on them."""

    first_seed: int = param(
        FIRST_TRAINING_SEED,
        "Seed of the first simulated drive; the others follow.",
        ge=FIRST_TRAINING_SEED,
        le=2**30,
    )
    frames_per_drive: int = param(3, "Annotated frames taken of a simulated drive.", ge=1, le=1000)
    variety: float = param(
        1.0,
        "Scale of what differs from drive to drive beside its seed: densities, speed, mounting, "
        "weather; 0 is none.",
        ge=0.0,
        le=2.0,
    )


@dataclass(frozen=True)
class DataConfig(DrivesConfig):
    """Which scenes are seen, and how often."""

    batch_size: int = param(8, "Frames a step and GPU.", ge=1, le=1024)
    workers: int = param(
        0, "Processes that make and augment frames, per GPU; 0 uses every core.", ge=0, le=512
    )
    sweeps_between_frames: int = param(
        6, "Sweeps from one annotated frame of a drive to the next.", ge=1, le=1000
    )
    reuse: int = param(
        4,
        "How often a frame that was just made is seen, each time augmented anew; only where "
        "frames are made during training.",
        ge=1,
        le=1000,
    )
    window: int = param(
        24, "Frames of a worker from which a seen one is drawn again.", ge=1, le=100_000
    )
    balance: float = param(
        0.5,
        "How far frames with rare classes are drawn more often from shards: 0 draws all alike, 1 "
        "gives every class the same share of the draws.",
        ge=0.0,
        le=1.0,
    )
    split: str = param(
        "train",
        "Scenes of nuScenes to train on; 'train' leaves out those of val, which evaluations take.",
        choices=SPLITS,
    )
    min_points: int = param(
        2, "Objects with fewer points, all sweeps together, are not sought.", ge=0, le=1000
    )


@dataclass(frozen=True)
class AugmentConfig(Config):
    """How a frame is changed each time it is seen."""

    flip_x: bool = param(
        True, "Turn x around in half of the frames: left and right of a LiDAR whose y is ahead."
    )
    flip_y: bool = param(
        True, "Turn y around in half of the frames: front and back of a LiDAR whose y is ahead."
    )
    max_rotation_rad: float = param(
        0.785, "Turn about +z by up to this.", unit="rad", ge=0.0, le=3.15
    )
    max_scale: float = param(0.05, "Scale by up to this more or less.", ge=0.0, le=0.5)
    fewer_sweeps_share: float = param(
        0.0,
        "Share of the frames that lose past sweeps, half of them all: as a sensor sees at its "
        "start, or where no pose is known.",
        ge=0.0,
        le=1.0,
    )
    paste_to: tuple[int, ...] = param(
        (4, 3, 4, 3, 3, 4, 5, 5, 6, 5),
        "Objects of each class to which a frame is filled up from the database; all 0, or empty, "
        "pastes none.",
        ge=0,
        le=100,
    )
    paste_share: float = param(0.75, "Share of the frames that are filled up.", ge=0.0, le=1.0)
    database_per_class: int = param(
        200, "Objects of each class that are kept to be pasted.", ge=1, le=100_000
    )
    database_drives: int = param(
        64, "Drives that the objects are cut out of, or as many frames of shards.", ge=0, le=100_000
    )
    database_min_points: int = param(
        8, "Objects with fewer points are not kept to be pasted.", ge=1, le=1000
    )


@dataclass(frozen=True)
class LossConfig(Config):
    """What a wrong answer costs."""

    heat_weight: float = param(1.0, "Weight of the focal loss of the heat.", ge=0.0, le=100.0)
    box_weight: float = param(0.25, "Weight of the L1 loss of the boxes.", ge=0.0, le=100.0)
    code_weights: tuple[float, ...] = param(
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2),
        "Weights of centre x, y, z, log length, width, height, cos and sin of the yaw, velocity "
        "x, y.",
        ge=0.0,
        le=100.0,
        lengths=(10,),
    )
    min_overlap: float = param(
        0.1,
        "A box moved by the radius of its heat keeps at least this IoU.",
        ge=0.01,
        le=0.9,
    )
    min_radius_cells: int = param(2, "Least radius of the heat of a box.", ge=0, le=100)
    rows_per_object: int = param(
        1,
        "Rows around its centre that describe a box: the nearest alone, or up to so many that "
        "carry its heat.",
        ge=1,
        le=1000,
    )


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """AdamW with one cycle of learning rate and momentum."""

    steps: int = param(20_000, "Steps of the whole cycle.", ge=1, le=100_000_000)
    max_learning_rate: float = param(3e-3, "Peak of the cycle.", ge=0.0, le=10.0)
    start_division: float = param(10.0, "Peak over the first learning rate.", ge=1.0, le=1e6)
    end_division: float = param(1e4, "Peak over the last learning rate.", ge=1.0, le=1e9)
    rise: float = param(0.3, "Share of the steps before the peak.", ge=0.0, le=1.0)
    weight_decay: float = param(0.01, "Decay of weights; biases and scales have none.", ge=0.0)
    beta2: float = param(0.99, "Decay of the squared gradients.", ge=0.0, le=0.9999999)
    clip_norm: float = param(10.0, "Greatest norm of the gradients.", ge=1e-6, le=1e9)
    warm_up_steps: int = param(
        100,
        "Steps over which the learning rate returns where a run goes on without the state of the "
        "optimizer.",
        ge=0,
    )
    average: float = param(
        0.0,
        "Decay of the running average of the weights, such as 0.999; 0 keeps none. The average is "
        "what is exported.",
        ge=0.0,
        le=0.999999,
    )
    batch_norm_momentum: float = param(
        0.03, "Share of a batch in the running statistics.", ge=1e-5, le=1.0
    )
    precision: str = param(
        "auto",
        "Arithmetic of the products; 'auto' is bf16 on a GPU that has it, else fp32.",
        choices=("auto", "fp32", "bf16", "fp16"),
    )


@dataclass(frozen=True)
class OutputConfig(Config):
    """What a run writes."""

    log_every: int = param(20, "Steps from line to line of the log, which gives their means.", ge=1)
    save_every_s: float = param(
        120.0, "Time between two written states; the last is always written.", unit="s", ge=1.0
    )
    save_optimizer: bool = param(
        True, "Keep the state of the optimizer, so that a run goes on as if never stopped."
    )
    max_file_mb: float = param(15.0, "Larger states are split into files.", unit="MB", ge=0.1)


@dataclass(frozen=True)
class TrainConfig(Config):
    """Everything ``drivert train`` takes; the first three groups are those of the detector."""

    seed: int = param(0, "Seed of weights, order and augmentation.", ge=0, le=2**31 - 1)
    voxelization: VoxelizationConfig = group(VoxelizationConfig)
    model: ModelConfig = group(ModelConfig)
    densification_params: DensificationConfig = group(DensificationConfig)
    data: DataConfig = group(DataConfig)
    augment: AugmentConfig = group(AugmentConfig)
    loss: LossConfig = group(LossConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    output: OutputConfig = group(OutputConfig)

    def check(self) -> None:
        """Refuse numbers of objects to paste that do not fit the classes, and turned frames."""
        ahead = self.model.forward_yaw_deg
        if ahead != NUSCENES_FORWARD_YAW_DEG:
            raise ConfigError(
                f"Parameter 'model.forward_yaw_deg' must be {NUSCENES_FORWARD_YAW_DEG:g} in "
                f"training, for all frames that are trained on have y ahead; got {ahead:g}."
            )
        got, names = len(self.augment.paste_to), len(self.model.class_names)
        if got not in (0, names):
            raise ConfigError(
                f"Parameter 'augment.paste_to' must hold one value for each of the {names} "
                f"classes, or none, got {got}."
            )

    @property
    def lidar(self) -> LidarConfig:
        """The detector that runs what is trained here, otherwise at its defaults."""
        return LidarConfig(
            voxelization=self.voxelization,
            model=self.model,
            densification_params=self.densification_params,
        )
