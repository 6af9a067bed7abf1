"""From one cloud to all messages about it: the one path of live topics and offline bags.

It knows neither nodes nor topics: a cloud and its pose go in, messages come out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driveRT_ros.core.bev_grid import occupancy
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections, PointBatch
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.io.encode import encode_detections, encode_objects
from driveRT_ros.io.messages import make_header
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.render import render_bev_map
from driveRT_ros.nodes import grids
from driveRT_ros.nodes.markers import detection_markers
from driveRT_ros.nodes.raw import message_class

OUTPUTS = {
    "detections": "vision_msgs/msg/Detection3DArray",
    "objects": "autoware_perception_msgs/msg/DetectedObjects",
    "markers": "visualization_msgs/msg/MarkerArray",
    "occupancy_grid": "nav_msgs/msg/OccupancyGrid",
    "grid_map": "grid_map_msgs/msg/GridMap",
    "bev_image": "sensor_msgs/msg/Image",
}
"""Message type by output name, in the order of publishing: results before pictures."""

FINGERPRINT = "frame_fingerprint"
"""Wanted like an output: what identifies the result of a frame."""

STAGES = ("decode", "preprocess", "inference", "postprocess", "publish", "total")
"""What ``FrameResult.stage_ms`` holds; ``publish`` and ``total`` grow while messages go out."""


@dataclass
class FrameResult:
    """Everything about one processed cloud.

    Args:
        cloud: The decoded cloud; its stamp and frame are those of every message.
        found: Detections in the frame of the cloud.
        messages: Message by output name, those that were wanted.
        stage_ms: Milliseconds by stage (:data:`STAGES`).
    """

    cloud: PointBatch
    found: Detections
    messages: Mapping[str, Any]
    stage_ms: dict[str, float] = field(default_factory=dict)


class LidarHandler:
    """Decode, accumulate, detect, encode.

    Not thread-safe: one thread calls it, in the order of the clouds.

    Args:
        config: Everything the detector takes.
        pipeline: The detector, warmed up.
    """

    def __init__(self, config: LidarConfig, pipeline: LidarPipeline) -> None:
        self.config = config
        self._pipeline = pipeline
        self._sweeps = SweepBuffer(config.densification_params)

    def reconfigure(self, config: LidarConfig) -> None:
        """Go on with other thresholds or another grid; weights and history stay."""
        self._pipeline = self._pipeline.reconfigured(config)
        self.config = config

    def forget(self) -> None:
        """Forget past sweeps, as after a jump of time."""
        self._sweeps.clear()

    def remember(self, msg: Any, T_world_lidar: np.ndarray | None) -> None:
        """Take a cloud into the sweep history without detecting in it.

        Raises:
            InvalidFrame: If it cannot be decoded.
        """
        self._sweeps.push(decode(msg, config=self.config.input), T_world_lidar)

    def handle(
        self,
        msg: Any,
        T_world_lidar: np.ndarray | None,
        wanted: Collection[str],
        T_ego_lidar: np.ndarray | None = None,
    ) -> FrameResult:
        """Detect in one cloud.

        Args:
            msg: PointCloud2, of rclpy or rosbags; it is only read.
            T_world_lidar: (4, 4) float64 pose at its stamp; None without past sweeps.
            wanted: Names out of :data:`OUTPUTS`, and :data:`FINGERPRINT`; the others are not
                computed.
            T_ego_lidar: (4, 4) mounting of the sensor, turns the picture; None: its +x is up.

        Raises:
            InvalidFrame: If the cloud cannot be used; the next one can.
        """
        watch = _Stopwatch()
        cloud = decode(msg, config=self.config.input)
        decode_ms = watch.lap_ms()
        points = self._sweeps.push(cloud, T_world_lidar)
        sweeps_ms = watch.lap_ms()
        with_bev = not {"occupancy_grid", "grid_map"}.isdisjoint(wanted)
        found = self._pipeline.process(
            points, with_bev=with_bev, with_fingerprint=FINGERPRINT in wanted
        )
        process_ms = watch.lap_ms()
        messages = self._encode(cloud, found, points, wanted, T_ego_lidar)

        inner = found.report.stage_ms
        voxelize_ms, postprocess_ms = inner.get("voxelize", 0.0), inner.get("postprocess", 0.0)
        stage_ms = {
            "decode": decode_ms,
            "preprocess": sweeps_ms + voxelize_ms,
            "inference": process_ms - voxelize_ms - postprocess_ms,
            "postprocess": postprocess_ms,
            "publish": watch.lap_ms(),
            "total": watch.total_ms(),
        }
        return FrameResult(cloud, found, messages, stage_ms)

    def _encode(
        self,
        cloud: PointBatch,
        found: Detections,
        points: Any,
        wanted: Collection[str],
        T_ego_lidar: np.ndarray | None,
    ) -> dict[str, Any]:
        stamp_ns, frame_id = cloud.stamp_ns, cloud.frame_id
        header = make_header(stamp_ns, frame_id, message_class)
        encoders: dict[str, Callable[[], Any]] = {
            "detections": lambda: encode_detections(found, stamp_ns, frame_id, message_class),
            "objects": lambda: encode_objects(found, stamp_ns, frame_id, message_class),
            "markers": lambda: detection_markers(header, found),
            "occupancy_grid": lambda: grids.occupancy_grid(
                header, _bev(found), occupancy(_bev(found), self.config)
            ),
            "grid_map": lambda: grids.grid_map(header, _bev(found)),
            "bev_image": lambda: grids.rgb_image(
                header,
                render_bev_map(
                    points, T_ego_lidar=T_ego_lidar, detections=found, config=self.config
                ),
            ),
        }
        return {name: encoders[name]() for name in OUTPUTS if name in wanted}


def _bev(found: Detections) -> Any:
    assert found.bev is not None  # asked for with_bev
    return found.bev


class _Stopwatch:
    def __init__(self) -> None:
        self._start = self._lap = time.perf_counter()

    def lap_ms(self) -> float:
        last, self._lap = self._lap, time.perf_counter()
        return (self._lap - last) * 1e3

    def total_ms(self) -> float:
        return (self._lap - self._start) * 1e3
