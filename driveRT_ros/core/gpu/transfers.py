"""What goes to the device and comes back in a frame, through pinned memory, without a wait."""

from __future__ import annotations

import contextlib

import torch

from driveRT_ros.core.sparse_types import NUM_FEATURES

HEADER_WORDS = 64
"""32-bit words before the first point; the first of them is the number of points."""

_CHUNK_POINTS = 1 << 16  # the device fetches one chunk while the host writes the next


class FrameInput:
    """A cloud and its number of points, in one buffer of fixed address on the device.

    Clouds in host memory pass through pinned slots in turn, so that one can be written while the
    last one is still fetched. One that lies in pinned memory already, whole and float32, is fetched
    from there.

    Args:
        words: (HEADER_WORDS + 5 * capacity,) int32 on the device.
        slots: Of pinned memory.

    Attributes:
        points: (capacity, 5) float32.
        num_points: (1,) int32.
    """

    def __init__(self, words: torch.Tensor, slots: int = 2) -> None:
        self._words, self._next = words, 0
        self.num_points, self.points = _parts(words)
        self._slots = [_Slot(words) for _ in range(slots)]
        self._fetched = torch.cuda.Event() if words.device.type == "cuda" else None
        self._fetching: torch.Tensor | None = None

    def load(self, points: torch.Tensor) -> torch.Tensor:
        """Enqueue a cloud on the current stream; return its rows on the device.

        Args:
            points: (N, 5) float32 or float64, N at most the capacity, on a device or the host;
                they may change as soon as this returns; if pinned, once the stream is past it.
        """
        count, device = points.shape[0], self._words.device
        mine = self.points[:count]
        if points.device.type == device.type:
            mine.copy_(points)
            self.num_points.fill_(count)
            return mine
        if self._fetched is not None and _is_whole(points) and points.is_pinned():
            self._fetched.synchronize()  # by the frame before
            mine.copy_(points, non_blocking=True)
            self.num_points.fill_(count)
            self._fetched.record(torch.cuda.current_stream(device))
            self._fetching = points  # must stay until then
            return mine
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.write(points, self._words)
        return mine


class _Slot:
    """Pinned memory laid out as the buffer on the device."""

    def __init__(self, like: torch.Tensor) -> None:
        cuda = like.device.type == "cuda"
        self._words = torch.empty(like.shape, dtype=like.dtype, pin_memory=cuda)
        self._count, self._points = _parts(self._words)
        self._fetched = torch.cuda.Event() if cuda else None

    def write(self, points: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a cloud and enqueue its way to the device."""
        if self._fetched is not None:
            self._fetched.synchronize()  # by the frame before last
        count = points.shape[0]
        self._count.fill_(count)
        first = 0  # the count goes with the first chunk
        for begin in range(0, max(count, 1), _CHUNK_POINTS):
            end = min(begin + _CHUNK_POINTS, count)
            self._points[begin:end].copy_(points[begin:end])
            last = HEADER_WORDS + NUM_FEATURES * end
            target[first:last].copy_(self._words[first:last], non_blocking=True)
            first = last
        if self._fetched is not None:
            self._fetched.record(torch.cuda.current_stream(target.device))


def _is_whole(points: torch.Tensor) -> bool:
    return points.dtype == torch.float32 and points.is_contiguous()


def _parts(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    points = words[HEADER_WORDS:].view(torch.float32).view(-1, NUM_FEATURES)
    return words[:1], points


class Upload:
    """A stream that fetches one buffer after the other while the current one is at work.

    Args:
        device: CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._fetched, self._read = torch.cuda.Event(), torch.cuda.Event()
        # Memory that the buffers had before may still be in use on the current stream.
        self._read.record(torch.cuda.current_stream(device))
        self._stream.wait_event(self._read)

    def stream(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which what is copied goes this way."""
        return torch.cuda.stream(self._stream)  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Wait until the last buffer is fetched: its pinned memory is free."""
        self._fetched.synchronize()

    def sent(self) -> None:
        """Let the current stream wait for what was copied."""
        self._fetched.record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._fetched)

    def used(self) -> None:
        """Let the next copy wait until the current stream has read the last one."""
        self._read.record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._read)


class HostCopy:
    """A buffer of the device on the host, fetched by one copy a frame.

    Args:
        source: 32-bit words on the device, of fixed address.

    Attributes:
        words: The same on the host, as of the last :meth:`wait`; rewritten by the next copy.
    """

    def __init__(self, source: torch.Tensor) -> None:
        cuda = source.device.type == "cuda"
        self._source = source
        self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=cuda)
        self._arrived = torch.cuda.Event() if cuda else None
        self.words = self._host.numpy()

    def enqueue(self) -> None:
        """Copy what is in place, on the current stream."""
        self._host.copy_(self._source, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._source.device))

    def wait(self) -> None:
        """Wait for the copy that was enqueued last and for nothing later."""
        if self._arrived is not None:
            self._arrived.synchronize()
