"""The values that pooling camera features into a bird's-eye view exchanges."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.errors import ConfigError

Triple = tuple[int, int, int]
Matrix = npt.NDArray[np.floating]

ROUNDINGS = ("trunc", "floor")
MAX_CELLS = 2**31 - 1
"""Cells are numbered with 32 bits."""
MAP_ARRAYS = (
    *("ranks_depth", "ranks_feat", "ranks_bev"),
    *("interval_starts", "interval_lengths"),
)


def _matrices(name: str, value: object, shape: tuple[int, ...]) -> Matrix:
    """Return a float64 array of one shape, or refuse it."""
    array = np.array(value, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ConfigError(
            f"Camera geometry '{name}' must be finite and have the shape {shape}, got "
            f"{array.shape}: {array.tolist()}."
        )
    return array


@dataclass(frozen=True, eq=False)
class CameraGeometry:
    """Where N cameras are and how their images became network inputs.

    Args:
        K: (N, 3, 3) intrinsics of the camera images, in pixels.
        T_ego_cam: (N, 4, 4) camera (x right, y down, z ahead) to ego.
        post_rot: (N, 3, 3) image augmentation: network input (u, v, depth) = post_rot * camera
            (u, v, depth) + post_trans; identity by default.
        post_trans: (N, 3) pixels; zero by default.
        bda: (3, 3) augmentation of the ego frame after that; identity by default.

    Raises:
        ConfigError: If a shape is wrong, a value is not finite or a matrix has no inverse.
    """

    K: Matrix
    T_ego_cam: Matrix
    post_rot: Matrix | None = None
    post_trans: Matrix | None = None
    bda: Matrix | None = None

    def __post_init__(self) -> None:
        n = len(self.K)
        eye = np.eye(3)
        defaults = {"post_rot": np.broadcast_to(eye, (n, 3, 3)), "post_trans": np.zeros((n, 3))}
        shapes: dict[str, tuple[int, ...]] = {"K": (n, 3, 3)}
        shapes |= {"T_ego_cam": (n, 4, 4), "post_rot": (n, 3, 3)}
        shapes |= {"post_trans": (n, 3), "bda": (3, 3)}
        for name, shape in shapes.items():
            value = getattr(self, name)
            value = {**defaults, "bda": eye}[name] if value is None else value
            object.__setattr__(self, name, _matrices(name, value, shape))

    @property
    def cameras(self) -> int:
        """Number of cameras."""
        return len(self.K)

    def coefficients(self) -> Matrix:
        """Return (N, 24): from pixel and depth to ego, with all that is constant multiplied out.

        ``q = P (pixel - s)``, ``q.xy *= q.z``, ``ego = M q + t``: nine of P, three of s, nine of M,
        three of t, row by row.

        Raises:
            ConfigError: If the intrinsics or the augmentation of a camera have no inverse.
        """
        assert self.post_rot is not None and self.post_trans is not None  # filled in above
        assert self.bda is not None
        rows = np.zeros((self.cameras, 24))
        for i in range(self.cameras):
            P = _inverse("post_rot", i, self.post_rot[i])
            M = self.bda @ self.T_ego_cam[i, :3, :3] @ _inverse("K", i, self.K[i])
            t = self.bda @ self.T_ego_cam[i, :3, 3]
            rows[i] = np.concatenate([P.ravel(), self.post_trans[i], M.ravel(), t])
        return rows


def _inverse(name: str, camera: int, matrix: Matrix) -> Matrix:
    if abs(np.linalg.det(matrix)) < 1e-12:
        raise ConfigError(
            f"'{name}' of camera {camera} has no inverse: {matrix.tolist()}; is the camera "
            "calibrated?"
        )
    inverse: Matrix = np.linalg.inv(matrix)
    return inverse


@dataclass(frozen=True)
class FrustumShape:
    """The points along the rays of every feature pixel.

    Feature columns lie at ``linspace(0, width - 1, columns)`` of the network input, rows likewise;
    depths at ``min + i * step`` below max.

    Args:
        image_size_hw: Network input, pixels.
        feature_size_hw: Feature map.
        depth_min_m: Nearest depth along the optical axis.
        depth_max_m: Depths stay below this.
        depth_step_m: Distance between depths.
    """

    image_size_hw: tuple[int, int]
    feature_size_hw: tuple[int, int]
    depth_min_m: float
    depth_max_m: float
    depth_step_m: float

    def __post_init__(self) -> None:
        sizes = (*self.image_size_hw, *self.feature_size_hw)
        if len(sizes) != 4 or min(sizes) < 1:
            raise ConfigError(f"Image and feature sizes must be two positive numbers, got {self}.")
        if not (self.depth_step_m > 0 and 0 < self.depth_min_m < self.depth_max_m < np.inf):
            raise ConfigError(
                f"Depths need 0 < min < max and a positive step, got {self.depth_min_m:g}, "
                f"{self.depth_max_m:g} and {self.depth_step_m:g} m."
            )

    @property
    def depth_bins(self) -> int:
        """Number of depths."""
        # Rounding keeps (60 - 1) / 0.1 = 589.9999999999999 from losing its last depth.
        return -int(-round((self.depth_max_m - self.depth_min_m) / self.depth_step_m, 6) // 1)

    def axes(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return the pixel columns, the pixel rows and the depths, float64."""
        (height, width), (rows, cols) = self.image_size_hw, self.feature_size_hw
        depths = self.depth_min_m + np.arange(self.depth_bins) * self.depth_step_m
        return np.linspace(0, width - 1, cols), np.linspace(0, height - 1, rows), depths


