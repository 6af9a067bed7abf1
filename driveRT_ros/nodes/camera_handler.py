"""From one set of images to all messages about it: the one path of live topics and offline bags.

It knows neither nodes nor topics: images with their calibration go in, messages come out.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_images import check_frame
from driveRT_ros.core.camera_occupancy import camera_occupancy
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import CameraFrame, Detections
from driveRT_ros.io.camera import Undistorter, pinhole_frame
from driveRT_ros.io.camera_view import render_camera_map
from driveRT_ros.io.cdr import detections_cdr
from driveRT_ros.io.encode import encode_objects
from driveRT_ros.io.image import Pixels, decode_image
from driveRT_ros.nodes import grids
from driveRT_ros.nodes.camera_book import CameraBook, SetFaults
from driveRT_ros.nodes.image_set import ImageSet
from driveRT_ros.nodes.markers import detection_markers
from driveRT_ros.nodes.raw import message_class
from driveRT_ros.nodes.result import FINGERPRINT, FrameResult, Messages, Stopwatch

BOXES = {
    "detections": "vision_msgs/msg/Detection3DArray",
    "objects": "autoware_perception_msgs/msg/DetectedObjects",
    "markers": "visualization_msgs/msg/MarkerArray",
}
GRIDS = {
    "occupancy_grid": "nav_msgs/msg/OccupancyGrid",
    "grid_map": "grid_map_msgs/msg/GridMap",
    "bev_image": "sensor_msgs/msg/Image",
}

NOTE_TEXT = {
    "calibration_changed": "A calibration changed: the scatter map is built again.",
    "faulty_head_output": "The network gives numbers that are not usable; check the weights.",
}
"""What a note of a frame means for the user; other notes are only listed in the diagnostics."""


def outputs_of(config: CameraConfig) -> dict[str, str]:
    """Return message type by output name, in the order of publishing; no boxes without heads."""
    return {**(BOXES if config.model.network.heads else {}), **GRIDS}


class CameraHandler:
    """Decode, undistort, look, encode.

    Not thread-safe: one thread calls it, in the order of the sets; decoding uses more.

    Args:
        config: Everything the camera model takes.
        pipeline: The camera model, warmed up.
        book: Where it is written which images were used.
    """

    noun, notes_text = "camera set", NOTE_TEXT

    def __init__(self, config: CameraConfig, pipeline: CameraPipeline, book: CameraBook) -> None:
        self.config = config
        self._pipeline, self._book = pipeline, book
        self._undistorters = {name: Undistorter() for name in config.cameras}
        threads = min(len(config.cameras), config.num_threads or os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def reconfigure(self, config: CameraConfig) -> None:
        """Go on with other thresholds or another picture; weights and maps stay."""
        self._pipeline = self._pipeline.reconfigured(config)
        self.config = config

    def forget(self) -> None:
        """Forget past frames: there are none."""

    def remember(self, item: ImageSet) -> None:
        """Take a set into the history: there is none."""

    def handle(self, item: ImageSet, wanted: Collection[str]) -> FrameResult:
        """Look at one set of images.

        Args:
            item: Images and their calibrations.
            wanted: Names out of :func:`outputs_of`, and :data:`FINGERPRINT`; the others are not
                computed.

        Raises:
            InvalidFrame: If no image of the set can be used; the next set can.
        """
        watch, faults = Stopwatch(), SetFaults(self._book)
        decoded = self._decode(item, faults)
        decode_ms = watch.lap_ms()
        frames = self._frames(item, decoded, faults)
        if not frames:
            raise InvalidFrame(
                "No image of the set can be used. " + " ".join(faults.sentences.values()),
                code="no_usable_image",
            )
        undistort_ms = watch.lap_ms()
        found = self._pipeline.process(frames, with_fingerprint=FINGERPRINT in wanted)
        process_ms = watch.lap_ms()
        messages = self._encode(item, found, frames, wanted)

        inner = found.report.stage_ms
        prepare_ms = inner.get("images", 0.0) + inner.get("maps", 0.0)
        postprocess_ms = inner.get("postprocess", 0.0)
        stage_ms = {
            "decode": decode_ms,
            "preprocess": undistort_ms + prepare_ms,
            "inference": process_ms - prepare_ms - postprocess_ms,
            "postprocess": postprocess_ms,
            "publish": watch.lap_ms(),
            "total": watch.total_ms(),
        }
        left_out = Counter(found.report.dropped)
        left_out.update(faults.counts)
        return FrameResult(
            stamp_ns=item.stamp_ns,
            found=found,
            messages=messages,
            stage_ms=stage_ms,
            left_out=left_out,
            notes=found.report.notes,
            reached={"cameras": len(frames), "map_builds": self._pipeline.map_builds},
            faults=faults.sentences,
        )

    def _decode(self, item: ImageSet, faults: SetFaults) -> dict[str, Pixels]:
        """Return the pixels of every image that can be decoded."""

        def pixels(msg: Any) -> Pixels | InvalidFrame:
            try:
                return decode_image(msg)
            except InvalidFrame as error:
                return error

        results = self._threads.map(pixels, [image.msg for image in item.images.values()])
        good = {}
        for camera, result in zip(item.images, results):
            if isinstance(result, InvalidFrame):
                faults.add(camera, result)
            else:
                good[camera] = result
        return good

    def _frames(
        self, item: ImageSet, decoded: dict[str, Pixels], faults: SetFaults
    ) -> list[CameraFrame]:
        frames = []
        for camera, pixels in decoded.items():
            image = item.images[camera]
            try:
                frame = pinhole_frame(
                    camera, image.stamp_ns, pixels, image.intrinsics, image.T_ego_camera,
                    self._undistorters[camera],
                )  # fmt: skip
                check_frame(frame)
            except InvalidFrame as error:
                faults.add(camera, error)
                continue
            frames.append(frame)
            mounting = zlib.crc32(image.T_ego_camera.tobytes())
            self._book.used(camera, f"{image.intrinsics.hash}-{mounting:08x}")
        return frames

    def _encode(
        self,
        item: ImageSet,
        found: Detections,
        frames: Sequence[CameraFrame],
        wanted: Collection[str],
    ) -> Mapping[str, Any]:
        stamp_ns, frame_id, header, bev = item.stamp_ns, item.frame_id, item.header, found.bev
        assert bev is not None  # the camera pipeline always gives layers
        encoders: dict[str, Callable[[], Any]] = {
            "detections": lambda: detections_cdr(found, stamp_ns, frame_id),
            "objects": lambda: encode_objects(found, stamp_ns, frame_id, message_class),
            "markers": lambda: detection_markers(header, found),
            "occupancy_grid": lambda: grids.occupancy_grid(
                header, bev, camera_occupancy(found, self.config)
            ),
            "grid_map": lambda: grids.grid_map(header, bev),
            "bev_image": lambda: grids.rgb_image(
                header, render_camera_map(found, frames, self.config)
            ),
        }
        return Messages({name: make for name, make in encoders.items() if name in wanted})
