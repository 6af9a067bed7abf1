"""rosbag2 without ROS: sqlite3 and mcap, split, compressed, damaged; messages in time order."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rosbags.interfaces import (
    Connection,
    MessageDefinition,
    MessageDefinitionFormat,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import (
    CompressionFormat,
    CompressionMode,
    StoragePlugin,
    Writer,
    WriterError,
)
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.bag_files import CANONICAL, Source, find_files, open_source
from driveRT_ros.io.typestore import canonical_cdr, serialize, typestore

_log = logging.getLogger(__name__)

GAP_NS = 1_000_000_000
"""Silence between two files of a bag from which it is reported."""


@dataclass(frozen=True)
class BagMessage:
    """One recorded message.

    Args:
        topic: Topic name.
        type_name: ``package/msg/Name``.
        log_time_ns: When it was recorded, integer nanoseconds.
        raw: CDR bytes with encapsulation header.
        store: Where the bag defines the type; None for the common store.
    """

    topic: str
    type_name: str
    log_time_ns: int
    raw: bytes
    store: Typestore | None = field(default=None, repr=False, compare=False)

    def deserialize(self) -> Any:
        """Return the message as an object with the fields of its type.

        Raises:
            ConfigError: If neither the bag nor this package knows the type.
            InvalidFrame: If the bytes are damaged.
        """
        store = self.store or typestore()
        if self.type_name not in store.types:
            raise ConfigError(
                f"Message type '{self.type_name}' of topic '{self.topic}' is unknown, and the bag "
                "does not define it."
            )
        try:
            return store.deserialize_cdr(self.raw, self.type_name)
        except Exception as error:  # damaged bytes make it raise any kind
            raise InvalidFrame(f"The bytes of '{self.topic}' are damaged: {error}.") from None


class BagReader:
    """Read a rosbag2 folder or storage file; iterating yields messages in order of log time.

    What is wrong with the bag but can be lived with is logged once as a warning and kept in
    ``warnings``; ``partial`` tells that messages are missing.

    Args:
        path: Folder or .mcap or .db3 file.
        topics: Topics to read; None for all.

    Attributes:
        topics: Type name by topic, also of topics without messages.
        message_counts: Messages by topic.
        start_ns: Log time of the first message of any topic, or None.
        end_ns: Log time of the last one, or None.
        partial: Whether part of the bag could not be read.
        canonical: Whether its writer said that all bytes between fields are zero.
        warnings: Sentences about that and other oddities.
    """

    def __init__(self, path: str | Path, topics: Sequence[str] | None = None) -> None:
        self.path = Path(path)
        self.topics: dict[str, str] = {}
        self.message_counts: dict[str, int] = {}
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.partial = self.canonical = False
        self.warnings: list[str] = []
        self._wanted = None if topics is None else list(topics)
        self._stack = ExitStack()
        self._sources: list[Source] = []
        self._store = typestore()

    def __enter__(self) -> BagReader:
        """Open the files.

        Raises:
            ConfigError: If there is no readable bag, or a wanted topic is not in it.
        """
        with ExitStack() as stack:
            folder = find_files(self.path)
            self.partial, self.canonical = folder.is_partial, folder.is_canonical
            for text in folder.warnings:
                self._warn(text)
            sources = [open_source(file, stack) for file in folder.files]
            self._sources = sorted(
                (s for s in sources if s.start_ns is not None), key=lambda s: s.start_ns or 0
            )
            self._collect_topics(sources, folder.declared)
            self._check_sources(sources, folder.has_metadata)
            self._store = _store_for(sources, self._warn)
            for topic in self._wanted or ():
                self._check_topic(topic)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        """Close the files."""
        self._stack.close()
        self._sources = []
        return False

    def __iter__(self) -> Iterator[BagMessage]:
        return self.messages()

    def messages(
        self,
        topics: Sequence[str] | None = None,
        *,
        start_ns: int | None = None,
        stop_ns: int | None = None,
    ) -> Iterator[BagMessage]:
        """Yield messages in order of log time; equal times in the order of the file.

        Args:
            topics: Topics to read, in place of those given to the reader.
            start_ns: First log time to yield.
            stop_ns: First log time not to yield any more.

        Raises:
            ConfigError: If a topic is not in the bag.
        """
        wanted = self._wanted if topics is None else list(topics)
        for topic in wanted or ():
            self._check_topic(topic)
        names = set(self.topics if wanted is None else wanted)
        streams = [source.read(names, start_ns, stop_ns) for source in self._sources]
        for topic, type_name, log_time_ns, raw in heapq.merge(*streams, key=lambda m: m[2]):
            yield BagMessage(topic, type_name, log_time_ns, raw, self._store)

    def topics_of_type(self, type_name: str) -> list[str]:
        """Return the names of all topics of one type, sorted, whether or not they have messages."""
        return sorted(name for name, kind in self.topics.items() if kind == type_name)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning(text)

    def _check_topic(self, topic: str) -> None:
        if topic not in self.topics:
            listed = ", ".join(f"{t} ({k})" for t, k in sorted(self.topics.items())) or "none"
            raise ConfigError(
                f"Bag '{self.path}' has no topic '{topic}'; its topics are: {listed}."
            )

    def _collect_topics(self, sources: Sequence[Source], declared: dict[str, str]) -> None:
        self.topics = dict(declared)
        self.message_counts = dict.fromkeys(declared, 0)
        for topic in (t for s in sources for t in s.topics):
            self.topics.setdefault(topic.name, topic.type_name)
            self.message_counts[topic.name] = self.message_counts.get(topic.name, 0) + topic.count

    def _check_sources(self, sources: Sequence[Source], has_metadata: bool) -> None:
        for damage in (s.damage for s in sources if s.damage):
            self.partial = True
            self._warn(damage)
        numbers = sorted(n for s in sources if (n := _split_number(s.name)) is not None)
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers)) if numbers else []
        if missing and not has_metadata:
            self.partial = True
            self._warn(
                f"Bag '{self.path}' seems to lack split {', '.join(map(str, missing))} of "
                f"{numbers[0]} to {numbers[-1]}."
            )
        for before, after in zip(self._sources, self._sources[1:]):
            between = (after.start_ns or 0) - (before.end_ns or 0)
            if between < 0 or between > GAP_NS:
                what = "overlap" if between < 0 else "leave a gap"
                self._warn(
                    f"Bag files '{before.name}' and '{after.name}' {what} of "
                    f"{abs(between) * 1e-9:.3f} s."
                )
        if self._sources:
            self.start_ns = self._sources[0].start_ns
            self.end_ns = max(s.end_ns or 0 for s in self._sources)


def _split_number(name: str) -> int | None:
    match = re.search(r"_(\d+)\.(?:mcap|db3)", name)
    return int(match.group(1)) if match else None


def _store_for(sources: Sequence[Source], warn: Callable[[str], None]) -> Typestore:
    """Return a store with the definitions in the bag, or the common one where they agree.

    Definitions in a bag come first: its bytes were written with them. One that cannot be read is
    as good as none.
    """
    common, recorded = typestore(), {}
    definitions: dict[str, MessageDefinition] = {
        t.type_name: t.definition for s in sources for t in s.topics
    }
    for name, definition in sorted(definitions.items()):
        try:
            recorded.update(_parsed(name, definition))
        except Exception as error:  # damaged text makes the parser raise any kind
            warn(
                f"The bag defines message type '{name}' in a way that cannot be read "
                f"({type(error).__name__}); the definition of this package is used."
            )
    if all(common.fielddefs.get(n, (0, 0))[1] == fields for n, (_, fields) in recorded.items()):
        return common
    store = get_typestore(Stores.EMPTY)
    store.register({**common.fielddefs, **recorded})
    return store


def _parsed(name: str, definition: MessageDefinition) -> dict[str, Any]:
    if definition.format == MessageDefinitionFormat.MSG:
        return get_types_from_msg(definition.data, name)
    if definition.format == MessageDefinitionFormat.IDL:
        parts = re.split(r"^={80}\nIDL: .*\n", definition.data, flags=re.MULTILINE)
        return {k: v for part in parts if part.strip() for k, v in get_types_from_idl(part).items()}
    return {}


class BagWriter:
    """Write a rosbag2 folder that any ROS 2 tool plays; same messages, same bytes.

    Args:
        path: Folder to create; it must not exist.
        storage: ``mcap`` or ``sqlite3``.
        compression: ``none``, ``chunk`` (mcap only), ``message`` or ``file``; always zstd.
    """

    def __init__(
        self,
        path: str | Path,
        storage: str = "mcap",
        *,
        compression: str = "none",
    ) -> None:
        self.path = Path(path)
        modes = {
            "none": CompressionMode.NONE,
            "chunk": CompressionMode.STORAGE,
            "message": CompressionMode.MESSAGE,
            "file": CompressionMode.FILE,
        }
        plugins = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}
        for name, value, known in (
            ("storage", storage, plugins),
            ("compression", compression, modes),
        ):
            if value not in known:
                raise ConfigError(f"Bag {name} must be one of {', '.join(known)}, got '{value}'.")
        if (storage, compression) == ("sqlite3", "chunk"):
            raise ConfigError("Bag compression 'chunk' needs storage 'mcap'; use 'message'.")
        try:
            # version 8 is read by every release since Iron; Jazzy and later also write 9
            self._writer = Writer(self.path, version=8, storage_plugin=plugins[storage])
        except WriterError as error:
            raise ConfigError(str(error)) from None
        self._writer.set_custom_data(*CANONICAL)
        self._writer.set_compression(modes[compression], CompressionFormat.ZSTD)
        self._connections: dict[str, Connection] = {}
        self._stores: dict[str, Typestore] = {}

    def __enter__(self) -> BagWriter:
        """Create the folder.

        Raises:
            ConfigError: If it exists or cannot be made.
        """
        try:
            self._writer.open()
        except (WriterError, OSError) as error:
            raise ConfigError(f"Bag '{self.path}' cannot be written: {error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        """Write index and metadata, also after an error: what was recorded stays readable."""
        self._writer.close()
        return False

    def add_topic(
        self, topic: str, type_name: str, *, qos: Qos | None = None, store: Typestore | None = None
    ) -> None:
        """Enter a topic, so that it is in the bag even without messages.

        Args:
            topic: Topic name.
            type_name: ``package/msg/Name``.
            qos: Offered quality of service; reliable, and transient local for ``/tf_static``.
            store: Where an unusual type is defined.

        Raises:
            ConfigError: If the type is unknown, or the topic has another type already.
        """
        known = self._connections.get(topic)
        if known is not None:
            if known.msgtype != type_name:
                raise ConfigError(
                    f"Topic '{topic}' is written as {known.msgtype}; it cannot also be {type_name}."
                )
            return
        store = store or typestore()
        if type_name not in store.types:
            raise ConfigError(f"Message type '{type_name}' of topic '{topic}' is unknown.")
        self._stores[topic] = store
        self._connections[topic] = self._writer.add_connection(
            topic, type_name, typestore=store, offered_qos_profiles=[qos or default_qos(topic)]
        )

    def write(self, topic: str, type_name: str, message: Any, log_time_ns: int) -> None:
        """Write one message.

        Args:
            topic: Topic name.
            type_name: ``package/msg/Name``.
            message: CDR bytes, or a rosbags message. Padding between fields is zeroed in both.
            log_time_ns: Integer nanoseconds.

        Raises:
            ConfigError: As ``add_topic``, or if the message is of another kind (an rclpy message
                must be serialized by rclpy first).
        """
        self.add_topic(topic, type_name)
        if isinstance(message, (bytes, bytearray, memoryview)):
            raw = canonical_cdr(bytes(message), type_name, self._stores.get(topic))
        elif getattr(message, "__msgtype__", None) == type_name:
            raw = serialize(message, type_name)
        else:
            raise ConfigError(
                f"Topic '{topic}' needs CDR bytes or a rosbags {type_name}, got "
                f"{type(message).__name__}."
            )
        self._writer.write(self._connections[topic], int(log_time_ns), raw)


def default_qos(topic: str) -> Qos:
    """Return the quality of service that ``ros2 bag play`` will offer for a topic.

    ``/tf_static`` is transient local, or late subscribers would never see it.
    """
    latched = topic == "/tf_static"
    forever = QosTime(9223372036, 854775807)
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1 if latched else 10,
        reliability=QosReliability.RELIABLE,
        durability=QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        deadline=forever,
        lifespan=forever,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=forever,
        avoid_ros_namespace_conventions=False,
    )
