"""Charts: values land where the axes say, gaps stay gaps, ticks are round numbers."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.io.chart import Chart, Line, draw_charts, ticks

RED, GREEN = (255, 0, 0), (0, 255, 0)
LEFT, TOP = 16 + 52, 16 + 34  # of the plot of the first panel
SIZE = (100, 50)
PANEL = (SIZE[0] + 52 + 16, SIZE[1] + 34 + 44)


def drawn(chart: Chart) -> np.ndarray:
    """Return the plot area of the only panel."""
    picture = draw_charts([chart], columns=1, size_wh=PANEL)
    return picture[TOP : TOP + SIZE[1], LEFT : LEFT + SIZE[0]]


def cells(plot: np.ndarray, color: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.nonzero((plot == color).all(axis=2))


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 50, [0, 10, 20, 30, 40, 50]),
        (-0.3, 0.3, [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3]),
        (3, 4.9, [3, 3.5, 4, 4.5]),
    ],
)
def test_ticks_are_round_and_inside(low, high, wanted):
    assert ticks(low, high) == pytest.approx(wanted)


def test_values_land_where_the_axes_say():
    chart = Chart("", [], (10, 20), (0, 4))
    places = chart.place([10, 20, 15], [0, 4, 2], (101, 41))
    assert places.tolist() == [[0, 40], [100, 0], [50, 20]]
    log = Chart("", [], (0, 1), (1, 100), log_y=True)
    assert log.place([0, 0], [10, 0], (11, 21))[0].tolist() == [0, 10]
    assert np.isnan(log.place([0], [0], (11, 21))).any()  # zero has no place on such an axis


def test_a_line_is_drawn_at_its_values_and_has_a_gap_where_one_is_unknown():
    y = [0.5] * 4 + [np.nan] + [0.5] * 6
    plot = drawn(Chart("", [Line(np.linspace(0, 1, 11), y, RED)], (0, 1), (0, 1)))
    rows, cols = cells(plot, RED)
    assert set(rows) <= {23, 24, 25, 26} and cols.min() == 0 and cols.max() == 99
    assert not ((cols > 33) & (cols < 47)).any() and ((cols > 52) & (cols < 98)).any()


def test_a_value_alone_is_a_dot_and_dashes_leave_room():
    alone = Chart("", [Line([0.2, 0.5, 0.8], [np.nan, 0.5, np.nan], RED)], (0, 1), (0, 1))
    rows, cols = cells(drawn(alone), RED)
    assert abs(cols.mean() - 49.5) < 1 and abs(rows.mean() - 24.5) < 1 and len(rows) > 9
    flat = ([0, 1], [1 - 20 / 49] * 2)  # in the middle of a row of pixels
    dashed = drawn(Chart("", [Line(*flat, GREEN, dashed=True)], (0, 1), (0, 1)))
    solid = drawn(Chart("", [Line(*flat, GREEN)], (0, 1), (0, 1)))
    green = [(plot[..., 1] > 150).any(axis=0).sum() for plot in (dashed, solid)]
    assert green[1] == 100 and 35 < green[0] < 75


def test_a_legend_that_is_too_long_goes_on_in_the_next_row():
    chart = Chart("x", [], (0, 1), (0, 1))
    short = draw_charts([chart], columns=1, legend=[("a", RED, False)])
    long = draw_charts([chart], columns=1, legend=[("a name of some length", RED, True)] * 4)
    assert len(long) == len(short) + 24 * 3
    assert draw_charts([chart] * 3, columns=2, title="t").shape[1] > 2 * 340
