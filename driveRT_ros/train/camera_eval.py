"""How well a camera model finds what the simulator put there: IoU over held-out scenes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.camera_config import CameraModelConfig
from driveRT_ros.core.frame import BevGrid, CameraFrame
from driveRT_ros.io.image import with_pixels
from driveRT_ros.sim.cameras import Cameras
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.world import World
from driveRT_ros.train.camera_frames import visible_pixels
from driveRT_ros.train.camera_targets import Truth, truth_of

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Probabilities from which a cell counts as covered; the one in the middle is reported first."""
RANGE_EDGES_M = (0.0, 15.0, 30.0, 45.0, 60.0)
"""Of the distance between a cell and the origin of the ego frame."""
SWEEP = 20
"""LiDAR sweep of a scene at which the cameras look."""

Mask = npt.NDArray[np.bool_]
Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class CameraScene:
    """One held-out instant.

    Args:
        seed: Of the scene.
        frames: Images as a camera node gets them, encoded.
        truth: What the cells show.
    """

    seed: int
    frames: tuple[CameraFrame, ...]
    truth: Truth

    def decoded(self) -> list[CameraFrame]:
        """Return the frames with pixels."""
        return [with_pixels(frame) for frame in self.frames]


def render_scene(config: SimConfig, model: CameraModelConfig, min_pixels: float) -> CameraScene:
    """Return what the cameras of a scene see, and the truth.

    Args:
        config: The scene; its images are rendered whether or not they are enabled.
        model: Grid, layers and network input.
        min_pixels: Objects with fewer pixels of the network inputs are hidden.
    """
    cv2.setNumThreads(1)  # scenes are rendered side by side
    cameras = Cameras(World(config))
    views = cameras.views(SWEEP)
    stamp_ns = config.stamp_ns(SWEEP)
    frames = tuple(cameras.frame(name, stamp_ns, view.image) for name, view in views.items())
    pixels = visible_pixels(views, cameras.size_wh, model.image)
    time_s = (stamp_ns - config.start_time_ns) * 1e-9
    truth = truth_of(cameras.world, time_s, pixels, model, min_pixels)
    return CameraScene(config.seed, frames, truth)


def render_scenes(
    drives: Sequence[SimConfig], model: CameraModelConfig, min_pixels: float, jobs: int
) -> Iterator[CameraScene]:
    """Yield scenes in the order given; the number of processes changes nothing."""
    if jobs <= 1:
        yield from (render_scene(drive, model, min_pixels) for drive in drives)
        return
    # spawned, not forked: CUDA and threads of this process do not survive a fork
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,))
    ahead: deque[Future[CameraScene]] = deque()
    try:
        for drive in drives:
            ahead.append(pool.submit(render_scene, drive, model, min_pixels))
            if len(ahead) > 2 * jobs:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class IoUCounts:
    """Adds up hits, false and missed cells of every layer, threshold and range.

    Only cells that some camera sees count. Of objects, those count as truth that a camera sees; the
    cells of hidden ones are left out, except where ``all_objects`` says that they count, too.

    Args:
        model: Grid and layers.
    """

    def __init__(self, model: CameraModelConfig) -> None:
        self.layers, grid = model.network.segmentation, model.grid
        _, rows, cols = grid.shape_zyx
        x = grid.x_range_m[0] + (np.arange(cols) + 0.5) * grid.resolution_m
        y = grid.y_range_m[0] + (np.arange(rows) + 0.5) * grid.resolution_m
        self._ring = np.digitize(np.hypot(x[None, :], y[:, None]), RANGE_EDGES_M[1:-1])
        rings = len(RANGE_EDGES_M) - 1
        # (layer, seen or all, threshold, ring, hits / false / missed)
        self._counts = np.zeros((len(self.layers), 2, len(THRESHOLDS), rings, 3), np.int64)
        self.frames = 0

    def add(self, found: BevGrid, truth: Truth) -> None:
        """Count one frame."""
        self.frames += 1
        for k, name in enumerate(self.layers):
            likely = found.layers[name]
            in_sight = ~np.isnan(likely)
            covered, hidden = truth.of(k)
            for which, (true, counts) in enumerate(
                ((covered, in_sight & ~hidden), (covered | hidden, in_sight))
            ):
                for t, threshold in enumerate(THRESHOLDS):
                    said = np.nan_to_num(likely) > threshold
                    kinds = (said & true, said & ~true, ~said & true)
                    for kind, cells in enumerate(kinds):
                        rings = self._ring[cells & counts]
                        self._counts[k, which, t, :, kind] += np.bincount(
                            rings, minlength=self._counts.shape[3]
                        )

    def iou(self, layer: str, threshold: float = 0.5, *, all_objects: bool = False) -> float:
        """Return intersection over union of a layer over all frames; NaN where both are empty."""
        counts = self._of(layer, threshold, all_objects).sum(axis=0)
        return _ratio(counts[0], counts.sum())

    def report(self) -> dict[str, Any]:
        """Return everything as plain values; what is unknown is None."""
        return {
            "num_frames": self.frames,
            "thresholds": list(THRESHOLDS),
            "range_edges_m": list(RANGE_EDGES_M),
            "layers": {name: self._layer(name) for name in self.layers},
        }

    def _layer(self, name: str) -> dict[str, Any]:
        seen = self._of(name, 0.5, False)
        hits, false, missed = seen.sum(axis=0)
        numbers = {
            "iou": self.iou(name),
            "precision": _ratio(hits, hits + false),
            "recall": _ratio(hits, hits + missed),
            "iou_of_hidden_objects_too": self.iou(name, all_objects=True),
        }
        return {
            **{key: _plain(value) for key, value in numbers.items()},
            "iou_by_threshold": [_plain(self.iou(name, t)) for t in THRESHOLDS],
            "iou_by_range": [_plain(_ratio(ring[0], ring.sum())) for ring in seen],
            "cells": {"hits": int(hits), "false": int(false), "missed": int(missed)},
        }

    def _of(self, layer: str, threshold: float, all_objects: bool) -> npt.NDArray[np.int64]:
        return self._counts[self.layers.index(layer), int(all_objects), THRESHOLDS.index(threshold)]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


