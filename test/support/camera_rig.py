"""Six cameras placed as on a nuScenes car, and images of a pole that stands where a test wants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

from driveRT_ros.core.frame import CameraFrame

SIZE_WH = (1600, 900)
# Name: yaw of the optical axis in degrees, focal length in pixels, position in the ego frame.
MOUNTS = {
    "CAM_FRONT_LEFT": (55.0, 1270.0, (1.52, 0.49, 1.51)),
    "CAM_FRONT": (0.0, 1266.0, (1.70, 0.02, 1.51)),
    "CAM_FRONT_RIGHT": (-55.0, 1260.0, (1.55, -0.49, 1.50)),
    "CAM_BACK_LEFT": (108.0, 1256.0, (1.04, 0.48, 1.59)),
    "CAM_BACK": (180.0, 809.0, (0.03, 0.0, 1.58)),
    "CAM_BACK_RIGHT": (-110.0, 1259.0, (1.06, -0.48, 1.56)),
}
NAMES = tuple(MOUNTS)


def pose(yaw_deg: float, position: Sequence[float]) -> np.ndarray:
    """Return camera to ego of a level camera: x right, y down, z forward."""
    yaw = math.radians(yaw_deg)
    forward = np.array([math.cos(yaw), math.sin(yaw), 0.0])
    down = np.array([0.0, 0.0, -1.0])
    T = np.eye(4)
    T[:3, :3] = np.stack([np.cross(down, forward), down, forward], axis=1)
    T[:3, 3] = position
    return T


def frame(
    name: str, image: np.ndarray | None = None, *, size_wh: tuple[int, int] = SIZE_WH
) -> CameraFrame:
    """Return a frame of one camera; grey without an image."""
    yaw, focal, position = MOUNTS[name]
    width, height = size_wh
    focal *= width / SIZE_WH[0]
    if image is None:
        image = np.full((height, width, 3), 128, np.uint8)
    return CameraFrame(
        name=name,
        stamp_ns=1_000,
        frame_id=f"{name}_optical",
        image=image,
        encoded=None,
        format="",
        K=np.array([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]]),
        D=np.zeros(0),
        distortion_model="plumb_bob",
        size_wh=size_wh,
        T_ego_camera=pose(yaw, position),
    )


def textured(seed: int, *, size_wh: tuple[int, int] = SIZE_WH) -> list[CameraFrame]:
    """Return one frame a camera of smooth random colours."""
    rng = np.random.default_rng(seed)
    return [
        frame(
            name,
            cv2.resize(rng.integers(0, 256, (9, 16, 3), dtype=np.uint8), size_wh),
            size_wh=size_wh,
        )
        for name in NAMES
    ]


def project(camera: CameraFrame, points_ego: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (M, 2) and depths (M,) of points (M, 3) in the ego frame."""
    R, t = camera.T_ego_camera[:3, :3], camera.T_ego_camera[:3, 3]
    local = (np.asarray(points_ego) - t) @ R  # rows times R is R transposed times columns
    depth = local[:, 2]
    return local[:, :2] / depth[:, None] * [camera.K[0, 0], camera.K[1, 1]] + camera.K[:2, 2], depth


def pole_frames(
    xy: tuple[float, float],
    *,
    radius_m: float = 0.25,
    height_m: float = 3.0,
    size_wh: tuple[int, int] = SIZE_WH,
) -> list[CameraFrame]:
    """Return black images of all cameras with a white upright pole standing at ``xy`` (ego)."""
    frames = []
    for name in NAMES:
        image = np.zeros((size_wh[1], size_wh[0], 3), np.uint8)
        camera = frame(name, image, size_wh=size_wh)
        to_pole = np.array(xy) - camera.T_ego_camera[:2, 3]
        side = np.array([-to_pole[1], to_pole[0]]) / np.linalg.norm(to_pole) * radius_m
        corners = np.array(
            [
                [*(xy - side), 0.0],
                [*(xy + side), 0.0],
                [*(xy + side), height_m],
                [*(xy - side), height_m],
            ]
        )
        pixels, depth = project(camera, corners)
        if (depth > 0.5).all():
            cv2.fillConvexPoly(image, np.round(pixels).astype(np.int32), (255, 255, 255))
        frames.append(camera)
    return frames
