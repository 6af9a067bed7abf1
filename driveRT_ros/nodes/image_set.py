"""The images of one instant on their way from the gate to the handler; knows no ROS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driveRT_ros.io.camera import CameraIntrinsics
from driveRT_ros.io.messages import make_header
from driveRT_ros.nodes.raw import message_class
from driveRT_ros.nodes.timejump import Jump


@dataclass(frozen=True, eq=False)
class PosedImage:
    """One image, not decoded yet, with the calibration of its stamp.

    Args:
        msg: Image or CompressedImage; it is only read.
        stamp_ns: Its header stamp.
        intrinsics: Calibration.
        T_ego_camera: (4, 4) float64 camera to ego frame.
    """

    msg: Any
    stamp_ns: int
    intrinsics: CameraIntrinsics
    T_ego_camera: np.ndarray


@dataclass(frozen=True, eq=False)
class ImageSet:
    """What the cameras saw at one instant, as far as it can be used.

    Args:
        stamp_ns: Reference stamp: that of the newest image.
        frame_id: Ego frame.
        images: By camera name.
        refused: Why images of this instant cannot be used, by camera name.
    """

    stamp_ns: int
    frame_id: str
    images: Mapping[str, PosedImage]
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def header(self) -> Any:
        """Header of everything that is made of the set."""
        return make_header(self.stamp_ns, self.frame_id, message_class)


@dataclass(frozen=True)
class CameraActions:
    """What the gate of images makes others do.

    Args:
        forward: Takes an :class:`ImageSet` and the steady time at which it was paired.
        drop: Takes ``(header, code, sentence)`` of a set that does not go on.
        reject: Takes ``(camera, code, sentence)`` of an image that does not go on with its set.
        refuse: Takes the sentence about a transform that is not usable.
        jumped: Takes a jump of time; everything remembered from before it is worthless.
    """

    forward: Callable[[ImageSet, float], None]
    drop: Callable[[Any, str, str], None]
    reject: Callable[[str, str, str], None]
    refuse: Callable[[str], None]
    jumped: Callable[[Jump], None]
