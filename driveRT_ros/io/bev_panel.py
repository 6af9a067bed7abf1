"""The words of a bird's-eye-view picture: side panel, ring labels, scores and the banner."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from driveRT_ros.io import bev_shapes as shapes
from driveRT_ros.io.bev_view import BevView
from driveRT_ros.io.palette import AMBER, CLASS_COLORS, Rgb, class_color, height_ramp

Canvas = npt.NDArray[np.uint8]

PANEL_PX = 260
MIN_PANEL_PX, MAX_OVERHANG_PX = 860, 1000
MARGIN = 20

PANEL: Rgb = (18, 22, 31)
LINE: Rgb = (42, 50, 65)
TEXT: Rgb = (228, 233, 240)
QUIET: Rgb = (146, 156, 172)
FAINT: Rgb = (98, 108, 126)

LEFT, RIGHT, MIDDLE, LEFT_MIDDLE = "la", "ra", "mm", "lm"
YEAR_2000_NS = 946_684_800 * 10**9


class Word(NamedTuple):
    """Text to be written: anchor position in pixels, and how it looks."""

    x: float
    y: float
    text: str
    size: int = 13
    color: Rgb = TEXT
    anchor: str = LEFT
    halo: bool = False

    def width(self) -> float:
        """Return the length in pixels."""
        return _font(self.size).getlength(self.text)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the panel says.

    Args:
        title: First line.
        stamp_ns: Time of the frame, or None.
        num_points: Points of the cloud.
        num_voxels: Voxels, 0 where unknown.
        found: Class name of each drawn detection; None where no detector ran.
        truth: Class name of each drawn ground-truth box; None where there is no ground truth.
        skipped: Boxes that could not be drawn.
        latency_ms: Milliseconds by stage.
        color_by: What the colour of a point means.
        value_range: Ends of the colour scale.
    """

    title: str
    stamp_ns: int | None
    num_points: int
    num_voxels: int
    found: Sequence[str] | None
    truth: Sequence[str] | None
    skipped: int
    latency_ms: Mapping[str, float]
    color_by: str
    value_range: tuple[float, float]


