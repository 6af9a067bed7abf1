"""Rendered frames for training the camera model: made by the simulator, kept in shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import safetensors
from safetensors.numpy import save_file

from driveRT_ros.core.camera_config import CameraModelConfig, ImageConfig
from driveRT_ros.core.camera_images import ImageFit
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.sim.cameras import Cameras, View
from driveRT_ros.sim.rig import HEIGHT, RIG, WIDTH
from driveRT_ros.sim.world import World
from driveRT_ros.train.camera_config import CameraTrainConfig
from driveRT_ros.train.camera_targets import Truth, truth_of
from driveRT_ros.train.drives import fill_folder, varied_drive
from driveRT_ros.train.shards import read_index, replace_index

FORMAT = "driveRT_ros.camera_frames"
VERSION = 1
DEPTH_STRIDE = 4
"""Rendered pixels from one kept depth to the next."""
DEPTH_STEP_M = 0.25
NO_DEPTH = 255
"""Value of depths that are not known, or beyond what 8 bits hold."""

_SPARE_ROWS = 0.2  # of the network input, kept above it for what augmentation looks at
_RENDER = (
    "write frames of cameras with --make-shards and this configuration, and name their folder with "
    "--data."
)
_ARRAYS = ("jpegs", "sizes", "depth", "K", "T_ego_camera", "covered", "hidden")


@dataclass(frozen=True, eq=False)
class CameraSample:
    """One frame of N cameras as it is kept.

    Args:
        jpegs: (bytes,) uint8, the files of all cameras, one after the other.
        sizes: (N,) int64 bytes of each.
        depth: (N, h, w) uint8 along the optical axis in steps of ``DEPTH_STEP_M``: pixel (4 r + 2,
            4 c + 2) of the image.
        K: (N, 3, 3) float64 intrinsics of the images.
        T_ego_camera: (N, 4, 4) float64.
        truth: What the cells show.
    """

    jpegs: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int64]
    depth: npt.NDArray[np.uint8]
    K: npt.NDArray[np.float64]
    T_ego_camera: npt.NDArray[np.float64]
    truth: Truth

    def images(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the (H, W, 3) RGB image of each camera."""
        for file in np.split(self.jpegs, np.cumsum(self.sizes)[:-1]):
            yield cv2.cvtColor(cv2.imdecode(file, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


# ---- rendering ----------------------------------------------------------------------------------


class CameraDrives:
    """Drives of the simulator, seen by its cameras, each with its own densities and speed.

    Args:
        config: Seeds, frames and model.
    """

    count: int | None = None
    name = "simulator"

    def __init__(self, config: CameraTrainConfig) -> None:
        self._config = config
        self._scale = config.data.oversampling * fit_factor(config.model.image)

    def samples(self, drive: int) -> list[CameraSample]:
        """Return the frames of one drive."""
        cv2.setNumThreads(1)  # drives are rendered side by side
        data = self._config.data
        fixed = {
            "num_sweeps": (data.frames_per_drive - 1) * data.sweeps_between_frames + 1,
            "cameras.enabled": True,
            "cameras.scale": min(self._scale, 1.0),
        }
        world = World(varied_drive(data.first_seed + drive, data.variety, fixed))
        cameras = Cameras(world)
        sweeps = [k * data.sweeps_between_frames for k in range(data.frames_per_drive)]
        return [self._sample(cameras, sweep) for sweep in sweeps]

    def _sample(self, cameras: Cameras, sweep: int) -> CameraSample:
        config, names = self._config, cameras.config.names
        views = cameras.views(sweep)
        top, quality = self._rows_cut(cameras.size_wh), config.data.jpeg_quality
        options = [cv2.IMWRITE_JPEG_QUALITY, quality]
        files, depths, intrinsics = [], [], []
        for name in names:
            bgr = cv2.cvtColor(views[name].image[top:], cv2.COLOR_RGB2BGR)
            files.append(cv2.imencode(".jpg", bgr, options)[1].reshape(-1))
            half = DEPTH_STRIDE // 2
            depths.append(packed_depth(views[name].depth_m[top + half :: DEPTH_STRIDE,
                                                           half::DEPTH_STRIDE]))  # fmt: skip
            K = RIG[name].K(cameras.size_wh)
            K[1, 2] -= top
            intrinsics.append(K)
        pixels = visible_pixels(views, cameras.size_wh, config.model.image)
        time_s = sweep / cameras.world.config.rate_hz
        truth = truth_of(cameras.world, time_s, pixels, config.model, config.data.min_pixels)
        return CameraSample(
            np.concatenate(files),
            np.array([len(file) for file in files], np.int64),
            np.stack(depths),
            np.stack(intrinsics),
            np.stack([RIG[name].T_ego_camera for name in names]),
            truth,
        )

    def _rows_cut(self, size_wh: tuple[int, int]) -> int:
        """Return how many rows at the top no network input reaches, however it is changed."""
        fit = ImageFit.of(size_wh, self._config.model.image)
        spare = _SPARE_ROWS * fit.size_hw[0]
        rows = int((fit.top - spare) / fit.scale_xy[1])
        return max(rows, 0) // DEPTH_STRIDE * DEPTH_STRIDE


def fit_factor(image: ImageConfig) -> float:
    """Return the factor from images of the full size to the network input."""
    return ImageFit.of((WIDTH, HEIGHT), image).scale_xy[0]


def packed_depth(depth_m: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return depths in steps of ``DEPTH_STEP_M``, ``NO_DEPTH`` where they do not fit."""
    steps = np.minimum(depth_m / DEPTH_STEP_M, float(NO_DEPTH))
    return np.round(steps).astype(np.uint8)


def visible_pixels(
    views: dict[str, View], size_wh: tuple[int, int], image: ImageConfig
) -> dict[int, float]:
    """Return how many pixels of the network inputs show each object, by track id.

    Args:
        views: Whole rendered images.
        size_wh: Their size.
        image: How they become network inputs.
    """
    fit = ImageFit.of(size_wh, image)
    first = max(int(fit.top / fit.scale_xy[1]), 0)
    last = int((fit.top + fit.size_hw[0]) / fit.scale_xy[1])
    owners = np.concatenate([view.owner[first:last].ravel() for view in views.values()])
    tracks, counts = np.unique(owners[owners >= 0], return_counts=True)
    area = fit.scale_xy[0] * fit.scale_xy[1]
    return {int(t): float(n) * area for t, n in zip(tracks, counts)}


# ---- shards -------------------------------------------------------------------------------------


def make_camera_shards(
    drives: CameraDrives, config: CameraTrainConfig, folder: Path, count: int, workers: int,
    on_done: Callable[[int], bool],
) -> int:  # fmt: skip
    """Write drives 0 to ``count`` - 1; see :func:`driveRT_ros.train.drives.make_shards`."""

    def write_index(entries: Sequence[dict[str, Any]]) -> None:
        tree = {
            "format": FORMAT,
            "version": VERSION,
            "source": drives.name,
            "made_for": _made_for(config.model),
            "shards": list(entries),
        }
        replace_index(folder, tree)

    return fill_folder(folder, count, workers, on_done, write_index, _write_drive, drives)


def _write_drive(drives: CameraDrives, number: int, folder: Path) -> dict[str, Any]:
    samples = drives.samples(number)
    arrays = {}
    for k, s in enumerate(samples):
        values = (s.jpegs, s.sizes, s.depth, s.K, s.T_ego_camera, s.truth.covered, s.truth.hidden)
        arrays |= {f"{name}{k}": np.ascontiguousarray(v) for name, v in zip(_ARRAYS, values)}
    path = folder / f"drive-{number:06d}.safetensors"
    part = path.with_suffix(".part")
    save_file(arrays, str(part))
    part.replace(path)
    return {"file": path.name, "frames": len(samples)}


def _made_for(model: CameraModelConfig) -> dict[str, Any]:
    """Return what of a model is drawn into its frames."""
    tree = {
        "grid": model.grid.to_dict(),
        "image": [*model.image.size_hw, model.image.resize, model.image.crop_top],
        "layers": model.network.segmentation,
    }
    plain: dict[str, Any] = json.loads(json.dumps(tree))
    return plain


class CameraShards:
    """A folder of frames.

    Args:
        folder: With an index.
        model: What the frames must have been made for.

    Raises:
        ConfigError: If the index cannot be read, or is of another version or model.
    """

    def __init__(self, folder: Path, model: CameraModelConfig) -> None:
        def take(tree: Any) -> tuple[str, Mapping[str, Any]]:
            self._where = [(s["file"], k) for s in tree["shards"] for k in range(s["frames"])]
            return str(tree["source"]), tree["made_for"]

        source, made_for = read_index(folder, take, (FORMAT, VERSION), _RENDER)
        for name, mine in _made_for(model).items():
            if made_for.get(name) != mine:
                raise ConfigError(
                    f"The frames in '{folder}' were made for the {name} {made_for.get(name)}, but "
                    f"the model has {mine}; make them again with this configuration."
                )
        if not self._where:
            raise ConfigError(f"'{folder}' holds no frame.")
        self.folder, self.name = folder, f"{source}, {len(self._where)} frames"

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, index: int) -> CameraSample:
        name, k = self._where[index]
        try:
            with safetensors.safe_open(str(self.folder / name), framework="np") as file:
                *images, covered, hidden = (file.get_tensor(f"{array}{k}") for array in _ARRAYS)
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise ConfigError(
                f"Frame {k} of '{self.folder / name}' cannot be read: {error!r}; make the frames "
                "again."
            ) from None
        return CameraSample(*images, Truth(covered, hidden))
