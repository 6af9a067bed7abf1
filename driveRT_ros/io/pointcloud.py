"""PointCloud2 of any layout to PointBatch: the border where a bad cloud is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import DecodeReport, PointBatch
from driveRT_ros.io.cloud_layout import CloudField, CloudLayout, read_layout

FIELD_ALIASES: dict[str, tuple[str, ...]] = {
    "x": ("x",),
    "y": ("y",),
    "z": ("z",),
    "intensity": ("intensity", "i", "reflectivity", "reflectance"),
    "ring": ("ring", "channel", "line"),
    "time": ("t", "time", "timestamp", "time_stamp", "offset_time"),
}
"""What a role is called by the drivers in use; the first name present wins."""

COORDINATE_LIMIT_M = 8192.0
"""From here on neighbouring float32 values are about 1 mm or more apart (2**13 * 2**-23)."""

MAX_SCAN_S = 1.0
"""Longest time one cloud may span; slower spinning sensors do not exist."""

_DEFAULTS = InputConfig()
_ABSOLUTE_TIME = 1e8  # as seconds: the year 1973; no offset within a scan is that large


@dataclass
class _Tally:
    """Report in the making."""

    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, key: str) -> None:
        if key not in self.notes:
            self.notes.append(key)


def decode(
    msg: Any,
    *,
    fields: Mapping[str, str | None] | None = None,
    config: InputConfig | None = None,
    origin_xyz: Sequence[float] | None = None,
) -> PointBatch:
    """Decode one sensor_msgs/msg/PointCloud2; the message is never written to.

    ``xyz`` is a read-only view of the message where its layout allows: x, y, z next to each other,
    little-endian float32, and no point to leave out. Everything else is a copy.

    Per-point times become ``time_lag_s``, seconds back from the header stamp. Integers are
    nanoseconds and floats are seconds, except that a float from 1e8 on is a clock reading whose
    size tells its unit. Where the header is stamped at the start of the scan (or by another clock)
    points would lie in the future; then the newest point stands for the stamp, so the lag is never
    negative. One time for all points says nothing, and gives 0.

    Args:
        msg: An rclpy or rosbags message, or anything with the same attributes.
        fields: Role (``x y z intensity ring time``) to field name, where the usual names
            (:data:`FIELD_ALIASES`) do not apply; None for a field to ignore.
        config: Intensity scale, defaults and capacity.
        origin_xyz: Metres subtracted in float64 before coordinates become float32, for clouds in
            a map frame.

    Raises:
        InvalidFrame: If the cloud cannot be read without guessing; the reason is a sentence.
    """
    config = config or _DEFAULTS
    tally = _Tally()
    stamp_ns, frame_id = _header(msg.header, config, tally)
    layout = read_layout(msg)
    if layout.num_points == 0:
        return _empty(stamp_ns, frame_id)
    if layout.is_padded:
        tally.note("row_padding")
    roles = _roles(layout, fields or {})
    columns = dict(zip(roles, layout.columns(list(roles.values()))))
    axes = [columns[axis] for axis in "xyz"]
    if origin_xyz is not None:
        axes = [a.astype(np.float64) - o for a, o in zip(axes, origin_xyz)]
    rows = _thin(_usable_rows(axes, tally), layout.num_points, config.point_capacity, tally)

    def column(role: str) -> np.ndarray | None:
        values = columns.get(role)
        return values if values is None or rows is None else values.take(rows)

    view = _xyz_view(layout, roles) if rows is None and origin_xyz is None else None
    xyz = _stack(axes, rows) if view is None else view
    return PointBatch(
        xyz=xyz,
        intensity=_intensity(column("intensity"), len(xyz), config, tally),
        time_lag_s=_time_lag(column("time"), len(xyz), stamp_ns, tally),
        ring=_ring(column("ring"), tally),
        stamp_ns=stamp_ns,
        frame_id=frame_id,
        report=DecodeReport(layout.num_points, dict(tally.dropped), tuple(tally.notes)),
    )


def _header(header: Any, config: InputConfig, tally: _Tally) -> tuple[int, str]:
    stamp_ns = int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)
    frame_id = header.frame_id
    if not frame_id:
        if not config.default_frame_id:
            raise InvalidFrame(
                f"The header has no frame_id (stamp {stamp_ns} ns); the publisher must set it, or "
                "set the parameter default_frame_id.",
                "frame_id",
                frame_id,
                "the name of a frame",
            )
        frame_id = config.default_frame_id
        tally.note("default_frame_id")
    if stamp_ns == 0:
        tally.note("stamp_zero")
    return stamp_ns, frame_id


def _empty(stamp_ns: int, frame_id: str) -> PointBatch:
    return PointBatch(
        xyz=np.zeros((0, 3), np.float32),
        intensity=np.zeros(0, np.float32),
        time_lag_s=np.zeros(0, np.float32),
        ring=None,
        stamp_ns=stamp_ns,
        frame_id=frame_id,
        report=DecodeReport(notes=("empty",)),
    )


def _roles(layout: CloudLayout, chosen: Mapping[str, str | None]) -> dict[str, CloudField]:
    """Find the field of each role, and refuse two of them on the same bytes."""
    unknown = [role for role in chosen if role not in FIELD_ALIASES]
    if unknown:
        raise ConfigError(
            f"Role '{unknown[0]}' of a point is unknown. Known: {', '.join(FIELD_ALIASES)}."
        )
    roles: dict[str, CloudField] = {}
    for role, aliases in FIELD_ALIASES.items():
        if role in chosen:
            name = chosen[role]
        else:
            name = next((a for a in aliases if a in layout.names), None)
            if name is None and role in ("x", "y", "z"):
                name = role  # absent: let the layout say so
        if name is not None:
            roles[role] = layout.field(name)
        elif role in ("x", "y", "z"):
            raise ConfigError(f"Role '{role}' of a point cannot be ignored; name its field.")
    placed = sorted(roles.values(), key=lambda f: f.offset)
    for before, after in zip(placed, placed[1:]):
        if before.offset + before.dtype.itemsize > after.offset and before.name != after.name:
            raise InvalidFrame(
                f"Fields '{before.name}' and '{after.name}' overlap: '{before.name}' fills bytes "
                f"{before.offset} to {before.offset + before.dtype.itemsize - 1}.",
                "offset",
                after.offset,
                f"at least {before.offset + before.dtype.itemsize}",
            )
    return roles


def _usable_rows(axes: list[np.ndarray], tally: _Tally) -> np.ndarray | None:
    """Return the rows with three finite coordinates that float32 can hold; None for all."""
    furthest = _largest(axes)
    if bool(furthest.max() < COORDINATE_LIMIT_M):  # False where there is a NaN
        return None
    finite, small = np.isfinite(furthest), furthest < COORDINATE_LIMIT_M
    num_finite, num_small = int(finite.sum()), int(small.sum())
    if num_finite > 2 * num_small:
        worst = float(furthest[finite].max())
        raise InvalidFrame(
            f"Coordinates reach {worst:g} m, where float32 is too coarse for voxels: the cloud is "
            "in a map frame. Transform it to the sensor frame, or subtract an origin.",
            "xyz",
            worst,
            f"below {COORDINATE_LIMIT_M:g} m",
            code="coordinates_too_large",
        )
    for reason, count in (
        ("non_finite", len(furthest) - num_finite),
        ("too_far_for_float32", num_finite - num_small),
    ):
        if count:
            tally.dropped[reason] = count
    return np.flatnonzero(small)


def _largest(axes: list[np.ndarray]) -> np.ndarray:
    """Return (N,) the largest absolute coordinate of each point; NaN where one is NaN."""
    floats = [axis if axis.dtype.kind == "f" else axis.astype(np.float64) for axis in axes]
    largest = np.abs(floats[0])
    for axis in floats[1:]:
        largest = np.maximum(largest, np.abs(axis))
    return largest


def _thin(
    rows: np.ndarray | None, num_points: int, capacity: int, tally: _Tally
) -> np.ndarray | None:
    """Keep ``capacity`` rows, evenly spread over the cloud and the same ones every time."""
    count = num_points if rows is None else len(rows)
    if count <= capacity:
        return rows
    tally.dropped["over_capacity"] = count - capacity
    kept = np.arange(capacity, dtype=np.int64) * count // capacity
    return kept if rows is None else rows[kept]


def _xyz_view(layout: CloudLayout, roles: Mapping[str, CloudField]) -> np.ndarray | None:
    """Return x, y, z as one (N, 3) view where they are neighbouring native float32."""
    x, y, z = (roles[axis] for axis in "xyz")
    neighbours = y.offset == x.offset + 4 and z.offset == x.offset + 8
    native = all(f.dtype == np.float32 for f in (x, y, z))  # numpy compares byte order too
    if not (neighbours and native):
        return None
    view = layout.triple(x)
    return view if view.flags.aligned else None


def _stack(axes: list[np.ndarray], rows: np.ndarray | None) -> np.ndarray:
    """Return (N, 3) float32; by column, which is much faster than by row."""
    out = np.empty((len(axes[0]) if rows is None else len(rows), 3), np.float32)
    for k, axis in enumerate(axes):
        out[:, k] = axis if rows is None else axis.take(rows)
    return out


def _intensity(
    raw: np.ndarray | None, count: int, config: InputConfig, tally: _Tally
) -> np.ndarray:
    """Return (N,) float32 in 0..clip."""
    if raw is None:
        tally.note("intensity_missing")
        return np.full(count, config.default_intensity, np.float32)
    if count == 0:
        return np.zeros(0, np.float32)
    values = raw if raw.dtype == np.float32 else _to_float32(raw)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(low + high):  # min and max of a NaN are NaN
        tally.note("intensity_non_finite")
        scale = config.intensity_scale or 1.0
        values = np.where(np.isfinite(values), values, config.default_intensity / scale)
        low, high = float(values.min()), float(values.max())
    if raw.dtype.kind == "f" and 0 < high <= 1.0 and config.intensity_scale == 1.0 and count > 100:
        tally.note("intensity_looks_like_0_to_1")
    if config.intensity_scale != 1.0:
        values = values * np.float32(config.intensity_scale)
        low, high = low * config.intensity_scale, high * config.intensity_scale
    if low < 0.0 or high > config.intensity_clip * (1 + 1e-6):  # 1.0 x 255 may round up
        tally.note("intensity_out_of_range")
    if low < 0.0 or high > config.intensity_clip:
        values = np.clip(values, np.float32(0.0), np.float32(config.intensity_clip))
    return values


def _to_float32(raw: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a huge float64 becomes Inf and is then dealt with
        return raw.astype(np.float32)


def _ring(raw: np.ndarray | None, tally: _Tally) -> np.ndarray | None:
    """Return (N,) int32; -1 where a float ring is not a number."""
    if raw is None:
        return None
    if raw.dtype.kind == "f":
        usable = np.abs(raw) < 2**31
        if not usable.all():
            tally.note("ring_non_finite")
            raw = np.where(usable, raw, -1.0)
    return raw.astype(np.int32, copy=False)


def _time_lag(raw: np.ndarray | None, count: int, stamp_ns: int, tally: _Tally) -> np.ndarray:
    """Return (N,) float32 seconds >= 0 before the stamp; see :func:`decode` for the rule."""
    zeros = np.zeros(count, np.float32)
    if raw is None or count == 0:
        return zeros
    if raw.dtype.kind == "f" and not np.isfinite(raw.min() + raw.max()):
        tally.note("time_non_finite")
        finite = np.isfinite(raw)
        if not finite.any():
            return zeros
        raw = np.where(finite, raw, raw[finite].max())
    oldest, newest = float(raw.min()), float(raw.max())
    is_clock = raw.dtype.kind == "f" and newest >= _ABSOLUTE_TIME
    unit_s = _clock_unit_s(newest) if is_clock else 1.0 if raw.dtype.kind == "f" else 1e-9
    span_s = (newest - oldest) * unit_s
    if span_s == 0.0:
        return zeros
    if span_s > MAX_SCAN_S:
        tally.note("time_span_too_long")
        return zeros
    stamp = stamp_ns * (1e-9 / unit_s) if is_clock else 0.0
    reference = stamp if 0.0 <= (stamp - newest) * unit_s <= MAX_SCAN_S else newest
    if reference != stamp:
        tally.note("time_from_newest_point")
    lag = raw.astype(np.float64)
    np.subtract(reference, lag, out=lag)
    lag *= unit_s
    return lag.astype(np.float32)


def _clock_unit_s(reading: float) -> float:
    """Return the unit of a clock reading since 1970: s, ms, us or ns, told by its size."""
    for limit, unit_s in ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6)):
        if reading < limit:
            return unit_s
    return 1e-9
