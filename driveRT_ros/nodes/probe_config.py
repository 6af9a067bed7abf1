"""What a latency probe is told, and what it measures; knows no ROS."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.latency import PERCENTILES, percentile
from driveRT_ros.core.schema import Config, param


@dataclass(frozen=True)
class ProbeConfig(Config):
    """Everything the latency probe takes."""

    clouds_path: str = param("", "Folder of serialized clouds, '*.cdr', published in turns.")
    node: str = param("lidar_node", "The node under test.")
    rate_hz: float = param(10.0, "Clouds a second.", unit="Hz", ge=0.1, le=1000.0)
    clouds: int = param(100, "Clouds to publish.", ge=1, le=1_000_000)
    warm_ups: int = param(3, "Clouds to wait for before anything is measured.", ge=1, le=100)
    frame_id: str = param("lidar", "Frame of the clouds.")
    world_frame_id: str = param("map", "Fixed frame; the sensor stands still in it.")
    wait_s: float = param(
        60.0, "How long to wait for the node, and for an answer to a first cloud.", unit="s", ge=0.1
    )
    settle_s: float = param(
        10.0, "After the last cloud: silence that ends the waiting for answers.", unit="s", ge=0.1
    )
    output_path: str = param("", "File for the result.")
    autostart: bool = param(True, "Configure and activate at start.")


@dataclass
class Tally:
    """What became of the clouds of a run, by stamp; times are steady nanoseconds.

    Args:
        sent_ns: When publishing began.
        answered_ns: When the detections arrived.
        dropped: Stamps that the node itself said it drops.
        publish_ns: How long publishing took.
        behind_s: By how much the sender fell behind its rate.
    """

    sent_ns: dict[int, int] = field(default_factory=dict)
    answered_ns: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    publish_ns: list[int] = field(default_factory=list)
    behind_s: float = 0.0

    @property
    def open(self) -> int:
        """Clouds of which nothing is known yet."""
        return sum(
            stamp not in self.answered_ns and stamp not in self.dropped for stamp in self.sent_ns
        )

    def result(self) -> dict[str, Any]:
        """Return counts, and milliseconds from publishing to detections."""
        answered = [stamp for stamp in self.sent_ns if stamp in self.answered_ns]
        latencies = [(self.answered_ns[stamp] - self.sent_ns[stamp]) / 1e6 for stamp in answered]
        dropped = sum(s in self.dropped and s not in self.answered_ns for s in self.sent_ns)
        return {
            "sent": len(self.sent_ns),
            "answered": len(answered),
            "dropped": dropped,
            "lost": len(self.sent_ns) - len(answered) - dropped,
            "behind_s": round(self.behind_s, 3),
            "latency_ms": percentiles(latencies),
            "publish_ms": percentiles([ns / 1e6 for ns in self.publish_ns]),
        }


def percentiles(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return p50, p95, p99 and maximum; None where nothing was measured, as JSON has it."""
    found: dict[str, float | int | None] = {}
    for name, value in (
        *((f"p{p}", percentile(values, p)) for p in PERCENTILES),
        ("max", max(values, default=math.nan)),
    ):
        found[name] = round(value, 3) if math.isfinite(value) else None
    return {**found, "n": len(values)}


def load_clouds(folder: str) -> list[bytes]:
    """Return the serialized clouds of a folder, in the order of their names.

    Raises:
        ConfigError: If there is none.
    """
    clouds = [path.read_bytes() for path in sorted(Path(folder).glob("*.cdr"))] if folder else []
    if not clouds:
        raise ConfigError(f"Parameter 'clouds_path' '{folder}' holds no '*.cdr' files.")
    return clouds


def stamped(raw: bytes, stamp_ns: int) -> bytes:
    """Return a serialized message that starts with a header, with another stamp.

    Args:
        raw: CDR with its four-byte encapsulation.
        stamp_ns: Integer nanoseconds.
    """
    layout = "<iI" if raw[1] & 1 else ">iI"
    return raw[:4] + struct.pack(layout, *divmod(stamp_ns, 1_000_000_000)) + raw[12:]


def write_result(result: dict[str, Any], path: str) -> None:
    """Write a result; readers see the whole file or none."""
    partial = Path(f"{path}.part")
    partial.write_text(json.dumps(result), encoding="utf-8")
    os.replace(partial, path)
