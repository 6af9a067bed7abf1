"""From an image to the calibration of its stamp, or the reason why there is none; knows no ROS."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.nodes.camera_infos import CameraInfos
from driveRT_ros.nodes.image_set import PosedImage
from driveRT_ros.nodes.tf import Lookup


@dataclass(frozen=True)
class Lack:
    """Why an image cannot be used, and whether a later message can still change that."""

    code: str
    sentence: str
    may_come: bool = False


class Calibrations:
    """Intrinsics and extrinsics of every camera; used from one thread.

    Args:
        config: Cameras and ego frame.
        rectified: By camera, whether its images are undistorted already.
        lookup: Gives T_target_source at a stamp.
    """

    def __init__(
        self,
        config: CameraConfig,
        rectified: Iterable[bool],
        lookup: Callable[[str, str, int], Lookup],
    ) -> None:
        self._ego, self._lookup = config.input.ego_frame_id, lookup
        self._infos = {
            name: CameraInfos(rectified=flat) for name, flat in zip(config.cameras, rectified)
        }

    def take(self, camera: str, msg: Any) -> InvalidFrame | None:
        """Take a CameraInfo; return what is wrong with it where that is new."""
        return self._infos[camera].take(msg)

    def refused(self, camera: str, stamp_ns: int) -> Lack | None:
        """Return what is known to be wrong with the CameraInfo of a stamp."""
        known = self._infos[camera].at(stamp_ns)
        return Lack(known.code, str(known)) if isinstance(known, InvalidFrame) else None

    def of(self, camera: str, msg: Any, stamp_ns: int) -> PosedImage | Lack:
        """Return an image with its calibration, or what it lacks."""
        known = self._infos[camera].at(stamp_ns)
        if known is None:
            return Lack("no_camera_info", f"{camera}: no CameraInfo has been heard.", True)
        if isinstance(known, InvalidFrame):
            return Lack(known.code, str(known))
        frame_id = msg.header.frame_id or known.frame_id
        if not frame_id:
            return Lack("frame_id", f"{camera}: neither image nor CameraInfo names a frame.")
        found = self._lookup(self._ego, frame_id, stamp_ns)
        if found.T_target_source is None:
            return Lack(found.code, f"{camera}: {found.reason}", found.may_come)
        return PosedImage(msg, stamp_ns, known, found.T_target_source)

    def time_jumped(self) -> None:
        """Forget when calibrations were announced, not the calibrations."""
        for infos in self._infos.values():
            infos.time_jumped()
