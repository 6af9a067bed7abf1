"""Checksums of rows that the device alone has counted are those of zlib over these rows."""

from __future__ import annotations

import functools
import zlib

import pytest
import torch

from driveRT_ros.core.gpu.row_crcs import RowCrcs

WIDTHS = (5, 3, 1, 16, 128)
"""32-bit values of a row: points, cells, and features of several models."""
ROOM = 700


def binder(backend):
    def bind(name, blocks, threads, *args):
        return functools.partial(backend.launch, "grid_ops_checksum", name, blocks, threads, *args)

    return bind


class Case:
    """Buffers with rows, the words for their checksums, and what zlib makes of them."""

    def __init__(self, backend, widths=WIDTHS, resident=4):
        generator = torch.Generator().manual_seed(len(widths))
        limits = {"low": -(2**31), "high": 2**31, "dtype": torch.int32}
        self.rows = [
            torch.randint(size=(ROOM, width), generator=generator, **limits) for width in widths
        ]
        new = {"dtype": torch.int32, "device": backend.device}
        self.counts, self.words = torch.zeros(len(widths), **new), torch.full((10,), 77, **new)
        self._size = len(widths)
        on_device = [rows.to(backend.device) for rows in self.rows]
        parts = zip(map(str, range(len(widths))), zip(on_device, self.counts.split(1)))
        self._crcs = RowCrcs(dict(parts), self.words[1:][: self._size], binder(backend), resident)

    def take(self, *counts):
        """Return the checksums of so many rows each."""
        self.counts.copy_(torch.tensor(counts, dtype=torch.int32))
        mine = self.words[1:][: self._size]
        mine.zero_()
        self._crcs.enqueue()
        around = [*self.words[:1].tolist(), *self.words[1 + self._size :].tolist()]
        assert around == [77] * (10 - self._size)
        found = self._crcs.named(mine.cpu().numpy())
        assert list(found) == [str(i) for i in range(self._size)]
        return list(found.values())

    def expected(self, *counts):
        """Return those of zlib; of more rows than there is room for, those of all."""
        return [
            zlib.crc32(rows[:count].numpy().tobytes()) for rows, count in zip(self.rows, counts)
        ]


@pytest.mark.parametrize("resident", [1, 4, 60])
def test_the_same_launch_takes_whatever_number_of_rows_a_frame_has(backend, resident):
    """None at all, one, ragged ends, whole blocks of 4 KB, full buffers; from 1 to 92 chunks."""
    case = Case(backend, resident=resident)
    for counts in (
        (0, 0, 0, 0, 0),
        (1, 1, 1, 1, 1),
        (700, 699, 698, 333, 9),
        (205, 342, 0, 64, 8),  # 4100, 4104, 0, 4096, 4096 bytes
        (0, 700, 0, 0, 700),
        (700, 700, 700, 700, 700),
    ):
        assert case.take(*counts) == case.expected(*counts), counts


def test_more_rows_than_there_is_room_for_count_as_all_of_them(backend):
    case = Case(backend)
    for counts in ((701, 700, 2**31 - 1, 5, 10**9), (10, 10**6, 0, 0, 0)):
        assert case.take(*counts) == case.expected(*counts)


@pytest.mark.parametrize("parts", [1, 8])
def test_one_message_or_eight_go_in_one_launch(backend, parts):
    case = Case(backend, widths=(7, 1, 2, 3, 5, 9, 33, 4)[:parts])
    counts = (650, 0, 700, 1, 401, 512, 77, 256)[:parts]
    assert case.take(*counts) == case.expected(*counts)


def test_checksums_do_not_depend_on_the_schedule(backend):
    case, counts = Case(backend), (700, 350, 120, 90, 100)
    expected, backend.resident = case.expected(*counts), 3
    for _ in backend.repeats():
        assert case.take(*counts) == expected
