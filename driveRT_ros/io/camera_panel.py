"""The picture of what cameras see: their images around the map that was made of them."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.io import bev_shapes as shapes
from driveRT_ros.io.bev_panel import FAINT, MIDDLE, Word, draw_banner, write_words
from driveRT_ros.io.image import Pixels

GAP_PX = 6
ASPECT = 16 / 9


def camera_panel(
    bev_image: Pixels | None,
    images: Sequence[tuple[str, npt.NDArray[np.uint8] | None]],
    *,
    height_px: int = 960,
    width_px: int = 720,
    untrained: bool = False,
) -> Pixels:
    """Draw images in a row above and a row below the map.

    Args:
        bev_image: (H, W, 3) RGB map; None leaves its place empty.
        images: Name and RGB image (None: missing) of every camera; the first half goes above.
        height_px: Of the whole.
        width_px: Of the whole.
        untrained: Show the warning banner.

    Returns:
        (height_px, width_px, 3) uint8 RGB.
    """
    canvas = np.full((height_px, width_px, 3), shapes.BACKGROUND, np.uint8)
    words: list[Word] = []
    half = (len(images) + 1) // 2
    rows = [row for row in (images[:half], images[half:]) if row]
    columns = max(half, 2)
    tile_w = (width_px - GAP_PX * (columns - 1)) // columns
    tile_h = round(tile_w / ASPECT)
    for index, row in enumerate(rows):
        top = 0 if index == 0 else height_px - tile_h
        first = (width_px - len(row) * tile_w - (len(row) - 1) * GAP_PX) // 2
        for column, (name, image) in enumerate(row):
            left = first + column * (tile_w + GAP_PX)
            if image is None:
                middle = left + tile_w / 2, top + tile_h / 2
                words.append(Word(*middle, "no image", 13, FAINT, MIDDLE))
            else:
                _paste(canvas, image, left, top, tile_w, tile_h)
            words.append(Word(left + 8, top + 6, name, 12, halo=True))
    top = tile_h + GAP_PX if rows else 0
    bottom = height_px - (tile_h + GAP_PX if len(rows) > 1 else 0)
    if bev_image is None:
        words.append(Word(width_px / 2, (top + bottom) / 2, "no map yet", 13, FAINT, MIDDLE))
    else:
        side = min(width_px, bottom - top)
        place = canvas[top : top + side, (width_px - side) // 2 : (width_px + side) // 2]
        _paste(place, bev_image, 0, 0, side, side)
        if untrained:
            banner, _ = draw_banner(place, "UNTRAINED WEIGHTS", "layers mean nothing")
            left = (width_px - side) // 2
            words += [word._replace(x=word.x + left, y=word.y + top) for word in banner]
    return write_words(canvas, words)


def _paste(
    canvas: Pixels, image: npt.NDArray[np.uint8], left: int, top: int, width: int, height: int
) -> None:
    """Draw an image as large as fits, in the middle of its place."""
    scale = min(width / image.shape[1], height / image.shape[0])
    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    small = cv2.resize(image, size, interpolation=method)
    x, y = left + (width - size[0]) // 2, top + (height - size[1]) // 2
    canvas[y : y + size[1], x : x + size[0]] = small
