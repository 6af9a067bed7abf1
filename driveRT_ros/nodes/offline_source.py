"""A bag as an offline node reads it: frames in order, transforms ahead of them; knows no ROS."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import param
from driveRT_ros.io.bag import BagMessage, BagReader
from driveRT_ros.io.camera_topics import camera_topics, info_topic
from driveRT_ros.io.topics import choose_topic
from driveRT_ros.nodes.replay_config import TF, TF_STATIC

LOOK_AHEAD_NS = 1_000_000_000
"""Transforms recorded up to this long after a frame are known when the frame is processed."""


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


@dataclass(frozen=True)
class OfflineCameraConfig(CameraConfig):
    """The parameters of the camera node, and those of its source."""

    bag_path: str = param("", "The rosbag2 folder or storage file to process.")
    max_images: int = param(0, "Stop after this many images; 0 processes all.", ge=0)
    wait_for_subscriber_s: float = param(
        0.0, "How long to wait for a subscriber of the occupancy grid before starting.",
        unit="s", ge=0.0,
    )  # fmt: skip


class Source:
    """The messages of some topics, each with what is to be taken in before it.

    Args:
        bag_path: The bag.

    Attributes:
        topic: What is read, for people.
        total: Messages to come.
        partial: Whether part of the bag cannot be read.

    Raises:
        ConfigError: If there is no such bag.
    """

    def __init__(self, bag_path: str) -> None:
        if not bag_path:
            raise ConfigError("Parameter 'bag_path' must name the bag to process.")
        self._reader = BagReader(bag_path)
        self._reader.__enter__()
        self.partial = self._reader.partial
        self.topic = ""
        self.total = 0
        self._main: frozenset[str] = frozenset()
        self._ahead: frozenset[str] = frozenset()

    def choose(self, main: Collection[str], ahead: Collection[str], limit: int) -> None:
        """Settle which topics are read, and how many messages of the main ones at most."""
        self._main = frozenset(main)
        self._ahead = frozenset(t for t in ahead if t in self._reader.topics)
        count = sum(self._reader.message_counts[topic] for topic in main)
        self.total = min(count, limit or count)

    def close(self) -> None:
        """Close the bag."""
        self._reader.__exit__(None, None, None)

    def static_transforms(self) -> Iterator[BagMessage]:
        """Yield every message of /tf_static."""
        if TF_STATIC in self._reader.topics:
            yield from self._reader.messages([TF_STATIC])

    def __iter__(self) -> Iterator[tuple[list[BagMessage], BagMessage]]:
        """Yield (what was logged ahead until a second after the message, message)."""
        ahead: list[BagMessage] = []
        waiting: deque[BagMessage] = deque()
        left = self.total
        for message in self._reader.messages(sorted(self._main | self._ahead)):
            while waiting and left and message.log_time_ns > waiting[0].log_time_ns + LOOK_AHEAD_NS:
                yield ahead, waiting.popleft()
                ahead, left = [], left - 1
            if not left:
                return
            (ahead if message.topic in self._ahead else waiting).append(message)
        while waiting and left:
            yield ahead, waiting.popleft()
            ahead, left = [], left - 1


class CloudSource(Source):
    """The clouds of a bag.

    Args:
        config: Which bag, topic and how many.

    Raises:
        ConfigError: If there is no such bag or topic.
    """

    def __init__(self, config: OfflineConfig) -> None:
        super().__init__(config.bag_path)
        try:
            self.topic = choose_topic(
                self._reader.topics, config.cloud_topic, bag=config.bag_path, option="cloud_topic"
            )
        except ConfigError:
            self.close()
            raise
        self.choose([self.topic], [TF], config.max_clouds)


class ImageSource(Source):
    """The images of a bag, with calibrations and transforms ahead of them.

    Args:
        config: Which bag, cameras and how many images.

    Attributes:
        cameras: Camera by image topic.
        infos: Camera by topic of its calibration.
        types: Message type by image topic.

    Raises:
        ConfigError: If there is no such bag, or it has none of the cameras.
    """

    def __init__(self, config: OfflineCameraConfig) -> None:
        super().__init__(config.bag_path)
        inside = camera_topics(self._reader.topics)
        chosen = {name: inside[name] for name in config.cameras if name in inside}
        if not chosen:
            self.close()
            raise ConfigError(
                f"Bag '{config.bag_path}' has none of the cameras {', '.join(config.cameras)}; "
                f"its cameras: {', '.join(inside) or 'none'}. Name them in the parameter 'cameras'."
            )
        self.cameras = {topic: name for name, topic in chosen.items()}
        self.infos = {info_topic(topic): name for topic, name in self.cameras.items()}
        self.types = {topic: self._reader.topics[topic] for topic in self.cameras}
        self.topic = "', '".join(self.cameras)
        self.choose(self.cameras, [*self.infos, TF], config.max_images)
