"""Colours shared by pictures and markers: one per class, and a ramp for heights."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Rgb = tuple[int, int, int]

CLASS_COLORS: dict[str, Rgb] = {
    "car": (255, 159, 28),
    "truck": (255, 84, 89),
    "construction_vehicle": (178, 120, 70),
    "bus": (255, 221, 64),
    "trailer": (255, 173, 173),
    "barrier": (46, 134, 255),
    "motorcycle": (255, 77, 219),
    "bicycle": (176, 108, 255),
    "pedestrian": (38, 222, 129),
    "traffic_cone": (190, 242, 47),
}
"""sRGB by class name: warm for vehicles, violet for two wheels, green for people and cones."""

OTHER_COLOR: Rgb = (170, 176, 186)
"""Colour of a class that is not in :data:`CLASS_COLORS`."""

AMBER: Rgb = (255, 176, 32)
"""Colour of a warning."""


def class_color(name: str) -> Rgb:
    """Return the sRGB colour of a class, 0..255; unknown classes are grey."""
    return CLASS_COLORS.get(name, OTHER_COLOR)


def class_color_unit(name: str) -> tuple[float, float, float]:
    """Return the sRGB colour of a class, 0..1, as std_msgs/ColorRGBA takes it."""
    r, g, b = class_color(name)
    return r / 255, g / 255, b / 255


@functools.lru_cache(maxsize=1)
def height_ramp() -> npt.NDArray[np.uint8]:
    """Return a perceptually uniform ramp, dark blue to pale ice.

    Neighbouring entries are equally far apart in OKLab, and lightness only grows. It is muted on
    purpose: the saturated colours of :data:`CLASS_COLORS` stand out against it.

    Returns:
        (256, 3) uint8 sRGB, read-only.

    Source: B. Ottosson, "A perceptual color space for image processing", 2020 (OKLab).
    """
    t = np.linspace(0, 1, 2048)
    lightness = 0.40 + 0.54 * t
    chroma = 0.115 - 0.09 * t**1.5
    hue = np.deg2rad(272 - 72 * t)
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(lab, axis=0), axis=1))])
    even = np.linspace(0, along[-1], 256)
    lab = np.stack([np.interp(even, along, channel) for channel in lab.T], axis=1)
    ramp = np.rint(oklab_to_srgb(lab) * 255).astype(np.uint8)
    ramp.setflags(write=False)
    return ramp


def oklab_to_srgb(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert (N, 3) OKLab to (N, 3) sRGB in 0..1; colours outside sRGB are clipped."""
    lms = (lab @ _LAB_TO_LMS.T) ** 3
    linear = np.clip(lms @ _LMS_TO_RGB.T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def srgb_to_oklab(rgb: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert (N, 3) sRGB in 0..1 to (N, 3) OKLab."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lms = np.cbrt(linear @ np.linalg.inv(_LMS_TO_RGB).T)
    return lms @ np.linalg.inv(_LAB_TO_LMS).T


_LAB_TO_LMS = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_LMS_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)
