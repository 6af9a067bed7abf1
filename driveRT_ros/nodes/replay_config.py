"""What a replay is told, and what it tells afterwards; knows no ROS."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from driveRT_ros.core.schema import Config, param

TF, TF_STATIC = "/tf", "/tf_static"


@dataclass(frozen=True)
class ReplayConfig(Config):
    """Everything the replay node takes."""

    bag_path: str = param("", "The rosbag2 folder or storage file to play.")
    topics: tuple[str, ...] = param((), "Topics to play; empty plays all of them.")
    cloud_topic: str = param("", "The point cloud that paces the replay; empty: the only one.")
    rate: float = param(
        1.0, "Speed: 1 is sensor rate, 0 is as fast as the consumer allows.", ge=0.0, le=1000.0
    )
    start_offset_s: float = param(0.0, "Skip this much of the bag.", unit="s", ge=0.0)
    max_clouds: int = param(0, "Stop after this many clouds; 0 plays all.", ge=0)
    loop: bool = param(False, "Start again at the end; the clock jumps back.")
    passes: int = param(0, "With loop: stop after this many passes; 0 never stops.", ge=0)
    clock_hz: float = param(100.0, "Rate of /clock; 0 publishes no clock.", ge=0.0, le=1000.0)
    reliability: str = param(
        "reliable",
        "Reliability offered on the sensor topics.",
        choices=("best_effort", "reliable"),
    )
    wait_for_subscriber_s: float = param(
        30.0,
        "How long to wait for a subscriber of the cloud before playing; 0 does not wait.",
        unit="s",
        ge=0.0,
    )
    min_subscribers: int = param(1, "Subscribers of the cloud to wait for.", ge=1, le=100)
    lockstep_topic: str = param(
        "", "Topic on which the consumer answers each cloud with its header; empty: free running."
    )
    lockstep_dropped_topic: str = param(
        "",
        "Topic on which the consumer names, by header, the clouds it will not answer; empty: such "
        "clouds are given up after lockstep_timeout_s.",
    )
    lockstep_images_topic: str = param(
        "",
        "Topic on which the consumer of the images answers each set of them with its newest stamp; "
        "empty: images are not waited for.",
    )
    lockstep_images_dropped_topic: str = param(
        "", "Topic on which that consumer names the sets it will not answer."
    )
    lockstep_depth: int = param(1, "Clouds that may be without answer.", ge=1, le=1000)
    lockstep_timeout_s: float = param(
        60.0, "An answer later than this is given up and counted.", unit="s", ge=0.1
    )
    autostart: bool = param(True, "Configure and activate at start.")


@dataclass
class ReplayReport:
    """What was played: messages by topic, clouds, passes, and clouds that got no detections."""

    published: Counter[str] = field(default_factory=Counter)
    clouds: int = 0
    passes: int = 0
    dropped: int = 0
    unanswered_stamps_ns: list[int] = field(default_factory=list)
    behind_s: float = 0.0
    wall_s: float = 0.0

    def sentence(self) -> str:
        """Return the summary for people."""
        text = (
            f"Played {sum(self.published.values())} messages ({self.clouds} clouds) on "
            f"{len(self.published)} topics in {self.wall_s:.1f} s, "
            f"{self.passes} pass{'es' if self.passes != 1 else ''}"
        )
        if self.behind_s >= 0.1:
            text += f"; waited {self.behind_s:.1f} s for the consumer"
        if self.dropped:
            text += f"; {self.dropped} clouds were dropped by the consumer"
        if self.unanswered_stamps_ns:
            text += f"; {len(self.unanswered_stamps_ns)} clouds got no answer"
        return text + "."
