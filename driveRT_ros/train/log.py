"""What a run tells: a CSV file, a picture of the loss, and TensorBoard where it is installed."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw

_SIZE = 900, 420
_MARGIN = 60, 20, 20, 40  # left, top, right, bottom
_INK, _FAINT, _LINE = (30, 30, 30), (215, 215, 215), (31, 98, 180)


class Log:
    """Appends to ``log.csv`` in the folder of a run.

    Args:
        folder: Of the run.
        done: Steps done; lines of later ones, from a run that ended without its state, go.
    """

    def __init__(self, folder: Path, done: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._folder = folder / "log.csv", folder
        self._rows = [row for row in read_log(folder) if row["step"] <= done]
        self._board = _tensorboard(folder)
        if self._rows:
            self._write(self._rows, "w")
        else:
            self._path.unlink(missing_ok=True)

    def add(self, row: Mapping[str, float]) -> None:
        """Add one line; the first names the columns."""
        self._write([dict(row)], "a")
        self._rows.append(dict(row))
        if self._board is not None:
            for name, value in row.items():
                self._board.add_scalar(f"train/{name}", value, int(row["step"]))

    def _write(self, rows: Sequence[Mapping[str, float]], mode: str) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list((self._rows or rows)[0]))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows(rows)

    def close(self) -> None:
        """Draw ``loss.png`` and close TensorBoard."""
        if len(self._rows) > 1:
            curve = [(row["step"], row["loss"]) for row in self._rows]
            draw_curve(curve, "loss", self._folder / "loss.png")
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, float]]:
    """Return the lines of the log of a run; none where there is no log."""
    path = folder / "log.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(v) for name, v in row.items()} for row in csv.DictReader(file)]


def _tensorboard(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # an extra that the project does not ask for: the CSV holds the same
        return None
    return SummaryWriter(str(folder / "tensorboard"))


def draw_curve(points: Sequence[tuple[float, float]], title: str, path: Path) -> None:
    """Draw positive values over steps, on a logarithmic axis.

    Args:
        points: (step, value).
        title: Of the picture.
        path: PNG file to write.
    """
    image = Image.new("RGB", _SIZE, (255, 255, 255))
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = (
        _MARGIN[0], _MARGIN[1], _SIZE[0] - _MARGIN[2], _SIZE[1] - _MARGIN[3]
    )  # fmt: skip
    steps = [step for step, _ in points]
    heights = [math.log10(max(value, 1e-6)) for _, value in points]
    low, high = math.floor(min(heights)), math.ceil(max(heights))
    high = max(high, low + 1)
    first, last = min(steps), max(max(steps), min(steps) + 1)

    def at(step: float, height: float) -> tuple[float, float]:
        x = left + (step - first) / (last - first) * (right - left)
        return x, bottom - (height - low) / (high - low) * (bottom - top)

    for decade in range(low, high + 1):
        for digit in (1, 2, 5):
            height = decade + math.log10(digit)
            if height <= high:
                y = at(first, height)[1]
                pen.line((left, y, right, y), fill=_FAINT)
                pen.text((6, y - 6), f"{digit * 10.0**decade:g}", fill=_INK)
    for step in (first, last):
        x = at(step, low)[0]
        pen.text((min(x, right - 50), bottom + 8), f"{step:g}", fill=_INK)
    pen.text((_SIZE[0] // 2 - 60, bottom + 20), f"{title} over steps", fill=_INK)
    pen.line([at(s, h) for s, h in zip(steps, heights)], fill=_LINE, width=2)
    image.save(path)
