"""An independent ROS node inside the test: publishes inputs, collects outputs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from driveRT_ros.nodes.handshake import Handshake
from test.support.node_process import LATE_S


def profile(depth: int = 50, *, best_effort: bool = False, latched: bool = False) -> QoSProfile:
    """Return a QoS profile of the client."""
    reliability = ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE
    durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    return QoSProfile(depth=depth, reliability=reliability, durability=durability)


class RosClient:
    """A node in its own context that spins in a thread; use it as a context manager."""

    def __init__(self, domain_id: int, name: str = "test_client") -> None:
        self._domain_id, self._name = domain_id, name
        self._arrived = threading.Condition()
        self.received: dict[str, list[Any]] = defaultdict(list)
        self._publishers: dict[str, Any] = {}
        self._subscriptions: dict[str, Any] = {}

    def __enter__(self) -> RosClient:
        self._context = Context()
        rclpy.init(args=[], context=self._context, domain_id=self._domain_id)
        self.node = Node(self._name, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._ending = False
        self._thread = threading.Thread(target=self._spin, name="test client", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending = True
        self._thread.join()
        self._executor.shutdown(timeout_sec=0.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    def _spin(self) -> None:
        while not self._ending:
            self._executor.spin_once(timeout_sec=0.05)

    def subscribe(self, kind: type, topic: str, qos: QoSProfile | None = None) -> None:
        """Collect the messages of a topic in ``received[topic]``."""

        def arrived(msg: Any) -> None:
            with self._arrived:
                self.received[topic].append(msg)
                self._arrived.notify_all()

        self._subscriptions[topic] = self.node.create_subscription(
            kind, topic, arrived, qos or profile()
        )

    def unsubscribe(self, topic: str) -> None:
        self.node.destroy_subscription(self._subscriptions.pop(topic))

    def publisher(self, kind: type, topic: str, qos: QoSProfile | None = None) -> Any:
        """Return the publisher of a topic, made at the first call."""
        if topic not in self._publishers:
            self._publishers[topic] = self.node.create_publisher(kind, topic, qos or profile())
        return self._publishers[topic]

    def close_publisher(self, topic: str) -> None:
        self.node.destroy_publisher(self._publishers.pop(topic))

    def clear(self) -> None:
        """Forget what has arrived."""
        with self._arrived:
            self.received.clear()

    def wait(
        self, condition: Callable[[dict[str, list[Any]]], Any], timeout_s: float = LATE_S
    ) -> Any:
        """Wait until a condition on ``received`` is truthy, and return its last value."""
        with self._arrived:
            self._arrived.wait_for(lambda: condition(self.received), timeout_s)
            return condition(self.received)

    def wait_count(self, topic: str, count: int, timeout_s: float = LATE_S) -> list[Any]:
        """Wait for ``count`` messages and return all; fail where fewer arrive."""
        self.wait(lambda got: len(got[topic]) >= count, timeout_s)
        got = list(self.received[topic])
        assert len(got) >= count, f"{len(got)} of {count} messages on {topic} in {timeout_s} s"
        return got

    def wait_matched(self, timeout_s: float = LATE_S) -> None:
        """Wait until every publisher has a subscriber, every subscription a publisher, and each
        node behind them has answered a call: it knows this one's topics, and hears it.
        """
        deadline = time.monotonic() + timeout_s
        handshake = Handshake(self.node, mute_s=timeout_s)
        try:
            while missing := self._unmatched() or handshake.open_with(
                published=list(self._publishers), heard=list(self._subscriptions)
            ):
                assert time.monotonic() < deadline, f"not matched in {timeout_s} s: {missing}"
                time.sleep(0.01)
        finally:
            handshake.close()

    def wait_alone(self) -> None:
        """Wait until nobody is at the other end of any topic."""
        deadline = time.monotonic() + LATE_S
        while any(p.get_subscription_count() for p in self._publishers.values()) or any(
            map(self.node.count_publishers, self._subscriptions)
        ):
            assert time.monotonic() < deadline, f"topics are still in use after {LATE_S} s"
            time.sleep(0.01)

    def _unmatched(self) -> list[str]:
        unheard = [t for t, p in self._publishers.items() if not p.get_subscription_count()]
        unfed = [t for t in self._subscriptions if not self.node.count_publishers(t)]
        return [f"nobody hears {t}" for t in unheard] + [f"nobody sends {t}" for t in unfed]

    def call(self, kind: type, service: str, request: Any, timeout_s: float = LATE_S) -> Any:
        """Call a service and return the response."""
        client = self.node.create_client(kind, service)
        assert client.wait_for_service(timeout_s), f"no service {service}"
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        assert done.wait(timeout_s), f"no response of {service}"
        self.node.destroy_client(client)
        return future.result()
