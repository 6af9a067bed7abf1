"""The camera node on a recording."""

from __future__ import annotations

import dataclasses
from typing import Any

from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CameraInfo

from driveRT_ros.io.bag import BagMessage
from driveRT_ros.io.camera import is_rectified_topic
from driveRT_ros.nodes.camera import CameraNode
from driveRT_ros.nodes.camera_session import CameraSession
from driveRT_ros.nodes.offline import Offline
from driveRT_ros.nodes.offline_source import ImageSource, OfflineCameraConfig
from driveRT_ros.nodes.raw import message_class


class OfflineCameraNode(Offline, CameraNode):
    """Images are paired by their log times, so that every run pairs them alike."""

    config_class = OfflineCameraConfig
    noun, main_output = "images", "occupancy_grid"

    def open_source(self) -> ImageSource:
        """Return the images of the bag."""
        return ImageSource(self.config)

    def make_session(self) -> CameraSession:
        """Open the topics; nothing is passed over."""
        settings = dataclasses.replace(self.config.input, back_pressure=True)
        config = dataclasses.replace(self.config, input=settings)
        topics = {name: topic for topic, name in self._source.cameras.items()}
        rectified = [is_rectified_topic(topics.get(name, "")) for name in config.cameras]
        session = CameraSession(self, config, self._handler, self._health, self._book, rectified)
        session.now_ns = 0  # until the first image comes, with its log time
        return session

    def take_ahead(self, message: BagMessage) -> None:
        """Take transforms or a calibration."""
        camera = self._source.infos.get(message.topic)
        if camera is None:
            super().take_ahead(message)
        else:
            self.handle_camera_info(camera, deserialize_message(message.raw, CameraInfo))

    def take(self, message: BagMessage) -> None:
        """Take an image."""
        kind: Any = message_class(self._source.types[message.topic])
        msg = deserialize_message(message.raw, kind)
        self.handle_image(self._source.cameras[message.topic], msg, message.log_time_ns)
        self.give_up()

    def summary(self, processed: int) -> str:
        """Return what was done, without a full stop."""
        cameras = len(self._source.cameras)
        return f"Processed {processed} camera sets of {self._fed} images of {cameras} cameras"
