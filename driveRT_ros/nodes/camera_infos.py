"""The calibrations that one camera has announced, and which of them holds for an image."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.camera import CameraIntrinsics, decode_camera_info
from driveRT_ros.io.messages import stamp_ns_of

KEPT = 16
"""Changes that are remembered; images wait for less than a second."""


class CameraInfos:
    """Changes of calibration over time; used from one thread.

    Args:
        rectified: Whether the images of this camera are undistorted already.
    """

    def __init__(self, *, rectified: bool) -> None:
        self._rectified = rectified
        self._stamps_ns: list[int] = []
        self._values: list[CameraIntrinsics | InvalidFrame] = []

    def take(self, msg: Any) -> InvalidFrame | None:
        """Take a CameraInfo; return what is wrong where that is new."""
        stamp_ns = stamp_ns_of(msg.header.stamp)
        value: CameraIntrinsics | InvalidFrame
        try:
            value = decode_camera_info(msg, rectified=self._rectified)
        except InvalidFrame as error:
            value = error
        place = bisect_right(self._stamps_ns, stamp_ns)
        if place and _name(self._values[place - 1]) == _name(value):
            return None
        self._stamps_ns.insert(place, stamp_ns)
        self._values.insert(place, value)
        del self._stamps_ns[:-KEPT], self._values[:-KEPT]
        return value if isinstance(value, InvalidFrame) else None

    def at(self, stamp_ns: int) -> CameraIntrinsics | InvalidFrame | None:
        """Return what was announced last before a stamp, else first after it.

        Returns:
            The calibration, why there is none, or None before the first announcement.
        """
        if not self._values:
            return None
        return self._values[max(bisect_right(self._stamps_ns, stamp_ns) - 1, 0)]

    def time_jumped(self) -> None:
        """Keep the newest calibration alone, for any time: a camera does not change with it."""
        if self._values:
            self._stamps_ns, self._values = [0], [self._values[-1]]


def _name(value: CameraIntrinsics | InvalidFrame) -> str:
    return str(value) if isinstance(value, InvalidFrame) else value.hash
