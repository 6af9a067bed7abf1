"""From messages to the points that the detector takes: on the host, or by the GPU it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from driveRT_ros.core.config import InputConfig, LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import Detections, PointBatch
from driveRT_ros.core.gpu.unpack_points import UnpackedCloud
from driveRT_ros.core.raw_cloud import Cloud, CloudSummary, RawCloud, exact
from driveRT_ros.core.rows import rows_for
from driveRT_ros.core.sweeps import History, sweeps_for
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.raw_pointcloud import read_raw
from driveRT_ros.nodes.result import Stopwatch


class Posed(Protocol):
    """A message and its pose; see :class:`driveRT_ros.nodes.handler.PosedCloud`."""

    @property
    def msg(self) -> Any:
        """PointCloud2."""

    @property
    def T_world_lidar(self) -> np.ndarray | None:
        """(4, 4) pose at its stamp; None without past sweeps."""


@dataclass(frozen=True, eq=False)
class JoinedCloud:
    """A cloud that has entered the sweep history.

    Args:
        cloud: What was read of the message.
        points: Of it and of past sweeps.
        before: The history before it.
        decode_ms: Time of the host for reading it.
        join_ms: Likewise for joining it with past sweeps.
        early_ms: What of both was spent before its turn.
    """

    cloud: PointBatch | RawCloud
    points: Cloud
    before: History
    decode_ms: float
    join_ms: float
    early_ms: float = 0.0


class CloudInput:
    """Decode and accumulate.

    Beside a GPU the host looks at the layout of a message alone, and the GPU does the rest; what
    its values turn out to be, :meth:`settle` tells once the frame is through. There the next cloud
    can be sent ahead of its turn, while the GPU is at work on the one before.

    Args:
        config: Which past sweeps to join.
        device: Where sweeps are joined.

    Attributes:
        following: Returns the cloud that is certain to come next, where there is one.
    """

    def __init__(self, config: LidarConfig, device: torch.device) -> None:
        self._make_rows, self._unpacks = rows_for(device), device.type == "cuda"
        self._sweeps = sweeps_for(config.densification_params, device)
        self.following: Callable[[], Posed | None] = lambda: None
        self._ahead: tuple[Posed, History, JoinedCloud | Exception] | None = None

    def clear(self) -> None:
        """Forget past sweeps, and what was sent ahead."""
        self._ahead = None
        self._sweeps.clear()

    def join(self, item: Posed, config: InputConfig) -> JoinedCloud:
        """Add a cloud to the history, and return it together with those before it.

        Raises:
            InvalidFrame: If the cloud or its pose cannot be used; it is not kept.
        """
        if self._ahead is not None and self._ahead[0] is item:
            (_, _, found), self._ahead = self._ahead, None
            if isinstance(found, Exception):
                try:
                    raise found
                finally:
                    del found  # else it would hold itself, and the message
            return found
        self._recall()
        return self._joined(item, config)

    def run(
        self, joined: JoinedCloud, process: Callable[..., Detections], config: InputConfig
    ) -> Detections:
        """Process a cloud, and send the next one ahead meanwhile.

        Args:
            joined: What :meth:`join` returned last.
            process: As :meth:`driveRT_ros.core.pipeline.LidarPipeline.process`.
            config: How the next one is decoded.

        Raises:
            InvalidFrame: If the cloud cannot be used: as on the host, that comes before all else
                that ails its frame.
            Exception: Of ``process``, whatever it is; the next cloud does not depend on it.
        """
        try:
            return process(joined.points, meanwhile=lambda: self._send_ahead(config))
        except Exception:
            self._recall()
            self.settle(joined)
            raise

    def _send_ahead(self, config: InputConfig) -> None:
        """Join the cloud that comes next, whatever comes of it; its own turn tells.

        One that the host has to decode is left to its turn: the result at work would wait for it.
        """
        item, before = self.following(), self._sweeps.history()
        if item is None or not self._sweeps.unpacks(int(item.msg.height) * int(item.msg.width)):
            return
        try:
            found = self._joined(item, config)
            early_ms = found.decode_ms + found.join_ms
            self._ahead = item, before, replace(found, early_ms=early_ms)
        except Exception as error:
            self._ahead = item, before, error

    def _recall(self) -> None:
        """Undo :meth:`_send_ahead`: what comes before that cloud is not as it seemed."""
        if self._ahead is not None:
            self._sweeps.go_back(self._ahead[1])
            self._ahead = None

    def settle(self, joined: JoinedCloud) -> tuple[PointBatch | CloudSummary, torch.Tensor]:
        """Return what decoding found and the points; waits for the GPU where it is not through.

        Args:
            joined: What :meth:`join` returned last.

        Raises:
            InvalidFrame: If its values cannot be used; it is not kept.
        """
        cloud, points = joined.cloud, joined.points
        if isinstance(cloud, PointBatch):
            return cloud, exact(points)
        if not isinstance(points, UnpackedCloud):
            batch = cloud.decode()
            notes = (*batch.report.notes, "decoded_by_host")
            return replace(batch, report=replace(batch.report, notes=notes)), exact(points)
        try:
            return points.summary(), points.exact()
        except InvalidFrame:
            self._ahead = None
            self._sweeps.go_back(joined.before)
            raise

    def _joined(self, item: Posed, config: InputConfig) -> JoinedCloud:
        watch, before = Stopwatch(), self._sweeps.history()
        cloud: PointBatch | RawCloud
        points: Cloud
        if not self._unpacks:
            cloud = decode(item.msg, config=config, make_rows=self._make_rows)
            decode_ms = watch.lap_ms()
            points = self._sweeps.push(cloud, item.T_world_lidar)
            return JoinedCloud(cloud, points, before, decode_ms, watch.lap_ms())
        cloud = read_raw(item.msg, config, self._make_rows)
        decode_ms = watch.lap_ms()
        try:
            points = self._sweeps.push_raw(cloud, item.T_world_lidar)
        except InvalidFrame:  # perhaps of the host, where the GPU cannot decode
            self._sweeps.go_back(before)
            raise
        return JoinedCloud(cloud, points, before, decode_ms, watch.lap_ms())
