"""Waiting until those who are to answer a replay are there and hear it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from itertools import filterfalse
from time import monotonic
from typing import Any

from rclpy.node import Node

from driveRT_ros.core.errors import DriveRTError
from driveRT_ros.io.camera_topics import info_topic
from driveRT_ros.nodes.handshake import Handshake, is_nameless, node_names
from driveRT_ros.nodes.replay_config import ReplayConfig

_SETTLED_S = 3.0
"""After this long without another subscription of theirs, they take no more of the cameras."""


class NoConsumer(DriveRTError):  # noqa: N818 - nobody is there; the name says it
    """Nobody subscribed in time, and a lockstep replay without consumer makes no sense."""


class Consumers:
    """Those who take the clouds and the images of a replay.

    Each node that is running already is found at a time of its own. Who has been found says nothing
    of who has not, so all whom the parameters name are waited for.

    Args:
        node: It plays, and something spins it meanwhile.
        config: What is played, and who answers.
        cloud: Publisher of the clouds, where they are waited for.
        topics: All that is published.
        images: Topics of the images that are answered on ``config.lockstep_images_topic``.
    """

    def __init__(
        self,
        node: Node,
        config: ReplayConfig,
        cloud: Any | None,
        topics: Sequence[str],
        images: Collection[str],
    ) -> None:
        self._node, self._config, self._cloud, self._topics = node, config, cloud, topics
        self._cameras = frozenset(images) | frozenset(map(info_topic, images))
        self._found: frozenset[str] = frozenset()
        self._found_s = 0.0

    def wait(self, cancelled: threading.Event) -> None:
        """Wait until all are there and have answered a question, or ``cancelled`` is set.

        Raises:
            NoConsumer: If whoever is to answer clouds does not come in time.
        """
        config = self._config
        if not config.wait_for_subscriber_s:
            return
        deadline_s = monotonic() + config.wait_for_subscriber_s
        while (missing := self._nobody_for_clouds()) or (deaf := self._nobody_for_images()):
            if monotonic() > deadline_s:
                sentence = f"{missing or deaf} within {config.wait_for_subscriber_s:g} s"
                if missing and config.lockstep_topic:
                    raise NoConsumer(f"{sentence}; nothing was played.")
                self._node.get_logger().warning(f"{sentence}; playing anyway.")
                return
            if cancelled.wait(0.05):
                return
        Handshake(self._node).wait(self._topics, cancelled)

    def _nobody_for_clouds(self) -> str:
        config = self._config
        if self._cloud is None:
            return ""
        count = self._cloud.get_subscription_count()
        if count < config.min_subscribers:
            who = "Nobody" if not count else f"Only {count} of {config.min_subscribers}"
            return f"{who} subscribed to '{config.cloud_topic}'"
        if config.lockstep_topic and not self._node.count_publishers(config.lockstep_topic):
            return f"Nobody published '{config.lockstep_topic}'"
        return ""

    def _nobody_for_images(self) -> str:
        """Say who is missing; subscribers are found one after the other, not all at once."""
        if not self._cameras:
            return ""
        answers = self._config.lockstep_images_topic
        publishers = self._node.get_publishers_info_by_topic(answers)
        who = set(filterfalse(is_nameless, node_names(publishers)))
        if not who:
            return f"Nobody published '{answers}'"
        found = frozenset(
            topic
            for topic in self._cameras
            if who & node_names(self._node.get_subscriptions_info_by_topic(topic))
        )
        if found != self._found:
            self._found, self._found_s = found, monotonic()
        if found == self._cameras or (found and monotonic() - self._found_s >= _SETTLED_S):
            return ""
        return f"Whoever publishes '{answers}' subscribed to {len(found) or 'none'} of the images"
