"""Where six cameras sit on the vehicle, and what they see: a nuScenes rig.

The numbers are those of a vehicle of the nuScenes data set (calibrated_sensor of its 2018 drives
in Singapore), rounded to millimetres, tenths of pixels and six digits of the quaternions. The ego
frame is on the ground below the rear axle, x forward, y left, z up; a camera looks along its z with
x right and y down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 1600, 900


@dataclass(frozen=True)
class Mount:
    """One camera of the rig.

    Args:
        focal_px: Focal length, the same along both axes.
        centre_xy: Principal point in pixels; pixel centres are whole numbers.
        quat_wxyz: Rotation from camera to ego axes.
        translation_xyz: Camera in the ego frame, metres.
    """

    focal_px: float
    centre_xy: tuple[float, float]
    quat_wxyz: tuple[float, float, float, float]
    translation_xyz: tuple[float, float, float]

    def K(self, size_wh: tuple[int, int]) -> np.ndarray:  # noqa: N802 - a matrix's name
        """Return the intrinsics (3, 3) float64 of an image of any size with the same view."""
        scale_x, scale_y = size_wh[0] / WIDTH, size_wh[1] / HEIGHT
        cx, cy = self.centre_xy
        return np.array(
            [
                [self.focal_px * scale_x, 0.0, cx * scale_x],
                [0.0, self.focal_px * scale_y, cy * scale_y],
                [0.0, 0.0, 1.0],
            ]
        )

    @property
    def T_ego_camera(self) -> np.ndarray:  # noqa: N802 - a transform's name
        """The mounting (4, 4) float64."""
        w, x, y, z = np.array(self.quat_wxyz) / np.linalg.norm(self.quat_wxyz)
        T = np.eye(4)
        T[:3, :3] = (
            (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
            (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
            (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
        )
        T[:3, 3] = self.translation_xyz
        return T


RIG: dict[str, Mount] = {
    "CAM_FRONT": Mount(
        1266.4, (816.3, 491.5), (0.499802, -0.503032, 0.499780, -0.497371), (1.701, 0.016, 1.511)
    ),
    "CAM_FRONT_RIGHT": Mount(
        1260.8, (808.0, 495.3), (0.206035, -0.202694, 0.682451, -0.671361), (1.551, -0.493, 1.496)
    ),
    "CAM_FRONT_LEFT": Mount(
        1272.6, (826.6, 479.8), (0.675727, -0.673627, 0.212140, -0.211228), (1.524, 0.495, 1.509)
    ),
    "CAM_BACK": Mount(
        809.2, (829.2, 481.8), (0.503787, -0.497402, -0.494185, 0.504550), (0.028, 0.003, 1.579)
    ),
    "CAM_BACK_LEFT": Mount(
        1256.7, (792.1, 492.8), (0.692418, -0.703162, -0.116483, 0.112033), (1.036, 0.485, 1.591)
    ),
    "CAM_BACK_RIGHT": Mount(
        1259.5, (807.3, 501.2), (0.122810, -0.132401, -0.700431, 0.690496), (1.015, -0.481, 1.562)
    ),
}
NAMES = tuple(RIG)
