"""PointCloud2 for a device that decodes it: everything but the points is looked at here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.frame import DecodeReport
from driveRT_ros.core.raw_cloud import RawCloud, RawStatus, intensity_fill
from driveRT_ros.core.rows import RowMaker, plain_rows
from driveRT_ros.io.cloud_layout import CloudField, datatype_of, read_layout
from driveRT_ros.io.point_values import Tally, finite_sum, lag_rule, scaled_limits
from driveRT_ros.io.pointcloud import count_dropped, decode, find_roles, read_header

_DEFAULTS = InputConfig()


def read_raw(
    msg: Any, config: InputConfig | None = None, make_rows: RowMaker = plain_rows
) -> RawCloud:
    """Check a sensor_msgs/msg/PointCloud2 as :func:`~driveRT_ros.io.pointcloud.decode` does.

    Args:
        msg: An rclpy or rosbags message; it must not change while the result is in use.
        config: Intensity scale, defaults and capacity.
        make_rows: Makes the rows where it is decoded on the host after all.

    Raises:
        InvalidFrame: If the layout is unsound, with the sentence of ``decode``. What only the
            values tell is told later, by ``explain``.
    """
    config, tally = config or _DEFAULTS, Tally()
    stamp_ns, frame_id = read_header(msg.header, config, tally)
    layout = read_layout(msg)
    roles = find_roles(layout, {}, tally) if layout.num_points else {}
    return RawCloud(
        data=layout.data,
        num_points=layout.num_points,
        width=layout.width,
        point_step=layout.point_step,
        row_step=layout.row_step,
        big_endian=layout.big_endian,
        fields={
            role: (f.offset, datatype_of(f.dtype))
            for role, f in roles.items()
            if role != "ring" or f.dtype.kind == "f"  # another ring cannot be wrong
        },
        config=config,
        stamp_ns=stamp_ns,
        frame_id=frame_id,
        decode=functools.cache(lambda: decode(msg, config=config, make_rows=make_rows)),
        explain=lambda status: _report(
            layout.num_points, roles, config, stamp_ns, tuple(tally.notes), status
        ),
    )


def _report(
    num_points: int,
    roles: Mapping[str, CloudField],
    config: InputConfig,
    stamp_ns: int,
    notes: tuple[str, ...],
    status: RawStatus,
) -> DecodeReport:
    """Return the report of ``decode``, notes in its order.

    Raises:
        InvalidFrame: If the coordinates are too large.
    """
    if num_points == 0:
        return DecodeReport(notes=("empty",))
    tally = Tally(notes=list(notes))
    count_dropped(num_points, status.finite, status.usable, status.worst, tally)
    if status.usable > status.num_points:
        tally.dropped["over_capacity"] = status.usable - status.num_points
    intensity, time = roles.get("intensity"), roles.get("time")
    if intensity is None:
        tally.note("intensity_missing")
    elif status.num_points:
        _note_intensity(intensity.dtype.kind == "f", config, status, tally)
    if time is not None and status.num_points:
        _note_time(time.dtype, stamp_ns, status, tally)
    if status.odd_ring:
        tally.note("ring_non_finite")
    return DecodeReport(num_points, dict(tally.dropped), tuple(tally.notes))


def _note_intensity(is_float: bool, config: InputConfig, status: RawStatus, tally: Tally) -> None:
    values = list(status.intensity_limits or ())
    if status.odd_intensity:
        values.append(intensity_fill(config))
    scaled_limits(
        min(values), max(values), status.odd_intensity, is_float, status.num_points, config, tally
    )


def _note_time(dtype: np.dtype[Any], stamp_ns: int, status: RawStatus, tally: Tally) -> None:
    limits = status.time_limits
    sound = limits is not None and (dtype.kind != "f" or finite_sum(*map(dtype.type, limits)))
    if status.odd_time or not sound:
        tally.note("time_non_finite")
    if limits is not None:
        lag_rule(*limits, dtype.kind == "f", stamp_ns, tally)
