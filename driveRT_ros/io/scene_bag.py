"""Frames of a data set or the simulator to a rosbag2 that any ROS 2 tool plays, and back."""

from __future__ import annotations

import bisect
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import CameraFrame, Detections, PointBatch, SceneFrame
from driveRT_ros.io import encode
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.bag_poses import BagPoses
from driveRT_ros.io.camera import is_rectified_topic
from driveRT_ros.io.camera_topics import (
    CAMERA_INFO,
    INFO_SUFFIX,
    camera_topics,
    image_topic,
    info_topic,
)
from driveRT_ros.io.decode_messages import decode_camera, decode_detections, decode_objects
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.topics import choose_topic
from driveRT_ros.io.typestore import message_type

_log = logging.getLogger(__name__)

WORLD, EGO = "map", "base_link"
TF, TF_STATIC, TF_MESSAGE = "/tf", "/tf_static", "tf2_msgs/msg/TFMessage"
CLOUD_TOPIC, POINT_CLOUD = "/LIDAR_TOP", "sensor_msgs/msg/PointCloud2"
TRUTH_BOXES, DETECTIONS = "/ground_truth/detections", "vision_msgs/msg/Detection3DArray"
TRUTH_OBJECTS, OBJECTS = "/ground_truth/objects", "autoware_perception_msgs/msg/DetectedObjects"


