"""The LiDAR detector as a ROS 2 lifecycle node; what happens to a cloud is in handler.py."""

from __future__ import annotations

import time
from typing import Any

import torch
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.diagnostics import UNTRAINED, statuses
from driveRT_ros.nodes.handler import OUTPUTS, STAGES, LidarHandler
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.session import INPUT, LidarSession

FRAME_GRACE_S = 30.0
"""How long deactivation waits for the frame in work."""

EXIT_GRACE_S = 1.0
"""How long the end of the process waits for it."""


class LidarNode(ManagedNode):
    """Detect objects in PointCloud2.

    Live, topics drive it. Offline, configure and activate it, then call ``handle_transforms`` and
    ``handle_cloud`` in the order of the recording, ``wait_idle`` for back-pressure, and ``flush``
    at the end; the results go out on the same topics.
    """

    config_class = LidarConfig
    dynamic_parameters = ("post_process_params.", "diagnostics.", "bev.")
    default_name = "lidar_node"
    topics_help = (
        "topics:\n"
        f"  in   {INPUT} [sensor_msgs/msg/PointCloud2], /tf, /tf_static, /clock\n"
        + "".join(f"  out  ~/output/{name} [{kind}]\n" for name, kind in OUTPUTS.items())
        + "  out  ~/debug/{cyclic_time,processing_time,pipeline_latency}_ms and\n"
        + f"       ~/debug/processing_time/{{{','.join(STAGES)}}}_ms [std_msgs/msg/Float64]\n"
        + "  out  ~/debug/latency_percentiles [diagnostic_msgs/msg/DiagnosticStatus]\n"
        + "  out  ~/debug/frame_fingerprint [std_msgs/msg/UInt32MultiArray]\n"
        + "  out  ~/debug/dropped_cloud [std_msgs/msg/Header]\n"
        + "  out  /diagnostics [diagnostic_msgs/msg/DiagnosticArray]\n"
    )

    def __init__(self, **kwargs: Any) -> None:
        self._session: LidarSession | None = None
        self._handler: LidarHandler | None = None
        self._weights: Any = None
        self._plan_note = ""
        self._diagnostics: Any = None
        self._timer: Any = None
        self._worker_ended = True
        super().__init__(**kwargs)
        self._health = Health(self.config.diagnostics, self.get_logger())

    def do_configure(self) -> None:
        """Load the weights, build the pipeline, run it once."""
        config: LidarConfig = self.config
        log, start_s = self.get_logger(), time.monotonic()
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        weights = None
        if config.checkpoint_path:
            from driveRT_ros.models.checkpoint import load_weights  # needs safetensors

            log.info(f"Loading weights from '{config.checkpoint_path}'.")
            weights = load_weights(config.checkpoint_path, config, layout=config.checkpoint_layout)
        log.info(f"Building the pipeline on device '{config.device}'.")
        pipeline = LidarPipeline(config, weights, config.device)
        self._weights, self._plan_note = pipeline.weights, pipeline.plan_note
        if not self._weights.trained:
            log.warning(UNTRAINED)
        if self._plan_note:
            log.warning(self._plan_note)
        log.info("Warming up on a synthetic cloud.")
        pipeline.warm_up()
        self._health = Health(config.diagnostics, log)
        self._handler = LidarHandler(config, pipeline)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._start_timer(config)
        log.info(
            f"Configured in {time.monotonic() - start_s:.2f} s on {pipeline.device}, weights "
            f"'{self._weights.source}', sha256 {self._weights.sha256[:16]}."
        )
        self.finished = self.finished or config.build_only

    def do_activate(self) -> None:
        """Open the topics and start the worker."""
        assert self._handler is not None  # the lifecycle configures first
        self._session = LidarSession(self, self.config, self._handler, self._health)
        self.get_logger().info(f"Active, listening on '{self._session.topic}'.")

    def do_deactivate(self) -> None:
        """Finish the frame in work and close the topics."""
        self.close(FRAME_GRACE_S)

    def do_cleanup(self) -> None:
        """Free the pipeline and everything it holds."""
        if self._timer is not None:
            self.destroy_timer(self._timer)
            self.destroy_publisher(self._diagnostics)
        self._handler = self._weights = self._diagnostics = self._timer = None

    def do_reconfigure(self, config: LidarConfig) -> None:
        """Take over thresholds, limits and grid; without a pipeline there is nothing to tell."""
        if self._handler is None:
            return
        self._health.reconfigure(config.diagnostics)
        self.destroy_timer(self._timer)
        self._start_timer(config)
        if self._session is not None:
            self._session.reconfigure(config)
        else:
            self._handler.reconfigure(config)

    def close(self, timeout_s: float = EXIT_GRACE_S) -> bool:
        """Close the session; return False where the frame in work takes longer."""
        session, self._session = self._session, None
        if session is not None and not session.close(timeout_s):
            self._worker_ended = False
        return self._worker_ended

    # The entrance of an offline source.

    def handle_cloud(self, msg: PointCloud2) -> None:
        """Take a cloud as if it had arrived on the topic."""
        self._active().cloud(msg)

    def handle_transforms(self, msg: TFMessage, *, static: bool = False) -> None:
        """Take transforms as if they had arrived on ``/tf`` or ``/tf_static``."""
        session = self._active()
        (session.static_transforms if static else session.transforms)(msg)

    def handle_drop(self, header: Header, reason: str, sentence: str) -> None:
        """Count and announce a cloud that cannot even be handed over."""
        self._active().drop(header, reason, sentence)

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every cloud that has its transform is processed; False on timeout."""
        return self._active().wait_idle(timeout_s)

    def flush(self) -> None:
        """Give up clouds that wait for a transform, at the end of the data."""
        self._active().flush()

    @property
    def health(self) -> Health:
        """Counts, drops by reason, faults and latencies."""
        return self._health

    def _active(self) -> LidarSession:
        assert self._session is not None, "the node must be active"
        return self._session

    def _start_timer(self, config: LidarConfig) -> None:
        period_s = config.diagnostics.validation_callback_interval_ms / 1e3
        self._timer = self.create_steady_timer(period_s, self._publish_diagnostics)

    def _publish_diagnostics(self) -> None:
        if self._session is not None:
            self._session.check_input()
        msg = DiagnosticArray()
        msg.header.stamp = self.get_clock().now().to_msg()
        now_s = time.monotonic()
        msg.status = statuses(
            self.get_name(), self.config, self._health, self._weights, now_s, self._plan_note
        )
        self._diagnostics.publish(msg)
