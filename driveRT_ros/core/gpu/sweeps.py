"""Past sweeps that stay on a GPU: a frame brings its own sweep there, and one kernel moves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from driveRT_ros.core.config import DensificationConfig
from driveRT_ros.core.cuda import kernel_on
from driveRT_ros.core.device_faults import device_fault, keep
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.core.gpu.unpack_points import (
    MOST_POINTS,
    Bind,
    KeptSweep,
    PastSweep,
    UnpackedCloud,
    UnpackerRing,
)
from driveRT_ros.core.kernel_args import struct_values
from driveRT_ros.core.raw_cloud import Cloud, RawCloud
from driveRT_ros.core.rows import plain_rows, rows_for
from driveRT_ros.core.sparse_types import NUM_FEATURES
from driveRT_ros.core.sweeps import (
    FloatArray,
    Floats,
    Sweep,
    SweepBuffer,
    fill_rows,
    has_rows,
    relative_transform,
)

_THREADS, _MAX_BLOCKS = 256, 256
_SWEEPS = 16  # of a launch: as in kernels/sweeps.cu

Run = Callable[..., None]
"""Launches ``(kernel, grid, threads, *arguments)``."""


class DeviceSweepBuffer(SweepBuffer):
    """The rules of :class:`~driveRT_ros.core.sweeps.SweepBuffer`; the result lies on a GPU.

    Nothing waits for the GPU where sweeps come in pinned memory; they may change once the stream is
    past the push. Where the GPU fails, the sweeps are joined on the host, which keeps them too, and
    the result lies there; what ails the GPU, its next frame tells. An error that is no fault of a
    GPU comes out, and after it the GPU is left alone.

    A message that is not decoded yet is unpacked there, too, and its points are nowhere else; the
    host decodes it where the GPU fails.

    Args:
        config: The limits.
        device: CUDA device.
        run: Launches a kernel; by default on ``device``.
        bind: Prepares one of kernels/unpack_points.cu; by default on ``device``.
    """

    def __init__(
        self,
        config: DensificationConfig,
        device: torch.device,
        run: Run | None = None,
        bind: Bind | None = None,
    ) -> None:
        super().__init__(config)
        self._device, self._run = device, run or _launcher(device)
        self._make_pinned, self._left_alone = rows_for(device), False
        self._unpackers = UnpackerRing(device, config.num_past_frames, bind)

    def unpacks(self, num_points: int) -> bool:
        """See :meth:`~driveRT_ros.core.sweeps.SweepBuffer.unpacks`."""
        return num_points <= MOST_POINTS and not self._left_alone

    def _join(self, batch: PointBatch, pose: FloatArray | None) -> torch.Tensor:
        if not self._left_alone:
            with self._noticing_faults(batch):
                return self._joined_there(batch, pose)
        return super()._join(batch, pose)

    def _join_raw(self, raw: RawCloud, pose: FloatArray | None) -> Cloud:
        if self.unpacks(raw.num_points):
            with self._noticing_faults(raw):
                return self._unpacked(raw, pose)
        return self._join(raw.decode(), pose)

    @contextlib.contextmanager
    def _noticing_faults(self, cloud: PointBatch | RawCloud) -> Iterator[None]:
        """Let what fails at the GPU end there, and have the host join the same sweeps."""
        try:
            yield
        except Exception as error:
            fault = device_fault(error)
            if fault is None:  # costs this frame, and is reported; the next one takes the sure way
                self._left_alone = True
                raise
            self._left_alone = fault.context_lost
            if self._left_alone:
                past = [(sweep.there, sweep.kept) for sweep in self._past]
                keep(error, cloud, past, self._unpackers)
            for sweep in self._past:
                sweep.there = sweep.kept = None  # what came of it is not known

    def _joined_there(self, batch: PointBatch, pose: FloatArray | None) -> torch.Tensor:
        count, past = len(batch), sum(sweep.count for sweep in self._past)
        rows = batch.rows if has_rows(batch) else None
        if rows is None:
            rows = self._make_pinned(count)
            fill_rows(rows, batch)
        joined = torch.empty((count + past, NUM_FEATURES), device=self._device)
        joined[:count].copy_(torch.from_numpy(rows), non_blocking=True)
        if pose is None:
            return joined
        moves: list[dict[str, Any]] = []
        begin = count
        for sweep in self._past:
            end = begin + sweep.count
            moves.append(
                {
                    "columns": self._there(sweep),
                    "moved": joined[begin:end],
                    "count": sweep.count,
                    "age_s": (batch.stamp_ns - sweep.stamp_ns) * 1e-9,
                    "transform": relative_transform(pose, sweep.T_world_lidar)[:3].ravel(),
                }
            )
            begin = end
        for first in range(0, len(moves), _SWEEPS):
            self._move(moves[first : first + _SWEEPS])
        sweep = Sweep(batch.stamp_ns, pose, self._columns(rows))
        self._there(sweep)  # on its way while the frame is worked on
        self._remember(sweep)
        return joined

    def _unpacked(self, raw: RawCloud, pose: FloatArray | None) -> UnpackedCloud:
        if pose is None:
            return self._unpackers.take(raw, raw.most_points).run(raw, [], None, 0.0)
        past = [
            PastSweep(
                self._kept(sweep),
                (raw.stamp_ns - sweep.stamp_ns) * 1e-9,
                relative_transform(pose, sweep.T_world_lidar)[:3].ravel(),
            )
            for sweep in self._past
        ]
        kept = KeptSweep(self._device, max(1, raw.most_points))
        unpacker = self._unpackers.take(raw, raw.most_points + sum(p.kept.most for p in past))
        cloud = unpacker.run(raw, past, kept, self._config.ego_radius_m)

        def columns() -> Floats:
            try:
                batch = raw.decode()
            except InvalidFrame:  # its frame failed before anybody asked for its values
                return np.empty((NUM_FEATURES, 0), np.float32)
            rows = plain_rows(len(batch))
            fill_rows(rows, batch)
            return self._columns(rows)

        self._remember(Sweep(raw.stamp_ns, pose, columns, kept=kept))
        return cloud

    def _kept(self, sweep: Sweep) -> KeptSweep:
        if sweep.kept is None:
            sweep.kept = KeptSweep.of(self._there(sweep))
        kept: KeptSweep = sweep.kept
        return kept

    def _there(self, sweep: Sweep) -> torch.Tensor:
        if sweep.there is None:
            columns = torch.from_numpy(sweep.columns)
            if self._device.type == "cuda":
                columns = columns.pin_memory()  # from pageable memory the copy would wait
            sweep.there = columns.to(self._device, non_blocking=True)
        return sweep.there

    def _move(self, moves: list[dict[str, Any]]) -> None:
        most = max(move["count"] for move in moves)
        grid = (min(-(-most // _THREADS), _MAX_BLOCKS), len(moves))
        self._run(
            "move_sweeps", grid, _THREADS, struct_values("sweeps.cu", "Sweep", moves, _SWEEPS)
        )


def _launcher(device: torch.device) -> Run:
    def run(name: str, grid: tuple[int, int], block: int, *args: object) -> None:
        kernel_on(device, "sweeps", name).bind(grid, block, *args)()

    return run
