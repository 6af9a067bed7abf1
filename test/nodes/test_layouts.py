"""The RViz and Foxglove layouts show topics that the LiDAR node publishes, and nothing else."""

import json
import re

import pytest
import yaml

from driveRT_ros.core.paths import share_path

pytest.importorskip("rclpy", reason="the topic names live in the node, which needs rclpy")

from driveRT_ros.nodes.handler import OUTPUTS  # noqa: E402
from driveRT_ros.nodes.publish import (  # noqa: E402
    CYCLIC,
    PERCENTILES,
    PIPELINE,
    STAGE_TOPICS,
)

PUBLISHED = {f"/lidar_node/output/{name}" for name in OUTPUTS} | {
    f"/lidar_node/debug/{name}" for name in (CYCLIC, PIPELINE, PERCENTILES, *STAGE_TOPICS.values())
}
SHOWN = {f"/lidar_node/output/{name}" for name in ("markers", "occupancy_grid", "bev_image")}
FROM_OTHERS = {"/LIDAR_TOP", "/diagnostics"}


def rviz_displays():
    config = yaml.safe_load(share_path("config/rviz/lidar.rviz").read_text())
    return {d["Name"]: d for d in config["Visualization Manager"]["Displays"]}


def test_rviz_shows_the_cloud_and_every_visual_output():
    topics = {d["Topic"]["Value"] for d in rviz_displays().values() if "Topic" in d}
    assert topics == SHOWN | {"/LIDAR_TOP"}
    assert topics <= PUBLISHED | FROM_OTHERS


def test_rviz_asks_for_the_quality_of_service_that_is_offered():
    """A display that asks for more than is offered stays empty in silence."""
    for name, display in rviz_displays().items():
        if "Topic" in display:
            assert display["Topic"]["Durability Policy"] == "Volatile", name
    assert rviz_displays()["Cloud"]["Topic"]["Reliability Policy"] == "Best Effort"


def test_foxglove_shows_the_cloud_every_visual_output_and_the_times():
    text = share_path("config/foxglove/lidar.json").read_text()
    topics = set(re.findall(r'"(/[a-zA-Z_/]+)(?:\.data)?"', text))
    assert topics <= PUBLISHED | FROM_OTHERS
    assert topics >= SHOWN | FROM_OTHERS
    assert {t for t in PUBLISHED if "/debug/" in t} <= topics


def test_every_foxglove_panel_is_placed_once():
    document = json.loads(share_path("config/foxglove/lidar.json").read_text())

    def leaves(node):
        return [node] if isinstance(node, str) else leaves(node["first"]) + leaves(node["second"])

    assert sorted(leaves(document["layout"])) == sorted(document["configById"])
