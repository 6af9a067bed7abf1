"""The output topics of a perception node; nothing is computed that nobody listens to."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from std_msgs.msg import Float64, Header, UInt32MultiArray

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.fingerprint import CLOUD_MSG, DETECTIONS_MSG
from driveRT_ros.io.cdr import cloud_crc32
from driveRT_ros.io.fingerprint import encode_fingerprint
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.raw import message_class
from driveRT_ros.nodes.result import FINGERPRINT, STAGES, FrameResult
from driveRT_ros.nodes.status import latency_percentiles

CYCLIC, PROCESSING, PIPELINE = "cyclic_time_ms", "processing_time_ms", "pipeline_latency_ms"
STAGE_TOPICS = {stage: f"processing_time/{stage}_ms" for stage in STAGES}
PERCENTILES = "latency_percentiles"


class Outputs:
    """Publishers of results and of debug values.

    Args:
        node: Owner of the publishers, whose ``output_qos`` they take; its clock tells the latency
            since the header stamp.
        outputs: Message type by output name.
        noun: What a frame is called; ``~/debug/dropped_<noun>`` names those without result.
    """

    def __init__(self, node: ManagedNode, outputs: Mapping[str, str], noun: str) -> None:
        self._node, profile = node, node.output_qos
        self._dropped = f"dropped_{noun.replace(' ', '_')}"
        self._results: dict[str, Any] = {}
        for name, type_name in outputs.items():
            try:
                kind = message_class(type_name)
            except ConfigError:
                if name != "objects":  # the one output whose package is optional
                    raise
                continue
            self._results[name] = node.create_publisher(kind, f"~/output/{name}", profile)
        kinds: dict[str, Any] = dict.fromkeys(
            (CYCLIC, PROCESSING, PIPELINE, *STAGE_TOPICS.values()), Float64
        )
        kinds |= {
            PERCENTILES: DiagnosticStatus,
            FINGERPRINT: UInt32MultiArray,
            self._dropped: Header,
        }
        self._debug = {
            name: node.create_publisher(
                kind, f"~/debug/{name}", profile, event_callbacks=qos.NO_EVENTS
            )
            for name, kind in kinds.items()
        }
        self._last_s: float | None = None

    def wanted(self) -> frozenset[str]:
        """Return the outputs that somebody listens to; the fingerprint is one of them."""
        outputs = {**self._results, FINGERPRINT: self._debug[FINGERPRINT]}
        return frozenset(n for n, p in outputs.items() if p.get_subscription_count() > 0)

    def publish(self, result: FrameResult) -> None:
        """Make and publish the messages of one frame, and complete ``publish`` and ``total`` times.

        Each goes out before the next one is made: detections wait for no picture. One that cannot
        be made when others are out is a fault beside them.

        Raises:
            Exception: Where the first cannot be made, whatever it is.
        """
        start_s = time.perf_counter()
        for number, name in enumerate(result.messages):
            try:
                msg = result.messages[name]
            except Exception as error:
                if number == 0:
                    raise
                result.faults[f"output {name}"] = (
                    f"Output '{name}' is left out, {type(error).__name__}: {error}"
                )
            else:
                self._results[name].publish(msg)
        spent_ms = (time.perf_counter() - start_s) * 1e3
        result.stage_ms["publish"] += spent_ms
        result.stage_ms["total"] += spent_ms

    def publish_debug(self, result: FrameResult, health: Health) -> None:
        """Publish times, percentiles and fingerprint of a frame that ``publish`` has sent."""
        now_s = time.monotonic()
        cyclic_ms = None if self._last_s is None else (now_s - self._last_s) * 1e3
        self._last_s = now_s
        now_ns = self._node.get_clock().now().nanoseconds
        values = {STAGE_TOPICS[stage]: result.stage_ms[stage] for stage in STAGES}
        values[PROCESSING] = result.stage_ms["total"]
        values[PIPELINE] = (now_ns - result.stamp_ns) / 1e6
        if cyclic_ms is not None:
            values[CYCLIC] = cyclic_ms
        for name, value in values.items():
            if self._debug[name].get_subscription_count() > 0:
                self._debug[name].publish(Float64(data=float(value)))
        if self._debug[PERCENTILES].get_subscription_count() > 0:
            name = self._node.get_name()
            self._debug[PERCENTILES].publish(latency_percentiles(name, health))
        if result.found.report.fingerprint:  # computed where somebody listens
            self._debug[FINGERPRINT].publish(fingerprint_message(result))

    def publish_dropped(self, header: Header) -> None:
        """Say that the frame with this header gets no result; called from any thread."""
        self._debug[self._dropped].publish(header)

    def destroy(self) -> None:
        """Remove every publisher."""
        for publisher in (*self._results.values(), *self._debug.values()):
            self._node.destroy_publisher(publisher)


def fingerprint_message(result: FrameResult) -> UInt32MultiArray:
    """Return the CRC-32 of every stage, those of the serialized cloud and detections included.

    Args:
        result: One frame, processed with fingerprint.
    """
    marks = {}
    if result.cloud is not None:
        marks[CLOUD_MSG] = cloud_crc32(result.cloud)
    if "detections" in result.messages:
        marks[DETECTIONS_MSG] = zlib.crc32(result.messages["detections"])
    marks |= result.found.report.fingerprint
    return encode_fingerprint(result.stamp_ns, marks, message_class)
