"""The checksums of a NanoVDB grid: a CRC-32 of its head, and one of its tail.

Since version 32.6.1 the head is grid data and tree data, and the tail all that follows, blind data
too, in blocks of 4 KB. Before, the head was grid data, tree data and root, and the tail every node
by itself: upper, lower, leaf. Either way the tail is the CRC-32 of the CRC-32 of its parts, and the
magic and the checksum itself are left out.

The old tail is no use: its parts were summed as integers of 8 bytes on one platform and of 4 on
another, so that no value satisfies all readers. Grids of the old version are therefore written as
most tools do, without it; the sum of the blocks goes into words that such grids leave unused.
"""

from __future__ import annotations

import zlib

import numpy as np

from driveRT_ros.core import nanovdb_layout as layout
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.nanovdb_layout import EMPTY_CHECKSUM, GRID, HEAD, HEAD_FROM, TREE, GridHeader
from driveRT_ros.core.reference.grid_ops import blocks, crc_of_crcs, nodes_one_by_one

OWN_TAIL = int.from_bytes(b"driveRT1", "little")
"""Marks, in ``data1``, an old grid of values whose tail has its CRC-32 in ``data0``."""


def head_checksum(grid: np.ndarray) -> int:
    """Return the CRC-32 of the head.

    Args:
        grid: (bytes,) uint8, one grid. Nothing in it is trusted: it may be damaged.
    """
    end = HEAD
    if layout.unpack_version(_word(grid, "version")) < layout.BLOCKS_SINCE:
        tree = grid[GRID.itemsize : HEAD].view(TREE)[0]
        # Upper nodes follow the root; a damaged offset gives a wrong sum, not an error.
        end = max(HEAD_FROM, GRID.itemsize + int(tree["node_offset"][2]))
    return zlib.crc32(grid[HEAD_FROM:end].data)


def tail_checksum(grid: np.ndarray) -> int:
    """Return the CRC-32 of the blocks of the tail; 0 for a tail below one block.

    Args:
        grid: (bytes,) uint8, one grid.
    """
    return crc_of_crcs(blocks(grid[HEAD:]))


def sign(grid: np.ndarray) -> None:
    """Write the checksums into a grid that is complete.

    Args:
        grid: (bytes,) uint8, changed in place.
    """
    data, tail = grid[: GRID.itemsize].view(GRID), tail_checksum(grid)
    if layout.unpack_version(_word(grid, "version")) < layout.BLOCKS_SINCE:
        data["data0"], data["data1"], data["checksum_tail"] = tail, OWN_TAIL, EMPTY_CHECKSUM
    else:
        data["checksum_tail"] = tail
    data["checksum_head"] = head_checksum(grid)


def protection(grid: np.ndarray) -> str:
    """Return what the checksums of a grid cover: ``all``, ``header`` or ``nothing``."""
    if _word(grid, "checksum_tail") != EMPTY_CHECKSUM or _has_own_tail(grid):
        return "all"
    return "nothing" if _word(grid, "checksum_head") == EMPTY_CHECKSUM else "header"


def verify(grid: np.ndarray, where: str) -> GridHeader:
    """Return the header of a grid whose bytes are those that were checksummed.

    What no checksum covers (:func:`protection`) is passed over.

    Args:
        grid: (bytes,) uint8, one grid.
        where: What to call it in errors, such as ``grid 'height' of 'a.nvdb'``.

    Raises:
        InvalidFrame: If head or tail have another CRC-32 than is stored; it names both.
        ConfigError: If the grid is of a kind or version that cannot be read.
    """
    if len(grid) < HEAD:
        raise InvalidFrame(
            f"The {where} is cut off.", "grid_size", len(grid), f"{HEAD} bytes or more", code="size"
        )
    stored_head, stored_tail = _word(grid, "checksum_head"), _word(grid, "checksum_tail")
    if protection(grid) != "nothing":
        _compare(f"header of {where}", "checksum.head", head_checksum(grid), expected=stored_head)
    header = layout.read_header(grid)
    if stored_tail != EMPTY_CHECKSUM:
        got = _old_tails(grid, header) if not header.checksum_of_blocks else [tail_checksum(grid)]
        _compare(f"tree of {where}", "checksum.tail", *got, expected=stored_tail)
    elif _has_own_tail(grid):
        _compare(f"tree of {where}", "data0", tail_checksum(grid), expected=_word(grid, "data0"))
    return header


def _old_tails(grid: np.ndarray, header: GridHeader) -> list[int]:
    """Return the CRC-32 of the nodes as both kinds of platform compute it."""
    parts = list(nodes_one_by_one(grid, header))
    return [crc_of_crcs(parts, kind) for kind in ("<u4", "<u8")]


def _has_own_tail(grid: np.ndarray) -> bool:
    is_old = layout.unpack_version(_word(grid, "version")) < layout.BLOCKS_SINCE
    return is_old and _word(grid, "data1") == OWN_TAIL


def _compare(what: str, field: str, *got: int, expected: int) -> None:
    if expected not in got:
        raise InvalidFrame(
            f"The {what} is damaged: its bytes have another CRC-32 than was stored with them; copy "
            "or export the file again.",
            field,
            f"{got[0]:08x}",
            f"{expected:08x}",
            code="checksum",
        )


def _word(grid: np.ndarray, field: str) -> int:
    return int(grid[: GRID.itemsize].view(GRID)[0][field])
