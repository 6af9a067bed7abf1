"""What an active LiDAR node holds: topics, gate, mailbox, worker. Made and closed as one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.gate import CloudGate, GateActions
from driveRT_ros.nodes.handler import LidarHandler
from driveRT_ros.nodes.health import WARN, Health
from driveRT_ros.nodes.input_watch import InputWatch
from driveRT_ros.nodes.mailbox import Mailbox, Work
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.replay_config import TF, TF_STATIC
from driveRT_ros.nodes.timejump import Jump
from driveRT_ros.nodes.worker import Worker

INPUT = "~/input/pointcloud"
PARKED_CHECK_S = 0.02


class LidarSession:
    """Listen, pair clouds with poses, hand them to the worker.

    All methods are called from one thread, the one that spins the node.

    Args:
        node: Owner of the topics.
        config: As configured.
        handler: Detects; from here on used by the worker alone.
        health: Where counts and faults go.
    """

    def __init__(
        self, node: ManagedNode, config: LidarConfig, handler: LidarHandler, health: Health
    ) -> None:
        self._node, self._config, self._health = node, config, health
        self._log = node.get_logger()
        history = config.densification_params.num_past_frames
        handler.forget()
        self._outputs = Outputs(node)
        self._mailbox = Mailbox(keep_all=config.input.back_pressure, history=history)
        self._worker = Worker(self._mailbox, handler, self._outputs, health, self._log)
        actions = GateActions(self._forward, self.drop, self._refuse, self._time_jumped)
        self._gate = CloudGate(config, actions)
        profile = qos.sensor_data(config.input.queue_depth, config.input.reliability)
        self.topic = node.resolve_topic_name(INPUT)
        self._watch = InputWatch(node, self.topic, health)
        self._subscriptions = [
            node.create_subscription(
                PointCloud2, INPUT, self.cloud, profile, event_callbacks=self._watch.events
            ),
            node.create_subscription(TFMessage, TF_STATIC, self.static_transforms, qos.LATCHED),
        ]
        self._timer: Any = None
        if history:
            moving = node.create_subscription(TFMessage, TF, self.transforms, qos.TF)
            self._subscriptions.append(moving)
            self._timer = node.create_steady_timer(PARKED_CHECK_S, self._check_parked)
        backward = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._jump_handle = node.get_clock().create_jump_callback(
            backward, post_callback=self._clock_jumped
        )

    # Data in: the callbacks of the topics, and the entrance of an offline source.

    def cloud(self, msg: PointCloud2) -> None:
        """Take a cloud."""
        now_s = time.monotonic()
        self._watch.heard(now_s)
        self._gate.cloud(msg, now_s)
        self._health.reached("waiting_for_transform", len(self._gate))

    def transforms(self, msg: TFMessage) -> None:
        """Take moving transforms."""
        self._gate.transforms(msg, time.monotonic(), static=False)

    def static_transforms(self, msg: TFMessage) -> None:
        """Take transforms that hold at any time."""
        self._gate.transforms(msg, time.monotonic(), static=True)

    def drop(self, header: Header, reason: str, sentence: str) -> None:
        """Count and announce a cloud that gets no result."""
        self._health.dropped(reason)
        self._health.fault(reason, WARN, sentence, time.monotonic())
        self._outputs.publish_dropped(header)

    def flush(self) -> None:
        """Drop what still waits for a transform: no more data will come."""
        self._gate.flush()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every cloud handed on is processed; return False on timeout."""
        return self._mailbox.wait_idle(timeout_s)

    def reconfigure(self, config: LidarConfig) -> None:
        """Use other thresholds from the next frame on."""
        self._config = config
        self._gate.reconfigure(config)
        self._worker.reconfigure(config)

    def check_input(self) -> None:
        """Say what to do where a publisher exists, nothing is heard, and nothing is in work."""
        at_work = len(self._gate) > 0 or not self.wait_idle(0.0)
        self._watch.check(time.monotonic(), self._config.diagnostics.no_data_hint_s, at_work)

    def close(self, timeout_s: float) -> bool:
        """Stop listening, end the worker, close the topics; False where a frame takes longer."""
        self._jump_handle.unregister()
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
        ended = self._worker.stop(timeout_s)
        if ended:  # else the worker may be publishing
            self._outputs.destroy()
        return ended

    # What the gate and the clock report.

    def _forward(
        self,
        msg: PointCloud2,
        T_world_lidar: np.ndarray | None,
        at_s: float,
        T_ego_lidar: np.ndarray | None,
    ) -> None:
        self._lose("superseded", self._mailbox.put(msg, T_world_lidar, at_s, T_ego_lidar))

    def _lose(self, reason: str, lost: list[Work]) -> None:
        for work in lost:
            self._health.dropped(reason)
            self._outputs.publish_dropped(work.msg.header)

    def _refuse(self, sentence: str) -> None:
        self._health.fault("invalid_transform", WARN, sentence, time.monotonic())

    def _time_jumped(self, jump: Jump) -> None:
        self._lose("time_jump", self._mailbox.time_jumped())
        self._health.time_jumped()
        self._log.warning(
            f"Time went back from {jump.from_ns / 1e9:.3f} s to {jump.to_ns / 1e9:.3f} s (first "
            f"seen on {jump.source}): past sweeps, transforms and latencies are forgotten."
        )

    def _clock_jumped(self, jump: Any) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        # rclpy hands over a dictionary, its documentation promises an object.
        delta = jump["delta"] if isinstance(jump, dict) else jump.delta.nanoseconds
        self._gate.clock_jumped(now_ns - int(delta), now_ns)

    def _check_parked(self) -> None:
        self._gate.tick(time.monotonic())