@dataclass(frozen=True)
class PoolGrid:
    """The cells that points fall into, in the ego frame; metres."""

    x_min: float
    x_max: float
    x_step: float
    y_min: float
    y_max: float
    y_step: float
    z_min: float
    z_max: float
    z_step: float

    def __post_init__(self) -> None:
        for axis, low, high, step in zip("xyz", self.lower, self.upper, self.steps):
            if not (np.isfinite([low, high, step]).all() and step > 0 and high > low):
                raise ConfigError(
                    f"Axis {axis} of the grid needs min < max and a positive step, got {low:g}, "
                    f"{high:g} and {step:g} m."
                )
        if not 0 < np.prod(self.shape_zyx, dtype=object) <= MAX_CELLS:
            raise ConfigError(
                f"A grid of {self.shape_zyx} cells (z, y, x) is empty or needs more than 31 bits; "
                "use another step."
            )

    @property
    def lower(self) -> tuple[float, float, float]:
        """Minimum along x, y, z."""
        return self.x_min, self.y_min, self.z_min

    @property
    def upper(self) -> tuple[float, float, float]:
        """Maximum along x, y, z."""
        return self.x_max, self.y_max, self.z_max

    @property
    def steps(self) -> tuple[float, float, float]:
        """Cell size along x, y, z."""
        return self.x_step, self.y_step, self.z_step

    @property
    def shape_zyx(self) -> Triple:
        """Cells along z, y, x."""
        nx, ny, nz = (round((h - a) / s) for a, h, s in zip(self.lower, self.upper, self.steps))
        return nz, ny, nx


