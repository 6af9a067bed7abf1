"""PointCloud2 of any layout to PointBatch: the border where a bad cloud is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import DecodeReport, PointBatch
from driveRT_ros.core.rows import RowMaker, plain_rows
from driveRT_ros.io.cloud_layout import (
    BLOCK_POINTS,
    CloudField,
    CloudLayout,
    column_range,
    read_layout,
)
from driveRT_ros.io.point_values import Tally, ring_numbers, scale_intensity, set_time_lag

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

_EARTH_M = 5e7
"""No map frame has larger coordinates; the equator is 4e7 m long."""

_DEFAULTS = InputConfig()


def decode(
    msg: Any,
    *,
    fields: Mapping[str, str | None] | None = None,
    config: InputConfig | None = None,
    origin_xyz: Sequence[float] | None = None,
    make_rows: RowMaker = plain_rows,
) -> PointBatch:
    """Decode one sensor_msgs/msg/PointCloud2; the message is never written to.

    Coordinates, intensity and time lag are written side by side into rows of which the arrays of
    the result are views, so that they need not be joined later.

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
        make_rows: Makes the memory of the rows; the result owns it.

    Raises:
        InvalidFrame: If the cloud cannot be read without guessing; the reason is a sentence.
    """
    config = config or _DEFAULTS
    tally = Tally()
    stamp_ns, frame_id = read_header(msg.header, config, tally)
    layout = read_layout(msg)
    if layout.num_points == 0:
        return _empty(stamp_ns, frame_id)
    roles = find_roles(layout, fields or {}, tally)
    intensity, time = roles.get("intensity"), roles.get("time")
    direct_time = time is not None and time.dtype == np.float32  # numpy compares byte order too
    rows = make_rows(layout.num_points)
    given = [intensity or config.default_intensity, time if time and direct_time else 0.0]
    limits = layout.fill_rows([*(roles[axis] for axis in "xyz"), *given], rows)
    kept = None
    if origin_xyz is not None or limits is None or not _near(*limits):
        kept = _usable_rows(_axes(layout, roles, rows, origin_xyz), tally)
    kept = _thin(kept, layout.num_points, config.point_capacity, tally)
    if kept is not None:
        rows = _compacted(rows, kept)
    if limits is None or kept is not None:
        limits = column_range(rows)
    low, high = limits

    beside = [r for r in roles if r == "ring" or (r == "time" and not direct_time)]
    columns = dict(zip(beside, layout.columns([roles[role] for role in beside])))
    if kept is not None:
        columns = {role: values.take(kept) for role, values in columns.items()}
    scale_intensity(rows[:, 3], (low[3], high[3]), intensity, config, tally)
    if direct_time:
        set_time_lag(rows[:, 4], rows[:, 4], (low[4], high[4]), stamp_ns, tally)
    elif len(rows) and "time" in columns:
        values = columns["time"]
        set_time_lag(rows[:, 4], values, (values.min(), values.max()), stamp_ns, tally)
    return PointBatch(
        xyz=rows[:, :3],
        intensity=rows[:, 3],
        time_lag_s=rows[:, 4],
        ring=ring_numbers(columns.get("ring"), tally),
        stamp_ns=stamp_ns,
        frame_id=frame_id,
        report=DecodeReport(layout.num_points, dict(tally.dropped), tuple(tally.notes)),
        rows=rows,
    )


def read_header(header: Any, config: InputConfig, tally: Tally) -> tuple[int, str]:
    """Return stamp and frame of a cloud.

    Raises:
        InvalidFrame: If there is no frame, nor one that stands in for it.
    """
    stamp_ns = int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)
    frame_id = header.frame_id
    if not frame_id:
        if not config.default_frame_id:
            raise InvalidFrame(
                f"The header has no frame_id (stamp {stamp_ns} ns); the publisher must set it, or "
                "set the parameter input.default_frame_id.",
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


def find_roles(
    layout: CloudLayout, chosen: Mapping[str, str | None], tally: Tally
) -> dict[str, CloudField]:
    """Find the field of each role, and refuse two of them on the same bytes.

    Args:
        layout: Of a cloud with points.
        chosen: See ``fields`` of :func:`decode`.
        tally: Told what is odd.
    """
    if layout.is_padded:
        tally.note("row_padding")
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


def _near(low: np.ndarray, high: np.ndarray) -> bool:
    """Tell whether float32 holds all coordinates between two rows well."""
    return bool(low[:3].min() > -COORDINATE_LIMIT_M and high[:3].max() < COORDINATE_LIMIT_M)


def _axes(
    layout: CloudLayout,
    roles: Mapping[str, CloudField],
    rows: np.ndarray,
    origin_xyz: Sequence[float] | None,
) -> list[np.ndarray]:
    """Return the columns x, y, z without loss, from the origin, which the rows then are from too.

    Args:
        layout: Of the message.
        roles: Fields of the axes.
        rows: What was read of the message.
        origin_xyz: None for that of the message.
    """
    fields = [roles[axis] for axis in "xyz"]
    if origin_xyz is None and all(np.can_cast(field.dtype, np.float32) for field in fields):
        return [rows[:, k] for k in range(3)]
    axes = layout.columns(fields)
    if origin_xyz is not None:
        axes = [a.astype(np.float64) - o for a, o in zip(axes, origin_xyz)]
        with np.errstate(over="ignore"):  # what becomes infinite is left out afterwards
            for k, axis in enumerate(axes):  # by column, which is much faster than by row
                rows[:, k] = axis
    return axes


def _usable_rows(axes: list[np.ndarray], tally: Tally) -> np.ndarray | None:
    """Return the rows with three finite coordinates that float32 can hold; None for all."""
    furthest = _largest(axes)
    if bool(furthest.max() < COORDINATE_LIMIT_M):  # False where there is a NaN
        return None
    finite, small = np.isfinite(furthest), furthest < COORDINATE_LIMIT_M
    num_finite, num_small = int(finite.sum()), int(small.sum())
    worst = float(furthest[finite].max()) if num_finite > num_small else 0.0
    count_dropped(len(furthest), num_finite, num_small, worst, tally)
    return np.flatnonzero(small)


def count_dropped(
    num_points: int, num_finite: int, num_small: int, worst: float, tally: Tally
) -> None:
    """Count the points left out for their coordinates.

    Args:
        num_points: In the message.
        num_finite: With finite coordinates.
        num_small: With coordinates below the limit, too.
        worst: The largest absolute one of the finite.
        tally: Gets the counts.

    Raises:
        InvalidFrame: If most are beyond the limit.
    """
    if num_finite > 2 * num_small:
        why = (
            "the cloud is in a map frame. Transform it to the sensor frame, or subtract an origin."
        )
        if worst > _EARTH_M:
            why = "no map reaches so far. Check is_bigendian, and offset and datatype of x, y, z."
        raise InvalidFrame(
            f"Coordinates reach {worst:g} m, where float32 is too coarse for voxels: {why}",
            "xyz",
            worst,
            f"below {COORDINATE_LIMIT_M:g} m",
            code="coordinates_too_large",
        )
    for reason, count in (
        ("non_finite", num_points - num_finite),
        ("too_far_for_float32", num_finite - num_small),
    ):
        if count:
            tally.dropped[reason] = count


def _largest(axes: list[np.ndarray]) -> np.ndarray:
    """Return (N,) the largest absolute coordinate of each point; NaN where one is NaN."""
    kinds = (axis.dtype if axis.dtype.kind == "f" else np.float64 for axis in axes)
    largest = np.zeros(len(axes[0]), np.result_type(*kinds))
    for start in range(0, len(largest), BLOCK_POINTS):
        block = largest[start : start + BLOCK_POINTS]
        for axis in axes:
            values = axis[start : start + BLOCK_POINTS].astype(largest.dtype)
            np.maximum(block, np.abs(values, out=values), out=block)
    return largest


def _thin(
    rows: np.ndarray | None, num_points: int, capacity: int, tally: Tally
) -> np.ndarray | None:
    """Keep ``capacity`` rows, evenly spread over the cloud and the same ones every time."""
    count = num_points if rows is None else len(rows)
    if count <= capacity:
        return rows
    tally.dropped["over_capacity"] = count - capacity
    kept = np.arange(capacity, dtype=np.int64) * count // capacity
    return kept if rows is None else rows[kept]


def _compacted(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Move rows of ascending numbers to the front, in place, and return them."""
    for start in range(0, len(kept), BLOCK_POINTS):
        moved = rows.take(kept[start : start + BLOCK_POINTS], axis=0)
        rows[start : start + len(moved)] = moved
    return rows[: len(kept)]
