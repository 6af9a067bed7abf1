"""Which pixels of an image make each pixel of the network input, and by how much.

The weights are those of OpenCV's ``INTER_AREA``: kernels/fit_images.cu gives its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.camera_images import ImageFit
from driveRT_ros.core.kernel_args import struct_dtype

Spans = npt.NDArray[np.void]

_LEAST_SHARE = 1e-3  # a smaller part of a pixel is left out, as OpenCV does


@dataclass(frozen=True, eq=False)
class AreaFit:
    """How an image is averaged into the network input.

    Args:
        columns: (cols,) structs ``Span`` of the kernel, along the width.
        lines: (rows,) of the same along the height; ``first`` counts from :attr:`first_line`.
        first_line: First row of the image that any result needs.
        num_lines: Rows of the image that the results need.
        scale: Multiplies the sums.
        half_up: Whether halves are rounded up, not to even.
    """

    columns: Spans
    lines: Spans
    first_line: int
    num_lines: int
    scale: float
    half_up: bool

    @staticmethod
    def of(size_wh: tuple[int, int], fit: ImageFit) -> AreaFit | None:
        """Return how images of one size are averaged; None where they are enlarged.

        Args:
            size_wh: Width and height of the image.
            fit: Of images of this size.
        """
        if not fit.shrinks:
            return None
        rows, cols = fit.size_hw
        columns = _cut(_area_spans(size_wh[0], fit.resized_wh[0]), fit.left, cols)
        lines = _cut(_area_spans(size_wh[1], fit.resized_wh[1]), fit.top, rows)
        x, rest_x = divmod(size_wh[0], fit.resized_wh[0])
        y, rest_y = divmod(size_wh[1], fit.resized_wh[1])
        scale, half_up = 1.0, False
        if not rest_x and not rest_y:  # a plain mean: exact sums, one rounding
            scale, half_up = 1.0 / (x * y), (x, y) == (2, 2)
            for spans in (columns, lines):
                for name in ("head", "middle", "tail"):
                    spans[name] = 1.0
        used = lines[lines["count"] > 0]
        first = int(used["first"][0]) if len(used) else 0
        last = int((used["first"] + used["count"]).max()) if len(used) else 0
        lines["first"][lines["count"] > 0] -= first
        return AreaFit(columns, lines, first, last - first, scale, half_up)


def _area_spans(size: int, resized: int) -> Spans:
    """Return (resized,) spans of an axis; ``resized`` is at most ``size``."""
    scale = 1.0 / (resized / size)  # rounded as OpenCV rounds it
    begin = np.arange(resized) * scale
    end = begin + scale
    width = np.minimum(scale, size - begin)
    last = np.minimum(np.floor(end), size - 1)
    first = np.minimum(np.ceil(begin), last)
    before, after = first - begin > _LEAST_SHARE, end - last > _LEAST_SHARE
    spans = np.zeros(resized, struct_dtype("fit_images.cu", "Span"))
    spans["first"] = first - before
    spans["count"] = last - first + before + after
    spans["middle"] = 1.0 / width
    spans["head"] = np.where(before, (first - begin) / width, spans["middle"])
    tail = np.minimum(np.minimum(end - last, 1.0), width) / width
    spans["tail"] = np.where(after, tail, spans["middle"])
    alone = (spans["count"] == 1) & after & ~before
    spans["head"] = np.where(alone, spans["tail"], spans["head"])
    return spans


def _cut(spans: Spans, skipped: int, size: int) -> Spans:
    """Return ``size`` spans from one on; those before the first and after the last are empty."""
    out = np.zeros(size, spans.dtype)
    begin, end = max(-skipped, 0), min(len(spans) - skipped, size)
    if end > begin:
        out[begin:end] = spans[begin + skipped : end + skipped]
    return out
