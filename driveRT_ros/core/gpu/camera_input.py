"""Images go to the device as they are, through pinned memory, and are resized and cropped there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.camera_config import ImageConfig
from driveRT_ros.core.camera_images import ImageFit, Pixels
from driveRT_ros.core.cuda import kernel_on
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.core.image_spans import AreaFit
from driveRT_ros.core.kernel_args import struct_dtype, struct_value

_FILE = "fit_images.cu"
_THREADS = 256  # as in kernels/fit_images.cu
_UNIT = 16  # bytes; each image begins at a multiple

Bind = Callable[[int, int, object], Callable[[], None]]
"""Makes ``(blocks, threads, argument)`` of the kernel a launch."""


class CameraInput:
    """The network input of all cameras, on the device, made from whole images there.

    Only the rows that the network input shows are copied. Images that would be enlarged are fitted
    on the host.

    Threads copy into pinned memory, a camera at a time each, while images before are on their way:
    one core moves a few gigabytes a second, and waits for the interpreter after every image.

    Args:
        config: Network input.
        present: (N,) float32 on the device; a camera with 0 becomes black.
        bind: Makes a launch of the kernel; by default on the device of ``present``.
        slots: Of pinned memory.
        threads: That copy.

    Attributes:
        batch: (N, rows, cols, 3) uint8 RGB, of fixed address; written by :attr:`fit`.
        fit: Enqueues the kernel that makes ``batch`` of what was loaded last. Another one than
            before reads other memory: what was captured of the one before is void.
    """

    def __init__(
        self,
        config: ImageConfig,
        present: torch.Tensor,
        bind: Bind | None = None,
        slots: int = 2,
        threads: int = 1,
    ) -> None:
        cameras, (rows, cols), device = len(present), config.size_hw, present.device
        self._config, self._present, self._device = config, present, device
        self._bind = bind or _binder(device)
        self.batch = torch.zeros((cameras, rows, cols, 3), dtype=torch.uint8, device=device)
        self._sizes_wh: list[tuple[int, int] | None] = [None] * cameras
        self._plans: list[_Plan] = []
        self._begins: list[int] = []
        source, span = (struct_dtype(_FILE, name).itemsize for name in ("Source", "Span"))
        self._parts = [source * cameras, span * cameras * cols, span * cameras * rows]
        self._tables = torch.zeros(sum(self._parts), dtype=torch.uint8, device=device)
        self._pixels = torch.zeros(0, dtype=torch.uint8, device=device)
        self._slots: list[_Slot] = []
        self._num_slots, self._next = slots, 0
        self._copiers = ThreadPoolExecutor(threads, thread_name_prefix="copy")
        self.fit: Callable[[], None] = lambda: None

    def load(self, frames: Sequence[CameraFrame | None]) -> None:
        """Enqueue the pixels of one instant on the current stream.

        Args:
            frames: One entry a camera, checked; the images may change as soon as this returns.
        """
        sizes = [f.size_wh if f else known for f, known in zip(frames, self._sizes_wh)]
        if sizes != self._sizes_wh or not self._slots:
            self._lay_out(sizes)
        slot = self._slots[self._next]
        self._next = (self._next + 1) % self._num_slots
        slot.begin()
        parts = [
            (slice(begin, begin + plan.nbytes), plan, frame.image)
            for frame, plan, begin in zip(frames, self._plans, self._begins)
            if frame is not None and frame.image is not None
        ]
        copies = [self._copiers.submit(slot.write, *part) for part in parts]
        try:
            for copied, (where, *_) in zip(copies, parts):
                copied.result()
                slot.send(where, self._pixels)
        finally:  # whatever became of one image, the slot is not written again before this ends
            wait(copies)
            slot.end(self._device)

    def _lay_out(self, sizes: list[tuple[int, int] | None]) -> None:
        """Give each camera its place, in more memory if need be."""
        rows, cols = self._config.size_hw
        plans = [_Plan.of(size or (cols, rows), self._config) for size in sizes]
        *begins, size = np.cumsum([0, *(-(-p.nbytes // _UNIT) * _UNIT for p in plans)]).tolist()
        tables = torch.from_numpy(_packed(plans, begins))
        if self._device.type == "cuda":
            tables = tables.pin_memory()  # from pageable memory the copy would wait
        if not self._slots or size > len(self._pixels):
            pixels = torch.zeros(size, dtype=torch.uint8, device=self._device)
            slots = [_Slot(size, self._device) for _ in range(self._num_slots)]
            # All at once, so that a frame which finds no memory leaves what was.
            self.fit, self._pixels, self._slots = self._launch(pixels), pixels, slots
        self._tables.copy_(tables, non_blocking=True)
        self._sizes_wh, self._plans, self._begins = sizes, plans, begins

    def _launch(self, pixels: torch.Tensor) -> Callable[[], None]:
        cameras, rows, cols, _ = self.batch.shape
        sources, columns, lines = self._tables.split(self._parts)
        results = cameras * rows * cols
        fields = {
            **{"pixels": pixels, "sources": sources, "columns": columns, "lines": lines},
            **{"present": self._present, "out": self.batch},
            **{"rows": rows, "cols": cols, "results": results},
        }
        value = struct_value(_FILE, "Images", fields)
        return self._bind(-(-results // _THREADS), _THREADS, value)


class _Plan:
    """What is copied of the images of one camera.

    Attributes:
        area: How the device averages what was copied.
        stride: Bytes of a row.
        nbytes: Bytes in all.
    """

    def __init__(self, area: AreaFit, width: int, fit: ImageFit | None) -> None:
        self.area, self.stride = area, 3 * width
        self.nbytes = area.num_lines * self.stride
        self._fit = fit

    @staticmethod
    def of(size_wh: tuple[int, int], config: ImageConfig) -> _Plan:
        fit = ImageFit.of(size_wh, config)
        area = AreaFit.of(size_wh, fit)
        if area is not None:
            return _Plan(area, size_wh[0], None)
        rows, cols = config.size_hw
        as_it_is = ImageFit((cols, rows), (1.0, 1.0), 0, 0, (rows, cols))
        area = AreaFit.of((cols, rows), as_it_is)
        assert area is not None, "nothing is enlarged"
        return _Plan(area, cols, fit)

    def lines_of(self, image: Pixels) -> Pixels:
        """Return the rows to copy."""
        if self._fit is not None:  # the host enlarges
            fitted = np.zeros((*self._fit.size_hw, 3), np.uint8)
            self._fit.apply(image, fitted)
            image = fitted
        first = self.area.first_line
        return image[first : first + self.area.num_lines]


class _Slot:
    """Pinned memory laid out as the pixels on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
        self._array: Pixels = self._bytes.numpy()
        self._fetched = torch.cuda.Event() if cuda else None

    def begin(self) -> None:
        """Wait until the device has fetched what is in here."""
        if self._fetched is not None:
            self._fetched.synchronize()  # by the frame before last

    def write(self, where: slice, plan: _Plan, image: Pixels) -> None:
        """Copy what the device needs of an image; any thread may."""
        lines = plan.lines_of(image)
        np.copyto(self._array[where].reshape(lines.shape), lines)

    def send(self, where: slice, target: torch.Tensor) -> None:
        """Enqueue the way to the device."""
        target[where].copy_(self._bytes[where], non_blocking=True)

    def end(self, device: torch.device) -> None:
        """Mark the end of what was enqueued."""
        if self._fetched is not None:
            self._fetched.record(torch.cuda.current_stream(device))


def _packed(plans: Sequence[_Plan], begins: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the bytes of sources, columns and lines of all cameras."""
    sources = np.zeros(len(plans), struct_dtype(_FILE, "Source"))
    for source, plan, begin in zip(sources, plans, begins):
        source["first"], source["stride"] = begin // _UNIT, plan.stride
        source["half_up"], source["scale"] = plan.area.half_up, plan.area.scale
    areas = [plan.area for plan in plans]
    parts = [sources, *(a.columns for a in areas), *(a.lines for a in areas)]
    return np.concatenate([part.view(np.uint8) for part in parts])


def _binder(device: torch.device) -> Bind:
    def bind(blocks: int, threads: int, value: object) -> Callable[[], None]:
        return kernel_on(device, "fit_images", "fit_images").bind(blocks, threads, value)

    return bind
