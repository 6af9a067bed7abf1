"""Which topics of a bag belong to which camera, by the names that image_transport gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.io.camera import is_distorted, is_rectified_topic

COMPRESSED_IMAGE, IMAGE = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
CAMERA_INFO, INFO_SUFFIX = "sensor_msgs/msg/CameraInfo", "/camera_info"

_OTHER_TRANSPORTS = ("compressedDepth", "theora", "ffmpeg", "draco")


def image_topic(camera: CameraFrame) -> tuple[str, str]:
    """Return topic and message type under which an image is written.

    ``image_rect...`` says that the image is undistorted, ``image_raw`` that it is not.
    """
    distorted = is_distorted(camera.D, camera.distortion_model)
    if camera.encoded is None:
        return f"/{camera.name}/image_{'raw' if distorted else 'rect'}", IMAGE
    end = "image_raw/compressed" if distorted else "image_rect_compressed"
    return f"/{camera.name}/{end}", COMPRESSED_IMAGE


def info_topic(topic: str) -> str:
    """Return the topic of the calibration of an image topic: its neighbour ``camera_info``."""
    return topic.removesuffix("/compressed").rsplit("/", 1)[0] + INFO_SUFFIX


def camera_topics(topics: Mapping[str, str]) -> dict[str, str]:
    """Return one image topic by camera name, of the cameras that have a calibration.

    Of several topics of one camera an undistorted one is taken, and of those a compressed one. The
    name is the last part of the camera's namespace where no other has it, else all of it.

    Args:
        topics: Type name by topic, as a bag lists them.
    """
    by_info: dict[str, list[str]] = defaultdict(list)
    for topic, kind in topics.items():
        is_image = kind in (COMPRESSED_IMAGE, IMAGE) and not topic.endswith(_OTHER_TRANSPORTS)
        if is_image and topics.get(info_topic(topic)) == CAMERA_INFO:
            by_info[info_topic(topic)].append(topic)
    spaces = [info.removesuffix(INFO_SUFFIX).strip("/") for info in by_info]
    ends = [space.rsplit("/", 1)[-1] for space in spaces]
    chosen = {}
    for space, end, images in zip(spaces, ends, by_info.values()):
        name = end if ends.count(end) == 1 and end else space or "camera"
        chosen[name] = min(
            images, key=lambda t: (not is_rectified_topic(t), topics[t] != COMPRESSED_IMAGE, t)
        )
    return chosen
