"""The cameras as a ROS 2 lifecycle node; what happens to their images: camera_handler.py."""

from __future__ import annotations

from typing import Any

from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.models.shipped import with_shipped_weights
from driveRT_ros.nodes.camera_book import CameraBook
from driveRT_ros.nodes.camera_diagnostics import camera_statuses
from driveRT_ros.nodes.camera_handler import BOXES, GRIDS, CameraHandler
from driveRT_ros.nodes.camera_session import IMAGE, INFO, CameraSession
from driveRT_ros.nodes.perception import PerceptionNode, topics_help

_INPUTS = {
    IMAGE.format("{i}"): "sensor_msgs/msg/Image, or CompressedImage with input.transport",
    INFO.format("{i}"): "sensor_msgs/msg/CameraInfo",
}


class CameraNode(PerceptionNode):
    """Show what several cameras see from above.

    ``handle_image`` and ``handle_camera_info`` are the entrance of an offline source.
    """

    config_class = CameraConfig
    complete = staticmethod(with_shipped_weights)
    dynamic_parameters = ("post_process_params.", "diagnostics.", "bev.")
    default_name = "camera_node"
    topics_help = topics_help(
        _INPUTS,
        {**GRIDS, **{name: f"{kind}, where the model has heads" for name, kind in BOXES.items()}},
        "camera_set",
    )

    def __init__(self, **kwargs: Any) -> None:
        self._book = CameraBook(())
        super().__init__(**kwargs)

    def load_weights(self, config: CameraConfig) -> Any:
        """Return the weights of ``checkpoint_path``."""
        from driveRT_ros.models.lss_weights import load_camera_weights

        return load_camera_weights(config.checkpoint_path, config)

    def make_pipeline(self, config: CameraConfig, weights: Any) -> CameraPipeline:
        """Return the camera model."""
        return CameraPipeline(config, weights, config.device)

    def make_handler(self, config: CameraConfig, pipeline: CameraPipeline) -> CameraHandler:
        """Return the handler of sets."""
        self._book = CameraBook(config.cameras)
        return CameraHandler(config, pipeline, self._book)

    def make_session(self) -> CameraSession:
        """Open the topics."""
        return CameraSession(self, self.config, self._handler, self._health, self._book)

    def make_statuses(self, now_s: float) -> list[Any]:
        """Return processing time, input, model, and every camera."""
        streams = self._session.cameras() if self._session is not None else ()
        return camera_statuses(
            self.get_name(), self.config, self._health, self._weights, now_s, streams, self._book,
            self._plan_note,
        )  # fmt: skip

    def handle_image(self, camera: str, msg: Image | CompressedImage, now_ns: int) -> None:
        """Take an image as if it had arrived on its topic at a time of the recording."""
        session = self._active()
        session.now_ns = now_ns
        session.image(camera, msg)

    def handle_camera_info(self, camera: str, msg: CameraInfo) -> None:
        """Take a calibration as if it had arrived on its topic."""
        self._active().camera_info(camera, msg)

    def give_up(self) -> None:
        """Wait no longer for calibrations and transforms: they would be there by now."""
        self._active().give_up()
