"""The named quality-of-service profiles; no node builds its own."""

from __future__ import annotations

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # ROS 2 Humble has it under the older name
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = [
    "DIAGNOSTICS",
    "LATCHED",
    "MATCH_S",
    "NO_EVENTS",
    "OUTPUT",
    "RECORDED",
    "TF",
    "SubscriptionEventCallbacks",
    "sensor_data",
]


def _profile(
    reliability: ReliabilityPolicy, durability: DurabilityPolicy, depth: int
) -> QoSProfile:
    return QoSProfile(
        reliability=reliability,
        durability=durability,
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
    )


def sensor_data(depth: int = 5, reliability: str = "best_effort") -> QoSProfile:
    """Return the profile of a sensor stream: best effort matches every publisher.

    Args:
        depth: Messages held while the node is busy.
        reliability: ``best_effort`` or ``reliable`` (a reliable subscription hears reliable
            publishers only).
    """
    policy = {
        "best_effort": ReliabilityPolicy.BEST_EFFORT,
        "reliable": ReliabilityPolicy.RELIABLE,
    }[reliability]
    return _profile(policy, DurabilityPolicy.VOLATILE, depth)


OUTPUT = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE, 10)
"""Results and debug topics: reliable, so that they reach reliable and best-effort subscribers."""

RECORDED = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL, 10)
"""Results of a recording: a recorder whose connection comes up late still gets the first ones."""

DIAGNOSTICS = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE, 10)
"""``/diagnostics``, as diagnostic_updater publishes it."""

NO_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)
"""For the many publishers of debug values.

By default each brings two event handlers, and rclpy goes through all of them at every wake-up: time
that a frame in work waits for the interpreter. A subscription that does not match says so itself.
"""

TF = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE, 100)
"""``/tf``, as tf2_ros subscribes to it."""

LATCHED = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL, 100)
"""``/tf_static`` and whatever a late subscriber must still get."""

MATCH_S = 1.5
"""Wait between finding a subscriber and the first message.

Fast DDS reports the match before its TCP connection carries data (measured: up to 0.8 s on two busy
cores); until then best-effort messages are lost.
"""
