"""How much simulated scenes resemble real ones: voxels, neighbours, points per object, intensity.

The voxel hierarchy is counted with sorted keys in numpy, independently of the sparse engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from driveRT_ros.core.frame import NUSCENES_CLASSES, SceneFrame

_RANGE_LOW, _RANGE_HIGH = np.array([-54.0, -54.0, -5.0]), np.array([54.0, 54.0, 3.0])
_VOXEL_M = np.array([0.075, 0.075, 0.2])
_SHAPE_ZYX: tuple[int, ...] = (41, 1440, 1440)
_NEAR_M = 2.5  # closer are the own vehicle and firings without return
RANGE_EDGES_M = (0, 10, 20, 30, 40, 50, 60)
INTENSITY_EDGES = (0, 4, 8, 16, 32, 64, 128, 256)

REAL_LEVELS = {
    "real A": ((17_748, 3.3), (27_774, 10.2), (18_711, 12.5), (9_838, 13.8)),
    "real B": ((79_745, 7.4), (69_276, 14.0), (29_723, 16.3), (10_751, 16.7)),
    "real C": ((105_086, 6.1), (111_372, 12.7), (54_512, 14.7), (22_296, 15.7)),
}
"""Voxels and mean submanifold neighbours (the centre included) of levels 1 to 4 of three real
nuScenes clouds: one of few points (A), two of ten accumulated sweeps (B, C)."""

REAL_VOXEL_QUARTILES = (68_843, 91_090, 102_998)
"""Quartiles of the voxels of ten sweeps over the 6,019 nuScenes validation keyframes."""

REAL_POINTS = {
    "car": (466, 52.5, 11, 4, 3, 2),
    "truck": (956, 322, 56, 34, 15, 7),
    "bus": (None, 370, 236, 81, 45, 28),
    "pedestrian": (45, 11, 4, 3, 2, 1),
    "bicycle": (74, 19, 3.5, 3.5, 3, 1.5),
    "motorcycle": (53, 15, 4, 2.5, 1, 1),
    "traffic_cone": (7, 1.5, 1, 1, None, None),
}
"""Median LiDAR points of an object that has any, by 10 m of range, over nuScenes mini_val."""

REAL_INTENSITY = (0.063, 0.196, 0.249, 0.262, 0.180, 0.050, 0.001)
"""Share of points beyond 2.5 m between ``INTENSITY_EDGES``, mean of four real recordings."""


@dataclass(frozen=True)
class SceneStatistics:
    """Statistics of one run of frames.

    Args:
        num_sweeps: Sweeps accumulated into the voxels.
        num_points: Accumulated points inside the range of the detector.
        levels: Voxels and mean neighbours, the centre included, of levels 1 to 4.
        points_per_object: Class -> median LiDAR points by 10 m of range, None where none is.
        intensity: Share of points beyond 2.5 m between ``INTENSITY_EDGES``.
    """

    num_sweeps: int
    num_points: int
    levels: tuple[tuple[int, float], ...]
    points_per_object: dict[str, tuple[float | None, ...]]
    intensity: tuple[float, ...]

    def __str__(self) -> str:
        return "\n".join((*_level_lines(self), "", *_object_lines(self), "", *_bright_lines(self)))


def scene_statistics(frames: Iterable[SceneFrame], num_sweeps: int = 10) -> SceneStatistics:
    """Return the statistics of consecutive frames.

    Args:
        frames: Frames with poses; the last ``num_sweeps`` are accumulated into voxels, all of
            them count for objects and intensity.
        num_sweeps: Sweeps to accumulate, as a detector does.
    """
    frames = list(frames)
    points = accumulate(frames[-num_sweeps:])
    coords_zyx, num_points = _voxels(points)
    return SceneStatistics(
        num_sweeps=min(num_sweeps, len(frames)),
        num_points=num_points,
        levels=tuple(_levels(coords_zyx)),
        points_per_object=_points_per_object(frames),
        intensity=_intensity(frames),
    )


def accumulate(frames: Sequence[SceneFrame]) -> np.ndarray:
    """Return the points (N, 3) float64 of all frames in the LiDAR frame of the last one.

    Points of earlier frames less than 1 m from the sensor along x and y are left out, as
    detectors do.

    Args:
        frames: Consecutive frames with poses.
    """
    if not frames:
        return np.zeros((0, 3))
    last = frames[-1]
    clouds = [last.points.xyz.astype(np.float64)]
    T_now_world = np.linalg.inv(_T_world_lidar(last))
    for frame in reversed(frames[:-1]):
        xyz = frame.points.xyz.astype(np.float64)
        xyz = xyz[(np.abs(xyz[:, :2]) >= 1.0).any(1)]
        T = T_now_world @ _T_world_lidar(frame)
        clouds.append(xyz @ T[:3, :3].T + T[:3, 3])
    return np.concatenate(clouds)


def _T_world_lidar(frame: SceneFrame) -> np.ndarray:  # noqa: N802 - a transform's name
    assert frame.T_world_ego is not None, "a simulated frame has a pose"
    return frame.T_world_ego @ frame.T_ego_lidar


def _voxels(xyz: np.ndarray) -> tuple[np.ndarray, int]:
    inside = ((xyz >= _RANGE_LOW) & (xyz < _RANGE_HIGH)).all(1)
    coords = ((xyz[inside] - _RANGE_LOW) / _VOXEL_M).astype(np.int64)[:, ::-1]
    return _from_keys(np.unique(_keys(coords, _SHAPE_ZYX)), _SHAPE_ZYX), int(inside.sum())


def _keys(coords_zyx: np.ndarray, shape_zyx: tuple[int, ...]) -> np.ndarray:
    """Return keys of a grid with one empty cell around it, so that no neighbour wraps."""
    z, y, x = (coords_zyx + 1).T
    return (z * (shape_zyx[1] + 2) + y) * (shape_zyx[2] + 2) + x


def _from_keys(keys: np.ndarray, shape_zyx: tuple[int, ...]) -> np.ndarray:
    rest, x = np.divmod(keys, shape_zyx[2] + 2)
    z, y = np.divmod(rest, shape_zyx[1] + 2)
    return np.stack([z, y, x], 1) - 1


def _levels(coords_zyx: np.ndarray):
    """Yield voxels and mean neighbours of four levels; fine = 2 coarse + tap - 1 between them."""
    shape = _SHAPE_ZYX
    taps = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    for level in range(4):
        if level:
            shape = tuple((n - 1) // 2 + 1 for n in shape)
            twice = (coords_zyx[:, None, :] + 1 - taps).reshape(-1, 3)
            coarse = twice[(twice % 2 == 0).all(1)] // 2
            coarse = coarse[((coarse >= 0) & (coarse < shape)).all(1)]
            coords_zyx = _from_keys(np.unique(_keys(coarse, shape)), shape)
        keys = np.sort(_keys(coords_zyx, shape))
        found = 0
        for tap in taps:
            wanted = _keys(coords_zyx + tap - 1, shape)
            at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
            found += int((keys[at] == wanted).sum()) if len(keys) else 0
        yield len(keys), found / max(len(keys), 1)


def count_voxels(xyz: np.ndarray) -> int:
    """Return how many voxels of the detector's grid hold a point of (N, 3)."""
    return len(_voxels(xyz)[0])


