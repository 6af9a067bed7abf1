"""A message decoded on a GPU and joined with past sweeps there: its bytes go up, once.

The host knows no number of points, only how many there may be: all buffers have that room, and
what comes after reads the number on the device. See kernels/unpack_points.cu.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.cuda import kernel_on
from driveRT_ros.core.gpu.transfers import HostCopy, Upload
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.kernel_args import struct_dtype, struct_value, struct_values
from driveRT_ros.core.raw_cloud import (
    ROLES,
    CloudSummary,
    CountedRows,
    RawCloud,
    RawStatus,
    intensity_fill,
)
from driveRT_ros.core.sparse_types import NUM_FEATURES

_FILE = "unpack_points.cu"
_CHUNK = 256  # threads of a block, points of a chunk: as in the kernels
_MAX_BLOCKS = 256
_SPARE = 1.25  # room over what a message needs: the next one is rarely the same
_USUAL_PAST = 9  # past sweeps that there is room for from the first message on
_COPY_BYTES = 1 << 20  # the device fetches one part while the host writes the next
_HEAD_WORDS = 64  # before the points of a kept sweep; the first of them is their number
_ALIGNED = 256
_ODD_INTENSITY, _ODD_TIME, _ODD_RING, _ANY_INTENSITY, _ANY_TIME = 1, 2, 4, 8, 16

MOST_POINTS = 1 << 22
"""Of a message that is unpacked on a GPU; every block adds up what the chunks before it counted."""

Bind = Callable[..., Callable[[], None]]
"""Prepares a launch of ``(kernel, grid, threads, *arguments, dependent=)``."""


class KeptSweep:
    """Points of a sweep that later frames join, on the device.

    Args:
        device: Where.
        stride: Room, in points.

    Attributes:
        count: (1,) int32 on the device.
        columns: (5, stride) float32; the first ``count`` of each.
        most: How many there may be, as far as the host knows.
    """

    def __init__(self, device: torch.device, stride: int) -> None:
        words = torch.empty(_HEAD_WORDS + NUM_FEATURES * stride, dtype=torch.int32, device=device)
        self.count, self.stride, self.most = words[:1], stride, stride
        self.columns = words[_HEAD_WORDS:].view(torch.float32).view(NUM_FEATURES, stride)

    @staticmethod
    def of(columns: torch.Tensor) -> KeptSweep:
        """Return points of which the number is known.

        Args:
            columns: (5, N) float32 on the device.
        """
        kept = KeptSweep.__new__(KeptSweep)
        kept.stride = kept.most = columns.shape[1]
        kept.columns = columns
        kept.count = torch.full((1,), kept.most, dtype=torch.int32, device=columns.device)
        return kept


@dataclass(frozen=True)
class PastSweep:
    """A sweep that joins.

    Args:
        kept: Its points.
        age_s: From its stamp to the current one.
        transform: (12,) float64, three rows of four: from its frame to the current one.
    """

    kept: KeptSweep
    age_s: float
    transform: np.ndarray


class _StatusReader:
    """The struct ``Status`` of one message, fetched when it is first asked for."""

    def __init__(self, copy: HostCopy, kept: KeptSweep | None) -> None:
        self._copy, self._kept = copy, kept
        self._found: Any = None

    def num_rows(self) -> int:
        """Points of the message and of past sweeps."""
        return int(self.found()["num_rows"])

    def found(self) -> Any:
        """Return the struct; waits for its copy and for nothing later."""
        if self._found is None:
            self._copy.wait()
            kind = struct_dtype(_FILE, "Status")
            self._found = self._copy.words.view(np.uint8)[: kind.itemsize].view(kind)[0].copy()
            if self._kept is not None:
                self._kept.most = int(self._found["num_kept"])
        return self._found


class UnpackedCloud(CountedRows):
    """A message unpacked on a device, with the past sweeps that joined it.

    The points, and what there is to say, hold until the push after the next one.

    Args:
        raw: The message.
        rows: (room, 5) float32.
        count: (1,) int32 on the device.
        status: Of the message.
        notes: What there is to say about the way it went, as short keys.
    """

    def __init__(
        self,
        raw: RawCloud,
        rows: torch.Tensor,
        count: torch.Tensor,
        status: _StatusReader,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(rows, count, status.num_rows)
        self._raw, self._status, self._notes = raw, status, notes

    def summary(self) -> CloudSummary:
        """Return what is left to say about the message; waits until the device has unpacked it.

        Raises:
            InvalidFrame: If its values cannot be used.
        """
        raw, status = self._raw, status_of(self._status.found())
        report = raw.explain(status)
        report = dataclasses.replace(report, notes=(*report.notes, *self._notes))
        return CloudSummary(raw.stamp_ns, raw.frame_id, status.num_points, report)


def status_of(found: Any) -> RawStatus:
    """Return the struct ``Status`` of the kernels by name."""
    odd = int(found["odd"])

    def limits(flag: int, name: str) -> tuple[float, float] | None:
        return (float(found[f"{name}_low"]), float(found[f"{name}_high"])) if odd & flag else None

    return RawStatus(
        num_points=int(found["num_points"]),
        usable=int(found["usable"]),
        finite=int(found["finite"]),
        worst=float(found["worst"]),
        odd_intensity=bool(odd & _ODD_INTENSITY),
        odd_time=bool(odd & _ODD_TIME),
        odd_ring=bool(odd & _ODD_RING),
        intensity_limits=limits(_ANY_INTENSITY, "intensity"),
        time_limits=limits(_ANY_TIME, "time"),
    )


class PointUnpacker:
    """Buffers of fixed address for messages up to a size, and the kernels between them, as a graph.

    Args:
        device: CUDA device.
        data_bytes: Room for bytes of a message.
        points: Room for its points.
        rows: Room for these with past sweeps.
        max_past: Most past sweeps.
        bind: Prepares a launch; by default on ``device``.
    """

    def __init__(
        self,
        device: torch.device,
        data_bytes: int,
        points: int,
        rows: int,
        max_past: int,
        bind: Bind | None = None,
    ) -> None:
        self._bind, self.device = bind or _binder(device), device
        self._data_room, self._points_room, self._max_past = data_bytes, points, max_past
        kinds = [struct_dtype(_FILE, name) for name in ("Cloud", "Past", "Range", "Status")]
        cloud, past, chunk, status = (kind.itemsize for kind in kinds)
        self._past_at = -(-cloud // _ALIGNED) * _ALIGNED
        self._data_at = -(-(self._past_at + max_past * past) // _ALIGNED) * _ALIGNED
        size, chunks = self._data_at + data_bytes, max(1, -(-points // _CHUNK))

        def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._bytes = new(size, dtype=torch.uint8)
        self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._host = self._pinned.numpy()
        self._upload = Upload(device) if device.type == "cuda" else None
        self.rows = new(rows, NUM_FEATURES, dtype=torch.float32)
        self._status = new(-(-status // 4), dtype=torch.int32)
        self._to_host = HostCopy(self._status)
        self._scratch = [
            new(chunks, dtype=torch.int32),  # points that stay, by chunk
            new(points, dtype=torch.float64),  # times
            new(chunks * chunk, dtype=torch.uint8),  # ranges
            new(chunks, dtype=torch.int32),  # rows that are not the vehicle itself
        ]
        # Nothing here refers to itself: the memory of one that was outgrown is free at once.
        enqueue = functools.partial(_enqueue, self._bound(chunks))
        self._graphs = StageGraphs({"unpack": enqueue}, device)

    def fits(self, raw: RawCloud, rows: int) -> bool:
        """Tell whether there is room for a message with this many rows in all."""
        sizes = (len(raw.data), raw.num_points, rows)
        return all(
            size <= room
            for size, room in zip(sizes, (self._data_room, self._points_room, len(self.rows)))
        )

    def run(
        self,
        raw: RawCloud,
        past: Sequence[PastSweep],
        kept: KeptSweep | None,
        ego_radius_m: float,
    ) -> UnpackedCloud:
        """Enqueue a message on the current stream, without waiting for the device.

        Args:
            raw: The message; it may change as soon as this returns.
            past: What joins it, newest first.
            kept: Where its points are kept for later frames, without the vehicle itself.
            ego_radius_m: What the vehicle itself is.
        """
        self._send(_header(raw, past, kept, ego_radius_m), past, raw.data)
        try:
            self._graphs.run()
        finally:  # where it fails, what was enqueued before that reads the message all the same
            if self._upload is not None:
                self._upload.used()
        self._to_host.enqueue()
        room = raw.most_points + sum(sweep.kept.most for sweep in past)
        notes = ("graph_not_used",) if self._graphs.note else ()
        status = _StatusReader(self._to_host, kept)
        return UnpackedCloud(raw, self.rows[:room], self._status[:1], status, notes)

    def _send(self, header: np.void, past: Sequence[PastSweep], data: np.ndarray) -> None:
        if self._upload is not None:
            self._upload.wait()  # for the message before last
        self._host[: header.nbytes] = np.frombuffer(header.tobytes(), np.uint8)
        if past:
            sweeps = struct_values(_FILE, "Past", [_past(sweep) for sweep in past])
            self._host[self._past_at :][: sweeps.nbytes] = sweeps.view(np.uint8)
        begin, end = 0, self._data_at  # header and past sweeps go with the first bytes
        for first in range(0, max(len(data), 1), _COPY_BYTES):
            part = data[first : first + _COPY_BYTES]
            self._host[end : end + len(part)] = part
            end += len(part)
            with self._upload.stream() if self._upload else contextlib.nullcontext():
                self._bytes[begin:end].copy_(self._pinned[begin:end], non_blocking=True)
            begin = end
        if self._upload is not None:
            self._upload.sent()

    def _bound(self, chunks: int) -> list[Callable[[], None]]:
        cloud, past = self._bytes[: self._past_at], self._bytes[self._past_at : self._data_at]
        data = self._bytes[self._data_at :]
        usable, times, ranges, others = self._scratch
        few, join = min(chunks, _MAX_BLOCKS), (min(chunks, _MAX_BLOCKS), 1 + self._max_past)
        places = (cloud, data, usable, self.rows, times, ranges)
        finishes = (cloud, usable, ranges, self.rows, times, others, self._status)
        joins = (cloud, past, others, self.rows, self._status)
        return [
            self._bind("inspect_points", chunks, _CHUNK, cloud, data, usable),
            self._bind("place_points", chunks, _CHUNK, *places, dependent=True),
            self._bind("finish_points", few, _CHUNK, *finishes, dependent=True),
            self._bind("join_sweeps", join, _CHUNK, *joins, dependent=True),
        ]


class UnpackerRing:
    """Two unpackers in turn, so that one message is written while the last one is still fetched.

    Args:
        device: CUDA device.
        max_past: Most past sweeps.
        bind: See :class:`PointUnpacker`.
    """

    def __init__(self, device: torch.device, max_past: int, bind: Bind | None = None) -> None:
        self._device, self._max_past, self._bind = device, max_past, bind
        self._slots: list[PointUnpacker | None] = [None, None]
        self._next = 0

    def take(self, raw: RawCloud, rows: int) -> PointUnpacker:
        """Return the next one; it is built anew where it has no room.

        Args:
            raw: A message.
            rows: Most points, with those of past sweeps.
        """
        slot, self._next = self._next, (self._next + 1) % len(self._slots)
        unpacker = self._slots[slot]
        if unpacker is None or not unpacker.fits(raw, rows):
            self._slots[slot] = None  # before another one takes memory
            points = int(raw.num_points * _SPARE)
            joined = int(raw.most_points * _SPARE) * (1 + min(self._max_past, _USUAL_PAST))
            room = max(int(rows * _SPARE), joined)
            data = int(len(raw.data) * _SPARE) + _ALIGNED
            unpacker = PointUnpacker(self._device, data, points, room, self._max_past, self._bind)
            self._slots[slot] = unpacker
        return unpacker


def _enqueue(launches: Sequence[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def _header(
    raw: RawCloud, past: Sequence[PastSweep], kept: KeptSweep | None, ego_radius_m: float
) -> np.void:
    config = raw.config
    places = [raw.fields.get(role, (0, 0)) for role in ROLES]
    values: dict[str, object] = {
        "num_points": raw.num_points, "width": raw.width if raw.num_points else 1,
        "capacity": config.point_capacity, "big_endian": int(raw.big_endian),
        "point_step": raw.point_step if raw.num_points else 0,
        "row_step": raw.row_step if raw.num_points else 0,
        "offset": [offset for offset, _ in places], "kind": [kind for _, kind in places],
        "missing": config.default_intensity, "fill": intensity_fill(config),
        "factor": config.intensity_scale, "clip": config.intensity_clip,
        "scale": config.intensity_scale, "most": config.intensity_clip,
        "stamp_ns": float(raw.stamp_ns), "ego_radius_m": ego_radius_m, "num_past": len(past),
        "kept": kept and kept.columns, "num_kept": kept and kept.count,
        "kept_stride": kept.stride if kept else 0, "unused": 0,
    }  # fmt: skip
    return struct_value(_FILE, "Cloud", values)


def _past(sweep: PastSweep) -> dict[str, object]:
    kept = sweep.kept
    return {
        "columns": kept.columns, "count": kept.count, "stride": kept.stride,
        "age_s": sweep.age_s, "transform": sweep.transform,
    }  # fmt: skip


def _binder(device: torch.device) -> Bind:
    def bind(
        name: str, grid: Any, block: int, *args: object, dependent: bool = False
    ) -> Callable[[], None]:
        kernel = kernel_on(device, "unpack_points", name)
        return kernel.bind(grid, block, *args, dependent=dependent)

    return bind
