"""The cameras of the vehicle: what they see of the same world as the LiDAR."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from driveRT_ros.core.frame import NUSCENES_CLASSES, CameraFrame
from driveRT_ros.io.palette import class_color
from driveRT_ros.sim.facets import Facets, facets_of
from driveRT_ros.sim.ground_mesh import ground_facets
from driveRT_ros.sim.raster import Drawing, Pose, draw
from driveRT_ros.sim.rig import HEIGHT, RIG, WIDTH
from driveRT_ros.sim.streams import CAMERA, stream
from driveRT_ros.sim.world import World

_ZENITH, _HORIZON = np.array([112.0, 158.0, 212.0]), np.array([204.0, 212.0, 220.0])
_FAR_GROUND = np.array([150.0, 156.0, 142.0])
_SKY_RAD = 0.35  # elevation at which the sky has its full colour
_HAZE_M = 220.0  # distance at which 63 % of the light is the haze's
_CLUMP_PX = 3  # leaves and wires are this wide in the full image


@dataclass(frozen=True)
class View:
    """One rendered image and what is behind each pixel.

    Args:
        image: (H, W, 3) uint8 RGB.
        depth_m: (H, W) float32 along the optical axis, inf for the sky.
        owner: (H, W) int64 track id of the object, -1 for everything else.
    """

    image: np.ndarray
    depth_m: np.ndarray
    owner: np.ndarray


class Cameras:
    """Renders the images of one world.

    All cameras expose at the stamp of a sweep; objects stand where the ground truth has them.

    Args:
        world: What to look at.
    """

    def __init__(self, world: World) -> None:
        self.world, self.config = world, world.config.cameras
        scale = self.config.scale
        self.size_wh = (round(WIDTH * scale), round(HEIGHT * scale))
        rng = stream(world.config.seed, CAMERA)
        turn, rise = rng.uniform(-np.pi, np.pi), rng.uniform(0.5, 1.0)
        self._sun = np.array(
            [np.cos(turn) * np.cos(rise), np.sin(turn) * np.cos(rise), np.sin(rise)]
        )
        self._grain = self._draw_grain(rng)

    def wants(self, index: int) -> bool:
        """Tell whether images belong to a sweep."""
        return self.config.enabled and index % self.config.every_nth_sweep == 0

    def frames(self, index: int) -> tuple[CameraFrame, ...]:
        """Return the images that belong to a sweep, as files or as pixels."""
        stamp_ns = self.world.config.stamp_ns(index)
        facets = self.facets(index)
        return tuple(
            self.frame(name, stamp_ns, self._render(name, facets, index)[0])
            for name in self.config.names
        )

    def view(self, name: str, index: int) -> View:
        """Return one image of a sweep with depth and objects."""
        return self._view(name, self.facets(index), index)

    def views(self, index: int) -> dict[str, View]:
        """Return the images of all cameras of a sweep with depth and objects, by name."""
        facets = self.facets(index)
        return {name: self._view(name, facets, index) for name in self.config.names}

    def _view(self, name: str, facets: Facets, index: int) -> View:
        image, drawing = self._render(name, facets, index)
        return View(image, drawing.depth_m, drawing.owner(facets))

    def facets(self, index: int) -> Facets:
        """Return everything that can be seen at a sweep."""
        time_s = self._time_s(index)
        snapshot = self.world.at(time_s)
        colours = {
            actor.track_id: class_color(NUSCENES_CLASSES[actor.label]) for actor in snapshot.actors
        }
        s_ego = float(self.world.ego_s(time_s))
        ground = ground_facets(self.world, s_ego, self.config.max_range_m, self._sun)
        return Facets.join([facets_of(snapshot.bodies, colours, self._sun), ground])

    def _time_s(self, index: int) -> float:
        config = self.world.config
        return (config.stamp_ns(index) - config.start_time_ns) * 1e-9

    def _draw_grain(self, rng: np.random.Generator) -> np.ndarray:
        """Draw noise (H, W) uint8 in clumps; values below 255 leave nothing uncovered at 1."""
        width, height = self.size_wh
        clump = max(1, round(_CLUMP_PX * self.config.scale))
        coarse = rng.integers(0, 255, (-(-height // clump), -(-width // clump)), dtype=np.uint8)
        return np.repeat(np.repeat(coarse, clump, 0), clump, 1)[:height, :width].copy()

    def _render(self, name: str, facets: Facets, index: int) -> tuple[np.ndarray, Drawing]:
        T_world_ego = self.world.T_world_ego(np.array([self._time_s(index)]))[0]
        T_world_camera = T_world_ego @ RIG[name].T_ego_camera
        pose = Pose(RIG[name].K(self.size_wh), T_world_camera, self.size_wh)
        drawing = draw(facets, pose, self.config.max_range_m, self._grain)
        return self._coloured(drawing, facets, pose), drawing

    def _coloured(self, drawing: Drawing, facets: Facets, pose: Pose) -> np.ndarray:
        """Return the image: facets behind haze, and the sky where there are none."""
        away = facets.corners.mean(axis=1) - pose.T_world_camera[:3, 3]
        clear = np.exp(-np.linalg.norm(away, axis=1) / _HAZE_M)[:, None]
        colours = clear * facets.colours + (1.0 - clear) * _HORIZON
        # One colour a row for what is behind everything: row y of the image is -1 - y.
        palette = np.concatenate([colours, self._backdrop(pose)[::-1]])
        rows = drawing.facet
        empty = rows < 0
        lines = -1 - np.arange(rows.shape[0], dtype=np.int32)[:, None]
        rows = np.where(empty, lines, rows)
        packed = np.zeros((len(palette), 4), np.uint8)
        packed[:, :3] = np.round(palette)
        pixels = packed.view(np.uint32)[:, 0].take(rows, mode="wrap")
        return cv2.cvtColor(pixels.view(np.uint8).reshape(*rows.shape, 4), cv2.COLOR_RGBA2RGB)

    def _backdrop(self, pose: Pose) -> np.ndarray:
        """Return (H, 3) the colour of sky or far ground at the middle of each row."""
        v = np.arange(self.size_wh[1])
        local = np.stack([0.0 * v, (v - pose.K[1, 2]) / pose.K[1, 1], 1.0 + 0.0 * v], axis=1)
        up = (local @ pose.T_world_camera[:3, :3].T)[:, 2]
        elevation = np.arctan2(up, np.sqrt(np.maximum((local**2).sum(1) - up**2, 0.0)))
        part = np.clip(elevation / _SKY_RAD, 0.0, 1.0)[:, None]
        sky = (1.0 - part) * _HORIZON + part * _ZENITH
        return np.where(elevation[:, None] > 0, sky, _FAR_GROUND)

    def frame(self, name: str, stamp_ns: int, image: np.ndarray) -> CameraFrame:
        """Return a rendered image as what a camera gives, as file or as pixels."""
        quality = self.config.jpeg_quality
        encoded = None
        if quality:
            options = [cv2.IMWRITE_JPEG_QUALITY, quality]
            _, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
            encoded = data.tobytes()
        return CameraFrame(
            name=name,
            stamp_ns=stamp_ns,
            frame_id=name,
            image=None if quality else image,
            encoded=encoded,
            format="jpeg" if quality else "",
            K=RIG[name].K(self.size_wh),
            D=np.zeros(0),
            distortion_model="plumb_bob",
            size_wh=self.size_wh,
            T_ego_camera=RIG[name].T_ego_camera,
        )
