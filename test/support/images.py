"""Images as messages: every encoding written out by hand, apart from the code that reads them."""

from __future__ import annotations

import array
from types import SimpleNamespace

import cv2
import numpy as np

BAYER_COLOURS = {
    "rggb": ((0, 1), (1, 2)),
    "bggr": ((2, 1), (1, 0)),
    "gbrg": ((1, 2), (0, 1)),
    "grbg": ((1, 0), (2, 1)),
}
"""Colour channel at even and odd rows and columns of a mosaic."""


def smooth_rgb(height: int = 48, width: int = 64) -> np.ndarray:
    """Return a picture of soft ramps, different in every colour and along both axes."""
    v, u = np.mgrid[0:height, 0:width].astype(np.float64)
    red, green = 40 + 150 * u / width, 220 - 160 * v / height
    blue = 90 + 80 * u / width + 60 * v / height
    return np.stack([red, green, blue], axis=2).round().astype(np.uint8)


def random_rgb(seed: int, height: int = 32, width: int = 40) -> np.ndarray:
    """Return noise: any exchange of pixels or colours shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def image_message(
    encoding: str,
    rows: np.ndarray,
    *,
    height: int | None = None,
    width: int,
    padding: int = 0,
    bigendian: bool = False,
) -> SimpleNamespace:
    """Return a sensor_msgs/Image of rows (R, bytes) uint8, each followed by padding bytes."""
    rows = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    padded = np.concatenate([rows, np.full((len(rows), padding), 0xA5, np.uint8)], axis=1)
    return SimpleNamespace(
        header=SimpleNamespace(stamp=SimpleNamespace(sec=5, nanosec=7), frame_id="CAM"),
        height=len(rows) if height is None else height,
        width=width,
        encoding=encoding,
        is_bigendian=int(bigendian),
        step=padded.shape[1],
        data=array.array("B", padded.tobytes()),
    )


def as_message(rgb: np.ndarray, encoding: str, **options: object) -> SimpleNamespace:
    """Return a picture (H, W, 3) uint8 as a message in one of the usual encodings."""
    height, width = rgb.shape[:2]
    name = encoding.rstrip("0123456789")
    if name in ("rgb", "bgr", "rgba", "bgra"):
        values = rgb[..., ::-1] if name.startswith("bgr") else rgb
        if name.endswith("a"):
            alpha = np.full((height, width, 1), 17, np.uint8)
            values = np.concatenate([values, alpha], axis=2)
    elif name == "mono":
        values = rgb[..., 0]
    elif encoding.startswith("bayer"):
        values = mosaic(rgb, encoding.split("_")[1][:4])
    elif encoding in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv"):
        values = packed_yuv(rgb, luma_first=encoding in ("yuv422_yuy2", "yuyv"))
    else:
        values = semi_planar(rgb, swapped=encoding == "nv21")
    if encoding.endswith("16"):
        wide = values.astype(np.uint16) * 256 + 128  # rounds to the same eight bits
        values = wide.astype(">u2" if options.get("bigendian") else "<u2")
    return image_message(
        encoding,
        np.ascontiguousarray(values).reshape(len(values), -1),
        height=height,
        width=width,
        **options,
    )


def mosaic(rgb: np.ndarray, pattern: str) -> np.ndarray:
    """Return (H, W) of the one colour that each pixel of a Bayer sensor has."""
    out = np.empty(rgb.shape[:2], np.uint8)
    for row, colours in enumerate(BAYER_COLOURS[pattern]):
        for column, colour in enumerate(colours):
            out[row::2, column::2] = rgb[row::2, column::2, colour]
    return out


def yuv(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Y, Cb, Cr (float) of ITU-R BT.601 with video range."""
    r, g, b = np.moveaxis(rgb.astype(np.float64) / 255, 2, 0)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    return 16 + 219 * luma, 128 + 224 * (b - luma) / 1.772, 128 + 224 * (r - luma) / 1.402


def packed_yuv(rgb: np.ndarray, *, luma_first: bool) -> np.ndarray:
    """Return (H, W, 2): luma of each pixel beside one of the colours of its pair."""
    luma, cb, cr = yuv(rgb)
    out = np.empty((*rgb.shape[:2], 2))
    out[..., 0 if luma_first else 1] = luma
    chroma = out[..., 1 if luma_first else 0]
    chroma[:, 0::2] = (cb[:, 0::2] + cb[:, 1::2]) / 2
    chroma[:, 1::2] = (cr[:, 0::2] + cr[:, 1::2]) / 2
    return out.round().astype(np.uint8)


def semi_planar(rgb: np.ndarray, *, swapped: bool) -> np.ndarray:
    """Return (1.5 H, W): luma, then the colours of each block of four pixels in turn."""
    luma, cb, cr = yuv(rgb)
    blocks = [c.reshape(c.shape[0] // 2, 2, -1, 2).mean(axis=(1, 3)) for c in (cb, cr)]
    chroma = np.stack(blocks[::-1] if swapped else blocks, axis=2).reshape(len(luma) // 2, -1)
    return np.concatenate([luma, chroma]).round().astype(np.uint8)


def compressed_message(data: bytes, format: str) -> SimpleNamespace:
    """Return a sensor_msgs/CompressedImage."""
    return SimpleNamespace(format=format, data=array.array("B", data))


def encoded(values: np.ndarray, suffix: str, quality: int = 98) -> bytes:
    """Return a jpeg or png file of (H, W) or RGB (H, W, 3) values."""
    stored = values[..., ::-1] if values.ndim == 3 else values
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix == ".jpg" else []
    ok, data = cv2.imencode(suffix, np.ascontiguousarray(stored), options)
    assert ok
    return data.tobytes()
