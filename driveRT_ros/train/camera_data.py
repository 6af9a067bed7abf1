"""Batches of camera frames, changed anew each time, in an order that depends on seed and step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.camera_config import ImageConfig
from driveRT_ros.core.camera_images import ImageFit
from driveRT_ros.core.pool_types import CameraGeometry
from driveRT_ros.sim.rig import HEIGHT, WIDTH
from driveRT_ros.train.camera_config import CameraAugmentConfig, CameraTrainConfig
from driveRT_ros.train.camera_frames import DEPTH_STRIDE, NO_DEPTH, CameraSample
from driveRT_ros.train.data import Place, epoch_order

_ORDER, _CHANGE = range(2)
"""Second key of a random stream: what it decides."""


class Frames(Protocol):
    """Numbered frames, such as :class:`.camera_frames.CameraShards`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> CameraSample: ...


@dataclass(eq=False)
class CameraBatch:
    """B frames of N cameras, changed, on any device.

    Args:
        images: (B, N, H, W, 3) uint8 RGB network inputs.
        depth: (B, N, H/4, W/4) uint8, see :class:`.camera_frames.CameraSample`.
        light: (B, N, 2) float32, factor and offset of normalised colours.
        coefficients: (B, N, 24) float64, see :meth:`CameraGeometry.coefficients`.
        covered: (B, Y, X) uint8, see :class:`.camera_targets.Truth`.
        hidden: (B, Y, X) uint8.
    """

    images: torch.Tensor
    depth: torch.Tensor
    light: torch.Tensor
    coefficients: torch.Tensor
    covered: torch.Tensor
    hidden: torch.Tensor

    def __len__(self) -> int:
        return len(self.images)

    def pin_memory(self) -> CameraBatch:
        """Return tensors from which a copy to the GPU needs no wait."""
        return CameraBatch(*(getattr(self, f.name).pin_memory() for f in fields(self)))

    def to(self, device: torch.device) -> CameraBatch:
        """Return tensors on a device."""
        moved = (getattr(self, f.name).to(device, non_blocking=True) for f in fields(self))
        return CameraBatch(*moved)


