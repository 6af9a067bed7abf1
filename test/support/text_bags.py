"""Bags of Strings whose text is their time: the smallest recordings that can be out of order."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from driveRT_ros.io.bag import BagMessage, BagReader, BagWriter
from driveRT_ros.io.typestore import message_type

STRING, CLOUD = "std_msgs/msg/String", "sensor_msgs/msg/PointCloud2"


def text(value: str) -> Any:
    """Return a std_msgs/msg/String."""
    return message_type(STRING)(data=value)


def write_texts(path: Path, times_ns: Iterable[int], topic: str = "/text", **options: Any) -> Path:
    """Write one String a time; its text is the time."""
    with BagWriter(path, **options) as writer:
        writer.add_topic(topic, STRING)
        for time_ns in times_ns:
            writer.write(topic, STRING, text(str(time_ns)), time_ns)
    return path


def read_all(path: Path, topics: Sequence[str] | None = None) -> list[BagMessage]:
    """Return every message of a bag."""
    with BagReader(path, topics) as reader:
        return list(reader)


def read_texts(path: Path) -> list[tuple[int, str]]:
    """Return log time and text of every message of a bag of Strings."""
    return [(m.log_time_ns, m.deserialize().data) for m in read_all(path)]


def split_bag(path: Path, parts: Sequence[Sequence[int]], storage: str = "mcap") -> Path:
    """Write a bag of Strings whose files are ``<name>_0``, ``<name>_1`` ... without metadata."""
    path.mkdir()
    suffix = "mcap" if storage == "mcap" else "db3"
    for number, times_ns in enumerate(parts):
        part = path.parent / f"part_{number}"
        write_texts(part, times_ns, storage=storage)
        (part / f"{part.name}.{suffix}").rename(path / f"{path.name}_{number}.{suffix}")
        shutil.rmtree(part)
    return path


def edit_metadata(path: Path, **changes: Any) -> None:
    """Overwrite keys of metadata.yaml."""
    file = path / "metadata.yaml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree["rosbag2_bagfile_information"].update(changes)
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
