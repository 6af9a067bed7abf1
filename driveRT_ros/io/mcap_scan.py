"""Reading an MCAP file from the front, for files whose index is missing or cut off.

``rosbags`` needs the summary at the end of a file, and time order where there is no chunk index.
This reads what is there: every whole chunk up to the first damage, sorted by log time.

Source: the MCAP format specification, version 0 (records are opcode u8, length u64, content).
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lz4.frame import decompress as lz4_decompress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"\x89MCAP0\r\n"
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _DATA_END, _FOOTER = 0x03, 0x04, 0x05, 0x06, 0x0F, 0x02
_MESSAGE_HEAD = struct.Struct("<HIQQ")


class _Damage(Exception):
    """The bytes from here on cannot be read; the text says why."""


@dataclass(frozen=True)
class McapChannel:
    """One topic of the file."""

    topic: str
    type_name: str
    encoding: str
    schema_encoding: str
    schema: str


class _Entry(NamedTuple):
    """Where a message is; sorts by time, then by place in the file."""

    log_time_ns: int
    chunk: int  # file offset of the chunk record, or -1 for a message outside of chunks
    offset: int  # of the CDR bytes, in the chunk or in the file
    size: int
    channel_id: int


class McapScan:
    """The readable part of an MCAP file.

    Args:
        path: The file.

    Attributes:
        channels: Topic by channel id.
        damage: Sentence about the first unreadable byte, or empty.
        entries: Places of all readable messages, in order of log time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.channels: dict[int, McapChannel] = {}
        self.damage = ""
        self.entries: list[_Entry] = []
        self.num_chunks = 0
        self._schemas: dict[int, tuple[str, str, str]] = {}
        self._size = path.stat().st_size
        with path.open("rb") as file:
            self._scan(file)
        self.entries.sort()

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield channel id, log time in nanoseconds and CDR bytes, in time order."""
        with self.path.open("rb") as file:

            @lru_cache(maxsize=4)  # out-of-order messages alternate between few chunks
            def chunk(offset: int) -> bytes:
                file.seek(offset)
                _, content = self._record(file)
                return _decompress(content)

            for entry in self.entries:
                if entry.chunk < 0:
                    file.seek(entry.offset)
                    raw = file.read(entry.size)
                else:
                    raw = chunk(entry.chunk)[entry.offset : entry.offset + entry.size]
                yield entry.channel_id, entry.log_time_ns, raw

    def _scan(self, file: BinaryIO) -> None:
        position = len(MAGIC)
        try:
            if file.read(position) != MAGIC:
                position = 0
                raise _Damage("it does not start as an MCAP file does")
            while position < self._size:
                opcode, content = self._record(file)
                if opcode == _CHUNK:
                    self._scan_chunk(position, _decompress(content))
                    self.num_chunks += 1
                elif opcode == _MESSAGE:
                    self._add_message(content, -1, position + 9)
                elif opcode in (_DATA_END, _FOOTER):
                    return
                else:
                    self._define(opcode, content)
                position = file.tell()
            self.damage = f"ends at byte {self._size} without a footer"
        except (_Damage, struct.error, UnicodeDecodeError, IndexError) as error:
            self.damage = f"is damaged at byte {position} of {self._size}: {error}"

    def _record(self, file: BinaryIO) -> tuple[int, bytes]:
        head = file.read(9)
        if len(head) < 9:
            raise _Damage("a record is cut off")
        opcode, size = head[0], int.from_bytes(head[1:], "little")
        if size > self._size - file.tell():
            raise _Damage(f"a record of {size} bytes is cut off")
        return opcode, file.read(size)

    def _scan_chunk(self, chunk: int, records: bytes) -> None:
        position, found = 0, len(self.entries)
        while position < len(records):
            opcode = records[position]
            size = int.from_bytes(records[position + 1 : position + 9], "little")
            start = position + 9
            if start + size > len(records):
                del self.entries[found:]  # all of a chunk or nothing
                raise _Damage("a record reaches past its chunk")
            content = records[start : start + size]
            if opcode == _MESSAGE:
                self._add_message(content, chunk, start)
            else:
                self._define(opcode, content)
            position = start + size

    def _add_message(self, content: bytes, chunk: int, start: int) -> None:
        channel_id, _, log_time_ns, _ = _MESSAGE_HEAD.unpack_from(content)
        head = _MESSAGE_HEAD.size
        self.entries.append(
            _Entry(log_time_ns, chunk, start + head, len(content) - head, channel_id)
        )

    def _define(self, opcode: int, content: bytes) -> None:
        if opcode == _SCHEMA:
            (schema_id,) = struct.unpack_from("<H", content)
            name, at = _string(content, 2)
            encoding, at = _string(content, at)
            self._schemas[schema_id] = (name, encoding, _string(content, at)[0])
        elif opcode == _CHANNEL:
            channel_id, schema_id = struct.unpack_from("<HH", content)
            topic, at = _string(content, 4)
            encoding, _ = _string(content, at)
            name, schema_encoding, schema = self._schemas.get(schema_id, ("", "", ""))
            self.channels[channel_id] = McapChannel(topic, name, encoding, schema_encoding, schema)


def _string(content: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", content, at)
    end = at + 4 + size
    if end > len(content):
        raise _Damage("a text is cut off")
    return content[at + 4 : end].decode(), end


def _decompress(content: bytes) -> bytes:
    """Return the records of a chunk record.

    Raises:
        _Damage: If they cannot be had whole and unchanged.
    """
    _, _, size, crc = struct.unpack_from("<QQQI", content)
    compression, at = _string(content, 28)
    (compressed_size,) = struct.unpack_from("<Q", content, at)
    packed = content[at + 8 : at + 8 + compressed_size]
    try:
        if compression == "zstd":
            records = zstd.decompress(packed)
        elif compression == "lz4":
            records = lz4_decompress(packed)
        elif compression == "":
            records = packed
        else:
            raise _Damage(f"compression '{compression}' is not supported")
    except (zstd.ZstdError, RuntimeError, EOFError) as error:
        raise _Damage(f"a chunk cannot be decompressed ({error})") from None
    if len(records) != size or (crc and zlib.crc32(records) != crc):
        raise _Damage("a chunk fails its checksum")
    return records
