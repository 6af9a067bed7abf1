"""Where the cameras of one rig look: the scatter map and the cells that each camera sees.

Both depend on the calibration alone and are kept until it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.bev_pool import build_scatter_map
from driveRT_ros.core.camera_config import CameraModelConfig
from driveRT_ros.core.camera_images import ImageFit
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.core.pool_types import CameraGeometry, FrustumShape, PoolGrid, ScatterMap

FAR_AWAY_M = 1e6
"""Where a camera of unknown calibration is put: none of its points reaches the grid."""

_HEIGHTS = 9  # heights at which a cell is looked for in an image

Matrix = npt.NDArray[np.float64]
Given = tuple[tuple[int, ...], bytes, bytes, bytes]
"""Size of the image, then the bytes of K, D and T_ego_camera."""


@dataclass(frozen=True)
class Calibration:
    """What one camera contributes to the geometry.

    Args:
        K: (3, 3) intrinsics of the camera image.
        T_ego_camera: (4, 4) camera to ego.
        fit: From the camera image to the network input.
        given: Of the frame that it is of, see :func:`given_by`.
    """

    K: Matrix
    T_ego_camera: Matrix
    fit: ImageFit
    given: Given | None = None

    @staticmethod
    def of(frame: CameraFrame, model: CameraModelConfig) -> Calibration:
        """Return the calibration of a checked frame."""
        return Calibration(
            K=np.array(frame.K, np.float64),
            T_ego_camera=np.array(frame.T_ego_camera, np.float64),
            fit=ImageFit.of(frame.size_wh, model.image),
            given=given_by(frame),
        )

    @cached_property
    def key(self) -> bytes:
        """Equal for equal calibrations."""
        return self.K.tobytes() + self.T_ego_camera.tobytes() + repr(self.fit).encode()


def given_by(frame: CameraFrame) -> Given:
    """Return what tells the calibration of a frame from those before, whether it is usable or not.

    To compare it costs a frame much less than to check and to take a calibration.
    """
    numbers = (frame.K, frame.D, frame.T_ego_camera)
    K, D, T_ego_camera = (np.asarray(each).tobytes() for each in numbers)
    return tuple(frame.size_wh), K, D, T_ego_camera


@dataclass(frozen=True, eq=False)
class Sight:
    """What the cameras see that are there.

    Args:
        counts: (Y, X) float32, how many of them see a cell.
        unknown: (Y, X) float32, NaN where none does and else 0: what the network guesses there is
            hidden by adding it.
        lost: (Y, X) bool, cells that only missing cameras see.
    """

    counts: npt.NDArray[np.float32]
    unknown: npt.NDArray[np.float32]
    lost: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rig:
    """The geometry of all cameras.

    Args:
        key: Equal for equal calibrations of every camera.
        scatter_map: From frustum points to cells.
        known: (N,) bool, cameras whose calibration is known.
        sees: (N, Y, X) bool, cells in sight of each camera, up to the greatest depth.
    """

    key: tuple[bytes, ...]
    scatter_map: ScatterMap
    known: npt.NDArray[np.bool_]
    sees: npt.NDArray[np.bool_]

    @staticmethod
    def build(
        calibrations: Sequence[Calibration | None],
        model: CameraModelConfig,
        device: torch.device,
        before: Rig | None = None,
    ) -> Rig:
        """Build the scatter map and the field of view of every camera.

        Args:
            calibrations: One entry a camera, None where it is not known yet.
            model: Depths, grid and image size.
            device: Where the scatter map is needed.
            before: A rig of the same cameras and model: cameras that stayed as they were look
                where they did.
        """
        placed = [c or _unknown(model) for c in calibrations]
        scatter_map = build_scatter_map(
            camera_geometry(placed),
            frustum_shape(model),
            pool_grid(model),
            device=device,
            rounding=model.grid.rounding,
        )
        key = rig_key(calibrations)
        _, *cells = model.grid.shape_zyx
        sees = np.zeros((len(key), *cells), np.bool_)
        for i, calibration in enumerate(calibrations):
            if before is not None and before.key[i] == key[i]:
                sees[i] = before.sees[i]
            elif calibration is not None:
                sees[i] = cells_in_sight(calibration, model)
        return Rig(key, scatter_map, np.array([c is not None for c in calibrations]), sees)

    def sight(self, has_image: npt.NDArray[np.bool_]) -> Sight:
        """Return what the cameras see that are there.

        Where a camera's calibration is not known yet, every cell that no other sees may be its.

        Args:
            has_image: (N,), which are there.
        """
        counts = self.sees[has_image].sum(axis=0)
        unseen = counts == 0
        unknown = np.where(unseen, np.float32(np.nan), np.float32(0))
        lost = unseen & self.sees.any(axis=0) if self.known.all() else unseen
        return Sight(counts.astype(np.float32), unknown, lost)


def rig_key(calibrations: Sequence[Calibration | None]) -> tuple[bytes, ...]:
    """Return what tells one calibration of all cameras from another."""
    return tuple(c.key if c else b"" for c in calibrations)


def camera_geometry(calibrations: Sequence[Calibration]) -> CameraGeometry:
    """Return the geometry from which the scatter map is built."""
    return CameraGeometry(
        K=np.stack([c.K for c in calibrations]),
        T_ego_cam=np.stack([c.T_ego_camera for c in calibrations]),
        post_rot=np.stack([c.fit.post_rot for c in calibrations]),
        post_trans=np.stack([c.fit.post_trans for c in calibrations]),
    )


def frustum_shape(model: CameraModelConfig) -> FrustumShape:
    """Return the points along the rays of every feature pixel."""
    height, width = model.image.size_hw
    return FrustumShape(
        image_size_hw=(height, width),
        feature_size_hw=model.image.feature_size_hw,
        depth_min_m=model.depth.min_m,
        depth_max_m=model.depth.max_m,
        depth_step_m=model.depth.step_m,
    )


def pool_grid(model: CameraModelConfig) -> PoolGrid:
    """Return the grid that the points fall into."""
    grid = model.grid
    return PoolGrid(
        x_min=grid.x_range_m[0],
        x_max=grid.x_range_m[1],
        x_step=grid.resolution_m,
        y_min=grid.y_range_m[0],
        y_max=grid.y_range_m[1],
        y_step=grid.resolution_m,
        z_min=grid.z_range_m[0],
        z_max=grid.z_range_m[1],
        z_step=(grid.z_range_m[1] - grid.z_range_m[0]) / grid.z_cells,
    )


def cells_in_sight(camera: Calibration, model: CameraModelConfig) -> npt.NDArray[np.bool_]:
    """Tell which cells one camera sees at some height of the grid, between the depths.

    Args:
        camera: Calibration.
        model: Depths, grid and image size.

    Returns:
        (Y, X) bool; row r is y, column c is x, as in :class:`driveRT_ros.core.frame.BevGrid`.
    """
    grid, (rows, cols) = model.grid, model.image.size_hw
    _, count_y, count_x = grid.shape_zyx
    x = grid.x_range_m[0] + (np.arange(count_x) + 0.5) * grid.resolution_m
    y = grid.y_range_m[0] + (np.arange(count_y) + 0.5) * grid.resolution_m
    # Its own height as well: close to a camera the others may all lie outside the image.
    z_low, z_high = grid.z_range_m
    heights = [*np.linspace(z_low, z_high, _HEIGHTS), camera.T_ego_camera[2, 3]]
    T_camera_ego = np.linalg.inv(camera.T_ego_camera)
    M = camera.fit.post_rot @ camera.K @ T_camera_ego[:3]
    seen = np.zeros((count_y, count_x), bool)
    for z in heights:
        u, v, depth = (m[0] * x[None, :] + m[1] * y[:, None] + m[2] * z + m[3] for m in M)
        ahead = (depth >= model.depth.min_m) & (depth < model.depth.max_m)
        scale = np.where(ahead, depth, 1.0)
        u, v = u / scale - camera.fit.left, v / scale - camera.fit.top
        seen |= ahead & (u >= 0) & (u < cols) & (v >= 0) & (v < rows)
    return seen


def _unknown(model: CameraModelConfig) -> Calibration:
    rows, cols = model.image.size_hw
    pose = np.eye(4)
    pose[2, 3] = FAR_AWAY_M
    K = np.array([[cols, 0.0, cols / 2], [0.0, cols, rows / 2], [0.0, 0.0, 1.0]])
    return Calibration(K, pose, ImageFit.of((cols, rows), model.image))
