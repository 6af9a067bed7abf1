"""The camera node in commands: its parameters, its process, what it leaves in a bag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from driveRT_ros.commands.common import config_from, console, write_parameter_file
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.camera_topics import COMPRESSED_IMAGE, camera_topics, info_topic
from driveRT_ros.io.latency_table import print_latency, write_latency_json
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.nodes.process_env import node_command
from driveRT_ros.nodes.processes import NodeProcess, Supervisor

if TYPE_CHECKING:
    from driveRT_ros.core.camera_config import CameraConfig

CAMERA_NODE = "camera_node"
OCCUPANCY = f"/{CAMERA_NODE}/output/occupancy_grid"
DROPPED_SETS = f"/{CAMERA_NODE}/debug/dropped_camera_set"
PICTURE = f"/{CAMERA_NODE}/output/bev_image"
CAMERA_RECORDED = (
    f"{OCCUPANCY}:nav_msgs/msg/OccupancyGrid",
    f"{PICTURE}:sensor_msgs/msg/Image",
    f"/{CAMERA_NODE}/output/detection[s]",  # a pattern: absent where the model has no heads
    f"/{CAMERA_NODE}/debug/*",
    "/diagnostics:diagnostic_msgs/msg/DiagnosticArray",
)
"""What a run with cameras keeps; the first entry is the one that is counted."""

_STAGE_PREFIX = f"/{CAMERA_NODE}/debug/processing_time/"


@dataclass(frozen=True)
class BagCameras:
    """The cameras of a bag that one camera node can take.

    Args:
        topics: Image topic by camera, all of one message type.
        transport: ``raw`` or ``compressed``.
    """

    topics: Mapping[str, str]
    transport: str


def look_at_cameras(bag: str) -> BagCameras | None:
    """Return the cameras of a bag that have images, or None."""
    with BagReader(bag) as reader:
        found = camera_topics(reader.topics)
        counts = {name: reader.message_counts[topic] for name, topic in found.items()}
        kinds = {name: reader.topics[found[name]] for name, count in counts.items() if count}
    if not kinds:
        return None
    some = list(kinds.values())
    kind = max(set(some), key=lambda k: (some.count(k), k == COMPRESSED_IMAGE))
    left_out = [name for name, other in kinds.items() if other != kind]
    if left_out:
        console.print(f"Left out, for they are no {kind} like the others: {', '.join(left_out)}.")
    names = [name for name, other in kinds.items() if other == kind]
    return BagCameras(
        topics={name: found[name] for name in names},
        transport="compressed" if kind == COMPRESSED_IMAGE else "raw",
    )


def camera_config(
    cameras: BagCameras,
    file: str | None,
    checkpoint: str | None,
    single: Sequence[str],
    forced: Mapping[str, Any] | None = None,
) -> CameraConfig:
    """Return the parameters of the camera node for the cameras of a bag.

    The cameras that the configuration names are used, in its order; where the bag has none of them,
    all of the bag in the order of their names.

    Args:
        cameras: Of the bag.
        file: Parameter file, if any.
        checkpoint: Weights, if any.
        single: ``NAME=VALUE`` each.
        forced: Dotted names that the command needs.

    Raises:
        ConfigError: On an unknown name or a value that cannot be used.
    """
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.models.shipped import with_shipped_weights

    asked = config_from(CameraConfig, file, checkpoint, single)
    names = [n for n in asked.cameras if n in cameras.topics] or sorted(cameras.topics)
    values = {"cameras": names, "input.transport": cameras.transport} | dict(forced or {})
    return with_shipped_weights(config_from(CameraConfig, file, checkpoint, single, values))


def start_camera_node(
    supervisor: Supervisor, config: CameraConfig, cameras: BagCameras, out: Path
) -> NodeProcess:
    """Start a camera node that listens to the topics of a bag, in simulated time."""
    remaps = {}
    for i, name in enumerate(config.cameras):
        remaps[f"~/input/image{i}"] = cameras.topics[name]
        remaps[f"~/input/camera_info{i}"] = info_topic(cameras.topics[name])
    argv = node_command(
        CAMERA_NODE,
        params_file=write_parameter_file(config, out / "camera_node.yaml"),
        params={"use_sim_time": True},
        remaps=remaps,
    )
    return supervisor.start(CAMERA_NODE, argv)


@dataclass
class CameraRecorded:
    """What an output bag holds of the camera node.

    Args:
        stamps_ns: Reference stamp of every answered set.
        cameras: Names in the order of the node.
        pictures: RGB picture by stamp.
        stage_ms: Milliseconds of every set by stage.
        untrained: Whether the node said that its weights are not trained.
    """

    stamps_ns: list[int] = field(default_factory=list)
    cameras: tuple[str, ...] = ()
    pictures: dict[int, np.ndarray] = field(default_factory=dict)
    stage_ms: dict[str, list[float]] = field(default_factory=dict)
    untrained: bool = False

    def picture_at(self, stamp_ns: int) -> np.ndarray | None:
        """Return the newest picture that is not newer than a stamp."""
        stamp = max((s for s in self.pictures if s <= stamp_ns), default=None)
        return None if stamp is None else self.pictures[stamp]


def read_camera_recorded(path: Path) -> CameraRecorded:
    """Read what the camera node has said from an output bag."""
    out = CameraRecorded()
    with BagReader(path) as reader:
        for message in reader:
            if message.topic == OCCUPANCY:
                out.stamps_ns.append(stamp_ns_of(message.deserialize().header.stamp))
            elif message.topic == PICTURE:
                image = message.deserialize()
                pixels = np.frombuffer(image.data, np.uint8)
                stamp_ns = stamp_ns_of(image.header.stamp)
                out.pictures[stamp_ns] = pixels.reshape(image.height, image.width, 3)
            elif message.topic.startswith(_STAGE_PREFIX):
                stage = message.topic[len(_STAGE_PREFIX) :].removesuffix("_ms")
                out.stage_ms.setdefault(stage, []).append(message.deserialize().data)
            elif message.topic == "/diagnostics" and not out.cameras:
                _read_statuses(message.deserialize().status, out)
    return out


def _read_statuses(statuses: Sequence[Any], out: CameraRecorded) -> None:
    prefix = f"{CAMERA_NODE}: camera "
    ours = [status for status in statuses if status.name.startswith(prefix)]
    out.cameras = tuple(status.name.removeprefix(prefix) for status in ours)
    out.untrained = any(value.key == "weights" for status in ours for value in status.values)


def show_camera_latency(recorded: CameraRecorded, path: Path) -> None:
    """Print the latency table of the camera node and write it as JSON."""
    from driveRT_ros.nodes.result import STAGES

    times = {stage: recorded.stage_ms[stage] for stage in STAGES if stage in recorded.stage_ms}
    rows = print_latency(times, console, "Time a set of images takes in the camera node")
    write_latency_json(rows, path)


def add_camera_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that configure the camera node."""
    group = parser.add_argument_group("cameras")
    group.add_argument(
        "--no-cameras", action="store_true", help="leave cameras out, also those of a bag"
    )
    group.add_argument("--camera-config", metavar="YAML", help="parameter file of the camera node")
    group.add_argument("--camera-checkpoint", metavar="FILE", help="weights of the camera node")
    group.add_argument(
        "--camera-set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one parameter of the camera node; repeatable",
    )


def require_cameras(bag: str) -> BagCameras:
    """Return the cameras of a bag.

    Raises:
        ConfigError: If it has none.
    """
    cameras = look_at_cameras(bag)
    if cameras is None:
        raise ConfigError(
            f"Bag '{bag}' has no camera: no topic of images with a camera_info beside it."
        )
    return cameras
