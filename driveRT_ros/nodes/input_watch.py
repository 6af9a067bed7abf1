"""Whether an input topic is heard at all, and what to do where it is not."""

from __future__ import annotations

import os
import time
from typing import Any

from rclpy.node import Node
from rclpy.qos import qos_policy_name_from_kind

from driveRT_ros.nodes.health import ERROR, WARN, Health
from driveRT_ros.nodes.qos import SubscriptionEventCallbacks
from driveRT_ros.nodes.transport import transport_hint


class InputWatch:
    """Report silence, an incompatible publisher, and messages lost on their way.

    Args:
        node: Knows how many publishers there are.
        topic: Resolved name of the topic.
        health: Where faults go.
        noun: What a message is called.
    """

    def __init__(self, node: Node, topic: str, health: Health, noun: str = "cloud") -> None:
        self._node, self._topic, self._health, self._noun = node, topic, health, noun
        self._silence, self._qos, self._lost = (f"{k} {topic}" for k in ("silence", "qos", "lost"))
        self._hint = transport_hint(os.environ)
        self._awake_s = time.monotonic()
        self.events = SubscriptionEventCallbacks(
            incompatible_qos=self._qos_mismatch, message_lost=self._message_lost
        )

    def heard(self, now_s: float) -> None:
        """Note a message."""
        self._awake_s = now_s
        self._health.cleared(self._qos)
        self._health.cleared(self._silence)

    def check(self, now_s: float, limit_s: float, at_work: bool) -> None:
        """Report where somebody has published nothing for more than ``limit_s``.

        Args:
            now_s: Steady time in seconds.
            limit_s: The silence that is allowed.
            at_work: Whether a message is in work or waits. A sender that waits for the answer is
                silent until then, which is no fault; the silence counts from the end of the work.
        """
        publishers = self._node.count_publishers(self._topic)
        if at_work or not publishers:
            self._awake_s = now_s
        if now_s - self._awake_s <= limit_s:
            self._health.cleared(self._silence)
            return
        sentence = (
            f"No {self._noun} on '{self._topic}' for more than {limit_s:g} s though {publishers} "
            f"publisher(s) exist. {self._hint}"
        )
        self._health.fault(self._silence, WARN, sentence, now_s, until_cleared=True)

    def _qos_mismatch(self, event: Any) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind)
        sentence = (
            f"A publisher on '{self._topic}' offers an incompatible {policy}; nothing of it will "
            "be heard. Change its QoS, or the parameter input.reliability."
        )
        self._health.fault(self._qos, ERROR, sentence, time.monotonic(), until_cleared=True)

    def _message_lost(self, event: Any) -> None:
        self._health.lost(event.total_count_change)
        sentence = (
            f"{event.total_count} {self._noun}s of '{self._topic}' were lost on their way. "
            f"{self._hint}"
        )
        self._health.fault(self._lost, WARN, sentence, time.monotonic())
