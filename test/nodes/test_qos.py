"""The named quality-of-service profiles."""

from __future__ import annotations

import pytest
from rclpy.qos import (
    DurabilityPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)

from driveRT_ros.nodes import qos

BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)


def hears(publisher: QoSProfile, subscription: QoSProfile) -> bool:
    # A policy left to the middleware is a WARNING: it may or may not match.
    return qos_check_compatible(publisher, subscription)[0] != QoSCompatibility.ERROR


@pytest.mark.parametrize("publisher", [BEST_EFFORT, RELIABLE])
def test_default_cloud_subscription_hears_every_sensor_driver(publisher: QoSProfile) -> None:
    assert hears(publisher, qos.sensor_data())


def test_reliable_cloud_subscription_hears_only_reliable_publishers() -> None:
    reliable = qos.sensor_data(7, "reliable")
    assert reliable.depth == 7
    assert hears(RELIABLE, reliable)
    assert not hears(BEST_EFFORT, reliable)


@pytest.mark.parametrize("subscriber", [BEST_EFFORT, RELIABLE])
def test_outputs_reach_reliable_and_best_effort_subscribers(subscriber: QoSProfile) -> None:
    assert hears(qos.OUTPUT, subscriber)
    assert hears(qos.RECORDED, subscriber)
    assert hears(qos.DIAGNOSTICS, subscriber)


def test_static_transforms_of_the_past_still_arrive() -> None:
    assert qos.LATCHED.durability == DurabilityPolicy.TRANSIENT_LOCAL
    assert hears(qos.LATCHED, qos.LATCHED)