@functools.lru_cache(maxsize=16)
def _font(size: int) -> ImageFont.FreeTypeFont:
    face = ImageFont.load_default(size)
    assert isinstance(face, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return face


def stamp_text(stamp_ns: int) -> str:
    """Return a time of day in UTC; stamps before 2000 are simulated and shown in seconds."""
    if stamp_ns < YEAR_2000_NS:
        return f"t = {stamp_ns // 10**9}.{stamp_ns // 10**6 % 1000:03d} s"
    seconds, rest = divmod(stamp_ns, 10**9)
    day = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
    return f"{day:%Y-%m-%d  %H:%M:%S}.{rest // 10**6:03d} UTC"


class Panel:
    """A column of text and samples, filled from the top; ``top`` is the next free line."""

    def __init__(self, height_px: int) -> None:
        self.canvas: Canvas = np.full((height_px, PANEL_PX, 3), PANEL, np.uint8)
        self.words: list[Word] = []
        self.top = MARGIN
        self.left, self.right = MARGIN, PANEL_PX - MARGIN

    def line(self, left: str, right: str = "", color: Rgb = QUIET, indent: int = 0) -> None:
        """Write one line, with a value at its right end."""
        self.words.append(Word(self.left + indent, self.top, left, 13, color))
        self.words.append(Word(self.right, self.top, right, 13, TEXT, RIGHT))
        self.top += 20

    def heading(self, text: str, *columns: tuple[float, str]) -> None:
        """Begin a section, with titles of columns that end at the given x."""
        self.top += 12
        cv2.line(self.canvas, (self.left, self.top), (self.right, self.top), LINE, 1)
        self.top += 13
        self.words.append(Word(self.left, self.top, text.upper(), 11, FAINT))
        self.words += [Word(x, self.top, name, 11, FAINT, RIGHT) for x, name in columns]
        self.top += 20


def draw_panel(facts: Facts, height_px: int) -> Panel:
    """Return the panel of a picture.

    It is as high as the map, but at least 860 pixels: a class or a stage that only some frames
    have must not change the size of the pictures of a sequence.
    """
    height_px = max(height_px, MIN_PANEL_PX)
    panel = Panel(height_px + MAX_OVERHANG_PX)
    _write_summary(panel, facts)
    _write_classes(panel, facts)
    _write_key(panel, facts)
    _write_scale(panel, facts)
    _write_latency(panel, facts.latency_ms)
    panel.canvas = panel.canvas[: max(height_px, panel.top + MARGIN // 2)]
    return panel


def _write_summary(panel: Panel, facts: Facts) -> None:
    if facts.title:
        title = Word(panel.left, panel.top, facts.title, 18)
        while title.width() > PANEL_PX - 2 * MARGIN and len(title.text) > 4:
            title = title._replace(text=title.text[:-4] + "...")
        panel.words.append(title)
        panel.top += 28
    if facts.stamp_ns is not None:
        panel.line(stamp_text(facts.stamp_ns))
    panel.line("points", f"{facts.num_points:,}")
    if facts.num_voxels:
        panel.line("voxels", f"{facts.num_voxels:,}")


def _write_classes(panel: Panel, facts: Facts) -> None:
    if facts.found is None and facts.truth is None:
        return
    columns = [
        (end, title, Counter(names))
        for end, title, names in (
            (panel.right - 46.0, "found", facts.found),
            (float(panel.right), "truth", facts.truth),
        )
        if names is not None
    ]
    panel.heading("Classes", *((end, title) for end, title, _ in columns))
    extra = sorted(set().union(*(counts for _, _, counts in columns)) - set(CLASS_COLORS))
    for name in [*CLASS_COLORS, *extra]:
        present = any(counts[name] for _, _, counts in columns)
        y = panel.top + 2
        color = class_color(name) if present else tuple(c // 3 for c in class_color(name))
        cv2.rectangle(panel.canvas, (panel.left, y), (panel.left + 11, y + 11), color, -1)
        for end, _, counts in columns:
            shade = TEXT if counts[name] else FAINT
            panel.words.append(Word(end, panel.top, f"{counts[name]}", 13, shade, RIGHT))
        panel.line(name.replace("_", " "), color=QUIET if present else FAINT, indent=22)
    for end, _, counts in columns:
        panel.words.append(Word(end, panel.top, f"{sum(counts.values())}", 13, TEXT, RIGHT))
    panel.line("all", color=TEXT, indent=22)
    if facts.skipped:
        panel.line("not drawable, left out", f"{facts.skipped}", color=AMBER)


def _write_key(panel: Panel, facts: Facts) -> None:
    samples = [
        (facts.found is not None, "detection, heading, score", _sample_found),
        (facts.truth is not None, "ground truth", _sample_truth),
        (facts.truth is not None, "ground truth without points", _sample_unseen),
        (facts.found is not None or facts.truth is not None, "motion in the next 1 s", _arrow),
    ]
    if not any(shown for shown, _, _ in samples):
        return
    panel.heading("Key")
    for shown, text, draw in samples:
        if shown:
            x, y = panel.left, panel.top + 8
            corners = [[x + 24, y - 5], [x, y - 5], [x, y + 5], [x + 24, y + 5]]
            draw(panel.canvas, np.array(corners, np.float64))
            panel.line(text, indent=40)


def _sample_found(canvas: Canvas, corners_px: npt.NDArray[np.float64]) -> None:
    shapes.fill_boxes(canvas, corners_px[None], [CLASS_COLORS["car"]], 0.28)
    shapes.outline_boxes(canvas, corners_px[None], [CLASS_COLORS["car"]], [2])


def _sample_truth(canvas: Canvas, corners_px: npt.NDArray[np.float64]) -> None:
    shapes.dash_boxes(canvas, corners_px[None], shapes.TRUTH)


def _sample_unseen(canvas: Canvas, corners_px: npt.NDArray[np.float64]) -> None:
    shapes.dash_boxes(canvas, corners_px[None], shapes.UNSEEN_TRUTH)


def _arrow(canvas: Canvas, corners_px: npt.NDArray[np.float64]) -> None:
    left, right = corners_px[1:3].mean(axis=0), corners_px[[0, 3]].mean(axis=0)
    shapes.draw_arrows(canvas, left[None], right[None], [TEXT], 2)


def _write_scale(panel: Panel, facts: Facts) -> None:
    unit = " m" if facts.color_by == "height" else ""
    panel.heading("Height of points" if unit else "Intensity of points")
    width = panel.right - panel.left
    bar = height_ramp()[np.linspace(0, 255, width).astype(np.int64)]
    panel.canvas[panel.top : panel.top + 10, panel.left : panel.right] = bar
    panel.top += 15
    low, high = facts.value_range
    for x, value, anchor in (
        (panel.left, low, LEFT),
        (panel.left + width / 2, (low + high) / 2, "ma"),
        (panel.right, high, RIGHT),
    ):
        panel.words.append(Word(x, panel.top, f"{value:g}{unit}", 11, QUIET, anchor))
    panel.top += 16


def _write_latency(panel: Panel, latency_ms: Mapping[str, float]) -> None:
    if not latency_ms:
        return
    panel.heading("Latency", (panel.right, "ms"))
    for stage, milliseconds in latency_ms.items():
        if stage != "total":
            panel.line(stage.replace("_", " "), f"{milliseconds:.1f}")
    total = latency_ms.get("total", sum(latency_ms.values()))
    panel.line("total" if "total" in latency_ms else "sum", f"{total:.1f}", color=TEXT)


def compose(canvas: Canvas, words: Sequence[Word], panel: Panel) -> Canvas:
    """Put the panel at the right of the map and write all words, once.

    Args:
        canvas: The map; one that is flatter than the panel is padded below.
        words: Words of the map.
        panel: At least as high as the map.
    """
    height, width = canvas.shape[:2]
    padded = np.full((len(panel.canvas), width, 3), shapes.BACKGROUND, np.uint8)
    padded[:height] = canvas
    moved = [word._replace(x=word.x + width) for word in panel.words]
    return write_words(np.concatenate([padded, panel.canvas], axis=1), [*words, *moved])


def write_words(canvas: Canvas, words: Sequence[Word]) -> Canvas:
    """Return the canvas with text on it, set in the face that Pillow carries (ASCII only)."""
    image = PilImage.fromarray(canvas)
    draw = ImageDraw.Draw(image)
    for word in words:
        draw.text(
            (word.x, word.y),
            word.text,
            font=_font(word.size),
            fill=word.color,
            anchor=word.anchor,
            stroke_width=2 if word.halo else 0,
            stroke_fill=shapes.BACKGROUND,
        )
    return np.array(image)


def map_words(
    view: BevView, scores: Sequence[Word], keep_clear: tuple[slice, slice] | None = None
) -> list[Word]:
    """Return the labels of the range rings, then the scores that have room.

    Args:
        view: Window.
        scores: Wanted labels, the most important first; one that would cover another is left out.
        keep_clear: Rows and columns that no label may cover.
    """
    taken = np.zeros((view.height_px, view.width_px), bool)
    if keep_clear is not None:
        taken[keep_clear] = True
    words: list[Word] = []
    centre = view.to_pixels(np.zeros(2))
    for radius in shapes.ring_radii(view.reach_m):
        x, y = centre + np.array([1, -1]) * (radius * view.pixels_per_m / 2**0.5)
        inside = 14 <= x < view.width_px - 28 and 14 <= y < view.height_px - 14
        if inside and not taken[round(y), round(x)]:
            words.append(Word(x, y, f"{radius:g} m", 11, FAINT, MIDDLE, halo=True))
    for word in scores:
        row, col, width = round(word.y), round(word.x), round(word.width())
        if not (7 <= row < view.height_px - 7 and 2 <= col < view.width_px - width - 2):
            continue
        place = taken[row - 7 : row + 7, col - 2 : col + width + 2]
        if not place.any():
            place[:] = True
            words.append(word)
    return words


def draw_banner(canvas: Canvas, text: str, detail: str) -> tuple[list[Word], tuple[slice, slice]]:
    """Draw an amber sign at the top of the map.

    Returns:
        The words to write on it, and the rows and columns that it covers.
    """
    head = Word(0, 31, text, 17, (24, 18, 6), LEFT_MIDDLE)
    tail = Word(0, 31, detail, 13, (24, 18, 6), LEFT_MIDDLE)
    gap, pad = 14, 18
    width = head.width() + gap + tail.width()
    left = (canvas.shape[1] - width) / 2
    rows, cols = slice(14, 48), slice(max(0, round(left - pad)), round(left + width + pad))
    canvas[rows, cols] = AMBER
    words = [head._replace(x=left), tail._replace(x=left + head.width() + gap)]
    return words, (rows, cols)
