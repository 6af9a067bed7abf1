"""Point clouds as messages of any layout, laid out byte by byte and without any ROS class."""

from __future__ import annotations

import array
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

DATATYPES = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 8}


def make_cloud(
    columns: Mapping[str, tuple[np.ndarray, str, int]],
    point_step: int,
    *,
    height: int = 1,
    row_padding: int = 0,
    big_endian: bool = False,
    stamp_ns: int = 1_700_000_000_123_456_789,
    frame_id: str = "lidar",
    is_dense: bool = True,
    filler: int = 0xAB,
    container: str = "bytes",
) -> Any:
    """Return a PointCloud2 look-alike.

    Args:
        columns: Field name to values, numpy type code and offset; in the order of the message.
        point_step: Bytes a point.
        height: Rows; the number of points must be a multiple of it.
        row_padding: Bytes after each row.
        big_endian: Byte order.
        stamp_ns: Header stamp.
        frame_id: Header frame.
        is_dense: Flag of the message.
        filler: Value of every byte that belongs to no field.
        container: ``bytes`` (immutable), ``array`` (as rclpy has it) or ``numpy`` (as rosbags has).
    """
    count = len(next(iter(columns.values()))[0])
    width = count // height
    row_step = width * point_step + row_padding
    data = np.full(height * row_step, filler, np.uint8)
    order = ">" if big_endian else "<"
    for values, code, offset in columns.values():
        if count:
            place = np.ndarray((height, width), order + code, data, offset, (row_step, point_step))
            place[:] = np.asarray(values).reshape(height, width)
    wrap = {
        "bytes": lambda d: d.tobytes(),
        "array": lambda d: array.array("B", d.tobytes()),
        "numpy": lambda d: d,
    }
    sec, nanosec = divmod(stamp_ns, 1_000_000_000)
    return SimpleNamespace(
        header=SimpleNamespace(stamp=SimpleNamespace(sec=sec, nanosec=nanosec), frame_id=frame_id),
        height=height,
        width=width,
        fields=[
            SimpleNamespace(name=name, offset=offset, datatype=DATATYPES[code], count=1)
            for name, (_, code, offset) in columns.items()
        ],
        is_bigendian=big_endian,
        point_step=point_step,
        row_step=row_step,
        data=wrap[container](data),
        is_dense=is_dense,
    )


def random_points(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return columns x, y, z (metres), intensity (0..255), ring and t (ns), reproducibly."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-50, 50, (3, count)).astype(np.float32)
    return {
        "x": xyz[0],
        "y": xyz[1],
        "z": xyz[2] / 10,
        "intensity": rng.integers(0, 256, count).astype(np.float32),
        "ring": rng.integers(0, 32, count).astype(np.uint16),
        "t": np.sort(rng.integers(0, 100_000_000, count)).astype(np.uint32),
    }


def xyzi_cloud(points: Mapping[str, np.ndarray], **options: Any) -> Any:
    """Return the plain 16-byte layout x, y, z, intensity, all float32."""
    columns = {n: (points[n], "f4", 4 * k) for k, n in enumerate(("x", "y", "z", "intensity"))}
    return make_cloud(columns, 16, **options)
