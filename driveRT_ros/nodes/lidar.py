"""The LiDAR detector as a ROS 2 lifecycle node; what happens to a cloud is in handler.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sensor_msgs.msg import PointCloud2

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.kernel_builds import KernelBuild, builds_for
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.stages import device_named
from driveRT_ros.models.shipped import with_shipped_weights
from driveRT_ros.nodes.diagnostics import statuses
from driveRT_ros.nodes.handler import OUTPUTS, LidarHandler
from driveRT_ros.nodes.lidar_session import INPUT, LidarSession
from driveRT_ros.nodes.perception import PerceptionNode, topics_help


class LidarNode(PerceptionNode):
    """Detect objects in PointCloud2; ``handle_cloud`` is the entrance of an offline source."""

    config_class = LidarConfig
    complete = staticmethod(with_shipped_weights)
    dynamic_parameters = ("post_process_params.", "diagnostics.", "bev.")
    default_name = "lidar_node"
    topics_help = topics_help({INPUT: "sensor_msgs/msg/PointCloud2"}, OUTPUTS, "cloud")

    def load_weights(self, config: LidarConfig) -> Any:
        """Return the weights of ``checkpoint_path``."""
        from driveRT_ros.models.checkpoint import load_weights  # needs safetensors

        return load_weights(config.checkpoint_path, config, layout=config.checkpoint_layout)

    def kernels(
        self, config: LidarConfig, weights: Any, device: torch.device
    ) -> Sequence[KernelBuild]:
        """Return all that the detector compiles."""
        return builds_for(config, weights.sha256 if weights else "", device)

    def make_pipeline(self, config: LidarConfig, weights: Any) -> LidarPipeline:
        """Return the detector."""
        return LidarPipeline(config, weights, config.device)

    def make_handler(self, config: LidarConfig, pipeline: LidarPipeline) -> LidarHandler:
        """Return the handler of clouds."""
        name = self.get_fully_qualified_name()
        return LidarHandler(config, pipeline, device_named(config.device), name)

    def make_session(self) -> LidarSession:
        """Open the topics."""
        return LidarSession(self, self.config, self._handler, self._health)

    def make_statuses(self, now_s: float) -> list[Any]:
        """Return processing time, input and model."""
        return statuses(
            self.get_name(), self.config, self._health, self._weights, now_s, self._plan_note
        )

    def handle_cloud(self, msg: PointCloud2) -> None:
        """Take a cloud as if it had arrived on the topic."""
        self._active().cloud(msg)
