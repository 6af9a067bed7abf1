"""What a bag may hold without ending the node that reads it: odd stamps, damaged messages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from driveRT_ros.io.bag import BagMessage  # noqa: E402
from driveRT_ros.nodes.offline import OfflineNode  # noqa: E402
from driveRT_ros.nodes.raw import header_of  # noqa: E402


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


def test_a_transform_that_cannot_be_read_costs_itself_alone() -> None:
    said = []
    logger = SimpleNamespace(warning=said.append)
    node = SimpleNamespace(get_logger=lambda: logger, handle_transforms=pytest.fail)
    message = BagMessage("/tf", "tf2_msgs/msg/TFMessage", 1, b"\0\1\0\0\xff\xff\xff\xff")
    OfflineNode._try(node, message, lambda m: OfflineNode.take_ahead(node, m))
    assert len(said) == 1 and said[0].startswith("A message of /tf cannot be read")


def test_the_header_of_damaged_bytes_is_empty() -> None:
    assert header_of(b"\0\1\0\0\1").frame_id == ""
    raw = b"\0\1\0\0" + bytes([5, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0]) + b"l\0"
    assert (header_of(raw).stamp.sec, header_of(raw).frame_id) == (5, "l")
