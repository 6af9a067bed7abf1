"""The LiDAR node on a GPU that is not there and gets lost at the second cloud, as a process."""

from __future__ import annotations

import sys
from typing import Any

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.base import run
from driveRT_ros.nodes.lidar import LidarNode
from test.support.failing_gpu import FailingGpu


class FailingNode(LidarNode):
    def make_pipeline(self, config: LidarConfig, weights: Any) -> Any:
        return FailingGpu(config, iter(["ok", "lost"]))


if __name__ == "__main__":
    sys.exit(run(FailingNode))