@dataclass(frozen=True)
class ImageChange:
    """How one stored image becomes a network input: fitted, then perhaps mirrored.

    Args:
        fit: Resizing and cropping.
        flip: Whether columns are reversed after that.
    """

    fit: ImageFit
    flip: bool

    @staticmethod
    def draw(
        size_wh: tuple[int, int], image: ImageConfig, rules: CameraAugmentConfig,
        rng: np.random.Generator,
    ) -> ImageChange:  # fmt: skip
        """Draw a change of a stored image, whose upper rows may be cut off."""
        width, height = size_wh
        whole_wh = (width, round(width * HEIGHT / WIDTH))
        plain = ImageFit.of(whole_wh, image)
        rows, cols = plain.size_hw
        cut = (whole_wh[1] - height) * plain.scale_xy[1]
        zoom = 1.0 + rules.max_resize * rng.uniform(-1.0, 1.0)
        shift_x, shift_y = rules.max_shift_px * rng.uniform(-1.0, 1.0, 2)
        resized = tuple(max(1, round(n * s * zoom)) for n, s in zip(size_wh, plain.scale_xy))
        # The middle of the input stays where it was, but for the shift.
        left = (plain.left + cols / 2) * zoom - cols / 2 + shift_x
        top = (plain.top - cut + rows / 2) * zoom - rows / 2 + shift_y
        fit = ImageFit(
            resized_wh=(resized[0], resized[1]),
            scale_xy=(resized[0] / width, resized[1] / height),
            left=round(left),
            top=round(top),
            size_hw=plain.size_hw,
        )
        return ImageChange(fit, bool(rules.flip_images and rng.random() < 0.5))

    @property
    def post_rot(self) -> npt.NDArray[np.float64]:
        """(3, 3), see :class:`CameraGeometry`."""
        rotation = self.fit.post_rot
        return np.diag([-1.0, 1.0, 1.0]) @ rotation if self.flip else rotation

    @property
    def post_trans(self) -> npt.NDArray[np.float64]:
        """(3,), see :class:`CameraGeometry`."""
        u, v, depth = self.fit.post_trans
        return np.array([self.fit.size_hw[1] - 1 - u if self.flip else u, v, depth])

    def image(self, image: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Change an image (h, w, 3) into ``out``, a network input that is black on entry."""
        self.fit.apply(image, out)
        if self.flip:
            out[:] = out[:, ::-1].copy()

    def depth(self, depth: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Put the depth of each 4 x 4 pixels of the network input into ``out``."""
        places = []
        for axis, (first, scale) in enumerate(
            zip((self.fit.top, self.fit.left), reversed(self.fit.scale_xy))
        ):
            middle = DEPTH_STRIDE * np.arange(out.shape[axis]) + DEPTH_STRIDE // 2
            if axis == 1 and self.flip:
                middle = self.fit.size_hw[1] - 1 - middle
            places.append(np.floor((middle + first) / scale / DEPTH_STRIDE).astype(np.int64))
        inside = [(p >= 0) & (p < n) for p, n in zip(places, depth.shape)]
        rows, cols = (np.clip(p, 0, n - 1) for p, n in zip(places, depth.shape))
        out[:] = np.where(inside[0][:, None] & inside[1], depth[np.ix_(rows, cols)], NO_DEPTH)


def changed(
    samples: Sequence[CameraSample], config: CameraTrainConfig, positions: Sequence[int]
) -> CameraBatch:
    """Return frames as the network takes them, each changed as its position says.

    Args:
        samples: B frames.
        config: Model and augmentation.
        positions: Places of the frames in the order of training.
    """
    rows, cols = config.model.image.size_hw
    count, cameras = len(samples), len(samples[0].sizes)
    images = np.zeros((count, cameras, rows, cols, 3), np.uint8)
    depth = np.empty((count, cameras, rows // DEPTH_STRIDE, cols // DEPTH_STRIDE), np.uint8)
    light = np.empty((count, cameras, 2), np.float32)
    coefficients = np.empty((count, cameras, 24))
    covered = np.stack([s.truth.covered for s in samples])
    hidden = np.stack([s.truth.hidden for s in samples])
    rules = config.augment
    for b, (sample, position) in enumerate(zip(samples, positions)):
        rng = np.random.default_rng([config.seed, _CHANGE, position])
        light[b, :, 0] = 1.0 + rules.max_light * rng.uniform(-1.0, 1.0, cameras)
        light[b, :, 1] = rules.max_light * rng.uniform(-1.0, 1.0, cameras)
        flips = (rules.flip_x, rules.flip_y) & (rng.random(2) < 0.5)
        for grid in (covered, hidden):
            grid[b] = grid[b][:: -1 if flips[1] else 1, :: -1 if flips[0] else 1]
        changes = []
        for n, image in enumerate(sample.images()):
            size_wh = (image.shape[1], image.shape[0])
            changes.append(ImageChange.draw(size_wh, config.model.image, rules, rng))
            changes[-1].image(image, images[b, n])
            changes[-1].depth(sample.depth[n], depth[b, n])
        coefficients[b] = CameraGeometry(
            K=sample.K,
            T_ego_cam=sample.T_ego_camera,
            post_rot=np.stack([change.post_rot for change in changes]),
            post_trans=np.stack([change.post_trans for change in changes]),
            bda=np.diag([*(-1.0 if flip else 1.0 for flip in flips), 1.0]),
        ).coefficients()
    arrays = (images, depth, light, coefficients, covered, hidden)
    return CameraBatch(*(torch.from_numpy(array) for array in arrays))


class CameraBatches:
    """The batches from one step on, without end, made ahead by threads.

    Args:
        frames: Where they come from.
        config: Batch size, threads, order and augmentation.
        place: Of this process.
        first_step: Where training goes on; the batches are those of a run that never stopped.
        threads: That read and change frames; decoding leaves Python to others.
        pin_memory: For copies to a GPU.
    """

    def __init__(
        self,
        frames: Frames,
        config: CameraTrainConfig,
        place: Place,
        first_step: int,
        threads: int,
        pin_memory: bool = False,
    ) -> None:
        self._frames, self._config, self._place = frames, config, place
        self._next, self._pin, self._ahead = first_step, pin_memory, threads + 2
        self._pool = ThreadPoolExecutor(threads, initializer=cv2.setNumThreads, initargs=(1,))
        self._made: deque[Future[CameraBatch]] = deque()

    def __iter__(self) -> Iterator[CameraBatch]:
        return self

    def __next__(self) -> CameraBatch:
        while len(self._made) < self._ahead:
            self._made.append(self._pool.submit(self._batch, self._next))
            self._next += 1
        return self._made.popleft().result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _batch(self, step: int) -> CameraBatch:
        size, count = self._config.data.batch_size, len(self._frames)
        start = (step * self._place.world + self._place.rank) * size
        positions, orders = range(start, start + size), {}
        for epoch in {position // count for position in positions}:
            rng = np.random.default_rng([self._config.seed, _ORDER, epoch])
            orders[epoch] = epoch_order(np.full(count, 1.0 / count), rng)
        samples = [self._frames[int(orders[p // count][p % count])] for p in positions]
        batch = changed(samples, self._config, positions)
        return batch.pin_memory() if self._pin else batch


def unchanged(config: CameraTrainConfig) -> CameraTrainConfig:
    """Return the configuration without augmentation."""
    return replace(config, augment=STILL)


STILL = CameraAugmentConfig(
    flip_images=False, max_resize=0.0, max_shift_px=0.0, max_light=0.0, flip_x=False, flip_y=False
)
"""Changes nothing."""