def write_scene_bag(
    frames: Iterable[SceneFrame],
    path: str | Path,
    *,
    storage: str = "mcap",
    compression: str = "none",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write frames as they come; the log time of a message is its stamp.

    Topics: ``/LIDAR_TOP``, ``/tf`` (map to base_link, where the pose is known), ``/tf_static``
    (base_link to each sensor, latched), ``/ground_truth/detections`` and ``/ground_truth/objects``
    (the same boxes, with velocity) where a frame is annotated, and two topics a camera:
    ``/CAM_X/camera_info`` and ``/CAM_X/image_rect_compressed`` (``image_rect`` where it is not
    compressed, ``image_raw/compressed`` or ``image_raw`` where it is distorted).

    Args:
        frames: In order of time.
        path: Folder to create.
        storage: ``mcap`` or ``sqlite3``.
        compression: As :class:`driveRT_ros.io.bag.BagWriter`.
        progress: Called with the number of frames written so far.

    Returns:
        The number of frames.

    Raises:
        ConfigError: If the folder exists.
    """
    count = 0
    mounts: dict[str, np.ndarray] = {}
    with BagWriter(path, storage, compression=compression) as writer:
        for topic, kind in ((TF_STATIC, TF_MESSAGE), (TF, TF_MESSAGE), (CLOUD_TOPIC, POINT_CLOUD)):
            writer.add_topic(topic, kind)
        for frame in frames:
            outgoing = [*_mount_messages(frame, mounts), *_frame_messages(frame)]
            for stamp_ns, topic, kind, message in sorted(outgoing, key=lambda m: m[0]):
                writer.write(topic, kind, message, stamp_ns)
            count += 1
            if progress is not None:
                progress(count)
    return count


_Outgoing = tuple[int, str, str, Any]


def _mount_messages(frame: SceneFrame, mounts: dict[str, np.ndarray]) -> Iterator[_Outgoing]:
    """Yield /tf_static with every sensor seen so far, whenever one is new or has moved."""
    seen = {frame.points.frame_id: frame.T_ego_lidar}
    seen |= {camera.frame_id: camera.T_ego_camera for camera in frame.cameras}
    if all(name in mounts and np.array_equal(mounts[name], T) for name, T in seen.items()):
        return
    mounts.update(seen)
    stamp_ns = min([frame.points.stamp_ns, *(camera.stamp_ns for camera in frame.cameras)])
    transforms = [(stamp_ns, EGO, name, T) for name, T in sorted(mounts.items())]
    message = encode.encode_transforms(transforms, message_type)
    yield stamp_ns, TF_STATIC, TF_MESSAGE, message


def _frame_messages(frame: SceneFrame) -> Iterator[_Outgoing]:
    points, truth = frame.points, frame.ground_truth
    stamp_ns, frame_id = points.stamp_ns, points.frame_id
    for camera in frame.cameras:
        info = encode.encode_camera_info(camera, message_type)
        yield camera.stamp_ns, f"/{camera.name}{INFO_SUFFIX}", CAMERA_INFO, info
        topic, kind = image_topic(camera)
        if camera.encoded is not None:
            image = encode.encode_compressed_image(camera, message_type)
            yield camera.stamp_ns, topic, kind, image
        elif camera.image is not None:
            yield camera.stamp_ns, topic, kind, encode.encode_image(camera, message_type)
    if frame.T_world_ego is not None:
        moved = [(stamp_ns, WORLD, EGO, frame.T_world_ego)]
        yield stamp_ns, TF, TF_MESSAGE, encode.encode_transforms(moved, message_type)
    yield stamp_ns, CLOUD_TOPIC, POINT_CLOUD, encode.encode_pointcloud(points, message_type)
    if truth is not None:
        boxes = encode.encode_detections(truth, stamp_ns, frame_id, message_type)
        yield stamp_ns, TRUTH_BOXES, DETECTIONS, boxes
        objects = encode.encode_objects(truth, stamp_ns, frame_id, message_type)
        yield stamp_ns, TRUTH_OBJECTS, OBJECTS, objects


def read_scene_frames(
    path: str | Path,
    *,
    cloud_topic: str = "",
    config: InputConfig | None = None,
    world_frame: str = WORLD,
    ego_frame: str = EGO,
) -> Iterator[SceneFrame]:
    """Yield the frames of a bag, one a cloud, in order of log time.

    A cloud takes the ground truth with its stamp, and of every camera the newest image after the
    cloud before and not after itself. A cloud that cannot be decoded is skipped with a warning, and
    so is an image without usable calibration.

    Args:
        path: A rosbag2, written here or recorded elsewhere.
        cloud_topic: Topic of the clouds; empty takes the only one.
        config: How clouds are decoded.
        world_frame: Fixed frame; the pose is None where it is not recorded.
        ego_frame: Frame of the vehicle.

    Raises:
        ConfigError: If there is no such topic, or no transform from the LiDAR to the ego frame.
    """
    with BagReader(path) as reader:
        cloud_topic = choose_topic(
            reader.topics, cloud_topic, bag=str(path), type_name=POINT_CLOUD, option="cloud_topic"
        )
        poses = read_poses(reader)
        cameras = camera_topics(reader.topics)
        images = list(cameras.values())
        infos = [info_topic(topic) for topic in images]
        truths = [t for t in (TRUTH_BOXES, TRUTH_OBJECTS) if t in reader.topics]
        assembler = _Assembler(poses, world_frame, ego_frame, cameras)
        cloud: PointBatch | None = None
        for message in reader.messages([cloud_topic, *images, *infos, *truths]):
            is_cloud = message.topic == cloud_topic
            if is_cloud and cloud is not None:
                yield assembler.frame(cloud)
                cloud = None
            try:
                content = message.deserialize()
                if is_cloud:
                    cloud = decode(content, config=config)
                else:
                    assembler.keep(message.topic, content)
            except InvalidFrame as error:
                _log.warning("A message of '%s' is skipped: %s", message.topic, error)
        if cloud is not None:
            yield assembler.frame(cloud)


def read_poses(reader: BagReader) -> BagPoses:
    """Read /tf_static wherever it is in the bag, and all of /tf, but what is damaged."""
    poses = BagPoses()
    for topic in (t for t in (TF_STATIC, TF) if t in reader.topics):
        for message in reader.messages([topic]):
            try:
                poses.add(message.deserialize(), static=topic == TF_STATIC)
            except InvalidFrame as error:
                _log.warning("A message of '%s' is skipped: %s", topic, error)
    return poses


class _Assembler:
    """Messages of the current moment, and what belongs to a cloud among them."""

    def __init__(
        self, poses: BagPoses, world_frame: str, ego_frame: str, cameras: Mapping[str, str]
    ) -> None:
        self._poses, self._world, self._ego = poses, world_frame, ego_frame
        self._cameras_by_topic = {topic: name for name, topic in sorted(cameras.items())}
        self._truth: dict[tuple[str, int], Any] = {}
        self._images: dict[str, list[Any]] = {}
        self._infos: dict[str, Any] = {}
        self._before_ns = -1
        self._warned: set[tuple[str, str]] = set()

    def keep(self, topic: str, message: Any) -> None:
        if topic in (TRUTH_BOXES, TRUTH_OBJECTS):
            self._truth[topic, stamp_ns_of(message.header.stamp)] = message
        elif topic.endswith(INFO_SUFFIX):
            self._infos[topic] = message
        else:
            self._images.setdefault(topic, []).append(message)

    def frame(self, cloud: PointBatch) -> SceneFrame:
        T_ego_lidar = self._poses.lookup(self._ego, cloud.frame_id, cloud.stamp_ns)
        if T_ego_lidar is None:
            raise ConfigError(
                f"The bag has no transform from '{cloud.frame_id}' to '{self._ego}'; record "
                f"{TF_STATIC} with it, or name another ego frame."
            )
        frame = SceneFrame(
            points=cloud,
            T_world_ego=self._poses.lookup(self._world, self._ego, cloud.stamp_ns),
            T_ego_lidar=T_ego_lidar,
            ground_truth=self._ground_truth(cloud.stamp_ns),
            cameras=tuple(self._cameras(cloud.stamp_ns)),
        )
        self._before_ns = cloud.stamp_ns
        return frame

    def _ground_truth(self, stamp_ns: int) -> Detections | None:
        boxes = self._truth.pop((TRUTH_BOXES, stamp_ns), None)
        objects = self._truth.pop((TRUTH_OBJECTS, stamp_ns), None)
        self._truth = {key: m for key, m in self._truth.items() if key[1] > stamp_ns}
        if boxes is None:
            return None
        truth = decode_detections(boxes)
        moving = None if objects is None else decode_objects(objects)
        if moving is None or len(moving) != len(truth):
            return truth
        both = truth.boxes.clone()
        both[:, 7:9] = moving.boxes[:, 7:9]
        return dataclasses.replace(truth, boxes=both)

    def _cameras(self, stamp_ns: int) -> Iterator[CameraFrame]:
        for topic, name in self._cameras_by_topic.items():
            image, info = self._newest_image(topic, stamp_ns), self._infos.get(info_topic(topic))
            if image is None or info is None:
                continue
            image_ns, frame_id = stamp_ns_of(image.header.stamp), image.header.frame_id
            T_ego_camera = self._poses.lookup(self._ego, frame_id, image_ns)
            if T_ego_camera is None:
                self._warn_once(topic, "transform", f"no transform to '{self._ego}' at its stamp.")
                continue
            rectified = is_rectified_topic(topic)
            try:
                yield decode_camera(info, image, name, T_ego_camera, rectified=rectified)
            except InvalidFrame as error:
                self._warn_once(topic, error.code, str(error))

    def _newest_image(self, topic: str, stamp_ns: int) -> Any | None:
        """Return the newest image after the cloud before and not after this one."""
        images = sorted(self._images.get(topic, []), key=lambda m: stamp_ns_of(m.header.stamp))
        stamps_ns = [stamp_ns_of(m.header.stamp) for m in images]
        count = bisect.bisect_right(stamps_ns, stamp_ns)
        self._images[topic] = images[count:]
        if count == 0 or stamps_ns[count - 1] <= self._before_ns:
            return None
        return images[count - 1]

    def _warn_once(self, topic: str, code: str, reason: str) -> None:
        if (topic, code) not in self._warned:
            self._warned.add((topic, code))
            _log.warning("'%s' is left out: %s", topic, reason)
