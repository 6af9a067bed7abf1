"""Clouds of a bag as the LiDAR node gets them, and a pass of the pipeline over them without ROS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from driveRT_ros.commands.recorded_frames import (
    DETECTIONS,
    FrameKey,
    FrameRecord,
    RecordedFrames,
)
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.fingerprint import CLOUD_MSG, DETECTIONS_MSG
from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.io.bag import BagMessage
from driveRT_ros.io.cdr import detections_cdr
from driveRT_ros.io.fingerprint import message_crc32
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.nodes.gate import CloudGate, GateActions
from driveRT_ros.nodes.offline_source import CloudSource, OfflineConfig

if TYPE_CHECKING:
    import torch

    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.pipeline import LidarPipeline


class JoinedCloud(NamedTuple):
    """One cloud together with the sweeps before it.

    Args:
        message: The cloud as recorded.
        stamp_ns: Its header stamp.
        frame_id: Its frame.
        points: (N, 5) float32, what the pipeline is given.
    """

    message: BagMessage
    stamp_ns: int
    frame_id: str
    points: torch.Tensor


def joined_clouds(
    bag: str,
    topic: str,
    config: LidarConfig,
    skipped: Callable[[str], object],
    frames: int = 0,
) -> Iterator[JoinedCloud]:
    """Yield the clouds of a bag with their past sweeps, as an offline node detects in them.

    A cloud that the node would drop (no transform, not readable) is left out here too.

    Args:
        bag: Path of the bag.
        topic: Its cloud topic; empty takes the only one.
        config: How clouds are decoded and joined.
        skipped: Takes a sentence about each cloud that is left out, or transform not used.
        frames: At most so many clouds; 0 takes all.

    Raises:
        ConfigError: If there is no such bag or topic.
    """
    source = CloudSource(OfflineConfig(bag_path=bag, cloud_topic=topic, max_clouds=frames))
    sweeps = SweepBuffer(config.densification_params)
    ready: list[tuple[Any, np.ndarray | None]] = []
    actions = GateActions(
        forward=lambda msg, T_world_lidar, *_: ready.append((msg, T_world_lidar)),
        drop=lambda header, code, sentence: skipped(sentence),
        refuse=skipped,
        jumped=lambda *_: sweeps.clear(),
    )
    gate = CloudGate(config, actions)
    try:
        for message in source.static_transforms():
            gate.transforms(message.deserialize(), 0.0, static=True)
        for ahead, message in source:
            for transforms in ahead:
                gate.transforms(transforms.deserialize(), 0.0, static=False)
            try:
                gate.cloud(message.deserialize(), 0.0)
            except Exception as error:  # damaged bytes may raise anything
                skipped(f"The cloud logged at {message.log_time_ns} ns cannot be read: {error}")
            gate.flush()  # what is not there by now does not come
            for msg, T_world_lidar in ready:
                try:
                    cloud = decode(msg, config=config.input)
                    points = sweeps.push(cloud, T_world_lidar)
                except InvalidFrame as error:
                    skipped(f"The cloud logged at {message.log_time_ns} ns is dropped: {error}")
                    continue
                yield JoinedCloud(message, cloud.stamp_ns, cloud.frame_id, points)
            ready.clear()
    finally:
        source.close()


def make_pipeline(config: LidarConfig) -> LidarPipeline:
    """Return the pipeline of a LiDAR node with these parameters."""
    import torch

    from driveRT_ros.core.pipeline import LidarPipeline
    from driveRT_ros.models.checkpoint import load_weights

    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    weights = None
    if config.checkpoint_path:
        weights = load_weights(config.checkpoint_path, config, layout=config.checkpoint_layout)
    return LidarPipeline(config, weights, config.device)


def fresh_frames(
    clouds: Iterator[JoinedCloud],
    pipeline: LidarPipeline,
    stamps_ns: Collection[int],
    *,
    node: str,
    with_bev: bool,
    advance: Callable[[], object] = lambda: None,
) -> RecordedFrames:
    """Detect in the clouds of these stamps, and return what a bag would hold of it.

    Args:
        clouds: All clouds: past sweeps matter too.
        pipeline: The detector.
        stamps_ns: Frames that are wanted.
        node: Name of the node that the frames are to carry.
        with_bev: Compute the bird's-eye-view grid.
        advance: Called after each frame.
    """
    found = RecordedFrames("the fresh pass")
    seen: dict[int, int] = {}
    for cloud in clouds:
        if cloud.stamp_ns not in stamps_ns:
            continue
        detections = pipeline.process(cloud.points, with_bev=with_bev, with_fingerprint=True)
        raw = detections_cdr(detections, cloud.stamp_ns, cloud.frame_id)
        stages = {
            CLOUD_MSG: message_crc32(cloud.message.raw, cloud.message.type_name),
            **detections.report.fingerprint,
            DETECTIONS_MSG: message_crc32(raw, DETECTIONS),
        }
        repeat = seen.get(cloud.stamp_ns, 0)
        seen[cloud.stamp_ns] = repeat + 1
        answer = BagMessage(f"{node}/output/detections", DETECTIONS, cloud.stamp_ns, raw)
        found.frames[FrameKey(cloud.stamp_ns, node, repeat)] = FrameRecord(stages, answer)
        advance()
    found.frames = dict(sorted(found.frames.items()))
    return found


def parameters_of(path: str) -> str | None:
    """Return the parameter file that ``drivert run`` left in a result folder, if it is one."""
    file = Path(path) / "lidar_node.yaml"
    return str(file) if file.is_file() else None
