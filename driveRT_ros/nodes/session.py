"""What an active LiDAR node holds: topics, gate, mailbox, worker. Made and closed as one."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.qos import qos_policy_name_from_kind
from sensor_msgs.msg import PointCloud2
from tf2_msgs.msg import TFMessage

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.gate import CloudGate, GateActions
from driveRT_ros.nodes.handler import LidarHandler
from driveRT_ros.nodes.health import ERROR, WARN, Health
from driveRT_ros.nodes.mailbox import Mailbox
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.timejump import Jump
from driveRT_ros.nodes.worker import Worker

INPUT = "~/input/pointcloud"
PARKED_CHECK_S = 0.02
TRANSPORT = "FASTDDS_BUILTIN_TRANSPORTS"


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
        self._heard_s = time.monotonic()
        history = config.densification_params.num_past_frames
        handler.forget()
        self._outputs = Outputs(node)
        self._mailbox = Mailbox(keep_all=config.input.back_pressure, history=history)
        self._worker = Worker(self._mailbox, handler, self._outputs, health, self._log)
        actions = GateActions(self._forward, self._drop, self._refuse, self._time_jumped)
        self._gate = CloudGate(config, actions)
        profile = qos.sensor_data(config.input.queue_depth, config.input.reliability)
        events = qos.SubscriptionEventCallbacks(
            incompatible_qos=self._qos_mismatch, message_lost=self._message_lost
        )
        self._subscriptions = [
            node.create_subscription(
                PointCloud2, INPUT, self.cloud, profile, event_callbacks=events
            )
        ]
        self.topic: str = self._subscriptions[0].topic_name
        self._timer: Any = None
        if history:
            for topic, callback, profile in (
                ("/tf", self.transforms, qos.TF),
                ("/tf_static", self.static_transforms, qos.LATCHED),
            ):
                subscription = node.create_subscription(TFMessage, topic, callback, profile)
                self._subscriptions.append(subscription)
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
        self._heard_s = time.monotonic()
        self._health.received()
        self._health.cleared("qos")
        self._health.cleared("silence")
        self._gate.cloud(msg, self._heard_s)
        self._health.reached("waiting_for_transform", len(self._gate))

    def transforms(self, msg: TFMessage) -> None:
        """Take moving transforms."""
        self._gate.transforms(msg, time.monotonic(), static=False)

    def static_transforms(self, msg: TFMessage) -> None:
        """Take transforms that hold at any time."""
        self._gate.transforms(msg, time.monotonic(), static=True)

    def flush(self) -> None:
        """Drop what still waits for a transform: no more data will come."""
        self._gate.flush()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every cloud handed on is processed; return False on timeout."""
        return self._mailbox.wait_idle(timeout_s)

    def reconfigure(self, config: LidarConfig) -> None:
        """Use other thresholds from the next frame on."""
        self._config = config
        self._worker.reconfigure(config)

    def check_silence(self) -> None:
        """Say what to do where a publisher exists and nothing is heard."""
        silent_s, limit_s = (
            time.monotonic() - self._heard_s,
            self._config.diagnostics.no_data_hint_s,
        )
        publishers = self._node.count_publishers(self.topic) if silent_s > limit_s else 0
        if not publishers:
            self._health.cleared("silence")
            return
        sentence = (
            f"No cloud on '{self.topic}' for more than {limit_s:g} s though {publishers} "
            f"publisher(s) exist. {_transport_hint()}"
        )
        self._fault("silence", WARN, sentence, until_cleared=True)

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

    # What the gate and the middleware report.

    def _forward(self, msg: PointCloud2, T_world_lidar: np.ndarray | None, at_s: float) -> None:
        overflow = self._mailbox.put(msg, T_world_lidar, at_s)
        if overflow:
            self._health.dropped("superseded", overflow)

    def _drop(self, reason: str, sentence: str) -> None:
        self._health.dropped(reason)
        self._fault(reason, WARN, sentence)

    def _refuse(self, sentence: str) -> None:
        self._fault("invalid_transform", WARN, sentence)

    def _time_jumped(self, jump: Jump) -> None:
        gone = self._mailbox.time_jumped()
        if gone:
            self._health.dropped("time_jump", gone)
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

    def _qos_mismatch(self, event: Any) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind)
        sentence = (
            f"A publisher on '{self.topic}' offers an incompatible {policy}; nothing of it will be "
            "heard. Change its QoS, or the parameter input.reliability."
        )
        self._fault("qos", ERROR, sentence, until_cleared=True)

    def _message_lost(self, event: Any) -> None:
        self._health.lost(event.total_count_change)
        self._fault(
            "lost", WARN, f"{event.total_count} clouds were lost on their way. {_transport_hint()}"
        )

    def _fault(self, key: str, level: int, sentence: str, *, until_cleared: bool = False) -> None:
        now_s = time.monotonic()
        self._health.fault(key, level, sentence, now_s, until_cleared=until_cleared)


def _transport_hint() -> str:
    return (
        f"Large messages need the environment variable {TRANSPORT}=LARGE_DATA in every process "
        f"(here: {os.environ.get(TRANSPORT, 'unset')})."
    )
