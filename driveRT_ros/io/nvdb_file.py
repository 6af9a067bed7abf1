"""NanoVDB files: segments of grids with what tools want to know before they read one.

A segment is a header of 16 bytes, for every grid a record of 176 bytes and its name, then the grids
themselves, as they are in memory or each compressed by itself. Every byte is checked on reading:
grids by their checksums, compressed ones by that of the stream, too, and the records, which have
none, against the grids.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.nvdb_checksum import verify
from driveRT_ros.io.nvdb_grid import NanoGrid

CODECS = {"none": 0, "zip": 1}
BLOSC = 2
ZIP_LEVEL = 1
"""Level 6 makes the float grids of a street 27 % smaller, but takes twice as long."""
HAS_LONG_NAME = 1
"""Flag of a grid whose name is too long for its head."""
RECORDS_BLIND_COUNT_SINCE = (32, 7, 0)
"""Before, that field of a record was padding."""

FILE = np.dtype([("magic", "S8"), ("version", "<u4"), ("grid_count", "<u2"), ("codec", "<u2")])
RECORD = np.dtype(
    [
        ("grid_size", "<u8"),
        ("file_size", "<u8"),
        ("name_key", "<u8"),
        ("voxel_count", "<u8"),
        ("grid_type", "<u4"),
        ("grid_class", "<u4"),
        ("world_bbox", "<f8", (2, 3)),
        ("index_bbox", "<i4", (2, 3)),
        ("voxel_size", "<f8", 3),
        ("name_size", "<u4"),
        ("node_count", "<u4", 4),
        ("tile_count", "<u4", 3),
        ("codec", "<u2"),
        ("blind_count", "<u2"),
        ("version", "<u4"),
    ]
)


def name_key(name: bytes) -> int:
    """Return the 64-bit number by which tools look up a grid name."""
    key = 0
    for byte in name:
        key = (key * 67 + byte + (key >> 56)) & 0xFFFFFFFFFFFFFFFF
    return key


# ---- reading ------------------------------------------------------------------------------------


def read_nvdb(path: str | Path) -> list[NanoGrid]:
    """Read all grids of a file and verify every byte that a checksum covers.

    Args:
        path: A .nvdb file of float, int32 or OnIndex grids, not compressed or by ZIP.

    Raises:
        ConfigError: If it cannot be opened, is no such file, or holds what cannot be read.
        InvalidFrame: If it is damaged or cut off; the message names the grid and which part.
    """
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ConfigError(f"NanoVDB file '{path}' cannot be read: {error.strerror}.") from None
    data.flags.writeable = False
    grids: list[NanoGrid] = []
    at = 0
    while at < len(data) or not grids:
        segment = _Segment(data, at, str(path))
        grids += segment.grids()
        at = segment.end
    return grids


class _Segment:
    """One segment while it is read.

    Args:
        data: (bytes,) uint8 of the file.
        begin: Where its header is.
        path: For messages.
    """

    def __init__(self, data: np.ndarray, begin: int, path: str) -> None:
        self._data, self._path, self.end = data, path, begin
        header = self._take(FILE, "header")
        _check_magic(bytes(header["magic"]), path, begin)
        layout.unpack_version(int(header["version"]))
        codec, count = int(header["codec"]), int(header["grid_count"])
        if codec == BLOSC:
            raise ConfigError(
                f"The grids of '{path}' are compressed by BLOSC, which cannot be read; write the "
                "file again with ZIP or without compression (nanovdb_convert --zip)."
            )
        if codec not in CODECS.values():
            raise self._damaged("codec", codec, "0 (none) or 1 (ZIP)")
        if not count:
            raise self._damaged("grid_count", count, "1 or more")
        self._codec, self._version = codec, int(header["version"])
        self._records: list[tuple[np.void, bytes]] = []
        for i in range(count):
            record = self._take(RECORD, f"record of grid {i}")
            name = bytes(self._slice(int(record["name_size"]), f"name of grid {i}"))
            self._records.append((record, name))

    def grids(self) -> Iterator[NanoGrid]:
        """Yield the grids behind the records."""
        for i, (record, raw_name) in enumerate(self._records):
            name = raw_name.rstrip(b"\0").decode(errors="replace")
            where = f"grid '{name}' (number {i} in '{self._path}')"
            stored = self._slice(int(record["file_size"]), where)
            size = int(record["grid_size"])
            data, fault = (stored, "") if not self._codec else _inflate(stored, size, where)
            header = verify(data, where)
            if fault:
                raise _bad_stream(where, fault)
            grid = NanoGrid(data, header, name)
            self._compare(grid, record, raw_name, where)
            yield grid

    def _compare(self, grid: NanoGrid, record: np.void, raw_name: bytes, where: str) -> None:
        """Refuse a record that does not describe its grid."""
        size, name = int(record["file_size"]), raw_name[:-1]
        expected = _record_of(grid, name, self._codec, self._version, size)
        if grid.header.version < RECORDS_BLIND_COUNT_SINCE and not record["blind_count"]:
            expected["blind_count"] = 0
        names = [f for f in RECORD.names or () if record[f].tobytes() != expected[f].tobytes()]
        long_name = _has_long_name(grid)
        if not long_name and raw_name != bytes(grid.record["name"]) + b"\0":
            names.append("name")
        if names and not (long_name and set(names) <= {"name_key", "name_size"}):
            field = names[0]
            got, wanted = (
                (raw_name, bytes(grid.record["name"]))
                if field == "name"
                else (record[field].tolist(), expected[field].tolist())
            )
            raise InvalidFrame(
                f"The record in front of {where} is damaged: it does not describe the grid; copy "
                "or export the file again.",
                field,
                got,
                wanted,
                code="record",
            )

    def _take(self, kind: np.dtype, what: str) -> np.void:
        return self._slice(kind.itemsize, what).view(kind)[0]

    def _slice(self, size: int, what: str) -> np.ndarray:
        begin, self.end = self.end, self.end + size
        if self.end > len(self._data):
            raise InvalidFrame(
                f"NanoVDB file '{self._path}' is cut off or damaged: its {what} ends behind the "
                "last byte; copy or export it again.",
                "file_size",
                len(self._data),
                f"{self.end} or more",
                code="size",
            )
        return self._data[begin : self.end]

    def _damaged(self, field: str, got: int, expected: str) -> InvalidFrame:
        return InvalidFrame(
            f"NanoVDB file '{self._path}' is damaged: its header holds an impossible number.",
            field,
            got,
            expected,
            code="header",
        )


def _check_magic(magic: bytes, path: str, at: int) -> None:
    if magic in (layout.MAGIC_ANY, layout.MAGIC_FILE):
        return
    if at:
        raise InvalidFrame(
            f"NanoVDB file '{path}' is damaged: bytes follow its last grid that are no segment.",
            "magic",
            magic,
            layout.MAGIC_ANY,
            code="header",
        )
    if magic == layout.MAGIC_GRID:
        raise ConfigError(
            f"'{path}' holds bare NanoVDB grids without file header; write it with one."
        )
    if magic[:4] == b" BDV":
        raise ConfigError(f"'{path}' is an OpenVDB file; nanovdb_convert makes a .nvdb of it.")
    raise ConfigError(f"'{path}' is no NanoVDB file: it begins with {magic!r}.")


def _inflate(stored: np.ndarray, size: int, where: str) -> tuple[np.ndarray, str]:
    """Return the bytes of a grid, and why they are not those that were compressed, or "".

    Its sums are not left to zlib, so that a damaged grid is still there for its own checksum to
    say which part of it is at fault. Files of ours have the CRC-32 of the stream behind it, which
    readers do not look at: in long runs of zeros a damaged stream may well give the same bytes.
    """
    raw = stored.tobytes()
    stream = raw[8:]
    told = int.from_bytes(raw[:8], "little")
    if told != len(stream) or len(stream) < 6:
        raise _bad_stream(where, f"it holds {len(stream)} bytes and says {told}")
    if stream[0] & 0x0F != 8 or stream[1] & 0x20 or int.from_bytes(stream[:2], "big") % 31:
        raise _bad_stream(where, f"it begins with {stream[:2].hex()}, which is no zlib stream")
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = machine.decompress(stream[2:], min(size + 1, sys.maxsize))
    except zlib.error as error:
        raise _bad_stream(where, str(error)) from None
    adler, crc = machine.unused_data[:4], machine.unused_data[4:]
    if len(data) != size or not machine.eof or len(adler) != 4 or len(crc) not in (0, 4):
        raise _bad_stream(where, f"it does not hold the {size} bytes of the grid")
    fault = ""
    if zlib.adler32(data) != int.from_bytes(adler, "big"):
        fault = "its Adler-32 is not that of the grid"
    elif crc and zlib.crc32(stream[:-4]) != int.from_bytes(crc, "little"):
        fault = "its CRC-32 is another than was stored with it"
    return np.frombuffer(data, np.uint8), fault


def _bad_stream(where: str, why: str) -> InvalidFrame:
    return InvalidFrame(
        f"The compressed stream of {where} is damaged: {why}; copy or export the file again.",
        code="stream",
    )


# ---- writing ------------------------------------------------------------------------------------


def write_nvdb(path: str | Path, grids: Sequence[NanoGrid], codec: str = "zip") -> None:
    """Write grids as one segment; the file appears whole or not at all.

    Args:
        path: File to write or replace.
        grids: One to 65535 of them; their bytes are not changed.
        codec: ``none`` or ``zip``.

    Raises:
        ConfigError: If there is no grid, no such codec, or the file cannot be written.
    """
    if codec not in CODECS:
        raise ConfigError(f"The codec of a NanoVDB file is 'none' or 'zip', got '{codec}'.")
    if not 1 <= len(grids) <= 0xFFFF:
        raise ConfigError(f"A NanoVDB file takes 1 to 65535 grids, got {len(grids)}.")
    version = max(layout.pack_version(grid.header.version) for grid in grids)
    code = CODECS[codec]
    stored = [_deflate(grid.data) if code else grid.data.tobytes() for grid in grids]
    if code and sum(map(len, stored)) < layout.GRID.itemsize:
        # Tools look for bare grids first, and some never return from a file shorter than one head.
        code, stored = CODECS["none"], [grid.data.tobytes() for grid in grids]
    header = np.zeros(1, FILE)
    header["magic"], header["version"] = layout.MAGIC_ANY, version
    header["grid_count"], header["codec"] = len(grids), code
    parts = [header.tobytes()]
    for grid, data in zip(grids, stored):
        name = grid.name.encode() if _has_long_name(grid) else bytes(grid.record["name"])
        parts += [_record_of(grid, name, code, version, len(data)).tobytes(), name + b"\0"]
    path = Path(path)
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(b"".join(parts + stored))
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"NanoVDB file '{path}' cannot be written: {error.strerror}.") from None


def _deflate(data: np.ndarray) -> bytes:
    stream = zlib.compress(data.data, ZIP_LEVEL)
    stream += zlib.crc32(stream).to_bytes(4, "little")
    return len(stream).to_bytes(8, "little") + stream


def _has_long_name(grid: NanoGrid) -> bool:
    return bool(grid.header.flags & HAS_LONG_NAME)


def _record_of(grid: NanoGrid, name: bytes, codec: int, version: int, file_size: int) -> np.void:
    """Return the record of a grid that takes ``file_size`` bytes of a file."""
    record = np.zeros(1, RECORD)
    record["grid_size"], record["file_size"] = len(grid.data), file_size
    record["name_key"], record["name_size"] = name_key(name), len(name) + 1
    record["voxel_count"], record["index_bbox"] = grid.voxel_count, grid.root["bbox"]
    for field in ("grid_type", "grid_class", "world_bbox", "voxel_size"):
        record[field] = grid.record[field]
    record["node_count"] = (*grid.tree["node_count"], 1)
    record["tile_count"] = grid.tree["tile_count"]
    record["codec"], record["version"] = codec, version
    record["blind_count"] = grid.record["blind_count"]
    return record[0]