def calibration_hash(
    geometry: CameraGeometry, frustum: FrustumShape, grid: PoolGrid, rounding: str
) -> str:
    """Return what tells maps of different calibrations, frusta and grids apart."""
    parts = [geometry.K, geometry.T_ego_cam, geometry.post_rot, geometry.post_trans, geometry.bda]
    digest = hashlib.sha256(repr((frustum, grid, rounding)).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ScatterMap:
    """Which frustum points fall into which cells: points grouped by cell, groups ascending.

    Inside a group points are in the order (camera, depth, row, column). The arrays may be longer
    than what they hold: what counts lies in ``counts``, on the device.

    Args:
        ranks_depth: (capacity,) int32 index of each point into (N, D, H, W).
        ranks_feat: (capacity,) int32 index of its pixel into (N, H, W).
        ranks_bev: (capacity,) int32 index of its cell into (Z, Y, X).
        interval_starts: (intervals,) int32 first point of each group.
        interval_lengths: (intervals,) int32 points of each group.
        counts: (2,) int32 points and intervals.
        grid_shape_zyx: Cells along z, y, x.
        frustum_shape: N, D, H, W.
        calibration_hash: Changes with the calibration, the frustum, the grid and the rounding.
    """

    ranks_depth: torch.Tensor
    ranks_feat: torch.Tensor
    ranks_bev: torch.Tensor
    interval_starts: torch.Tensor
    interval_lengths: torch.Tensor
    counts: torch.Tensor
    grid_shape_zyx: Triple
    frustum_shape: tuple[int, int, int, int]
    calibration_hash: str = ""

    @property
    def device(self) -> torch.device:
        """Where the arrays lie."""
        return self.counts.device

    @property
    def cells(self) -> int:
        """Cells of the grid."""
        nz, ny, nx = self.grid_shape_zyx
        return nz * ny * nx

    def arrays(self) -> tuple[torch.Tensor, ...]:
        """Return the five arrays, as long as they are."""
        return tuple(getattr(self, name) for name in MAP_ARRAYS)

    def trimmed(self) -> ScatterMap:
        """Return the same map without what lies behind the counts; waits for the device."""
        points, intervals = self.counts.tolist()
        limits = (points, points, points, intervals, intervals)
        arrays = (array[:limit] for array, limit in zip(self.arrays(), limits))
        return replace(self, **dict(zip(MAP_ARRAYS, arrays)))

    def to(self, device: torch.device | str) -> ScatterMap:
        """Return the map on another device."""
        arrays = (array.to(device) for array in self.arrays())
        return replace(self, counts=self.counts.to(device), **dict(zip(MAP_ARRAYS, arrays)))

    @staticmethod
    def from_arrays(
        arrays: tuple[torch.Tensor, ...],
        grid_shape_zyx: Triple,
        frustum_shape: tuple[int, int, int, int],
        calibration_hash: str = "",
    ) -> ScatterMap:
        """Return a map from five arrays made elsewhere, after checking them.

        Args:
            arrays: ``ranks_depth``, ``ranks_feat``, ``ranks_bev``, ``interval_starts``,
                ``interval_lengths``: integers, of one batch item.
            grid_shape_zyx: Cells along z, y, x.
            frustum_shape: N, D, H, W.
            calibration_hash: Any name of the calibration.

        Raises:
            ConfigError: If an index points outside, the intervals do not cover every point once, or
                an interval holds two cells.
        """
        depth, feat, bev, starts, lengths = (a.to(torch.int32).contiguous() for a in arrays)
        n, d, h, w = frustum_shape
        cells = grid_shape_zyx[0] * grid_shape_zyx[1] * grid_shape_zyx[2]
        limits = {"ranks_depth": n * d * h * w, "ranks_feat": n * h * w, "ranks_bev": cells}
        for (name, limit), ranks in zip(limits.items(), (depth, feat, bev)):
            if len(ranks) != len(bev) or len(ranks) and not 0 <= ranks.min() <= ranks.max() < limit:
                raise ConfigError(
                    f"'{name}' must hold {len(bev)} indices from 0 to {limit - 1}, got "
                    f"{len(ranks)} from {ranks.min() if len(ranks) else None} to "
                    f"{ranks.max() if len(ranks) else None}."
                )
        ends = lengths.long().cumsum(0)
        owner = torch.repeat_interleave(bev[starts.long().clamp(0, max(len(bev) - 1, 0))], lengths)
        covers = len(starts) == len(lengths) and torch.equal(starts.long(), ends - lengths)
        if not covers or not torch.equal(owner, bev) or len(starts) and lengths.min() < 1:
            raise ConfigError(
                f"The intervals must cover the {len(bev)} points once, one after the other, each "
                "of one cell; build the map again."
            )
        return ScatterMap(
            **dict(zip(MAP_ARRAYS, (depth, feat, bev, starts, lengths))),
            counts=torch.tensor([len(bev), len(starts)], dtype=torch.int32, device=bev.device),
            grid_shape_zyx=grid_shape_zyx,
            frustum_shape=frustum_shape,
            calibration_hash=calibration_hash,
        )
