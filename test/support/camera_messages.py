"""Images, calibrations and parameters for tests of the camera node, quick on a slow CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import cv2
import numpy as np

from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.io.encode import (
    encode_camera_info,
    encode_compressed_image,
    encode_transforms,
)
from driveRT_ros.nodes.raw import message_class
from test.support.camera_rig import NAMES, SIZE_WH, textured

SMALL: dict[str, object] = {
    "cameras": list(NAMES),
    "model.image.size_hw": [64, 160],
    "model.depth.step_m": 4.0,
    "model.grid.resolution_m": 2.0,
    "model.network.neck_channels": 16,
    "model.network.context_channels": 8,
    "model.network.bev_channels": [8, 8, 8],
    "model.network.bev_out_channels": 8,
    "model.network.head_channels": 8,
    "num_threads": 1,
}
"""Parameters of a model that looks at six images within a tenth of a second."""

SMALL_HEADS: dict[str, object] = {**SMALL, "model.network.heads": ["car,truck", "pedestrian"]}
"""The same with detection heads."""


def stamped(frame: CameraFrame, stamp_ns: int) -> CameraFrame:
    return dataclasses.replace(frame, stamp_ns=stamp_ns)


def jpegs(seed: int = 0, *, size_wh: tuple[int, int] = SIZE_WH) -> dict[str, CameraFrame]:
    """Return one frame a camera with a JPEG file in it."""
    out = {}
    for frame in textured(seed, size_wh=size_wh):
        assert frame.image is not None
        done, file = cv2.imencode(".jpg", frame.image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
        assert done
        out[frame.name] = dataclasses.replace(frame, encoded=file.tobytes(), format="jpeg")
    return out


def compressed(frame: CameraFrame, stamp_ns: int) -> Any:
    """Return a CompressedImage of rclpy."""
    return encode_compressed_image(stamped(frame, stamp_ns), message_class)


def info(frame: CameraFrame, stamp_ns: int, *, focal: float = 1.0) -> Any:
    """Return a CameraInfo of rclpy; ``focal`` is a factor on the focal lengths, 0 an absent K."""
    K = frame.K * np.array([[focal], [focal], [1.0]]) if focal else np.zeros((3, 3))
    if focal:
        K[:2, 2] = frame.K[:2, 2]
    return encode_camera_info(dataclasses.replace(stamped(frame, stamp_ns), K=K), message_class)


def mounts(frames: dict[str, CameraFrame], *, lift_m: float = 0.0) -> Any:
    """Return a TFMessage with the mounting of every camera, raised by ``lift_m``."""
    transforms = []
    for frame in frames.values():
        T = frame.T_ego_camera.copy()
        T[2, 3] += lift_m
        transforms.append((0, "base_link", frame.frame_id, T))
    return encode_transforms(transforms, message_class)
