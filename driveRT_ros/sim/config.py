"""Parameters of the simulator: sensors, road, traffic and scenery, with units and ranges.

Defaults of the sensor were measured on real nuScenes LIDAR_TOP sweeps: the median elevation of
each ring (points beyond 4 m) equals k * 1.3333 - 30.6667 degrees within 0.05 for the rings that
reach past the vehicle; every sweep holds 1,084 to 1,086 columns of 32 firings, clockwise from the
left of the vehicle; the mounting is that of the calibration tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, group, param
from driveRT_ros.sim.rig import NAMES


@dataclass(frozen=True)
class LidarSensorConfig(Config):
    """A spinning 32-beam LiDAR on the roof, as nuScenes mounts it."""

    num_beams: int = param(32, "Beams, ring 0 the lowest.", ge=1, le=256)
    num_azimuths: int = param(1084, "Firings of every beam in one turn.", ge=8, le=8192)
    elevation_min_deg: float = param(
        -30.6667, "Elevation of ring 0.", unit="deg", ge=-89.0, le=89.0
    )
    elevation_max_deg: float = param(
        10.6667,
        "Elevation of the last ring; the others are equally spaced.",
        unit="deg",
        ge=-89.0,
        le=89.0,
    )
    frame_id: str = param("LIDAR_TOP", "Frame of the points.")
    translation_xyz: tuple[float, ...] = param(
        (0.9437, 0.0, 1.8402),
        "Sensor in the ego frame (rear axle, ground).",
        unit="m",
        lengths=(3,),
    )
    pitch_rad: float = param(
        0.0242, "Forward axis tilts down by this.", unit="rad", ge=-0.2, le=0.2
    )
    roll_rad: float = param(0.0059, "Right side tilts down by this.", unit="rad", ge=-0.2, le=0.2)
    max_range_m: float = param(103.0, "Nothing is seen beyond.", unit="m", ge=5.0, le=300.0)
    range_noise_m: float = param(0.02, "Standard deviation of a range.", unit="m", ge=0.0, le=1.0)
    dropout: float = param(
        1.0,
        "Scale of the detection loss with range, incidence and material; 0 loses none.",
        ge=0.0,
        le=10.0,
    )
    clutter: float = param(
        0.0, "Share of firings that rain, fog or dust returns from nearby air.", ge=0.0, le=1.0
    )
    keep_no_returns: bool = param(
        True,
        "Report a firing without return as range 0, as nuScenes clouds do: every sweep then holds "
        "beams x azimuths points.",
    )
    self_returns: bool = param(True, "The roof and the bonnet of the own vehicle are seen.")


@dataclass(frozen=True)
class CameraRigConfig(Config):
    """Six cameras around the vehicle, as nuScenes mounts them (:mod:`driveRT_ros.sim.rig`)."""

    enabled: bool = param(False, "Render images.")
    names: tuple[str, ...] = param(NAMES, "Cameras to render.")
    every_nth_sweep: int = param(2, "Sweeps from image to image.", ge=1, le=1000)
    scale: float = param(
        1.0, "Image size against 1600 x 900; the intrinsics follow.", ge=0.05, le=1.0
    )
    jpeg_quality: int = param(
        90, "Quality of the JPEG files; 0 keeps the pixels instead.", ge=0, le=100
    )
    max_range_m: float = param(110.0, "Nothing is drawn beyond.", unit="m", ge=5.0, le=120.0)

    def check(self) -> None:
        """Refuse cameras that the rig does not have, and repeated ones."""
        unknown = [name for name in self.names if name not in NAMES]
        if unknown or len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"Parameter 'names' must hold each camera once, out of {', '.join(NAMES)}; got "
                f"{list(self.names)}."
            )


@dataclass(frozen=True)
class RoadConfig(Config):
    """The road, its cross-section and the terrain below it."""

    lanes_per_direction: int = param(
        0, "Lanes each way; 0 draws one or two from the seed.", choices=(0, 1, 2, 3)
    )
    lane_width_m: float = param(3.5, "Width of a lane.", unit="m", ge=2.5, le=5.0)
    max_heading_rad: float = param(
        0.35, "How far the road turns to either side of its mean.", unit="rad", ge=0.0, le=0.6
    )
    max_slope: float = param(0.03, "Steepest slope of the terrain.", ge=0.0, le=0.05)
    kerb_height_m: float = param(0.14, "Height of the pavement.", unit="m", ge=0.0, le=0.4)
    sidewalk_width_m: float = param(
        4.5, "From the kerb to the frontage.", unit="m", ge=3.5, le=10.0
    )
    junction_share: float = param(
        0.1, "Share of roadside cells in which a side street joins.", ge=0.0, le=1.0
    )


@dataclass(frozen=True)
class TrafficConfig(Config):
    """Who is on the road; densities of 1 resemble a busy town street, 0 leaves them out."""

    ego_speed_mps: float = param(9.0, "Mean speed of the own vehicle.", unit="m/s", ge=0.0, le=40.0)
    vehicles: float = param(1.0, "Density of moving vehicles.", ge=0.0, le=2.0)
    parked: float = param(1.0, "Density of parked vehicles.", ge=0.0, le=1.8)
    pedestrians: float = param(1.0, "Density of pedestrians.", ge=0.0, le=3.0)
    cyclists: float = param(1.0, "Density of bicycles and motorcycles.", ge=0.0, le=3.0)
    roadworks: float = param(1.0, "Density of barriers, cones and machines.", ge=0.0, le=5.0)
    spread: float = param(
        0.4,
        "Log standard deviation of the factor that a seed puts on each density; 0 is none.",
        ge=0.0,
        le=2.0,
    )


@dataclass(frozen=True)
class SceneryConfig(Config):
    """What stands beside the road and is no object of any class."""

    buildings: float = param(1.0, "Density of buildings.", ge=0.0, le=1.6)
    vegetation: float = param(1.0, "Density of trees, hedges and bushes.", ge=0.0, le=4.0)
    street_furniture: float = param(1.0, "Density of poles, signs and bins.", ge=0.0, le=4.0)


@dataclass(frozen=True)
class SimConfig(Config):
    """One simulated drive; the same values give the same bytes."""

    seed: int = param(0, "Seed of everything that is drawn.", ge=0, le=2**31 - 1)
    num_sweeps: int = param(40, "Sweeps of the drive.", ge=0, le=1_000_000)
    rate_hz: float = param(20.0, "Turns of the sensor per second.", unit="Hz", ge=1.0, le=50.0)
    start_time_ns: int = param(
        1_600_000_000_000_000_000, "Stamp of the first sweep.", unit="ns", ge=0
    )
    ground_truth_range_m: float = param(
        60.0, "Objects with a centre farther off are not annotated.", unit="m", ge=0.0, le=200.0
    )
    ground_truth_min_points: int = param(
        1, "Objects with fewer LiDAR points are not annotated.", ge=0, le=1000
    )
    lidar: LidarSensorConfig = group(LidarSensorConfig)
    cameras: CameraRigConfig = group(CameraRigConfig)
    road: RoadConfig = group(RoadConfig)
    traffic: TrafficConfig = group(TrafficConfig)
    scenery: SceneryConfig = group(SceneryConfig)

    def stamp_ns(self, sweep: int) -> int:
        """Return the stamp of a sweep, rounded once and not accumulated."""
        return self.start_time_ns + round(sweep * 1e9 / self.rate_hz)

    @property
    def duration_s(self) -> float:
        """Length of the drive in seconds."""
        return self.num_sweeps / self.rate_hz
