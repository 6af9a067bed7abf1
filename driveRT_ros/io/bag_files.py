"""The files of one rosbag2: which there are, what metadata says, and each as a time-ordered source.

``rosbags`` reads single files and their compression. What is added here: folders without
metadata.yaml, files in the order of their start, files that are damaged or lack an index.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag2 import Reader

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.yaml_text import read_yaml
from driveRT_ros.io.mcap_scan import McapScan

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_log = logging.getLogger(__name__)

STORAGE_SUFFIXES = (".mcap", ".db3")
ZSTD_SUFFIXES = (".zstd", ".zst")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # no CDR message starts so: its second byte is 0, 1 or a few more

CANONICAL = ("cdr", "canonical")
"""Custom data in metadata.yaml of a bag whose messages have zeros between their fields."""

_FORMATS = {"ros2msg": MessageDefinitionFormat.MSG, "ros2idl": MessageDefinitionFormat.IDL}


@dataclass(frozen=True)
class Topic:
    """A topic as one file knows it."""

    name: str
    type_name: str
    count: int
    definition: MessageDefinition


@dataclass
class Source:
    """One readable storage file.

    Args:
        name: File name, for messages.
        topics: Topics in the file, also those without messages.
        start_ns: Log time of the first message; None without messages.
        end_ns: Log time of the last message; None without messages.
        read: ``read(topics, start_ns, stop_ns)`` yields topic, type name, log time and CDR bytes in
            time order.
        damage: Sentence about what could not be read, or empty.
    """

    name: str
    topics: list[Topic]
    start_ns: int | None
    end_ns: int | None
    read: Callable[..., Iterator[tuple[str, str, int, bytes]]]
    damage: str = ""


@dataclass
class BagFolder:
    """Files of a bag and what metadata.yaml says about topics.

    Args:
        files: Existing storage files, in the order of metadata or of their names.
        declared: Type by topic of metadata.yaml; knows topics without messages too.
        warnings: Sentences about what is missing.
        is_partial: Whether a listed file is missing.
        has_metadata: Whether the list of files is that of metadata.yaml.
        is_canonical: Whether metadata.yaml says :data:`CANONICAL`.
    """

    files: list[Path]
    declared: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    is_partial: bool = False
    has_metadata: bool = False
    is_canonical: bool = False


def find_files(path: Path) -> BagFolder:
    """List the storage files of a bag folder or of a single file.

    Raises:
        ConfigError: If there is no storage file at ``path``.
    """
    if not path.exists():
        raise ConfigError(f"Bag '{path}' does not exist.")
    if path.is_file():
        if not _is_storage(path):
            raise ConfigError(f"'{path}' is not a bag: its name must end in .mcap or .db3.")
        return BagFolder([path])
    if not path.is_dir():
        raise ConfigError(f"'{path}' is no bag: it is neither a folder nor a file.")
    found = sorted(p for p in path.iterdir() if p.is_file() and _is_storage(p))
    metadata, problem = _metadata(path / "metadata.yaml")
    if metadata is None:
        folder = BagFolder(found)
        folder.warnings.append(
            f"Bag '{path}' {problem}; its storage files are read without it. "
            "'ros2 bag reindex' writes a new one."
        )
    else:
        folder = _listed_files(path, metadata)
        known = {_plain_name(file.name) for file in folder.files}
        unlisted = [file for file in found if _plain_name(file.name) not in known]
        if not folder.files:
            folder.files, folder.has_metadata = found, False
        elif unlisted:
            folder.warnings.append(
                f"Bag '{path}' holds '{unlisted[0].name}', which its metadata.yaml does not list; "
                "it is not read. 'ros2 bag reindex' lists all files."
            )
    if not folder.files:
        inside = sorted({p.parent for p in path.glob("*/*") if _is_storage(p)})
        hint = f" Did you mean '{inside[0]}'?" if inside else ""
        raise ConfigError(f"Bag '{path}' holds no .mcap or .db3 file.{hint}")
    return folder


def _plain_name(name: str) -> str:
    return name.removesuffix(".zstd").removesuffix(".zst")


def _is_storage(path: Path) -> bool:
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in ZSTD_SUFFIXES:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1] in STORAGE_SUFFIXES


def _metadata(path: Path) -> tuple[dict[str, Any] | None, str]:
    if not path.exists():
        return None, "has no metadata.yaml"
    try:
        tree = read_yaml(path, "File")["rosbag2_bagfile_information"]
        # touch what is used, so that a damaged file is found out here
        {t["topic_metadata"]["name"]: t["topic_metadata"]["type"] for t in _topics(tree)}
        list(tree["relative_file_paths"])
        return tree, ""
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, ConfigError) else repr(error)
        return None, f"has a metadata.yaml that cannot be used ({reason.rstrip('.')})"


def _topics(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    return metadata.get("topics_with_message_count") or []


def _listed_files(path: Path, metadata: dict[str, Any]) -> BagFolder:
    declared = {t["topic_metadata"]["name"]: t["topic_metadata"]["type"] for t in _topics(metadata)}
    custom = metadata.get("custom_data") or {}
    canonical = isinstance(custom, dict) and custom.get(CANONICAL[0]) == CANONICAL[1]
    folder = BagFolder([], declared, has_metadata=True, is_canonical=canonical)
    for listed in metadata["relative_file_paths"]:
        # older writers list 'bag/bag_0.mcap.zstd' from inside the folder 'bag'
        name = PurePosixPath(str(listed)).name
        stem = _plain_name(name)
        candidates = [path / n for n in (name, stem, stem + ".zstd", stem + ".zst")]
        existing = next((p for p in candidates if p.exists()), None)
        if existing is None:
            folder.is_partial = True
            folder.warnings.append(f"Bag '{path}' lacks the file '{name}' that it lists.")
        else:
            folder.files.append(existing)
    return folder


def open_source(path: Path, stack: ExitStack) -> Source:
    """Open one storage file, whole, damaged or without index.

    Args:
        path: The file, possibly zstd-compressed as a whole.
        stack: Closes what is opened.

    Raises:
        ConfigError: If nothing of it can be read.
    """
    damage = ""
    name = path.name
    if path.suffix in ZSTD_SUFFIXES:
        path, damage = _unpacked(path, stack)
    try:
        reader = Reader(path)
        reader.open()
    except Exception as error:  # damaged bytes make storages raise any kind
        if path.suffix == ".mcap":
            return _scanned(name, path, damage)
        raise ConfigError(f"Bag file '{path}' cannot be read: {error}") from None
    if path.suffix == ".mcap" and reader.message_count and not getattr(reader.storage, "chunks", 1):
        reader.close()
        return _scanned(name, path, damage)  # no index: time order is not assured
    stack.callback(reader.close)
    return _indexed(name, reader, damage)


def _unpacked(path: Path, stack: ExitStack) -> tuple[Path, str]:
    folder = stack.enter_context(TemporaryDirectory(prefix="drivert_bag_"))
    out = Path(folder) / path.stem
    with out.open("wb") as plain:
        try:
            with zstd.open(path, "rb") as packed:
                shutil.copyfileobj(packed, plain)
        except (zstd.ZstdError, EOFError) as error:
            return out, f"is compressed, and breaks off after {plain.tell()} bytes ({error})"
    return out, ""


def _indexed(name: str, reader: Reader, damage: str) -> Source:
    def read(
        topics: Collection[str], start_ns: int | None, stop_ns: int | None
    ) -> Iterator[tuple[str, str, int, bytes]]:
        chosen = [c for c in reader.connections if c.topic in topics]
        if not chosen:  # rosbags takes an empty selection as everything
            return
        count = 0
        try:
            for connection, log_time_ns, raw in reader.messages(chosen, start_ns, stop_ns):
                count += 1
                yield connection.topic, connection.msgtype, log_time_ns, _plain(raw)
        except Exception as error:  # storages raise their own kinds
            raise ConfigError(
                f"Bag file '{name}' is damaged inside ({error}); 'ros2 bag convert' may save the "
                "rest."
            ) from error
        announced = sum(c.msgcount for c in chosen)
        if start_ns is None and stop_ns is None and count != announced:
            _log.warning(
                f"Bag file '{name}' announces {announced} messages, but {count} were found: its "
                "index is damaged. 'ros2 bag convert' may save the rest."
            )

    topics = [Topic(c.topic, c.msgtype, c.msgcount, c.msgdef) for c in reader.connections]
    damage = damage and f"Bag file '{name}' {damage}."
    if not reader.message_count:
        return Source(name, topics, None, None, read, damage)
    return Source(name, topics, reader.start_time, reader.end_time - 1, read, damage)


def _scanned(name: str, path: Path, damage: str) -> Source:
    scan = McapScan(path)
    problems = [p for p in (damage, scan.damage) if p]
    if problems and not scan.channels:
        raise ConfigError(f"Bag file '{path}' cannot be read: it {problems[-1]}.")
    channels = {k: c for k, c in scan.channels.items() if c.encoding == "cdr"}
    counts = dict.fromkeys(channels, 0)
    for entry in scan.entries:
        if entry.channel_id in counts:
            counts[entry.channel_id] += 1

    def read(
        topics: Collection[str], start_ns: int | None, stop_ns: int | None
    ) -> Iterator[tuple[str, str, int, bytes]]:
        for channel_id, log_time_ns, raw in scan.messages():
            channel = channels.get(channel_id)
            if channel is None or channel.topic not in topics:
                continue
            if start_ns is not None and log_time_ns < start_ns:
                continue
            if stop_ns is not None and log_time_ns >= stop_ns:
                return
            yield channel.topic, channel.type_name, log_time_ns, _plain(raw)

    topics = [
        Topic(
            c.topic,
            c.type_name,
            counts[k],
            MessageDefinition(
                _FORMATS.get(c.schema_encoding, MessageDefinitionFormat.NONE), c.schema
            ),
        )
        for k, c in channels.items()
    ]
    times = [e.log_time_ns for e in scan.entries if e.channel_id in channels]
    text = ""
    if problems:
        text = (
            f"Bag file '{name}' {problems[-1]}; the {len(times)} messages of "
            f"{scan.num_chunks} whole chunks before that are read."
        )
    return Source(name, topics, min(times, default=None), max(times, default=None), read, text)


def _plain(raw: bytes) -> bytes:
    """Undo per-message compression, told by its magic: metadata may be missing."""
    return zstd.decompress(raw) if raw[:4] == ZSTD_MAGIC else raw
