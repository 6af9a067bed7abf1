"""The RViz and Foxglove layouts show topics that the nodes publish, and nothing else."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from driveRT_ros.core.paths import share_path
from driveRT_ros.io.camera_topics import image_topic, info_topic
from test.support.camera_rig import NAMES, frame

pytest.importorskip("rclpy", reason="the topic names live in the node, which needs rclpy")

from driveRT_ros.nodes import camera_handler, handler  # noqa: E402
from driveRT_ros.nodes.publish import (  # noqa: E402
    CYCLIC,
    PERCENTILES,
    PIPELINE,
    STAGE_TOPICS,
)

DEBUG = (CYCLIC, PIPELINE, PERCENTILES, *STAGE_TOPICS.values())


@dataclass(frozen=True)
class Layouts:
    """What the layouts of one node may and must show."""

    node: str
    outputs: frozenset[str]
    live: frozenset[str]  # inputs in RViz
    recorded: frozenset[str]  # inputs in Foxglove

    @property
    def published(self) -> set[str]:
        names = [*(f"output/{name}" for name in self.outputs), *(f"debug/{name}" for name in DEBUG)]
        return {f"/{self.node}/{name}" for name in names}

    @property
    def shown(self) -> set[str]:
        names = ("markers", "occupancy_grid", "bev_image")
        return {f"/{self.node}/output/{name}" for name in names}

    def displays(self) -> dict[str, dict]:
        text = share_path(f"config/rviz/{self.node.removesuffix('_node')}.rviz").read_text()
        displays = yaml.safe_load(text)["Visualization Manager"]["Displays"]
        assert len({d["Name"] for d in displays}) == len(displays)
        return {d["Name"]: d for d in displays}

    def foxglove(self) -> str:
        return share_path(f"config/foxglove/{self.node.removesuffix('_node')}.json").read_text()


def launched_images() -> frozenset[str]:
    """Return the image topics of the launch file where no argument is given."""
    text = (Path(__file__).resolve().parents[2] / "launch" / "camera.launch.py").read_text()
    declared = dict(re.findall(r'DeclareLaunchArgument\("(\w+)", default_value="([^"]*)"', text))
    count = int(re.findall(r"^CAMERAS = (\d+)$", text, re.MULTILINE)[0])
    end = declared["image"]
    return frozenset(f"{declared['namespace']}/camera{i}/{end}" for i in range(count))


def recorded_images() -> frozenset[str]:
    """Return the topics under which this package writes compressed images, and calibrations."""
    frames = [replace(frame(name), encoded=b"jpeg", format="jpeg") for name in NAMES]
    images = [image_topic(each)[0] for each in frames]
    return frozenset([*images, *map(info_topic, images)])


CLOUD = frozenset({"/LIDAR_TOP"})
CAMERA_OUTPUTS = frozenset({**camera_handler.BOXES, **camera_handler.GRIDS})
LAYOUTS = (
    Layouts("lidar_node", frozenset(handler.OUTPUTS), CLOUD, CLOUD),
    Layouts("camera_node", CAMERA_OUTPUTS, launched_images(), recorded_images()),
)


@pytest.fixture(params=LAYOUTS, ids=lambda layouts: layouts.node)
def layouts(request) -> Layouts:
    return request.param


def test_there_is_no_layout_of_another_node():
    for kind, end in (("rviz", "rviz"), ("foxglove", "json")):
        names = {path.name for path in share_path(f"config/{kind}").iterdir()}
        assert names == {f"{each.node.removesuffix('_node')}.{end}" for each in LAYOUTS}


def test_rviz_shows_the_inputs_and_every_visual_output(layouts):
    topics = {d["Topic"]["Value"] for d in layouts.displays().values() if "Topic" in d}
    assert topics == layouts.shown | layouts.live
    assert layouts.shown <= layouts.published


def test_rviz_asks_for_the_quality_of_service_that_is_offered(layouts):
    """A display that asks for more than is offered stays empty in silence."""
    for name, display in layouts.displays().items():
        if "Topic" in display:
            assert display["Topic"]["Durability Policy"] == "Volatile", name
            if display["Topic"]["Value"] in layouts.live:
                assert display["Topic"]["Reliability Policy"] == "Best Effort", name


def test_foxglove_shows_the_inputs_every_visual_output_and_the_times(layouts):
    topics = set(re.findall(r'"(/[a-zA-Z_/]+)(?:\.data)?"', layouts.foxglove()))
    others = layouts.recorded | {"/diagnostics"}
    assert topics <= layouts.published | others
    assert topics >= layouts.shown | others
    assert {t for t in layouts.published if "/debug/" in t} <= topics


def test_every_foxglove_panel_is_placed_once(layouts):
    document = json.loads(layouts.foxglove())

    def leaves(node):
        return [node] if isinstance(node, str) else leaves(node["first"]) + leaves(node["second"])

    assert sorted(leaves(document["layout"])) == sorted(document["configById"])
