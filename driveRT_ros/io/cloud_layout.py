"""The bytes of a PointCloud2: checked once, then read as columns without copying or writing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driveRT_ros.core.errors import InvalidFrame

DATATYPES: dict[int, str] = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    8: "f8",
}
"""Constants of sensor_msgs/msg/PointField and what they mean to numpy, without byte order."""

BLOCK_POINTS = 8192
"""Worked on at a time: 400 KB of wide points, within the second-level cache of any CPU."""

_FOLD = 128  # rows side by side, so that numpy reduces them with vector instructions


@dataclass(frozen=True)
class CloudField:
    """One scalar of a point: where it is and what it is."""

    name: str
    offset: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class CloudLayout:
    """A cloud whose sizes agree with each other.

    Args:
        height: Rows.
        width: Points a row.
        point_step: Bytes from a point to the next.
        row_step: Bytes from a row to the next.
        data: Read-only bytes of all points; shares the memory of the message.
        big_endian: Byte order of every field.
        raw_fields: ``fields`` of the message.
    """

    height: int
    width: int
    point_step: int
    row_step: int
    data: np.ndarray
    big_endian: bool
    raw_fields: tuple[Any, ...]

    @property
    def num_points(self) -> int:
        """Points in the message, valid or not."""
        return self.height * self.width

    @property
    def is_padded(self) -> bool:
        """Whether rows end in bytes that belong to no point."""
        return self.height > 1 and self.row_step != self.width * self.point_step

    @property
    def names(self) -> tuple[str, ...]:
        """Field names in the order of the message."""
        return tuple(f.name for f in self.raw_fields)

    def field(self, name: str) -> CloudField:
        """Return one field after checking that it is a single value inside the point.

        Raises:
            InvalidFrame: If it is absent, repeated, an array, of unknown type, or out of the step.
        """
        found = [f for f in self.raw_fields if f.name == name]
        if len(found) != 1:
            known = ", ".join(self.names) or "none"
            raise InvalidFrame(
                f"The cloud must have exactly one field '{name}'; its fields are: {known}.",
                "fields",
                len(found),
                1,
                code="missing_field" if not found else "repeated_field",
            )
        raw = found[0]
        if raw.datatype not in DATATYPES:
            raise InvalidFrame(
                f"Field '{name}' has a data type that sensor_msgs/PointField does not define.",
                "datatype",
                raw.datatype,
                "1 to 8",
            )
        if raw.count not in (0, 1):  # some drivers leave the count at 0 and mean one
            raise InvalidFrame(
                f"Field '{name}' is an array; a point has one {name}.", "count", raw.count, 1
            )
        dtype = np.dtype((">" if self.big_endian else "<") + DATATYPES[raw.datatype])
        if raw.offset < 0 or raw.offset + dtype.itemsize > self.point_step:
            raise InvalidFrame(
                f"Field '{name}' ends at byte {raw.offset + dtype.itemsize} of a point, past "
                f"point_step {self.point_step}.",
                "offset",
                raw.offset,
                f"at most {self.point_step - dtype.itemsize}",
            )
        return CloudField(name, int(raw.offset), dtype)

    def columns(self, fields: Sequence[CloudField]) -> list[np.ndarray]:
        """Return (N,) values of each field: contiguous copies, native byte order, same type."""
        views = [self._strided(f.dtype, f.offset) for f in fields]
        copies = [np.empty(v.shape, v.dtype.newbyteorder("=")) for v in views]
        length = len(views[0]) if views else 0
        # block by block, so that all fields of a point are read while it is in the cache
        step = max(1, BLOCK_POINTS * length // max(1, self.num_points))
        for start in range(0, length, step):
            for view, copy in zip(views, copies):
                copy[start : start + step] = view[start : start + step]
        return [copy.reshape(-1) for copy in copies]

    def fill_rows(
        self, fields: Sequence[CloudField | float], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Write fields side by side into rows, and look at their values while they are near.

        Args:
            fields: What each column holds: a field, or the same number everywhere.
            rows: (N, K) float32, C-contiguous, overwritten; values beyond float32 become infinite.

        Returns:
            (K,) least and greatest value of each column; None where one of all is NaN.
        """
        runs = _runs(fields)
        views = [self._strided(run.dtype, run.offset) for run in runs]
        grid = rows.reshape(*views[0].shape, len(fields))
        places: list[np.ndarray] = [
            np.ndarray(view.shape, run.target, rows, 4 * run.column, grid.strides[:-1])
            for view, run in zip(views, runs)
        ]
        fixed = [(k, value) for k, value in enumerate(fields) if not isinstance(value, CloudField)]
        step = max(1, BLOCK_POINTS * len(grid) // max(1, self.num_points))
        ranges: list[tuple[np.ndarray, np.ndarray]] = []
        numbers = True
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(grid), step):
                for view, place in zip(views, places):
                    place[start : start + step] = view[start : start + step]
                for column, value in fixed:
                    grid[start : start + step, ..., column] = value
                if numbers:  # with a NaN it would be slow, and for nothing
                    ranges.append(column_range(grid[start : start + step].reshape(-1, len(fields))))
                    numbers = not np.isnan(ranges[-1][0]).any()
        if not numbers:
            return None
        return np.min([low for low, _ in ranges], axis=0), np.max([h for _, h in ranges], axis=0)

    def _strided(self, dtype: np.dtype[Any], offset: int) -> np.ndarray:
        shape: tuple[int, ...] = (self.height, self.width)
        strides: tuple[int, ...] = (self.row_step, self.point_step)
        if not self.is_padded:
            shape, strides = (self.num_points,), (self.point_step,)
        if self.num_points == 0:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self.data, offset, strides)


