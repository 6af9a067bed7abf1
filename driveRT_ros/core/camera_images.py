"""From camera frames to what the network takes: checks, one resize and crop, one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.camera_config import ImageConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import CameraFrame

ORTHONORMAL_TOLERANCE = 1e-3
"""Rotations from rounded quaternions are this exact; anything worse is no rotation."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ImageFit:
    """How one image becomes the network input: ``u' = scale_x * u - left``, likewise v.

    The shift of pixel centres under resizing, less than half a pixel of the network input, is left
    out, as in published checkpoints.

    Args:
        resized_wh: Image size after resizing.
        scale_xy: Factors of both axes.
        left: Columns cut from the left; negative pads with black.
        top: Rows cut from the top; negative pads with black.
        size_hw: Network input.
    """

    resized_wh: tuple[int, int]
    scale_xy: tuple[float, float]
    left: int
    top: int
    size_hw: tuple[int, int]

    @staticmethod
    def of(size_wh: tuple[int, int], config: ImageConfig) -> ImageFit:
        """Return how images of one size are fitted.

        Args:
            size_wh: Width and height of the camera image.
            config: Network input, resize factor and crop.
        """
        width, height = size_wh
        rows, cols = config.size_hw
        factor = config.resize or cols / width
        resized = max(1, round(width * factor)), max(1, round(height * factor))
        return ImageFit(
            resized_wh=resized,
            scale_xy=(resized[0] / width, resized[1] / height),
            left=(resized[0] - cols) // 2,
            top=round((resized[1] - rows) * config.crop_top),
            size_hw=(rows, cols),
        )

    @property
    def post_rot(self) -> npt.NDArray[np.float64]:
        """(3, 3): scales u and v of (u, v, depth)."""
        return np.diag([*self.scale_xy, 1.0])

    @property
    def post_trans(self) -> npt.NDArray[np.float64]:
        """(3,): shifts u and v of (u, v, depth)."""
        return np.array([-self.left, -self.top, 0.0])

    @property
    def shrinks(self) -> bool:
        """Whether no axis is enlarged: pixels are averaged."""
        return max(self.scale_xy) <= 1.0

    def apply(self, image: Pixels, out: Pixels) -> None:
        """Resize and crop one image into a row of the batch.

        Args:
            image: (H, W, 3) of the size that this fit was made for.
            out: (rows, cols, 3) uint8, zero on entry.
        """
        # Averaging areas instead of sampling keeps fine texture from turning into moire.
        method = cv2.INTER_AREA if self.shrinks else cv2.INTER_LINEAR
        resized = cv2.resize(image, self.resized_wh, interpolation=method)
        from_x, from_y = max(self.left, 0), max(self.top, 0)
        to_x, to_y = max(-self.left, 0), max(-self.top, 0)
        part = resized[from_y : from_y + out.shape[0] - to_y, from_x : from_x + out.shape[1] - to_x]
        out[to_y : to_y + part.shape[0], to_x : to_x + part.shape[1]] = part


def check_frame(frame: CameraFrame) -> None:
    """Check that an image and its calibration can be used.

    Raises:
        InvalidFrame: With a stable ``code``: ``image_missing``, ``image_type``, ``image_size``,
            ``intrinsics``, ``distorted`` or ``extrinsics``.
    """
    check_image(frame)
    check_calibration(frame)


def check_image(frame: CameraFrame) -> None:
    """Check the pixels alone, see :func:`check_frame`."""
    image, name = frame.image, frame.name
    if image is None:
        raise InvalidFrame(
            f"{name} has no pixels; decode the image before processing it.",
            "image",
            None,
            "(H, W, 3) uint8",
            code="image_missing",
        )
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise InvalidFrame(
            f"The image of {name} must hold RGB bytes.",
            "image",
            f"{image.shape} {image.dtype}",
            "(H, W, 3) uint8",
            code="image_type",
        )
    size_wh = (image.shape[1], image.shape[0])
    if size_wh != tuple(frame.size_wh):
        raise InvalidFrame(
            f"The image of {name} has another size than its calibration.",
            "image",
            size_wh,
            tuple(frame.size_wh),
            code="image_size",
        )


