"""Frames of a recorded bag by stamp, and whether their bytes are those that were sent.

A fingerprint holds the CRC-32 of the serialized cloud and detections of its frame. Where those are
in the bag too, they are taken again: a byte that changed since is found, and its frame is named.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from driveRT_ros.core.errors import ConfigError, DriveRTError, InvalidFrame
from driveRT_ros.core.fingerprint import CLOUD_MSG, DETECTIONS_MSG
from driveRT_ros.io.bag import BagMessage, BagReader
from driveRT_ros.io.fingerprint import (
    FINGERPRINT,
    Fingerprint,
    decode_fingerprint,
    encode_fingerprint,
    message_crc32,
)
from driveRT_ros.io.topics import POINT_CLOUD
from driveRT_ros.io.typestore import canonical_cdr, message_type, serialize
from driveRT_ros.nodes.raw import header_stamp_ns

DETECTIONS = "vision_msgs/msg/Detection3DArray"

_FINGERPRINTS, _DETECTIONS = "/debug/frame_fingerprint", "/output/detections"


class FrameKey(NamedTuple):
    """What names a frame; keys ascend in time.

    Args:
        stamp_ns: Header stamp, integer nanoseconds.
        node: Name of the node that answered.
        repeat: 0 for the first frame of that stamp, 1 for the next, as in a bag that loops.
    """

    stamp_ns: int
    node: str = ""
    repeat: int = 0


@dataclass
class FrameRecord:
    """What is known of one frame.

    Args:
        stages: CRC-32 by stage; None where no fingerprint was recorded.
        detections: The detections message; None where none was recorded.
    """

    stages: dict[str, int] | None = None
    detections: BagMessage | None = None


@dataclass(frozen=True)
class Damage:
    """Something in a bag that is not as it was sent.

    Args:
        sentence: What, and where.
        key: The frame, where it is known.
        index: Its place among the frames of the bag.
        stage: What of it.
    """

    sentence: str
    key: FrameKey | None = None
    index: int | None = None
    stage: str = ""


@dataclass
class RecordedFrames:
    """The frames of one bag.

    Args:
        name: What the user called it.
        frames: By key, in ascending order.
        damage: What is not as it was sent.
        checked: Messages compared with their fingerprint, by stage.
        notes: Sentences on what could not be checked.
    """

    name: str
    frames: dict[FrameKey, FrameRecord] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that answered."""
        return sorted({key.node for key in self.frames})

    def of_node(self, node: str) -> RecordedFrames:
        """Return the frames of one node."""
        return replace(self, frames={k: f for k, f in self.frames.items() if k.node == node})

    def indices(self) -> dict[FrameKey, int]:
        """Return the place of each frame among those of its node.

        A message whose stamp is damaged makes a frame without fingerprint at a time of its own; it
        must not shift the others, so that a frame with fingerprint counts only such.
        """
        all_before: Counter[str] = Counter()
        marked_before: Counter[str] = Counter()
        places = {}
        for key, frame in self.frames.items():
            marked = frame.stages is not None
            places[key] = (marked_before if marked else all_before)[key.node]
            all_before[key.node] += 1
            marked_before[key.node] += marked
        return places

    def index(self, key: FrameKey) -> int:
        """Return the place of one frame."""
        return self.indices()[key]

    def damaged(self, sentence: str, key: FrameKey | None = None, stage: str = "") -> None:
        """Note damage; the sentence follows the name of the frame where that is known."""
        index = None if key is None else self.index(key)
        where = "" if key is None else f"{frame_name(index, key)}: "
        self.damage.append(Damage(f"{self.name}: {where}{sentence}", key, index, stage))


def frame_name(index: int | None, key: FrameKey) -> str:
    """Return what a person calls a frame."""
    sec, nanosec = divmod(key.stamp_ns, 1_000_000_000)
    node = f" of {key.node}" if key.node else ""
    return f"frame {index}{node}, stamped {sec}.{nanosec:09d} s"


def bag_of(path: str) -> Path:
    """Return the bag in a result folder of ``drivert run``, or the bag itself."""
    inside = Path(path) / "output_bag"
    return inside if inside.is_dir() else Path(path)


def read_frames(path: str, clouds: str = "") -> RecordedFrames:
    """Read the frames of a bag and check them against their fingerprints.

    Args:
        path: A bag, or a result folder of ``drivert run``.
        clouds: Bag that holds the clouds, if another.

    Raises:
        ConfigError: If there is no bag, or no frame in it.
    """
    found = RecordedFrames(path)
    try:
        _read(found, path, clouds)
    except DriveRTError:
        raise
    except Exception as error:  # damaged storage may raise anything
        found.damaged(f"the bag cannot be read: {type(error).__name__}: {error}")
    return found


def _read(found: RecordedFrames, path: str, clouds: str) -> None:
    with BagReader(bag_of(path)) as reader:
        _note_gaps(found, reader)
        _collect(found, reader)
        if not found.frames and not found.damage:
            raise ConfigError(
                f"Bag '{path}' has neither fingerprints nor detections; record "
                "'<node>/debug/frame_fingerprint' and '<node>/output/detections'."
            )
        found.frames = dict(sorted(found.frames.items()))
        _check_detections(found, reader.canonical)
        if not clouds:
            _check_clouds(found, reader)
    if clouds:
        with BagReader(clouds) as reader:
            _note_gaps(found, reader)
            _check_clouds(found, reader)


