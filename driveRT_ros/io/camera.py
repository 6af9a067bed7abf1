"""CameraInfo to intrinsics, and images to what a pinhole camera would have seen.

Source: the comments of sensor_msgs/msg/CameraInfo, and image_geometry for binning, the region of
interest and the order in which both apply.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.io.image import MAX_SIDE_PX, Pixels, check_size, with_pixels

Matrix = npt.NDArray[np.float64]

DISTORTION_MODELS: dict[str, tuple[int, ...]] = {
    "plumb_bob": (4, 5),
    "rational_polynomial": (8, 12, 14),
    "equidistant": (4,),
}
"""Lengths of D by model; no coefficients mean no distortion in each of them."""

ROTATION_TOLERANCE = 1e-3
"""Rectifying rotations from files with few digits are this exact."""


@dataclass(frozen=True, eq=False)
class CameraIntrinsics:
    """How one camera maps rays to the pixels that it publishes.

    Args:
        frame_id: Optical frame: x right, y down, z forward.
        size_wh: Width and height of the published image, after binning and region of interest.
        K: (3, 3) float64 of the published image.
        D: (n,) float64; empty where there is no distortion.
        distortion_model: ``plumb_bob``, ``rational_polynomial`` or ``equidistant``.
        R: (3, 3) float64 from the camera's own axes to the rectified ones.
        K_rect: (3, 3) float64 of the image after :meth:`Undistorter.apply`.
    """

    frame_id: str
    size_wh: tuple[int, int]
    K: Matrix
    D: Matrix
    distortion_model: str
    R: Matrix
    K_rect: Matrix

    @cached_property
    def hash(self) -> str:
        """Name of everything that decides where a pixel looks: equal calibrations, equal names."""
        digest = hashlib.sha256(f"{self.size_wh} {self.distortion_model}".encode())
        for array in (self.K, self.D, self.R, self.K_rect):
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    @property
    def is_pinhole(self) -> bool:
        """Whether the published image already is the undistorted one."""
        straight = not self.D.size and np.array_equal(self.R, np.eye(3))
        return straight and np.array_equal(self.K, self.K_rect)


def is_distorted(D: Matrix, distortion_model: str) -> bool:
    """Tell whether coefficients bend rays at all.

    Those of a fisheye do even where they are zero: it maps angles and not tangents.
    """
    return bool(D.any()) or (distortion_model == "equidistant" and D.size > 0)


def is_rectified_topic(topic: str) -> bool:
    """Tell from its name whether a topic carries undistorted images, as image_proc names them."""
    return any(part.startswith("image_rect") for part in topic.split("/"))


def decode_camera_info(info: Any, *, rectified: bool = False) -> CameraIntrinsics:
    """Decode and check a sensor_msgs/msg/CameraInfo.

    K and P are those of the whole sensor: the region of interest shifts, and binning then divides,
    all of their entries. The projection P holds for rectified images, whose rays are turned by R;
    where P or R are all zero, as drivers without stereo leave them, K and no rotation take their
    place. The fourth column of P says where the other eye of a stereo pair is and is not used: the
    frame of the message is that of this camera.

    Args:
        info: An rclpy or rosbags message, or anything with the same attributes.
        rectified: The images of this camera are undistorted already (:func:`is_rectified_topic`).

    Raises:
        InvalidFrame: With ``code`` ``intrinsics`` (not calibrated: zero, or no pinhole matrix),
            ``image_size``, ``roi``, ``distortion_model``, ``distortion`` or ``rectification``.
    """
    x0, y0, width, height = _window(info)
    binning_x, binning_y = max(int(info.binning_x), 1), max(int(info.binning_y), 1)
    size_wh = (width // binning_x, height // binning_y)
    if min(size_wh) < 1:
        raise _fault(info, "has more binning than pixels", "binning_x", (binning_x, binning_y),
                     f"at most {width} x {height}", "image_size")  # fmt: skip
    K = _pinhole(info, _matrix(info, "k", (3, 3)), "k")
    D = _distortion(info)
    R, P = _rectification(info, K)
    scale = np.diag([1.0 / binning_x, 1.0 / binning_y, 1.0])
    window = scale @ np.array([[1.0, 0.0, -x0], [0.0, 1.0, -y0], [0.0, 0.0, 1.0]])
    K, K_rect = window @ K, window @ P
    if rectified:
        K, D, R = K_rect, np.zeros(0), np.eye(3)
    return CameraIntrinsics(
        frame_id=info.header.frame_id,
        size_wh=size_wh,
        K=K,
        D=D,
        distortion_model=info.distortion_model or "plumb_bob",
        R=R,
        K_rect=K_rect,
    )


class Undistorter:
    """Undistorts the images of one camera; its maps are built when a calibration is first seen.

    Attributes:
        builds: How often maps were built.
    """

    def __init__(self) -> None:
        self.builds = 0
        self._hash = ""
        self._maps: tuple[Any, Any] = (None, None)

    def apply(self, image: Pixels, intrinsics: CameraIntrinsics) -> Pixels:
        """Return what a pinhole camera with ``intrinsics.K_rect`` sees; black where nothing is.

        Args:
            image: (H, W, 3) uint8 of the size of the calibration.
            intrinsics: Calibration of the image.

        Returns:
            (H, W, 3) uint8; ``image`` itself where there is nothing to undo.

        Raises:
            InvalidFrame: If the image is of another size, with code ``image_size``.
        """
        check_size(image, intrinsics.size_wh, f"camera '{intrinsics.frame_id}'")
        if intrinsics.is_pinhole:
            return image
        if self._hash != intrinsics.hash:
            self._maps, self._hash = undistortion_maps(intrinsics), intrinsics.hash
            self.builds += 1
        return cv2.remap(image, *self._maps, cv2.INTER_LINEAR)  # type: ignore[no-any-return]


def undistortion_maps(intrinsics: CameraIntrinsics) -> tuple[Any, Any]:
    """Return OpenCV's fixed-point maps from undistorted to published pixels.

    Returns:
        (H, W, 2) int16 and (H, W) uint16, as ``cv2.remap`` takes them.
    """
    init = (
        cv2.fisheye.initUndistortRectifyMap
        if intrinsics.distortion_model == "equidistant" and intrinsics.D.size
        else cv2.initUndistortRectifyMap
    )
    maps = init(
        intrinsics.K,
        intrinsics.D if intrinsics.D.size else np.zeros(4),
        intrinsics.R,
        intrinsics.K_rect,
        intrinsics.size_wh,
        cv2.CV_16SC2,
    )
    return maps[0], maps[1]


def pinhole_frame(
    name: str,
    stamp_ns: int,
    image: Pixels,
    intrinsics: CameraIntrinsics,
    T_ego_camera: Matrix,
    undistorter: Undistorter,
) -> CameraFrame:
    """Return an undistorted frame, ready for the camera pipeline.

    Args:
        name: Camera name.
        stamp_ns: Header stamp of the image.
        image: (H, W, 3) uint8 RGB as published.
        intrinsics: Calibration of that image.
        T_ego_camera: (4, 4) float64 camera to ego at the stamp.
        undistorter: The one of this camera.

    Raises:
        InvalidFrame: If the image is of another size than its calibration.
    """
    return CameraFrame(
        name=name,
        stamp_ns=stamp_ns,
        frame_id=intrinsics.frame_id,
        image=undistorter.apply(image, intrinsics),
        encoded=None,
        format="",
        K=intrinsics.K_rect,
        D=np.zeros(0),
        distortion_model="plumb_bob",
        size_wh=intrinsics.size_wh,
        T_ego_camera=T_ego_camera,
    )


def undistorted(frame: CameraFrame, undistorter: Undistorter) -> CameraFrame:
    """Return a frame with pixels and without distortion; itself where there is nothing to undo.

    Args:
        frame: Of a data set, a bag or the simulator.
        undistorter: The one of this camera.

    Raises:
        InvalidFrame: If its bytes cannot be decoded, or have another size than it says.
    """
    frame = with_pixels(frame)
    if not is_distorted(frame.D, frame.distortion_model) or frame.image is None:
        return frame
    K = np.asarray(frame.K, np.float64)
    intrinsics = CameraIntrinsics(
        frame.frame_id, frame.size_wh, K, frame.D, frame.distortion_model, np.eye(3), K
    )
    image = undistorter.apply(frame.image, intrinsics)
    return dataclasses.replace(
        frame, image=image, encoded=None, format="", D=np.zeros(0), distortion_model="plumb_bob"
    )


def _window(info: Any) -> tuple[int, int, int, int]:
    """Return x, y, width, height of the part of the sensor that is published."""
    width, height, roi = int(info.width), int(info.height), info.roi
    if not (0 < width <= MAX_SIDE_PX and 0 < height <= MAX_SIDE_PX):
        raise _fault(info, "has no image size: the camera is not calibrated", "width",
                     (width, height), f"1 to {MAX_SIDE_PX}", "image_size")  # fmt: skip
    x0, y0 = int(roi.x_offset), int(roi.y_offset)
    window = (x0, y0, int(roi.width) or width - x0, int(roi.height) or height - y0)
    if window[2] < 1 or window[3] < 1 or x0 + window[2] > width or y0 + window[3] > height:
        raise _fault(info, "has a region of interest outside of its sensor", "roi",
                     window, f"inside {width} x {height}", "roi")  # fmt: skip
    return window


def _pinhole(info: Any, K: Matrix, field: str) -> Matrix:
    expected = "[fx 0 cx; 0 fy cy; 0 0 1] with fx, fy > 0"
    if not K.any():
        raise _fault(info, "is all zero: the camera is not calibrated", field, 0.0, expected,
                     "intrinsics")  # fmt: skip
    fixed = np.array([K[0, 1], K[1, 0], K[2, 0], K[2, 1], K[2, 2] - 1.0])
    if not np.isfinite(K).all() or K[0, 0] <= 0 or K[1, 1] <= 0 or np.abs(fixed).max() > 1e-6:
        raise _fault(info, "is no pinhole camera", field, K.tolist(), expected, "intrinsics")
    return K


def _distortion(info: Any) -> Matrix:
    """Return the coefficients, empty where all are zero."""
    model, D = info.distortion_model, np.array(info.d, np.float64).reshape(-1)
    if model not in DISTORTION_MODELS and (model or D.any()):
        raise _fault(info, f"has the distortion model '{model}', which is not supported",
                     "distortion_model", model, ", ".join(DISTORTION_MODELS),
                     "distortion_model")  # fmt: skip
    lengths = DISTORTION_MODELS.get(model, ())
    if not np.isfinite(D).all() or (is_distorted(D, model) and len(D) not in lengths):
        raise _fault(info, f"has unusable coefficients for '{model}'", "d", D.tolist(),
                     f"{' or '.join(map(str, lengths))} finite numbers, or none",
                     "distortion")  # fmt: skip
    return D if is_distorted(D, model) else np.zeros(0)


def _rectification(info: Any, K: Matrix) -> tuple[Matrix, Matrix]:
    """Return the rotation and the camera matrix of the rectified image, whole sensor."""
    R, P = _matrix(info, "r", (3, 3)), _matrix(info, "p", (3, 4))
    if not P[:, :3].any() or not R.any():
        return np.eye(3), K
    error = np.abs(R @ R.T - np.eye(3)).max()
    if not error < ROTATION_TOLERANCE or np.linalg.det(R) < 0:
        raise _fault(info, "has a rectification that is no rotation", "r", R.tolist(),
                     "a rotation, or all zero", "rectification")  # fmt: skip
    return R, _pinhole(info, P[:, :3].copy(), "p")


def _matrix(info: Any, field: str, shape: tuple[int, int]) -> Matrix:
    values = np.array(getattr(info, field), np.float64).reshape(-1)
    if values.size != shape[0] * shape[1]:
        raise _fault(info, f"has a matrix '{field}' of the wrong size", field, values.size,
                     f"{shape[0] * shape[1]} numbers", "intrinsics")  # fmt: skip
    return values.reshape(shape)


def _fault(
    info: Any, what: str, field: str, got: object, expected: object, code: str
) -> InvalidFrame:
    sentence = f"The CameraInfo of '{info.header.frame_id}' {what}."
    return InvalidFrame(sentence, field, got, expected, code=code)
