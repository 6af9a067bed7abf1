"""What a run leaves behind: counts checked, pictures drawn, times summed up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driveRT_ros.commands.cameras import CameraRecorded
from driveRT_ros.commands.common import DETECTIONS, LIDAR_NODE, console, progress
from driveRT_ros.core.bev_grid import build_bev_grid
from driveRT_ros.core.boxes import VELOCITY
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import CameraFrame, Detections, SceneFrame
from driveRT_ros.io.animation import AnimationFiles, write_animation
from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.bev_shapes import BACKGROUND
from driveRT_ros.io.camera_panel import camera_panel
from driveRT_ros.io.decode_messages import decode_detections, decode_objects
from driveRT_ros.io.image import with_pixels
from driveRT_ros.io.latency_table import print_latency, write_latency_json
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.render import render_bev
from driveRT_ros.io.scene_bag import TF, TF_STATIC, read_scene_frames
from driveRT_ros.io.topics import choose_topic
from driveRT_ros.nodes.result import STAGES

_STAGE_PREFIX = f"/{LIDAR_NODE}/debug/processing_time/"
_FPS = 10.0
_GAP_PX = 12
_OBJECTS = f"/{LIDAR_NODE}/output/objects"

SHOWN_SCORE = 0.3
"""Least score of a box of trained weights in pictures."""


@dataclass
class Recorded:
    """What an output bag holds.

    Args:
        detections: By header stamp, ns; with velocity where the objects topic was recorded.
        messages: Number of detection messages.
        stage_ms: Milliseconds of every frame by stage.
        untrained: Whether the node said that its weights are not trained.
    """

    detections: dict[int, Detections] = field(default_factory=dict)
    messages: int = 0
    stage_ms: dict[str, list[float]] = field(default_factory=dict)
    untrained: bool = False

    def frame_ms(self, index: int) -> dict[str, float]:
        """Return the milliseconds of one frame, where each frame has left its times."""
        times = {stage: self.stage_ms.get(stage, []) for stage in STAGES}
        return {s: times[s][index] for s in STAGES if len(times[s]) == self.messages}

    @property
    def num_boxes(self) -> int:
        """Boxes over all messages."""
        return sum(len(found) for found in self.detections.values())


def read_recorded(path: Path) -> Recorded:
    """Read detections, times and the state of the weights from an output bag."""
    out, with_velocity = Recorded(), {}
    with BagReader(path) as reader:
        for message in reader:
            if message.topic == DETECTIONS:
                detections = message.deserialize()
                out.messages += 1
                out.detections[stamp_ns_of(detections.header.stamp)] = decode_detections(detections)
            elif message.topic == _OBJECTS:
                objects = message.deserialize()
                with_velocity[stamp_ns_of(objects.header.stamp)] = decode_objects(objects)
            elif message.topic.startswith(_STAGE_PREFIX):
                stage = message.topic[len(_STAGE_PREFIX) :].removesuffix("_ms")
                out.stage_ms.setdefault(stage, []).append(message.deserialize().data)
            elif message.topic == "/diagnostics" and not out.untrained:
                out.untrained = _says_untrained(message.deserialize())
    for stamp_ns, found in out.detections.items():
        out.detections[stamp_ns] = _with_velocity(found, with_velocity.get(stamp_ns))
    return out


def _with_velocity(found: Detections, objects: Detections | None) -> Detections:
    """Add velocities, which vision_msgs has no field for, from the same boxes as objects."""
    if objects is None or len(objects) != len(found):
        return found
    boxes = found.boxes.clone()
    boxes[:, VELOCITY] = objects.boxes[:, VELOCITY]
    return dataclasses.replace(found, boxes=boxes)


def _says_untrained(diagnostics: Any) -> bool:
    ours = (s for s in diagnostics.status if s.name.startswith(f"{LIDAR_NODE}:"))
    return any(value.key == "weights" for status in ours for value in status.values)


def show_latency(recorded: Recorded, out: Path) -> None:
    """Print the latency table and write it as JSON."""
    times = {stage: recorded.stage_ms[stage] for stage in STAGES if stage in recorded.stage_ms}
    rows = print_latency(times, console, "Time a frame takes in the LiDAR node")
    write_latency_json(rows, out / "latency.json")


def look_at_bag(path: str, topic: str) -> tuple[str, str, int]:
    """Return the absolute path of a bag, its cloud topic and the number of clouds.

    Raises:
        ConfigError: If there is no bag, no such topic, or no cloud in it.
    """
    with BagReader(path) as reader:
        topic = choose_topic(reader.topics, topic, bag=path)
        count = reader.message_counts[topic]
    if not count:
        raise ConfigError(f"Topic '{topic}' of bag '{path}' has no messages; nothing to detect in.")
    return str(Path(path).resolve()), topic, count


def draw_pictures(
    bag: str,
    topic: str,
    recorded: Recorded,
    config: LidarConfig,
    folder: Path,
    *,
    title: str,
    seen: CameraRecorded,
) -> AnimationFiles:
    """Draw every cloud that was answered, with its boxes, as PNG files, GIF and MP4.

    Args:
        bag: Input bag; its ground truth is drawn where it has some.
        topic: Its cloud topic.
        recorded: Detections to draw.
        config: Range and grid.
        folder: Where the pictures go.
        title: First line of each picture.
        seen: What the cameras saw, drawn beside the clouds where it holds something.
    """

    def counted() -> Iterator[np.ndarray]:
        with progress() as bar:
            task = bar.add_task("draw", total=len(recorded.detections))
            for picture in _pictures(bag, topic, recorded, config, title, seen):
                yield picture
                bar.advance(task)

    return write_animation(counted(), folder, _FPS)


def _pictures(
    bag: str,
    topic: str,
    recorded: Recorded,
    config: LidarConfig,
    title: str,
    seen: CameraRecorded,
) -> Iterator[np.ndarray]:
    drawn = 0
    images: dict[str, CameraFrame] = {}
    for frame in scene_frames(bag, topic, config):
        cloud, found = frame.points, recorded.detections.get(frame.points.stamp_ns)
        images |= {camera.name: camera for camera in frame.cameras}
        if found is None:
            continue
        drawn += 1
        points = torch.from_numpy(
            np.column_stack([cloud.xyz, cloud.intensity, cloud.time_lag_s]).astype(np.float32)
        )
        picture = render_bev(
            points,
            T_ego_lidar=frame.T_ego_lidar,
            detections=found,
            ground_truth=frame.ground_truth,
            grid=build_bev_grid(points, config),
            config=config,
            title=title,
            stamp_ns=cloud.stamp_ns,
            latency_ms=recorded.frame_ms(drawn - 1),
            untrained=recorded.untrained,
            # Untrained scores mean nothing; of trained ones, the low ones are guesses.
            min_score=0.0 if recorded.untrained else SHOWN_SCORE,
        )
        yield _with_cameras(picture, seen, images, cloud.stamp_ns) if seen.pictures else picture


def _with_cameras(
    picture: np.ndarray, seen: CameraRecorded, images: Mapping[str, CameraFrame], stamp_ns: int
) -> np.ndarray:
    """Put what the cameras saw last at the right of a picture."""
    shown = [(name, _pixels_of(images.get(name))) for name in seen.cameras]
    panel = camera_panel(
        seen.picture_at(stamp_ns), shown, height_px=len(picture), untrained=seen.untrained
    )
    gap = np.full((len(picture), _GAP_PX, 3), BACKGROUND, np.uint8)
    return np.concatenate([picture, gap, panel], axis=1)


def _pixels_of(camera: CameraFrame | None) -> np.ndarray | None:
    try:
        return None if camera is None else with_pixels(camera).image
    except InvalidFrame:
        return None  # the camera node has counted and reported it


def scene_frames(bag: str, topic: str, config: LidarConfig) -> Iterator[SceneFrame]:
    """Yield frames with all the bag tells of them; without transforms, x is forward."""
    with BagReader(bag) as reader:
        placed = TF_STATIC in reader.topics
        if not placed:
            for message in reader.messages([topic]):
                try:
                    cloud = decode(message.deserialize(), config=config.input)
                except InvalidFrame:
                    continue  # the LiDAR node has counted and reported it
                yield SceneFrame(cloud, None, np.eye(4))
    if placed:
        yield from read_scene_frames(bag, cloud_topic=topic, config=config.input)


def report(
    recorded: Recorded,
    clouds: int,
    out: Path,
    *,
    bag: str,
    seconds: float,
    files: AnimationFiles | None = None,
) -> int:
    """Say what was found, what was lost and where everything is.

    Args:
        recorded: What the output bag holds.
        clouds: How many clouds the detector was given.
        out: Output folder.
        bag: Input bag.
        seconds: Duration of the whole command.
        files: Pictures, where there are some.

    Returns:
        Exit code: 1 where a cloud got no answer.
    """
    console.print(
        f"{recorded.messages} of {clouds} clouds answered, {recorded.num_boxes} boxes, "
        f"{seconds:.1f} s in all."
    )
    if recorded.untrained:
        console.print("The weights are not trained: boxes mean nothing. Give --checkpoint.")
    rows = {"input bag": bag, "output bag": out / "output_bag", "logs": out / "logs"}
    if files is not None:
        rows |= {"pictures": files.png[0].parent if files.png else "none"}
        rows |= {"GIF": files.gif, "MP4": files.mp4}
        if not recorded.untrained:
            console.print(f"Pictures show boxes with a score of {SHOWN_SCORE:g} or more.")
        for note in files.notes:
            console.print(note)
    for name, path in rows.items():
        if path is not None:
            console.print(f"  {name:<11}{path}")
    if recorded.messages < clouds:
        console.print(
            f"{clouds - recorded.messages} clouds got no answer; {out / 'logs'} says why."
        )
        with BagReader(bag) as reader:
            if not {TF, TF_STATIC} & set(reader.topics):
                console.print(
                    "The bag has no transforms: detect in single clouds, without past sweeps, with "
                    "--set densification_params.num_past_frames=0."
                )
        return 1
    return 0
