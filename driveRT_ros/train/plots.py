"""The pictures of an evaluation: precision over recall, scores by range, the worst frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.chart import Chart, Line, draw_charts
from driveRT_ros.io.palette import Rgb, class_color
from driveRT_ros.io.render import render_bev
from driveRT_ros.train.eval_sources import Shown
from driveRT_ros.train.evaluate import RANGE_EDGES_M, ClassResult, Evaluation, Scores
from driveRT_ros.train.matching import RECALL_LEVELS, THRESHOLDS_M

Image = npt.NDArray[np.uint8]

_THRESHOLD_COLORS: tuple[Rgb, ...] = (
    (255, 84, 89),
    (255, 159, 28),
    (38, 222, 129),
    (46, 134, 255),
)
_ERROR_TITLES = {
    "trans": "distance of centres, m",
    "scale": "1 - IoU of sizes",
    "orient": "heading, rad",
    "vel": "velocity, m/s",
    "attr": "1 - accuracy of attributes",
}


def precision_recall(evaluation: Evaluation, title: str) -> Image:
    """Draw precision over recall, one panel a class, one line a threshold."""
    charts = []
    for result in evaluation.classes:
        lines = [
            Line(RECALL_LEVELS, np.where(c.confidence > 0, c.precision, np.nan), color)
            for c, color in zip(result.curves, _THRESHOLD_COLORS)
            if result.overall.num_truth
        ]
        note = f"AP {result.overall.mean_ap:.3f}" if lines else "no ground truth"
        name = result.name.replace("_", " ")
        charts.append(Chart(name, lines, (0, 1), (0, 1), "recall", note))
    legend = [
        (f"precision, hit below {threshold:g} m", color, False)
        for threshold, color in zip(THRESHOLDS_M, _THRESHOLD_COLORS)
    ]
    return draw_charts(charts, columns=5, title=title, legend=legend)


def by_range(evaluation: Evaluation, title: str) -> Image:
    """Draw average precision, recall and errors over range, one line a class."""
    middle = (np.array(RANGE_EDGES_M[1:]) + RANGE_EDGES_M[:-1]) / 2
    shown = [c for c in evaluation.classes if c.overall.num_truth]

    def chart(title: str, value: str, top: float) -> Chart:
        lines = [Line(middle, _values(c, value), class_color(c.name), marked=True) for c in shown]
        highest = max([top, *(float(np.nanmax([*np.asarray(x.y), top])) for x in lines)])
        ends = (RANGE_EDGES_M[0], RANGE_EDGES_M[-1])
        return Chart(title, lines, ends, (0, highest), "range, m")

    charts = [
        chart("average precision", "mean_ap", 1.0),
        chart("recall, one false box a hit", "recall", 1.0),
        *(chart(text, name, 0.5) for name, text in _ERROR_TITLES.items()),
        chart("ground truths", "num_truth", 1.0),
    ]
    legend = [(c.name.replace("_", " "), class_color(c.name), False) for c in shown]
    return draw_charts(charts, columns=4, title=title, legend=legend)


def _values(result: ClassResult, name: str) -> list[float]:
    """Return a score by range, NaN where there is no ground truth, or no hit for an error."""

    def value(scores: Scores) -> float:
        if name == "num_truth":
            return float(scores.num_truth)
        if not scores.num_truth:
            return np.nan
        if name == "recall":
            return scores.best.recall
        if name not in _ERROR_TITLES:
            return float(getattr(scores, name))
        return scores.errors[name] if scores.ap[2] > 0 else np.nan

    return [value(scores) for scores in result.by_range]


def worst_frames(
    worst: list[Shown], config: LidarConfig, min_score: float
) -> Iterator[tuple[str, Image]]:
    """Yield a name and a bird's-eye view of each frame, the worst first."""
    for number, shown in enumerate(worst, 1):
        cloud, tally = shown.frame.points, shown.tally
        points = np.column_stack([cloud.xyz, cloud.intensity, cloud.time_lag_s])
        picture = render_bev(
            points.astype(np.float32),
            T_ego_lidar=shown.frame.T_ego_lidar,
            detections=shown.found,
            ground_truth=shown.frame.ground_truth,
            config=config,
            title=f"{tally.missed} missed, {tally.wrong} wrong",
            stamp_ns=cloud.stamp_ns,
            min_score=min_score,
        )
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in shown.token)
        yield f"worst_{number:02}_{name}.png", picture


def write_picture(path: Path, picture: Image) -> Path:
    """Write a PNG file.

    Raises:
        ConfigError: If it cannot be written.
    """
    if not cv2.imwrite(str(path), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)):
        raise ConfigError(f"Picture '{path}' cannot be written.")
    return path