# ---- pictures -----------------------------------------------------------------------------------

_SIDE_PX = 540
_GAP_PX = 6
_COLOURS: Mapping[str, tuple[int, int, int]] = {
    "drivable_area": (70, 76, 88),
    "vehicle": (255, 159, 28),
    "pedestrian": (38, 222, 129),
}
_UNSEEN = (24, 24, 40)
_HIDDEN = (120, 90, 60)


def draw_scene(scene: CameraScene, found: BevGrid, layers: Sequence[str]) -> Image:
    """Draw the images above, and below what was found beside the truth, x to the right.

    Hidden objects of the truth are faint; cells that no camera sees are dark blue in both.

    Args:
        scene: Images and truth.
        found: What the model found.
        layers: Of the truth, in order.
    """
    unseen = np.isnan(found.layers[layers[0]])
    maps = np.zeros((2, *found.shape, 3), np.float64)
    for name in sorted(layers, key=list(_COLOURS).index):
        covered, hidden = scene.truth.of(layers.index(name))
        likely = np.nan_to_num(found.layers[name])[..., None]
        maps[0] += (np.array(_COLOURS[name]) - maps[0]) * likely
        maps[1][hidden] = _HIDDEN
        maps[1][covered] = _COLOURS[name]
    maps[:, unseen] = 0.5 * maps[:, unseen] + 0.5 * np.array(_UNSEEN)
    north = np.round(maps).astype(np.uint8)[:, ::-1]  # y to the top
    scale = max(_SIDE_PX // north.shape[1], 1)
    sides = [np.repeat(np.repeat(side, scale, 0), scale, 1) for side in north]
    gap = np.full((sides[0].shape[0], _GAP_PX, 3), 255, np.uint8)
    below = np.concatenate([sides[0], gap, sides[1]], axis=1)
    return np.concatenate([_strip(scene.decoded(), below.shape[1]), below], axis=0)


def _strip(frames: Sequence[CameraFrame], width_px: int) -> Image:
    """Return the images in rows of three."""
    each = width_px // 3
    small = []
    for frame in frames:
        height = round(each * frame.size_wh[1] / frame.size_wh[0])
        image = cv2.resize(frame.image, (each, height), interpolation=cv2.INTER_AREA)
        cv2.putText(image, frame.name, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255), 1)
        small.append(image)
    while len(small) % 3:
        small.append(np.zeros_like(small[0]))
    rows = [np.concatenate(small[k : k + 3], axis=1) for k in range(0, len(small), 3)]
    strip = np.concatenate(rows, axis=0)
    return np.pad(strip, ((0, _GAP_PX), (0, width_px - strip.shape[1]), (0, 0)))