def median_points(
    ranges_m: np.ndarray, labels: np.ndarray, counts: np.ndarray
) -> dict[str, tuple[float | None, ...]]:
    """Return class -> median points of an object that has any, between ``RANGE_EDGES_M``.

    Args:
        ranges_m: (M,) distance of each object from the sensor, on the ground.
        labels: (M,) index into ``NUSCENES_CLASSES``.
        counts: (M,) LiDAR points.
    """
    away = np.digitize(ranges_m, RANGE_EDGES_M) - 1
    out = {}
    for label, name in enumerate(NUSCENES_CLASSES):
        groups = [
            counts[(labels == label) & (away == k) & (counts > 0)]
            for k in range(len(RANGE_EDGES_M) - 1)
        ]
        out[name] = tuple(float(np.median(g)) if len(g) else None for g in groups)
    return out


def far_intensity(xyz: np.ndarray, intensity: np.ndarray) -> np.ndarray:
    """Return the intensity of points beyond 2.5 m: neither the own vehicle nor without return."""
    return intensity[np.linalg.norm(xyz, axis=1) > _NEAR_M]


def intensity_counts(values: np.ndarray) -> np.ndarray:
    """Return (7,) how many values lie between ``INTENSITY_EDGES``."""
    return np.histogram(values, INTENSITY_EDGES)[0]


def _points_per_object(frames: Sequence[SceneFrame]) -> dict[str, tuple[float | None, ...]]:
    truths = [f.ground_truth for f in frames if f.ground_truth is not None]
    if not truths:
        return {}
    boxes = np.concatenate([t.boxes.numpy() for t in truths])
    labels = np.concatenate([t.labels.numpy() for t in truths])
    counts = np.concatenate([np.asarray(t.num_points) for t in truths])
    return median_points(np.hypot(boxes[:, 0], boxes[:, 1]), labels, counts)


def _intensity(frames: Sequence[SceneFrame]) -> tuple[float, ...]:
    far = [far_intensity(f.points.xyz, f.points.intensity) for f in frames]
    counts = intensity_counts(np.concatenate(far)) if far else np.zeros(1)
    return tuple((counts / max(counts.sum(), 1)).tolist())


def _level_lines(stats: SceneStatistics):
    yield (
        f"{stats.num_sweeps} sweeps: {stats.num_points:,} points in range, "
        f"{stats.levels[0][0]:,} voxels (real quartiles "
        f"{', '.join(f'{q:,}' for q in REAL_VOXEL_QUARTILES)})"
    )
    yield f"{'voxels | mean neighbours':<26}" + "".join(f"{f'level {k}':>16}" for k in range(1, 5))
    for name, levels in {**REAL_LEVELS, "simulated": stats.levels}.items():
        yield f"{name:<26}" + "".join(f"{f'{n:,} | {m:.1f}':>16}" for n, m in levels)


def _object_lines(stats: SceneStatistics):
    names = [f"{a}-{b} m" for a, b in zip(RANGE_EDGES_M, RANGE_EDGES_M[1:], strict=False)]
    yield f"{'points | real':<26}" + "".join(f"{n:>16}" for n in names)
    empty = (None,) * len(names)
    for name, ours in stats.points_per_object.items():
        pairs = zip(ours, REAL_POINTS.get(name, empty), strict=True)
        cells = (" | ".join("-" if v is None else f"{v:g}" for v in pair) for pair in pairs)
        yield f"{name:<26}" + "".join(f"{cell:>16}" for cell in cells)


def _bright_lines(stats: SceneStatistics):
    edges = zip(INTENSITY_EDGES, INTENSITY_EDGES[1:], strict=False)
    yield f"{'intensity':<26}" + "".join(f"{f'{a}-{b - 1}':>10}" for a, b in edges)
    yield f"{'simulated':<26}" + "".join(f"{v:>10.3f}" for v in stats.intensity)
    yield f"{'real':<26}" + "".join(f"{v:>10.3f}" for v in REAL_INTENSITY)