def check_calibration(frame: CameraFrame) -> None:
    """Check the calibration alone, see :func:`check_frame`."""
    K, name = np.asarray(frame.K), frame.name
    if K.shape != (3, 3) or not np.isfinite(K).all() or K[0, 0] <= 0 or K[1, 1] <= 0:
        raise InvalidFrame(
            f"{name} is not calibrated.",
            "K",
            K.tolist(),
            "finite (3, 3) with positive focal lengths",
            code="intrinsics",
        )
    if np.any(np.asarray(frame.D) != 0):
        raise InvalidFrame(
            f"The image of {name} is distorted; undistort it before processing it.",
            "D",
            np.asarray(frame.D).tolist(),
            "no coefficients, or zeros",
            code="distorted",
        )
    T = np.asarray(frame.T_ego_camera)
    usable = T.shape == (4, 4) and bool(np.isfinite(T).all())
    if usable:
        rotation = T[:3, :3]
        error = np.abs(rotation @ rotation.T - np.eye(3)).max()
        usable = error < ORTHONORMAL_TOLERANCE and np.linalg.det(rotation) > 0
    if not usable:
        raise InvalidFrame(
            f"The pose of {name} is no rigid transform.",
            "T_ego_camera",
            T.tolist(),
            "finite (4, 4) of a right-handed rotation and a translation",
            code="extrinsics",
        )


def network_input(
    frames: Sequence[CameraFrame | None], config: ImageConfig, batch: Pixels | None = None
) -> Pixels:
    """Return the resized and cropped images, black where a camera is missing.

    Args:
        frames: One entry a camera, checked.
        config: Network input.
        batch: Where to write them, (N, rows, cols, 3) uint8; new memory by default.

    Returns:
        (N, rows, cols, 3) uint8 RGB.
    """
    if batch is None:
        batch = np.empty((len(frames), *config.size_hw, 3), np.uint8)
    batch.fill(0)
    for frame, out in zip(frames, batch):
        if frame is not None and frame.image is not None:
            ImageFit.of(frame.size_wh, config).apply(frame.image, out)
    return batch


class Normalizer:
    """Turns bytes into what the network takes: ``(colour - mean) / std`` in the network's order.

    Args:
        config: Colour order, mean and standard deviation.
        device: Of the network.
        dtype: Of the network.
    """

    def __init__(self, config: ImageConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._swap = config.channel_order == "bgr"
        self._mean = torch.tensor(config.mean, device=device)
        self._std = torch.tensor(config.std, device=device)
        self._dtype = dtype

    def __call__(self, batch: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise the images of one frame.

        Args:
            batch: (N, rows, cols, 3) uint8 RGB, on any device; from pinned memory nobody waits
                for the copy, so it must stay as it is until the device has read it.
            out: Memory of the same shape on the device and in the type of the network; new by
                default.

        Returns:
            (1, N, 3, rows, cols) on the device of the network, channels last in memory.
        """
        colours = batch.to(self._mean.device, non_blocking=True)
        colours = colours.flip(-1) if self._swap else colours
        if out is None:
            out = torch.empty(batch.shape, dtype=self._dtype, device=self._mean.device)
        torch.div(colours.float() - self._mean, self._std, out=out)
        return out.permute(0, 3, 1, 2).unsqueeze(0)


class HostInput:
    """The network input of all cameras, made on the CPU for the CPU.

    Args:
        config: Network input.
        cameras: How many.

    Attributes:
        batch: (N, rows, cols, 3) uint8 RGB, of fixed address.
    """

    def __init__(self, config: ImageConfig, cameras: int) -> None:
        self._config = config
        self.batch = torch.zeros((cameras, *config.size_hw, 3), dtype=torch.uint8)

    def load(self, frames: Sequence[CameraFrame | None]) -> None:
        """Resize and crop the images, black where a camera is missing."""
        network_input(frames, self._config, self.batch.numpy())

    def fit(self) -> None:
        """Do nothing more."""
