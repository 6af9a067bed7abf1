"""Who has answered a call hears what is published; a match alone does not say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Float64

from driveRT_ros.nodes.handshake import Handshake, wait_received
from test.support.ros_client import LATE_S, RosClient, profile

pytestmark = pytest.mark.nodes


@contextmanager
def listener(domain_id: int, **how: bool) -> Iterator[SingleThreadedExecutor]:
    """Yield the executor of another participant, whose node subscribes to /value."""
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    node = Node("listener", context=context, namespace="/far", **how)
    node.create_subscription(Float64, "/value", lambda _: None, profile())
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    yield executor
    executor.shutdown(timeout_sec=0.0)
    node.destroy_node()
    rclpy.shutdown(context=context)


def wait_for_match(client: RosClient) -> None:
    deadline_s = time.monotonic() + LATE_S
    while not client.publisher(Float64, "/value").get_subscription_count():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_node_is_waited_for_until_it_has_answered(domain_id: int) -> None:
    with RosClient(domain_id) as client, listener(domain_id) as executor:
        wait_for_match(client)
        handshake, begin_s = Handshake(client.node), time.monotonic()
        waits_for: list[str] = []
        while time.monotonic() < begin_s + 0.3:  # nothing spins it, so it cannot answer
            waits_for = handshake.open_with(published=["/value", "/nobody"])
            assert waits_for
        while waits_for:
            executor.spin_once(timeout_sec=0.02)
            waits_for = handshake.open_with(published=["/value", "/nobody"])
            assert time.monotonic() < begin_s + LATE_S
        assert any(question.answered for question in handshake._asked.values())
        assert handshake.open_with(published=["/value"]) == []  # once is enough
        handshake.close()


def test_a_node_without_parameter_services_is_given_a_while(domain_id: int) -> None:
    with (
        RosClient(domain_id) as client,
        listener(domain_id, start_parameter_services=False) as executor,
    ):
        wait_for_match(client)
        handshake, begin_s = Handshake(client.node, mute_s=0.5), time.monotonic()
        while handshake.open_with(published=["/value"]):
            executor.spin_once(timeout_sec=0.02)
            assert time.monotonic() < begin_s + LATE_S
        assert time.monotonic() >= begin_s + 0.5
        handshake.close()


def test_what_a_reliable_subscriber_has_received_is_waited_for(domain_id: int) -> None:
    with RosClient(domain_id) as client, listener(domain_id):
        output = client.publisher(Float64, "/value")
        wait_for_match(client)
        output.publish(Float64(data=1.0))
        wait_received([output], threading.Event())
        assert output.wait_for_all_acked()


def test_a_stop_ends_the_waiting() -> None:
    class Deaf:
        def wait_for_all_acked(self, timeout: object) -> bool:
            return False

    cancelled, begin_s = threading.Event(), time.monotonic()
    cancelled.set()
    wait_received([Deaf()], cancelled)
    assert time.monotonic() < begin_s + 9.0  # less than whoever has vanished is waited for
