"""What the values of a cloud mean: intensities to 0..255, times to seconds before the stamp.

Least and greatest value decide; so a device that knows no more than these of a cloud is told by the
same rules (kernels/unpack_points.cu).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.raw_cloud import intensity_fill
from driveRT_ros.io.cloud_layout import BLOCK_POINTS, CloudField

MAX_SCAN_S = 1.0
"""Longest time one cloud may span; slower spinning sensors do not exist."""

_ABSOLUTE_TIME = 1e8  # as seconds: the year 1973; no offset within a scan is that large


@dataclass
class Tally:
    """Report in the making."""

    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, key: str) -> None:
        """Add a note, once."""
        if key not in self.notes:
            self.notes.append(key)


def scale_intensity(
    values: np.ndarray,
    limits: tuple[Any, Any],
    field: CloudField | None,
    config: InputConfig,
    tally: Tally,
) -> None:
    """Scale and clip (N,) float32 in place, to 0..clip.

    Args:
        values: As they are in the message, or the default; overwritten.
        limits: Least and greatest of them; NaN where one is NaN.
        field: Where they come from; None where the cloud has no intensity.
        config: Scale, clip and default.
        tally: Told what is odd.
    """
    if field is None:
        tally.note("intensity_missing")
        return
    if len(values) == 0:
        return
    low, high = map(float, limits)
    odd = not np.isfinite(low + high)
    if odd:
        values[~np.isfinite(values)] = intensity_fill(config)
        low, high = float(values.min()), float(values.max())
    low, high = scaled_limits(low, high, odd, field.dtype.kind == "f", len(values), config, tally)
    if config.intensity_scale != 1.0:
        values *= np.float32(config.intensity_scale)
    if low < 0.0 or high > config.intensity_clip:
        np.clip(values, np.float32(0.0), np.float32(config.intensity_clip), out=values)


def scaled_limits(
    low: float,
    high: float,
    odd: bool,
    is_float: bool,
    count: int,
    config: InputConfig,
    tally: Tally,
) -> tuple[float, float]:
    """Return least and greatest intensity after scaling, before clipping.

    Args:
        low: Least of the message, where one is not finite with what stands for it.
        high: Greatest, likewise.
        odd: Whether one is not finite.
        is_float: Whether the message has floats.
        count: Intensities, at least one.
        config: Scale and clip.
        tally: Told what is odd.
    """
    if odd:
        tally.note("intensity_non_finite")
    if is_float and 0 < high <= 1.0 and config.intensity_scale == 1.0 and count > 100:
        tally.note("intensity_looks_like_0_to_1")
    if config.intensity_scale != 1.0:
        low, high = low * config.intensity_scale, high * config.intensity_scale
    if low < 0.0 or high > config.intensity_clip * (1 + 1e-6):  # 1.0 x 255 may round up
        tally.note("intensity_out_of_range")
    return low, high


def set_time_lag(
    lag_s: np.ndarray,
    raw: np.ndarray,
    limits: tuple[Any, Any],
    stamp_ns: int,
    tally: Tally,
) -> None:
    """Write seconds >= 0 before the stamp; see :func:`driveRT_ros.io.pointcloud.decode`.

    Args:
        lag_s: (N,) float32, overwritten.
        raw: (N,) times as they are in the message, perhaps ``lag_s`` itself.
        limits: Least and greatest of them, in their type; NaN where one is NaN.
        stamp_ns: Header stamp.
        tally: Told what is odd.
    """
    if len(raw) == 0:
        return
    if raw.dtype.kind == "f" and not finite_sum(*limits):
        tally.note("time_non_finite")
        finite = np.isfinite(raw)
        if not finite.any():
            lag_s[:] = 0.0
            return
        raw = np.where(finite, raw, raw[finite].max())
        limits = raw.min(), raw.max()
    oldest, newest = map(float, limits)
    rule = lag_rule(oldest, newest, raw.dtype.kind == "f", stamp_ns, tally)
    if rule is None:
        lag_s[:] = 0.0
        return
    reference, unit_s = rule
    for start in range(0, len(raw), BLOCK_POINTS):
        lag = raw[start : start + BLOCK_POINTS].astype(np.float64)
        np.subtract(reference, lag, out=lag)
        if unit_s != 1.0:
            lag *= unit_s
        lag_s[start : start + BLOCK_POINTS] = lag


def finite_sum(low: Any, high: Any) -> bool:
    """Tell whether two numbers of one numpy type have a finite sum in that type."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(low + high))


def lag_rule(
    oldest: float, newest: float, is_float: bool, stamp_ns: int, tally: Tally
) -> tuple[float, float] | None:
    """Return the time that lags count from, and its unit in seconds; None where all lags are 0.

    Args:
        oldest: Least time of the message.
        newest: Greatest.
        is_float: Whether they are floats.
        stamp_ns: Header stamp.
        tally: Told what is odd.
    """
    is_clock = is_float and newest >= _ABSOLUTE_TIME
    unit_s = _clock_unit_s(newest) if is_clock else 1.0 if is_float else 1e-9
    span_s = (newest - oldest) * unit_s
    if span_s > MAX_SCAN_S:
        tally.note("time_span_too_long")
    if span_s == 0.0 or span_s > MAX_SCAN_S:
        return None
    stamp = stamp_ns * (1e-9 / unit_s) if is_clock else 0.0
    reference = stamp if 0.0 <= (stamp - newest) * unit_s <= MAX_SCAN_S else newest
    if reference != stamp:
        tally.note("time_from_newest_point")
    return reference, unit_s


def _clock_unit_s(reading: float) -> float:
    """Return the unit of a clock reading since 1970: s, ms, us or ns, told by its size."""
    for limit, unit_s in ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6)):
        if reading < limit:
            return unit_s
    return 1e-9


def ring_numbers(raw: np.ndarray | None, tally: Tally) -> np.ndarray | None:
    """Return (N,) int32; -1 where a float ring is not a number."""
    if raw is None:
        return None
    if raw.dtype.kind == "f":
        usable = np.abs(raw) < 2**31
        if not usable.all():
            tally.note("ring_non_finite")
            raw = np.where(usable, raw, -1.0)
    return raw.astype(np.int32, copy=False)
