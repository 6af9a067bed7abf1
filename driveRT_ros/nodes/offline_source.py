"""A bag as the offline node reads it: clouds in order, transforms ahead of them; knows no ROS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import param
from driveRT_ros.io.bag import BagMessage, BagReader
from driveRT_ros.io.topics import choose_topic
from driveRT_ros.nodes.playback import TF_STATIC

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
        with BagReader(config.bag_path) as reader:
            topics, counts = dict(reader.topics), dict(reader.message_counts)
            self.partial = reader.partial
        self.topic = choose_topic(
            topics, config.cloud_topic, bag=config.bag_path, option="cloud_topic"
        )
        count = counts[self.topic]
        self.num_clouds = min(count, config.max_clouds or count)
        self._path, self._topics = config.bag_path, topics

    def static_transforms(self) -> Iterator[BagMessage]:
        """Yield every message of /tf_static."""
        if TF_STATIC in self._topics:
            with BagReader(self._path, [TF_STATIC]) as reader:
                yield from reader

    def __iter__(self) -> Iterator[tuple[list[BagMessage], BagMessage]]:
        """Yield (transforms that were recorded until a second after the cloud, cloud)."""
        with ExitStack() as stack:
            clouds = iter(stack.enter_context(BagReader(self._path, [self.topic])))
            moving: Iterator[BagMessage] = iter(())
            if "/tf" in self._topics:
                moving = iter(stack.enter_context(BagReader(self._path, ["/tf"])))
            waiting = next(moving, None)
            for _, cloud in zip(range(self.num_clouds), clouds):
                due = []
                while waiting and waiting.log_time_ns <= cloud.log_time_ns + LOOK_AHEAD_NS:
                    due.append(waiting)
                    waiting = next(moving, None)
                yield due, cloud
