"""Line charts in the style of the bird's-eye-view pictures: a grid of panels with one legend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.io.bev_panel import FAINT, LINE, PANEL, QUIET, TEXT, Canvas, Word, write_words
from driveRT_ros.io.bev_shapes import BACKGROUND, SHIFT, fixed_point
from driveRT_ros.io.palette import Rgb

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 34, 44
_GAP, _MARGIN, _TITLE_PX, _LEGEND_PX = 10, 16, 40, 24
_DASH_PX = 6.0


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """One line of a chart; it has a gap where a value is NaN.

    Args:
        x: (n,) places.
        y: (n,) values.
        color: sRGB.
        dashed: Draw dashes.
        marked: Draw a dot at every value; a value alone gets one anyway.
    """

    x: npt.ArrayLike
    y: npt.ArrayLike
    color: Rgb
    dashed: bool = False
    marked: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Chart:
    """One panel.

    Args:
        title: At its top left.
        lines: The first one lies below the others.
        x_range: Values at the ends of the x axis.
        y_range: Values at the ends of the y axis; positive where ``log_y``.
        x_label: Below the axis.
        note: At the top right, such as a number.
        log_y: Logarithmic y axis.
        x_names: Names at whole x values, in place of numbers.
    """

    title: str
    lines: Sequence[Line]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str = ""
    note: str = ""
    log_y: bool = False
    x_names: Sequence[str] = ()

    def place(self, x: npt.ArrayLike, y: npt.ArrayLike, size_wh: tuple[int, int]) -> Points:
        """Return where values land in a plot of that size, (n, 2) column, row in pixels."""
        values, (low, high) = np.asarray(y, np.float64), self.y_range
        if self.log_y:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log10(np.where(values > 0, values, np.nan))
            low, high = math.log10(low), math.log10(high)
        first, last = self.x_range
        col = (np.asarray(x, np.float64) - first) / (last - first) * (size_wh[0] - 1)
        row = (high - values) / (high - low) * (size_wh[1] - 1)
        return np.stack(np.broadcast_arrays(col, row), axis=-1)


Points = npt.NDArray[np.float64]


def draw_charts(
    charts: Sequence[Chart],
    *,
    columns: int,
    title: str = "",
    legend: Sequence[tuple[str, Rgb, bool]] = (),
    size_wh: tuple[int, int] = (340, 260),
) -> Canvas:
    """Draw panels side by side, row by row.

    Args:
        charts: At least one.
        columns: Panels in a row.
        title: Above all of them (ASCII, as all text).
        legend: Name, colour and whether dashed, below all of them.
        size_wh: Size of a panel in pixels.

    Returns:
        (height, width, 3) uint8 RGB.
    """
    width, height = size_wh
    rows = -(-len(charts) // columns)
    full_width = 2 * _MARGIN + columns * width + (columns - 1) * _GAP
    keys, key_rows = _legend_words(legend, full_width)
    top = _MARGIN + (_TITLE_PX if title else 0)
    below = top + rows * height + (rows - 1) * _GAP
    full_height = below + key_rows * _LEGEND_PX + _MARGIN
    canvas = np.full((full_height, full_width, 3), BACKGROUND, np.uint8)
    words = [Word(_MARGIN, _MARGIN, title, 18)] if title else []
    for number, chart in enumerate(charts):
        x = _MARGIN + number % columns * (width + _GAP)
        y = top + number // columns * (height + _GAP)
        words += _draw_chart(canvas[y : y + height, x : x + width], chart, x, y)
    for key, color, dashed in keys:
        word = key._replace(y=below + key.y)
        sample = np.array([[word.x - 30, word.y + 8], [word.x - 8, word.y + 8]])
        _draw_run(canvas, sample, color, dashed)
        words.append(word)
    return write_words(canvas, words)


def _legend_words(
    legend: Sequence[tuple[str, Rgb, bool]], width: int
) -> tuple[list[tuple[Word, Rgb, bool]], int]:
    out: list[tuple[Word, Rgb, bool]] = []
    x, row = float(_MARGIN), 0
    for name, color, dashed in legend:
        word = Word(x + 34, 8 + row * _LEGEND_PX, name, 13, QUIET)
        if word.x + word.width() > width - _MARGIN and x > _MARGIN:
            x, row = float(_MARGIN), row + 1
            word = word._replace(x=x + 34, y=8 + row * _LEGEND_PX)
        out.append((word, color, dashed))
        x = word.x + word.width() + 18
    return out, row + 1 if legend else 0


def _draw_chart(panel: Canvas, chart: Chart, x: int, y: int) -> list[Word]:
    """Draw one panel; return its words, placed on the whole picture."""
    height, width = panel.shape[:2]
    panel[:] = PANEL
    size = (width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    plot = np.full((size[1], size[0], 3), PANEL, np.uint8)
    words = [Word(x + 12, y + 10, chart.title, 13, TEXT)]
    words.append(Word(x + width - _RIGHT, y + 10, chart.note, 13, QUIET, "ra"))
    label_y = y + height - 20
    words.append(Word(x + _LEFT + size[0] / 2, label_y, chart.x_label, 11, FAINT, "ma"))
    for value in _y_ticks(chart):
        row = round(float(chart.place(chart.x_range[0], value, size)[1]))
        plot[row] = LINE
        words.append(Word(x + _LEFT - 6, y + _TOP + row, f"{value:g}", 11, FAINT, "rm"))
    places = range(len(chart.x_names)) if chart.x_names else ticks(*chart.x_range)
    for value, text in zip(places, chart.x_names or [f"{v:g}" for v in places]):
        column = round(float(chart.place(value, chart.y_range[1], size)[0]))
        plot[:, column] = LINE
        words.append(Word(x + _LEFT + column, y + _TOP + size[1] + 6, text, 11, FAINT, "ma"))
    for line in chart.lines:
        _draw_line(plot, chart.place(line.x, line.y, size), line)
    panel[_TOP : _TOP + size[1], _LEFT : _LEFT + size[0]] = plot
    return words


def _draw_line(plot: Canvas, pixels: Points, line: Line) -> None:
    finite = np.atleast_1d(np.isfinite(pixels).all(axis=1))
    runs = np.split(np.arange(len(pixels)), np.flatnonzero(np.diff(finite)) + 1)
    for run in (r for r in runs if len(r) and finite[r[0]]):
        _draw_run(plot, pixels[run], line.color, line.dashed)
        if line.marked or len(run) == 1:
            for point in fixed_point(pixels[run]).tolist():
                cv2.circle(plot, point, 3 << SHIFT, line.color, -1, cv2.LINE_AA, SHIFT)


def _draw_run(plot: Canvas, pixels: Points, color: Rgb, dashed: bool) -> None:
    if not dashed:
        cv2.polylines(plot, [fixed_point(pixels)], False, color, 2, cv2.LINE_AA, SHIFT)
        return
    steps = np.linalg.norm(np.diff(pixels, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    for start in np.arange(0.0, along[-1], 2 * _DASH_PX):
        inner = along[(along > start) & (along < start + _DASH_PX)]
        at = np.array([start, *inner, min(start + _DASH_PX, along[-1])])
        dash = np.stack([np.interp(at, along, pixels[:, axis]) for axis in (0, 1)], axis=1)
        cv2.polylines(plot, [fixed_point(dash)], False, color, 1, cv2.LINE_AA, SHIFT)


def _y_ticks(chart: Chart) -> list[float]:
    low, high = chart.y_range
    if not chart.log_y:
        return ticks(low, high)
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    return [10.0**power for power in powers]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most so many round numbers in [low, high], equally spaced."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
