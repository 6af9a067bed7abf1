"""Knowing that the nodes at the other end hear this one: a question that each has answered."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from rcl_interfaces.srv import GetParameters
from rclpy.duration import Duration
from rclpy.node import Node

_MUTE_S = 3.0
_AGAIN_S = 1.0
_GIVE_UP_S = 30.0
_RECEIVED_S = 10.0


class Handshake:
    """Ask the nodes behind some topics for a parameter, and see whether they have answered.

    DDS reports a match before the connection carries data, and each side learns of the other at a
    time of its own. Whoever has answered a call knows everything that was opened before it, because
    discovery tells in order, and the connection carries data both ways, because the call did. No
    wait of a fixed length says as much on a busy machine.

    A node without parameter services, as the command line tools are, cannot be asked and is given
    three seconds; one that does not answer is given up after thirty.

    Args:
        node: It asks, and something spins it meanwhile.
        mute_s: How long a node may be without parameter services.
    """

    def __init__(self, node: Node, mute_s: float = _MUTE_S) -> None:
        self._node, self._mute_s = node, mute_s
        self._asked: dict[str, _Question] = {}

    def open_with(self, *, published: Iterable[str] = (), heard: Iterable[str] = ()) -> list[str]:
        """Ask whoever has come since the last call, and return who has not answered yet.

        Args:
            published: Topics of this node, whose subscribers are asked.
            heard: Topics that this node subscribes to, whose publishers are asked.
        """
        ends = [e for t in published for e in self._node.get_subscriptions_info_by_topic(t)]
        ends += [e for t in heard for e in self._node.get_publishers_info_by_topic(t)]
        names = node_names(ends)
        names.discard(self._node.get_fully_qualified_name())
        for name in names:
            if name not in self._asked:
                self._asked[name] = _Question(self._node, name, self._mute_s)
        return sorted(name for name in names if not self._asked[name].settled())

    def wait(self, published: Sequence[str], cancelled: threading.Event) -> None:
        """Wait until every subscriber has answered or is given up, or ``cancelled`` is set."""
        while self.open_with(published=published) and not cancelled.wait(0.02):
            pass
        self.close()

    def close(self) -> None:
        """Forget everybody."""
        while self._asked:
            self._asked.popitem()[1].close()


def node_names(ends: Iterable[Any]) -> set[str]:
    """Return the full names of the nodes behind what ``get_*_info_by_topic`` lists."""
    return {f"{end.node_namespace.rstrip('/')}/{end.node_name}" for end in ends}


def is_nameless(name: str) -> bool:
    """Tell whether rmw knows that a node is there, but its name has not arrived yet."""
    return "_UNKNOWN_" in name


def wait_received(publishers: Iterable[Any], cancelled: threading.Event) -> None:
    """Wait until reliable subscribers have received all that was sent, or ``cancelled`` is set.

    What a process has sent last leaves with it where a connection lags. It takes up to the three
    seconds between two heartbeats of Fast DDS; whoever has vanished is given up after ten.
    """
    deadline_s = monotonic() + _RECEIVED_S
    for publisher in publishers:
        # With a time to wait, the call would hold the lock of the interpreter meanwhile.
        while not publisher.wait_for_all_acked(Duration()) and monotonic() < deadline_s:
            if cancelled.wait(0.02):
                return


class _Question:
    """One node, and what came of asking it."""

    def __init__(self, node: Node, name: str, mute_s: float) -> None:
        self._node, self._begin_s, self._asked_s = node, monotonic(), -_AGAIN_S
        self._mute_s, self._client = mute_s, None
        if is_nameless(name):
            self._mute_s = _GIVE_UP_S
        else:
            self._client = node.create_client(GetParameters, f"{name}/get_parameters")
        self._answers: list[Any] = []
        self.answered = False

    def settled(self) -> bool:
        """Return whether an answer came, or will not come; ask again where it is late."""
        now_s = monotonic()
        self.answered = self.answered or any(answer.done() for answer in self._answers)
        if self.answered:
            return True
        if self._client is None or not self._client.service_is_ready():
            return now_s - self._begin_s > self._mute_s
        if now_s - self._asked_s >= _AGAIN_S:
            self._asked_s = now_s
            self._answers.append(self._client.call_async(GetParameters.Request()))
        return now_s - self._begin_s > max(self._mute_s, _GIVE_UP_S)

    def close(self) -> None:
        if self._client is not None:
            self._node.destroy_client(self._client)
