"""Simulated frames beside real ones, drawn and tabled: points on objects, voxels, intensity."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.io.chart import Chart, Line, draw_charts
from driveRT_ros.io.palette import AMBER, Rgb, class_color
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.drives import simulate_all
from driveRT_ros.sim.stats import (
    INTENSITY_EDGES,
    RANGE_EDGES_M,
    REAL_INTENSITY,
    REAL_POINTS,
    REAL_VOXEL_QUARTILES,
    accumulate,
    count_voxels,
    far_intensity,
    intensity_counts,
    median_points,
)

SWEEPS = 10
"""Sweeps that a detector joins."""
_MOST_FILES = 200
_REAL: Rgb = (240, 243, 248)
_VOXELS_TOP = 200_000


@dataclasses.dataclass(frozen=True)
class Sample:
    """Statistics of many frames.

    Args:
        name: What they are.
        frames: How many clouds were looked at.
        objects: How many annotated objects with points.
        points: Class -> median points of an object by 10 m of range; None where there is none.
        voxels: Voxels of ten joined sweeps, one number a frame, sorted.
        intensity: Share of points beyond 2.5 m between ``INTENSITY_EDGES``; empty if unknown.
    """

    name: str
    frames: int
    objects: int
    points: dict[str, tuple[float | None, ...]]
    voxels: tuple[int, ...]
    intensity: tuple[float, ...]


class _Gather:
    """Numbers of frame after frame."""

    def __init__(self) -> None:
        self._objects: list[np.ndarray] = [np.zeros((3, 0))]
        self._voxels: list[int] = []
        self._bright = np.zeros(len(INTENSITY_EDGES) - 1)
        self._frames = 0

    def objects(self, ranges_m: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> None:
        self._objects.append(np.stack([ranges_m, labels, counts]).astype(np.float64))

    def joined(self, xyz: np.ndarray) -> None:
        self._voxels.append(count_voxels(xyz))

    def cloud(self, xyz: np.ndarray, intensity: np.ndarray) -> None:
        self._bright += intensity_counts(far_intensity(xyz, intensity))
        self._frames += 1

    def sample(self, name: str) -> Sample:
        ranges_m, labels, counts = np.concatenate(self._objects, axis=1)
        total = self._bright.sum()
        return Sample(
            name,
            self._frames,
            int((counts > 0).sum()),
            median_points(ranges_m, labels, counts),
            tuple(sorted(self._voxels)),
            tuple((self._bright / total).tolist()) if total else (),
        )


def simulated_sample(
    scenes: int,
    seed: int,
    config: SimConfig | None = None,
    told: Callable[[], None] = lambda: None,
    jobs: int = 1,
) -> Sample:
    """Return the statistics of the last of ten sweeps of some drives.

    Args:
        scenes: Drives, with consecutive seeds.
        seed: The first of them.
        config: Everything else.
        told: Called after each.
        jobs: Processes that simulate.
    """
    gather, base = _Gather(), config or SimConfig()
    numbers = range(seed, seed + scenes)
    drives = [dataclasses.replace(base, seed=n, num_sweeps=SWEEPS) for n in numbers]
    for frames in simulate_all(drives, jobs):
        last, truth = frames[-1], frames[-1].ground_truth
        gather.joined(accumulate(frames))
        gather.cloud(last.points.xyz, last.points.intensity)
        if truth is not None and truth.num_points is not None:
            boxes = truth.boxes.numpy()
            away = np.hypot(boxes[:, 0], boxes[:, 1])
            gather.objects(away, truth.labels.numpy(), truth.num_points.numpy())
        told()
    return gather.sample(f"simulated, seeds {seed} to {seed + scenes - 1}")


def tabled_sample() -> Sample:
    """Return what the tables in :mod:`driveRT_ros.sim.stats` say of real frames.

    The voxels are only known by their quartiles.
    """
    nothing = (None,) * (len(RANGE_EDGES_M) - 1)
    points = {name: REAL_POINTS.get(name, nothing) for name in NUSCENES_CLASSES}
    return Sample("real, as tabled", 0, 0, points, (), REAL_INTENSITY)


def real_sample(folder: str | Path) -> Sample:
    """Return the statistics of the recorded files in a folder, at any depth.

    Read are ``*LIDAR_TOP*.pcd.bin`` (float32 x, y, z, intensity, ring: single sweeps of nuScenes),
    ``multisweep_points/*.bin`` (float16 x, y, z, intensity, time lag: ten joined sweeps) and, for
    objects, ``*_infos.json`` of mmdetection3d before 1.0 (``infos`` with ``gt_boxes``, ``gt_names``
    and ``num_lidar_pts``). Of more than 200 sweeps 200 are taken, evenly.

    Raises:
        ConfigError: If there is none, or a file cannot be read.
    """
    root, gather = Path(folder), _Gather()
    sweeps = sorted(root.rglob("*LIDAR_TOP*.pcd.bin"))
    step = -(-len(sweeps) // _MOST_FILES) if sweeps else 1
    joined = sorted(root.rglob("multisweep_points/*.bin"))
    infos = sorted(root.rglob("*_infos.json"))
    if not (sweeps or joined or infos):
        raise ConfigError(
            f"'{folder}' has no real frames: neither *LIDAR_TOP*.pcd.bin, nor "
            "multisweep_points/*.bin, nor *_infos.json."
        )
    for path in sweeps[::step]:
        points = _points(path, np.float32)
        gather.cloud(points[:, :3], points[:, 3])
    for path in joined:
        points = _points(path, np.float16)
        gather.joined(points[:, :3])
        gather.cloud(points[:, :3], points[:, 3])
    for path in infos:
        for boxes, labels, counts in _annotated(path):
            gather.objects(np.hypot(boxes[:, 0], boxes[:, 1]), labels, counts)
    return gather.sample(f"real, {root.name}")


def _points(path: Path, kind: type[np.floating[Any]]) -> np.ndarray:
    values = np.fromfile(path, kind)
    if values.size % 5:
        raise ConfigError(f"Point cloud '{path}' does not hold 5 {kind.__name__} values a point.")
    return values.reshape(-1, 5).astype(np.float32)


def _annotated(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield boxes, labels and points of each frame of an info file."""
    try:
        for info in json.loads(path.read_text(encoding="utf-8"))["infos"]:
            known = [i for i, name in enumerate(info["gt_names"]) if name in NUSCENES_CLASSES]
            labels = [NUSCENES_CLASSES.index(info["gt_names"][i]) for i in known]
            boxes = np.array([info["gt_boxes"][i] for i in known]).reshape(len(known), -1)
            counts = np.array([info["num_lidar_pts"][i] for i in known], np.int64)
            if known:
                yield boxes, np.array(labels), counts
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"Info file '{path}' cannot be read: {error!r}") from None


def difference(simulated: Sample, real: Sample) -> dict[str, float | None]:
    """Return how far two samples are apart, in numbers.

    Returns:
        ``points_<class>``: median over the ranges of log2(simulated / real) points, 0 is equal;
        ``intensity``: share of the points that lie in another bin, 0 to 1;
        ``voxels``: log2 of the ratio of the medians. None where one of them does not know.
    """
    out: dict[str, float | None] = {}
    for name in NUSCENES_CLASSES:
        pairs = zip(simulated.points[name], real.points[name])
        ratios = [np.log2(ours / theirs) for ours, theirs in pairs if ours and theirs]
        out[f"points_{name}"] = float(np.median(ratios)) if ratios else None
    known = simulated.intensity and real.intensity
    gap = np.subtract(simulated.intensity, real.intensity) if known else np.zeros(1)
    out["intensity"] = float(0.5 * np.abs(gap).sum()) if known else None
    middle = float(np.median(real.voxels)) if real.voxels else float(REAL_VOXEL_QUARTILES[1])
    ours = float(np.median(simulated.voxels)) if simulated.voxels else None
    out["voxels"] = float(np.log2(ours / middle)) if ours else None
    return out


def table_samples(simulated: Sample, real: Sample) -> str:
    """Return both samples as tables in Markdown: medians by class and range, voxels, intensity."""
    edges = zip(RANGE_EDGES_M, RANGE_EDGES_M[1:])
    lines = _table("median points, real / simulated", [f"{a}-{b} m" for a, b in edges])
    for name in NUSCENES_CLASSES:
        pairs = list(zip(real.points[name], simulated.points[name]))
        if any(value is not None for pair in pairs for value in pair):
            lines.append(
                _row(name.replace("_", " "), [f"{_digits(a)} / {_digits(b)}" for a, b in pairs])
            )
    parts = (0.25, 0.5, 0.75)
    lines += ["", *_table("voxels of ten sweeps", ["first quartile", "median", "third quartile"])]
    known = np.quantile(real.voxels, parts) if real.voxels else REAL_VOXEL_QUARTILES
    lines.append(_row("real", [f"{value:,.0f}" for value in known]))
    if simulated.voxels:
        ours = np.quantile(simulated.voxels, parts)
        lines.append(_row("simulated", [f"{value:,.0f}" for value in ours]))
    lines += ["", *_table("share of points by intensity", _intensity_names())]
    for name, sample in (("real", real), ("simulated", simulated)):
        lines.append(_row(name, [f"{share:.3f}" for share in sample.intensity]))
    return "\n".join(lines) + "\n"


def _table(title: str, columns: list[str]) -> list[str]:
    return [_row(title, columns), _row("---", ["---:"] * len(columns))]


def _row(name: str, cells: list[str]) -> str:
    return "| " + " | ".join((name, *cells)) + " |"


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _intensity_names() -> list[str]:
    return [f"{a}-{b - 1}" for a, b in zip(INTENSITY_EDGES, INTENSITY_EDGES[1:])]


def draw_samples(simulated: Sample, real: Sample) -> np.ndarray:
    """Draw both samples in one picture.

    Returns:
        (height, width, 3) uint8 RGB: a panel a class, then voxels, then intensity.
    """
    middle = (np.array(RANGE_EDGES_M[1:]) + RANGE_EDGES_M[:-1]) / 2
    ends = (float(RANGE_EDGES_M[0]), float(RANGE_EDGES_M[-1]))
    charts = [
        Chart(
            f"points on a {name.replace('_', ' ')}",
            [
                Line(middle, _numbers(real.points[name]), _REAL, dashed=True, marked=True),
                Line(middle, _numbers(simulated.points[name]), class_color(name), marked=True),
            ],
            ends,
            (0.7, 5000),
            "range, m",
            "median",
            log_y=True,
        )
        for name in NUSCENES_CLASSES
    ]
    charts += [_voxel_chart(simulated, real), _intensity_chart(simulated, real)]
    title = f"{simulated.name} ({simulated.objects:,} objects) beside {real.name}"
    title += f" ({real.objects:,} objects)" if real.objects else ""
    legend = [("real", _REAL, True), ("simulated: colour of the class, or amber", AMBER, False)]
    return draw_charts(charts, columns=4, title=title, legend=legend)


def _voxel_chart(simulated: Sample, real: Sample) -> Chart:
    """Draw the share of frames with at most so many voxels."""

    def steps(values: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return np.array(values) / 1000, (np.arange(len(values)) + 0.5) / max(len(values), 1)

    quartiles = Line(
        np.array(REAL_VOXEL_QUARTILES) / 1000, (0.25, 0.5, 0.75), _REAL, dashed=True, marked=True
    )
    lines = [quartiles, Line(*steps(simulated.voxels), AMBER, marked=True)]
    if real.voxels:
        alone = [(v / 1000, y) for v, y in zip(real.voxels, steps(real.voxels)[1])]
        lines += [Line([x], [y], (46, 134, 255)) for x, y in alone]
    return Chart(
        "frames with fewer voxels",
        lines,
        (0, _VOXELS_TOP / 1000),
        (0, 1),
        "thousands, ten sweeps; blue: frames of the folder",
        "share",
    )


def _intensity_chart(simulated: Sample, real: Sample) -> Chart:
    places = np.arange(len(INTENSITY_EDGES) - 1)
    lines = [
        Line(places, sample.intensity, color, dashed=color == _REAL, marked=True)
        for sample, color in ((real, _REAL), (simulated, AMBER))
        if sample.intensity
    ]
    names = _intensity_names()
    return Chart(
        "intensity beyond 2.5 m",
        lines,
        (-0.5, len(names) - 0.5),
        (0, 0.5),
        "intensity",
        "share",
        x_names=names,
    )


def _numbers(values: tuple[float | None, ...]) -> list[float]:
    return [np.nan if v is None else v for v in values]
