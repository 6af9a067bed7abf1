"""From one cloud to all messages about it: the one path of live topics and offline bags.

It knows neither nodes nor topics: a cloud and its pose go in, messages come out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.bev_grid import occupancy
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections, PointBatch
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import CloudSummary
from driveRT_ros.io.cdr import detections_cdr
from driveRT_ros.io.encode import encode_objects
from driveRT_ros.io.messages import make_header
from driveRT_ros.io.nvdb_frames import GridFiles
from driveRT_ros.io.render import render_bev_map
from driveRT_ros.nodes import grids
from driveRT_ros.nodes.cloud_input import CloudInput
from driveRT_ros.nodes.lidar_result import lidar_result
from driveRT_ros.nodes.markers import detection_markers
from driveRT_ros.nodes.mounting import mounting_fault
from driveRT_ros.nodes.raw import message_class
from driveRT_ros.nodes.result import FINGERPRINT, FrameResult, Messages, Stopwatch

OUTPUTS = {
    "detections": "vision_msgs/msg/Detection3DArray",
    "objects": "autoware_perception_msgs/msg/DetectedObjects",
    "markers": "visualization_msgs/msg/MarkerArray",
    "occupancy_grid": "nav_msgs/msg/OccupancyGrid",
    "grid_map": "grid_map_msgs/msg/GridMap",
    "bev_image": "sensor_msgs/msg/Image",
}
"""Message type by output name, in the order of publishing: results before pictures."""

NOTE_TEXT = {
    "intensity_missing": "The clouds have no intensity; input.default_intensity stands in for it.",
    "intensity_out_of_range": "Intensities exceed input.intensity_clip; set input.intensity_scale.",
    "intensity_looks_like_0_to_1": "Intensities look like 0..1; set input.intensity_scale to 255.",
    "stamp_zero": "The clouds are stamped 0; the driver should stamp them.",
    "default_frame_id": "The clouds name no frame; input.default_frame_id stands in for it.",
    "decoded_by_host": "The GPU cannot decode these clouds, or has failed: the slower host does.",
    "precision_not_qualified": "Nobody compared this precision with fp32; 'drivert qualify' does.",
    "faulty_head_output": "The network gives numbers that are not usable; check the weights.",
}
"""What a note of a frame means for the user; other notes are only listed in the diagnostics."""

_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class PosedCloud:
    """One cloud and where it was taken.

    Args:
        msg: PointCloud2, of rclpy or rosbags; it is only read.
        T_world_lidar: (4, 4) float64 pose at its stamp; None without past sweeps.
        T_ego_lidar: (4, 4) mounting of the sensor, turns the picture; None: its +x is up.
    """

    msg: Any
    T_world_lidar: np.ndarray | None = None
    T_ego_lidar: np.ndarray | None = None

    @property
    def header(self) -> Any:
        """Header of the cloud."""
        return self.msg.header


class LidarHandler:
    """Decode, accumulate, detect, encode.

    Not thread-safe: one thread calls it, in the order of the clouds.

    Args:
        config: Everything the detector takes.
        pipeline: The detector, warmed up.
        device: Where clouds are decoded and joined; the pipeline takes them from anywhere.
        name: Of the node, for names of files.
    """

    noun, notes_text = "cloud", NOTE_TEXT

    def __init__(
        self,
        config: LidarConfig,
        pipeline: LidarPipeline,
        device: torch.device = _CPU,
        name: str = "",
    ) -> None:
        self.config = config
        self._pipeline, self._input = pipeline, CloudInput(config, device)
        self.grid_files = GridFiles(name)

    def look_ahead(self, following: Callable[[], PosedCloud | None]) -> None:
        """Ask for the cloud that is certain to come next, while a GPU is at work on this one."""
        self._input.following = following

    def reconfigure(self, config: LidarConfig) -> None:
        """Go on with other thresholds, grid or mounting; weights and history stay."""
        self._pipeline = self._pipeline.reconfigured(config)
        self.config = config

    def forget(self) -> None:
        """Forget past sweeps, as after a jump of time."""
        self._input.clear()

    def remember(self, item: PosedCloud) -> None:
        """Take a cloud into the sweep history without detecting in it.

        Raises:
            InvalidFrame: If it cannot be decoded.
        """
        self._input.settle(self._input.join(item, self.config.input))

    def handle(self, item: PosedCloud, wanted: Collection[str]) -> FrameResult:
        """Detect in one cloud.

        Args:
            item: The cloud and its pose.
            wanted: Names out of :data:`OUTPUTS`, and :data:`FINGERPRINT`; the others are not
                computed.

        Raises:
            InvalidFrame: If the cloud cannot be used; the next one can.
        """
        watch = Stopwatch()
        joined = self._input.join(item, self.config.input)
        watch.lap_ms()
        found = self._input.run(joined, self._detector(wanted), self.config.input)
        process_ms = watch.lap_ms()
        cloud, points = self._input.settle(joined)
        messages = self._encode(cloud, found, points, wanted, item.T_ego_lidar)

        inner = found.report.stage_ms
        voxelize_ms, postprocess_ms = inner.get("voxelize", 0.0), inner.get("postprocess", 0.0)
        stage_ms = {
            "decode": joined.decode_ms,
            "preprocess": joined.join_ms + voxelize_ms,
            "inference": process_ms - voxelize_ms - postprocess_ms,
            "postprocess": postprocess_ms,
            "publish": watch.lap_ms(),
            "total": watch.total_ms() + joined.early_ms,
        }
        faults = self.grid_files.frame(cloud.stamp_ns, points, self.config)
        faults |= mounting_fault(self.config, item.T_ego_lidar)
        return lidar_result(item.msg, cloud, found, messages, stage_ms, faults)

    def _detector(self, wanted: Collection[str]) -> Callable[..., Detections]:
        return functools.partial(
            self._pipeline.process,
            with_bev=not {"occupancy_grid", "grid_map"}.isdisjoint(wanted),
            with_fingerprint=FINGERPRINT in wanted,
            with_sparsity=self.config.diagnostics.sparsity,
        )

    def _encode(
        self,
        cloud: PointBatch | CloudSummary,
        found: Detections,
        points: torch.Tensor,
        wanted: Collection[str],
        T_ego_lidar: np.ndarray | None,
    ) -> Mapping[str, Any]:
        stamp_ns, frame_id = cloud.stamp_ns, cloud.frame_id
        header = functools.cache(lambda: make_header(stamp_ns, frame_id, message_class))
        encoders: dict[str, Callable[[], Any]] = {
            "detections": lambda: detections_cdr(found, stamp_ns, frame_id),
            "objects": lambda: encode_objects(found, stamp_ns, frame_id, message_class),
            "markers": lambda: detection_markers(header(), found),
            "occupancy_grid": lambda: grids.occupancy_grid(
                header(), _bev(found), occupancy(_bev(found), self.config)
            ),
            "grid_map": lambda: grids.grid_map(header(), _bev(found)),
            "bev_image": lambda: grids.rgb_image(
                header(),
                render_bev_map(
                    points, T_ego_lidar=T_ego_lidar, detections=found, config=self.config
                ),
            ),
        }
        return Messages({name: encoders[name] for name in OUTPUTS if name in wanted})


def _bev(found: Detections) -> Any:
    assert found.bev is not None  # asked for with_bev
    return found.bev
