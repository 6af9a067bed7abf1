"""The CRC-32 of a frame's rows as part of the frame: the host need not know how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from driveRT_ros.core.fingerprint import ROWS
from driveRT_ros.core.gpu.crc_powers import operators_on
from driveRT_ros.core.gpu.domains import BEV_DILATED
from driveRT_ros.core.gpu.grid_ops import MESSAGES, WARPS, grid_kernel, resident_blocks
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.reference.grid_ops import BLOCK

if TYPE_CHECKING:
    from driveRT_ros.core.gpu.backbone import SparseBackbone

Bind = Callable[..., Callable[[], None]]
"""Prepares a launch of ``(kernel, blocks, threads, *arguments)``."""


class RowCrcs:
    """Checksums of buffers that every frame fills anew, by one launch that is prepared once.

    Args:
        parts: At most eight, by name: (capacity, ...) of 32-bit values, contiguous, and (1,) int32
            beside it: how many rows there are; more than there is room for count as all of them.
        words: (as many,) int32; they must be zero before each launch.
        bind: See :data:`Bind`; by default on the device of the words.
        resident: Blocks that run at once; as many as the device holds by default.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        words: torch.Tensor,
        bind: Bind | None = None,
        resident: int = 0,
    ) -> None:
        self._names, self._keep = tuple(parts), (words, parts)  # kernels hold addresses alone
        rows, counts = (list(column) for column in zip(*parts.values()))
        unused = [0] * (MESSAGES - len(parts))
        fields = {
            **operators_on(words.device, BLOCK // 4),
            **{"sums": words, "messages": len(parts)},
            **{"data": rows + unused, "count": counts + unused},
            **{"capacity": [len(each) for each in rows] + unused},
            **{"row_bytes": [each[:1].nbytes for each in rows] + unused},
        }
        value = struct_value("grid_ops_checksum.cu", "Rows", fields)
        blocks = (resident or resident_blocks(words.device)) + 2 * len(parts)
        # Not dependent: what is before it in a frame was launched by torch.
        self.enqueue = (bind or _binder(words.device))("crc_rows", blocks, 32 * WARPS, value)
        """Enqueues the checksums of the rows in place, on torch's current stream."""

    def named(self, words: Iterable[int]) -> dict[str, int]:
        """Return the CRC-32 of each part, that of zlib.

        Args:
            words: What the launch left in its words, on the host.
        """
        return {name: ~int(word) & 0xFFFFFFFF for name, word in zip(self._names, words)}


def frame_crcs(engine: SparseBackbone, words: torch.Tensor) -> RowCrcs:
    """Return the checksums of :data:`~driveRT_ros.core.fingerprint.ROWS` of an engine's frames.

    Args:
        engine: Makes the rows; in the order of their cells.
        words: (4,) int32 that begin a frame at zero.
    """
    maps = engine.maps
    voxels, last = maps.levels[0], maps.levels[BEV_DILATED]
    parts = (
        (maps.points, maps.num_points),
        (voxels.coords_zyx, voxels.counts[1:2]),
        (maps.features, voxels.counts[1:2]),
        (engine.features, last.counts[1:2]),
    )
    return RowCrcs(dict(zip(ROWS, parts)), words)


def _binder(device: torch.device) -> Bind:
    def bind(name: str, blocks: int, threads: int, *args: object) -> Callable[[], None]:
        return grid_kernel("grid_ops_checksum", name, device).bind(blocks, threads, *args)

    return bind