def _note_gaps(found: RecordedFrames, reader: BagReader) -> None:
    if reader.partial:
        found.damaged("part of the bag cannot be read: " + " ".join(reader.warnings))


def _messages(found: RecordedFrames, reader: BagReader, topics: list[str]) -> Iterator[BagMessage]:
    """Yield messages until the end, or until the file itself turns out to be damaged."""
    try:
        yield from reader.messages(topics)
    except ConfigError as error:
        found.damaged(str(error))


def _collect(found: RecordedFrames, reader: BagReader) -> None:
    marks = [t for t in reader.topics_of_type(FINGERPRINT) if t.endswith(_FINGERPRINTS)]
    boxes = reader.topics_of_type(DETECTIONS)
    marked_nodes = {topic.removesuffix(_FINGERPRINTS) for topic in marks}
    if marked_nodes:  # ground truth has the type of detections, but no node stands behind it
        boxes = [t for t in boxes if t.removesuffix(_DETECTIONS) in marked_nodes]
    seen: Counter[tuple[int, str, bool]] = Counter()
    for message in _messages(found, reader, marks + boxes):
        is_mark = message.topic in marks
        node = message.topic.removesuffix(_FINGERPRINTS if is_mark else _DETECTIONS)
        try:
            if is_mark:
                stamp_ns, stages = _fingerprint(message, reader.canonical)
            else:
                stamp_ns, stages = header_stamp_ns(message.raw), {}
        except Exception as error:  # whatever damaged bytes raise, it is said, and the rest is read
            what = "fingerprint" if is_mark else "detections message"
            found.damaged(f"the {what} logged at {message.log_time_ns} ns is damaged: {error}")
            continue
        repeat = seen[stamp_ns, node, is_mark]
        seen[stamp_ns, node, is_mark] += 1
        record = found.frames.setdefault(FrameKey(stamp_ns, node, repeat), FrameRecord())
        if is_mark:
            record.stages = stages
        else:
            record.detections = message


def _fingerprint(message: BagMessage, canonical: bool) -> Fingerprint:
    """Return a fingerprint that is byte by byte as it was written."""
    found = decode_fingerprint(message.deserialize())
    whole = serialize(encode_fingerprint(*found, message_type), FINGERPRINT)
    if whole != (message.raw if canonical else canonical_cdr(message.raw, FINGERPRINT)):
        raise InvalidFrame("its layout or the bytes between its fields are not as written.")
    return found


def _check_detections(found: RecordedFrames, canonical: bool) -> None:
    recorded = {key.node for key, frame in found.frames.items() if frame.detections is not None}
    unmarked = 0
    for key, frame in found.frames.items():
        if frame.stages is None:
            unmarked += 1
        elif DETECTIONS_MSG not in frame.stages or key.node not in recorded:
            continue
        elif frame.detections is None:
            sentence = "its detections are not in the bag, or their stamp is damaged."
            found.damaged(sentence, key, DETECTIONS_MSG)
        else:
            found.checked[DETECTIONS_MSG] += 1
            fault = _fault(frame.detections, frame.stages[DETECTIONS_MSG], canonical)
            if fault:
                found.damaged(f"its detections message {fault}", key, DETECTIONS_MSG)
    if unmarked:
        found.notes.append(
            f"{found.name}: {unmarked} of {len(found.frames)} frames have no fingerprint."
        )


def _check_clouds(found: RecordedFrames, reader: BagReader) -> None:
    want: dict[int, set[int]] = {}
    for key, frame in found.frames.items():
        if frame.stages is not None and CLOUD_MSG in frame.stages:
            want.setdefault(key.stamp_ns, set()).add(frame.stages[CLOUD_MSG])
    topics = reader.topics_of_type(POINT_CLOUD)
    if not want or not any(reader.message_counts[topic] for topic in topics):
        return
    right: set[tuple[int, int]] = set()
    faults: dict[tuple[int, int], str] = {}
    for message in _messages(found, reader, topics):
        try:
            stamp_ns = header_stamp_ns(message.raw)
        except InvalidFrame:
            continue  # no frame can come of it
        for crc in want.get(stamp_ns, ()):
            fault = _fault(message, crc, reader.canonical)
            if not fault:
                right.add((stamp_ns, crc))
            faults.setdefault((stamp_ns, crc), f"its cloud on {message.topic} {fault}")
    for key, frame in found.frames.items():
        if frame.stages is None or CLOUD_MSG not in frame.stages:
            continue
        found.checked[CLOUD_MSG] += 1
        sent = (key.stamp_ns, frame.stages[CLOUD_MSG])
        if sent not in right:  # of several clouds of one stamp, one must be the frame's
            missing = "its cloud is not in the bag, or the stamp of the cloud is damaged."
            found.damaged(faults.get(sent, missing), key, CLOUD_MSG)


def _fault(message: BagMessage, crc: int, canonical: bool) -> str:
    """Return what is wrong with a message that was sent with this CRC-32, or ""."""
    if zlib.crc32(message.raw) == crc:
        return ""
    if message_crc32(message.raw, message.type_name, message.store) != crc:
        return "is not what its fingerprint was made of."
    if canonical:
        return "has bytes between its fields that are not zero as they were written."
    return ""
