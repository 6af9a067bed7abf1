"""The time of a node that reads a bag is that of its messages, whatever their stamps are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from driveRT_ros.nodes.offline import OfflineNode  # noqa: E402


def test_a_stamp_that_no_clock_can_hold_is_no_time() -> None:
    """rclpy ends a node that hears a clock before 1970, and no message holds one after 2038."""
    sent = []
    node = SimpleNamespace(_clock_output=SimpleNamespace(publish=sent.append))
    for stamp_ns in (-1, 1_500_000_000, -(2**31) * 10**9, 2**31 * 10**9, 2**31 * 10**9 - 1):
        OfflineNode._publish_clock(node, stamp_ns)
    assert [(m.clock.sec, m.clock.nanosec) for m in sent] == [
        (1, 500_000_000),
        (2**31 - 1, 999_999_999),
    ]
