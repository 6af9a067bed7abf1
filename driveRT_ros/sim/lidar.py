"""The spinning LiDAR: when and where each beam fires, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driveRT_ros.core.frame import PointBatch
from driveRT_ros.sim.config import LidarSensorConfig
from driveRT_ros.sim.ground import cast_ground
from driveRT_ros.sim.materials import TABLE, respond
from driveRT_ros.sim.raycast import Hits, Rays, cast, cosines
from driveRT_ros.sim.solids import BOX, NOBODY, WEDGE, join, solid
from driveRT_ros.sim.world import World

_MIN_RANGE_M = 0.35
_AZIMUTH_NOISE_RAD = 2e-4
_EMPTY_INTENSITY = 10.0  # what real clouds hold, constant over a ring, where nothing answered
_HAZE_DEPTH_M, _HAZE_INTENSITY = 6.0, 2.0

# The own vehicle below the sensor, in the LiDAR frame, after where real sweeps see it: the
# share of each ring between 0.5 and 2.5 m (0.49 of ring 0, 0.43 of ring 4, 0.28 of ring 6 and 0.03
# of rings 8 and up, a third of ring 0 more without return), the height of the roof (-0.36 m) and
# of the bonnet (-0.85 m, 1.8 m ahead).
_OWN_VEHICLE = join(
    [
        solid(BOX, (0.0, -0.1, -0.66), (1.14, 1.76, 0.6), "own_paint"),
        solid(WEDGE, (0.0, 1.05, -0.66), (1.10, 0.7, 0.30), "glass", taper=(0.1, 0.9)),
        solid(BOX, (0.0, 1.45, -1.1), (1.25, 1.3, 0.5), "own_paint"),
    ]
)


@dataclass(frozen=True)
class Sweep:
    """One turn of the sensor.

    Args:
        points: The cloud, in the LiDAR frame at its stamp.
        owner: (N,) int64 track id of the object each point lies on; -1 for scenery, the ground,
            the own vehicle and firings without a return.
        returned: (N,) bool: the firing was answered.
    """

    points: PointBatch
    owner: np.ndarray
    returned: np.ndarray


def T_ego_lidar(config: LidarSensorConfig) -> np.ndarray:  # noqa: N802 - a transform's name
    """Return the mounting (4, 4) float64: LiDAR (x right, y forward, z up) to ego."""
    forward = np.array([np.cos(config.pitch_rad), 0.0, -np.sin(config.pitch_rad)])
    right = np.array([0.0, -np.cos(config.roll_rad), -np.sin(config.roll_rad)])
    right -= forward * (right @ forward)
    right /= np.linalg.norm(right)
    T = np.eye(4)
    T[:3, 0], T[:3, 1], T[:3, 2] = right, forward, np.cross(right, forward)
    T[:3, 3] = config.translation_xyz
    return T


class Lidar:
    """Casts sweeps of one world.

    The sensor turns clockwise from the left of the vehicle and the sweep is stamped at its end.
    Every column is fired from where the vehicle is at that moment; the points are then given in
    the sensor's frame at the stamp, as nuScenes clouds are. Moving objects are held where they
    are at the stamp, so that ground truth fits them.

    Args:
        world: What to look at.
    """

    def __init__(self, world: World) -> None:
        self.world, self.config = world, world.config.lidar
        self.T_ego_lidar = T_ego_lidar(self.config)
        self.elevations = np.radians(
            np.linspace(
                self.config.elevation_min_deg, self.config.elevation_max_deg, self.config.num_beams
            )
        )

    def sweep(self, index: int, rng: np.random.Generator) -> Sweep:
        """Return one sweep.

        Args:
            index: Number of the sweep in the drive.
            rng: Stream of this sweep.
        """
        config, world = self.config, self.world
        stamp_ns = world.config.stamp_ns(index)
        time_s = (stamp_ns - world.config.start_time_ns) * 1e-9
        local = self._directions(rng)
        lag = 1.0 - np.arange(1, config.num_azimuths + 1) / config.num_azimuths  # last column: 0
        poses = world.T_world_ego(time_s - lag / world.config.rate_hz) @ self.T_ego_lidar
        rays = Rays(poses[:, :3, 3], _turned(poses, local))
        seen = self._look(rays, local, time_s, rng)
        measured, intensity, owner = self._measure(seen, rng)
        return self._report(measured, intensity, owner, poses, local, stamp_ns)

    def _directions(self, rng: np.random.Generator) -> np.ndarray:
        """Return (W, B, 3) unit vectors in the LiDAR frame at each column's own moment."""
        turn = 2.0 * np.pi / self.config.num_azimuths
        azimuth = np.pi - (np.arange(self.config.num_azimuths) + rng.random()) * turn
        azimuth += _AZIMUTH_NOISE_RAD * rng.standard_normal(len(azimuth))
        flat, up = np.cos(self.elevations), np.sin(self.elevations)
        x, y = np.cos(azimuth)[:, None] * flat, np.sin(azimuth)[:, None] * flat
        return np.moveaxis(np.stack([x, y, np.broadcast_to(up, x.shape)]), 0, -1)

    def _look(
        self, rays: Rays, local: np.ndarray, time_s: float, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return what each ray meets first: range, material, cosine, gain, owner."""
        config, world = self.config, self.world
        bodies = world.at(time_s).bodies
        hits = cast(rays, bodies, config.max_range_m, rng)
        nearest = hits.range_m
        if config.self_returns:
            own_rays = Rays(np.zeros((len(local), 3)), local)
            own = cast(own_rays, _OWN_VEHICLE, config.max_range_m, rng)
            nearest = np.minimum(nearest, own.range_m)
        s_ego = float(world.ego_s(time_s))
        ground = cast_ground(rays, world.road, s_ego, world.surface, config.max_range_m, nearest)
        seen = {
            "range": np.minimum(nearest, ground.range_m),
            "material": ground.material.astype(np.int64),
            "cosine": ground.cosine.copy(),
            "gain": np.ones(len(nearest)),
            "owner": np.full(len(nearest), NOBODY, np.int64),
        }
        first = (hits.range_m < ground.range_m) & (hits.range_m <= nearest)
        _show(seen, rays, bodies, hits, np.nonzero(first)[0])
        if config.self_returns:
            first = (own.range_m < ground.range_m) & (own.range_m < hits.range_m)
            _show(seen, own_rays, _OWN_VEHICLE, own, np.nonzero(first)[0])
        return seen

    def _measure(
        self, seen: dict[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[np.ndarray, ...]:
        """Return measured range (0 where nothing answers), intensity and owner of every firing."""
        config = self.config
        true = seen["range"]
        met = np.isfinite(true)
        found, intensity = respond(
            seen["material"],
            seen["gain"],
            seen["cosine"],
            np.where(met, true, config.max_range_m),
            config.dropout,
            self.world.style.brightness,
            rng,
        )
        returned = met & found & (true > _MIN_RANGE_M)
        spread = np.hypot(config.range_noise_m, TABLE[:, 4])[seen["material"]]
        measured = np.where(returned, true, 0.0)
        measured += returned * spread * rng.standard_normal(len(true))
        owner = np.where(returned, seen["owner"], NOBODY)
        intensity = np.where(returned, intensity, _EMPTY_INTENSITY)
        if config.clutter > 0.0:
            near = _MIN_RANGE_M + rng.exponential(_HAZE_DEPTH_M, len(true))
            air = (rng.random(len(true)) < config.clutter) & (near < true)
            measured, owner = np.where(air, near, measured), np.where(air, NOBODY, owner)
            intensity = np.where(air, _HAZE_INTENSITY, intensity)
        return measured, intensity, owner

    def _report(
        self,
        measured: np.ndarray,
        intensity: np.ndarray,
        owner: np.ndarray,
        poses: np.ndarray,
        local: np.ndarray,
        stamp_ns: int,
    ) -> Sweep:
        """Return the cloud in the sensor's frame at the stamp.

        A firing without return has range 0 and so lands where the sensor was when it fired.
        """
        columns, beams = local.shape[:2]
        moved = np.linalg.inv(poses[-1]) @ poses
        xyz = _turned(moved, local * measured.reshape(columns, -1, 1))
        xyz = (xyz + moved[:, None, :3, 3]).reshape(-1, 3)
        returned = measured > 0.0
        keep = returned | self.config.keep_no_returns
        points = PointBatch(
            xyz=xyz[keep].astype(np.float32),
            intensity=intensity[keep].astype(np.float32),
            time_lag_s=np.zeros(int(keep.sum()), np.float32),
            ring=np.tile(np.arange(beams, dtype=np.int32), columns)[keep],
            stamp_ns=stamp_ns,
            frame_id=self.config.frame_id,
        )
        return Sweep(points, owner[keep], returned[keep])


def _turned(poses: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return vectors (W, B, 3) of each column turned by its pose (W, 4, 4), stored axis by axis."""
    x, y, z = np.moveaxis(vectors, -1, 0)
    out = np.empty((3, *x.shape))
    for axis, (a, b, c) in zip(out, np.moveaxis(poses[:, :3, :3, None], 0, 2)):
        np.add(a * x + c * z, b * y, out=axis)
    return np.moveaxis(out, 0, -1)


def _show(
    seen: dict[str, np.ndarray], rays: Rays, bodies: np.ndarray, hits: Hits, rows: np.ndarray
) -> None:
    """Write what the rays in these rows hit."""
    which = hits.body[rows]
    for name in ("material", "gain", "owner"):
        seen[name][rows] = bodies[name][which]
    seen["cosine"][rows] = cosines(rays, bodies, rows, which, hits.range_m[rows])
