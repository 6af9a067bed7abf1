"""Bags as a live system records them: clouds, transforms, detections and fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from driveRT_ros.commands.fresh_pass import fresh_frames, joined_clouds, make_pipeline
from driveRT_ros.commands.recorded_frames import DETECTIONS
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.fingerprint import FINGERPRINT, encode_fingerprint
from driveRT_ros.io.typestore import message_type
from test.support.bags import PERIOD_NS, START_NS, write_drive
from test.support.demo_files import tiny_network

NODE = "/lidar_node"
BOXES, MARKS = f"{NODE}/output/detections", f"{NODE}/debug/frame_fingerprint"


def stamps_ns(count: int) -> list[int]:
    return [START_NS + i * PERIOD_NS for i in range(count)]


def write_recorded(
    folder: Path, frames: int = 4, *, storage: str = "mcap", with_bev: bool = False
) -> Path:
    """Write ``<folder>/recorded`` and ``<folder>/network.yaml``; return the bag."""
    folder.mkdir(exist_ok=True)
    config = LidarConfig.from_yaml(tiny_network(folder))
    drive = write_drive(folder / "drive", frames, num_points=400, storage=storage)
    found = fresh_frames(
        joined_clouds(str(drive), "", config, print),
        make_pipeline(config),
        stamps_ns(frames),
        node=NODE,
        with_bev=with_bev,
    )
    out = folder / "recorded"
    with BagReader(drive) as reader, BagWriter(out, storage) as writer:
        for m in reader:
            writer.write(m.topic, m.type_name, m.raw, m.log_time_ns)
        for key, frame in found.frames.items():
            marks = encode_fingerprint(key.stamp_ns, frame.stages, message_type)
            writer.write(BOXES, DETECTIONS, frame.detections.raw, key.stamp_ns)
            writer.write(MARKS, FINGERPRINT, marks, key.stamp_ns)
    return out


def rewritten(bag: Path, out: Path, change: Callable[[str, int, bytes], bytes | None]) -> Path:
    """Copy a bag; ``change(topic, index within the topic, raw)`` returns bytes, or None to drop."""
    seen: dict[str, int] = {}
    with BagReader(bag) as reader, BagWriter(out) as writer:
        for m in reader:
            index = seen.get(m.topic, 0)
            seen[m.topic] = index + 1
            raw = change(m.topic, index, m.raw)
            if raw is not None:
                writer.write(m.topic, m.type_name, raw, m.log_time_ns)
    return out


def place_in_file(bag: Path, topic: str, index: int) -> tuple[Path, int, int]:
    """Return the mcap file, and where in it the bytes of a message begin and end."""
    with BagReader(bag, [topic]) as reader:
        raw = [m.raw for m in reader][index]
    (file,) = bag.glob("*.mcap")
    data = file.read_bytes()
    at = data.index(raw)
    assert data.count(raw) == 1
    return file, at, at + len(raw)


@contextmanager
def flipped(file: Path, at: int, mask: int) -> Iterator[None]:
    """Change one byte of a file, and change it back."""
    with file.open("r+b") as stream:

        def flip() -> None:
            stream.seek(at)
            (value,) = stream.read(1)
            stream.seek(at)
            stream.write(bytes([value ^ mask]))
            stream.flush()

        flip()
        try:
            yield
        finally:
            flip()
