"""A worker with the real LiDAR handler, and without topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.nodes.handler import LidarHandler, PosedCloud
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.mailbox import Mailbox
from driveRT_ros.nodes.worker import Worker
from test.support.lidar_messages import SMALL_STILL

CONFIG = LidarConfig.from_dict(SMALL_STILL)


class FakeOutputs:
    def __init__(self) -> None:
        self.results: list[Any] = []
        self.dropped_s: list[int] = []

    def wanted(self) -> frozenset[str]:
        return frozenset({"detections"})

    def publish(self, result: Any) -> None:
        self.results.append(result)

    def publish_dropped(self, header: Any) -> None:
        self.dropped_s.append(header.stamp.sec)

    def publish_debug(self, result: Any, health: Health) -> None:
        pass


class Log(list):  # what a ROS logger is told
    def __getattr__(self, level: str) -> Callable[[str], None]:
        return lambda text: self.append((level, text))


class Bench:
    """A worker with the real handler; the pipeline may be replaced, and so may the health."""

    def __init__(self, pipeline: Any = None, health: Health | None = None) -> None:
        self.pipeline = pipeline or LidarPipeline(CONFIG, device="cpu")
        self.mailbox = Mailbox(keep_all=True, history=0)
        self.outputs, self.log = FakeOutputs(), Log()
        self.health = health or Health(CONFIG.diagnostics, self.log)
        handler = LidarHandler(CONFIG, self.pipeline)
        self.worker = Worker(self.mailbox, handler, self.outputs, self.health, self.log)

    def run(self, *clouds: Any) -> None:
        for cloud in clouds:
            self.mailbox.put(PosedCloud(cloud), 0.0)
        assert self.mailbox.wait_idle(90.0)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.worker.stop(90.0)