def column_range(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the (K,) least and greatest value of C-contiguous (N, K) rows; 0 for no rows."""
    columns = rows.shape[1]
    if len(rows) == 0:
        return np.zeros(columns, rows.dtype), np.zeros(columns, rows.dtype)
    folded = len(rows) // _FOLD * _FOLD
    low = high = rows[folded:] if folded < len(rows) else rows[:1]
    low, high = low.min(axis=0), high.max(axis=0)
    if folded:
        wide = rows[:folded].reshape(-1, _FOLD * columns)
        low = np.minimum(low, wide.min(axis=0).reshape(_FOLD, columns).min(axis=0))
        high = np.maximum(high, wide.max(axis=0).reshape(_FOLD, columns).max(axis=0))
    return low, high


@dataclass(frozen=True)
class _Run:
    """Neighbouring columns that are copied at once.

    Args:
        column: The first of them.
        dtype: Of the source: a number, or void for float32 that are copied byte by byte.
        offset: Of the source in its point.
    """

    column: int
    dtype: np.dtype[Any]
    offset: int

    @property
    def target(self) -> np.dtype[Any]:
        """Type of the copy."""
        return self.dtype if self.dtype.kind == "V" else np.dtype(np.float32)


def _runs(fields: Sequence[CloudField | float]) -> list[_Run]:
    """Return how fields become float32 columns; neighbours that are float32 already go together."""
    runs: list[_Run] = []
    for column, field in enumerate(fields):
        if not isinstance(field, CloudField):
            continue
        if field.dtype != np.float32:  # numpy compares byte order too
            runs.append(_Run(column, field.dtype, field.offset))
            continue
        if runs and runs[-1].dtype.kind == "V":
            before, size = runs[-1], runs[-1].dtype.itemsize
            if (before.column + size // 4, before.offset + size) == (column, field.offset):
                runs[-1] = _Run(before.column, np.dtype(f"V{size + 4}"), before.offset)
                continue
        runs.append(_Run(column, np.dtype("V4"), field.offset))
    return runs


def read_layout(msg: Any) -> CloudLayout:
    """Check the sizes of a sensor_msgs/msg/PointCloud2 of any origin (rclpy or rosbags).

    Args:
        msg: The message; never written to.

    Raises:
        InvalidFrame: If sizes contradict each other; the message names both numbers.
    """
    height, width = int(msg.height), int(msg.width)
    point_step, row_step = int(msg.point_step), int(msg.row_step)
    data = _as_bytes(msg.data)
    if height * width:
        _check_steps(height, width, point_step, row_step, len(data))
    elif len(data):
        raise InvalidFrame(
            f"The cloud holds {height} x {width} points but {len(data)} bytes of data.",
            "data",
            len(data),
            0,
        )
    return CloudLayout(
        height, width, point_step, row_step, data, bool(msg.is_bigendian), tuple(msg.fields)
    )


def _check_steps(height: int, width: int, point_step: int, row_step: int, size: int) -> None:
    if point_step <= 0:
        raise InvalidFrame("A point must take at least one byte.", "point_step", point_step, ">= 1")
    if row_step < width * point_step:
        raise InvalidFrame(
            f"row_step {row_step} is less than width x point_step = {width} x {point_step} = "
            f"{width * point_step}; the publisher must set row_step for the shape it sends.",
            "row_step",
            row_step,
            width * point_step,
        )
    if row_step * height != size:
        raise InvalidFrame(
            f"row_step x height = {row_step} x {height} = {row_step * height} bytes, but data "
            f"holds {size}; the publisher must set row_step for the shape it sends.",
            "row_step",
            size,
            row_step * height,
            code="data" if size < width * point_step * height else "row_step",
        )


def _as_bytes(data: Any) -> np.ndarray:
    """Return the buffer as read-only uint8 without copying (a list, as tests use, is copied)."""
    if isinstance(data, (list, tuple)):
        out = np.array(data, np.uint8)
    else:
        out = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    out.flags.writeable = False
    return out


def packed_offsets(dtypes: list[np.dtype[Any]]) -> tuple[list[int], int]:
    """Lay out fields one after the other, each at a multiple of its own size.

    Returns:
        The byte offset of each field, and the point step, a multiple of 4.
    """
    offsets, end = [], 0
    for dtype in dtypes:
        end = math.ceil(end / dtype.itemsize) * dtype.itemsize
        offsets.append(end)
        end += dtype.itemsize
    return offsets, max(4, math.ceil(end / 4) * 4)


def datatype_of(dtype: np.dtype[Any]) -> int:
    """Return the sensor_msgs/msg/PointField constant of a numpy dtype.

    Raises:
        InvalidFrame: If PointCloud2 cannot hold it (64-bit integers, booleans, half floats).
    """
    code = dtype.str[1:]
    for constant, name in DATATYPES.items():
        if name == code:
            return constant
    raise InvalidFrame(
        f"PointCloud2 has no field type for {dtype}; convert it first.",
        "datatype",
        str(dtype),
        ", ".join(DATATYPES.values()),
    )
