"""The LiDAR detector as a ROS 2 lifecycle node; what happens to a cloud is in handler.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sensor_msgs.msg import PointCloud2

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.kernel_builds import KernelBuild, builds_for
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.stages import device_named
from driveRT_ros.io.encode import encode_columns
from driveRT_ros.models.shipped import with_shipped_weights
from driveRT_ros.nodes.diagnostics import statuses
from driveRT_ros.nodes.handler import OUTPUTS, LidarHandler, PosedCloud
from driveRT_ros.nodes.lidar_session import INPUT, LidarSession
from driveRT_ros.nodes.perception import PerceptionNode, topics_help
from driveRT_ros.nodes.raw import message_class

_LARGE_CLOUD = 1 << 18  # points: 128 beams at 2048 azimuths


class LidarNode(PerceptionNode):
    """Detect objects in PointCloud2; ``handle_cloud`` is the entrance of an offline source."""

    config_class = LidarConfig
    complete = staticmethod(with_shipped_weights)
    dynamic_parameters = (
        "post_process_params.",
        "diagnostics.",
        "bev.",
        "input.forward_yaw_deg",
    )
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
        """Return the handler of clouds, ready for the first one."""
        name = self.get_fully_qualified_name()
        device = device_named(config.device)
        handler = LidarHandler(config, pipeline, device, name)
        if device.type == "cuda":  # which decodes clouds
            warm_up_input(handler, config)
        return handler

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


def warm_up_input(handler: LidarHandler, config: LidarConfig) -> None:
    """Have a GPU decode two clouds without a usable point, one for either of its buffers in turn.

    They are as large as clouds that fit the engine together with their past sweeps, or as clouds of
    large sensors: buffers, kernels and graphs then are in place, and a real cloud need not wait.
    """
    sweeps = 1 + config.densification_params.num_past_frames
    count = max(1, min(config.input.point_capacity // sweeps, _LARGE_CLOUD))
    columns = {name: np.full(count, np.nan) for name in ("x", "y", "z", "time")}
    columns["intensity"] = np.zeros(count, np.float32)
    for stamp_ns in (1, 2):
        msg = encode_columns(columns, stamp_ns, "lidar", message_class)
        handler.remember(PosedCloud(msg, np.eye(4)))
    handler.forget()
