"""A bag as the offline node reads it: clouds in order, transforms ahead of them; knows no ROS."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import param
from driveRT_ros.io.bag import BagMessage, BagReader
from driveRT_ros.io.topics import choose_topic
from driveRT_ros.nodes.replay_config import TF, TF_STATIC

LOOK_AHEAD_NS = 1_000_000_000
"""Transforms recorded up to this long after a cloud are known when the cloud is processed."""


@dataclass(frozen=True)
class OfflineConfig(LidarConfig):
    """The parameters of the LiDAR node, and those of its source."""

    bag_path: str = param("", "The rosbag2 folder or storage file to process.")
    cloud_topic: str = param("", "Its point cloud topic; empty takes the only one.")
    max_clouds: int = param(0, "Stop after this many clouds; 0 processes all.", ge=0)
    wait_for_subscriber_s: float = param(
        0.0, "How long to wait for a subscriber of the detections before starting.",
        unit="s", ge=0.0,
    )  # fmt: skip


class OfflineSource:
    """The clouds of a bag, each with the transforms to take in before it.

    Args:
        config: Which bag, topic and how many.

    Attributes:
        topic: The cloud topic.
        num_clouds: Clouds to come.
        partial: Whether part of the bag cannot be read.

    Raises:
        ConfigError: If there is no such bag or topic.
    """

    def __init__(self, config: OfflineConfig) -> None:
        if not config.bag_path:
            raise ConfigError("Parameter 'bag_path' must name the bag to process.")
        self._reader = BagReader(config.bag_path)
        self._reader.__enter__()
        topics = self._reader.topics
        try:
            self.topic = choose_topic(
                topics, config.cloud_topic, bag=config.bag_path, option="cloud_topic"
            )
        except ConfigError:
            self.close()
            raise
        self.partial = self._reader.partial
        count = self._reader.message_counts[self.topic]
        self.num_clouds = min(count, config.max_clouds or count)

    def close(self) -> None:
        """Close the bag."""
        self._reader.__exit__(None, None, None)

    def static_transforms(self) -> Iterator[BagMessage]:
        """Yield every message of /tf_static."""
        if TF_STATIC in self._reader.topics:
            yield from self._reader.messages([TF_STATIC])

    def __iter__(self) -> Iterator[tuple[list[BagMessage], BagMessage]]:
        """Yield (transforms that were logged until a second after the cloud, cloud)."""
        topics = [t for t in (self.topic, TF) if t in self._reader.topics]
        transforms: list[BagMessage] = []
        clouds: deque[BagMessage] = deque()
        left = self.num_clouds
        for message in self._reader.messages(topics):
            while clouds and left and message.log_time_ns > clouds[0].log_time_ns + LOOK_AHEAD_NS:
                yield transforms, clouds.popleft()
                transforms, left = [], left - 1
            if not left:
                return
            (transforms if message.topic == TF else clouds).append(message)
        while clouds and left:
            yield transforms, clouds.popleft()
            transforms, left = [], left - 1
