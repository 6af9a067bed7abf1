"""The inputs of an active LiDAR node."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sensor_msgs.msg import PointCloud2

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.cdr_cloud import SerializedCloud, read_cloud
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.gate import CloudGate, GateActions
from driveRT_ros.nodes.handler import OUTPUTS, LidarHandler, PosedCloud
from driveRT_ros.nodes.health import WARN, Health
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.raw import header_of, message_class
from driveRT_ros.nodes.session import Session

INPUT = "~/input/pointcloud"

GRID_FILES_GRACE_S = 3.0
"""How long the voxels that are being written are waited for, at most."""


class LidarSession(Session):
    """Pair clouds with poses and hand them to the worker.

    Args:
        node: Owner of the topics.
        config: As configured.
        handler: Detects.
        health: Where counts and faults go.
    """

    def __init__(
        self, node: ManagedNode, config: LidarConfig, handler: LidarHandler, health: Health
    ) -> None:
        history = config.densification_params.num_past_frames
        outputs = Outputs(node, OUTPUTS, handler.noun)
        super().__init__(
            node, config, handler, health, outputs, history=history, moving=history > 0
        )
        self._grid_files = handler.grid_files
        handler.look_ahead(self._mailbox.claim)
        self.topic = self.listen(PointCloud2, INPUT, self._serialized, "cloud", raw=True)

    def make_gate(self, config: LidarConfig) -> Any:
        """Return the gate of clouds."""
        actions = GateActions(self._posed, self.drop, self.refuse, self.time_jumped)
        return CloudGate(config, actions)

    def cloud(self, msg: PointCloud2 | SerializedCloud) -> None:
        """Take a cloud."""
        self._health.received()
        self._gate.cloud(msg, time.monotonic())
        self._health.reached("waiting_for_transform", len(self._gate))

    def close(self, timeout_s: float) -> bool:
        """Close as any session, and let the voxels that are being written get onto the disk.

        The frame in work and the files share the time: at the end of the process it is
        ``EXIT_GRACE_S``, which ends before Ctrl-C forces the process out.
        """
        end_s = time.monotonic() + timeout_s
        ended = super().close(timeout_s)
        if not self._grid_files.wait(min(max(end_s - time.monotonic(), 0.0), GRID_FILES_GRACE_S)):
            self._log.warning(
                "The voxels of a frame are still being written; if the process ends now, that "
                "frame has no file in diagnostics.nanovdb_dir."
            )
        return ended

    def _serialized(self, raw: bytes) -> None:
        """Take a cloud as it arrives; what is none is announced where its header can be read."""
        try:
            msg = read_cloud(raw, message_class)
        except InvalidFrame as error:
            self._health.received()
            self._health.dropped(error.code)
            sentence = f"A cloud is dropped: {error}"
            self._health.fault(f"invalid {error.code}", WARN, sentence, time.monotonic())
            if (header := header_of(raw)).frame_id:
                self._outputs.publish_dropped(header)
        else:
            self.cloud(msg)

    def _posed(
        self,
        msg: PointCloud2,
        T_world_lidar: np.ndarray | None,
        arrived_s: float,
        T_ego_lidar: np.ndarray | None,
    ) -> None:
        self.forward(PosedCloud(msg, T_world_lidar, T_ego_lidar), arrived_s)
