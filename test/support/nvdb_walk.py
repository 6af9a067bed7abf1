"""Look up single voxels in the bytes of a NanoVDB grid by offsets of its own, from root to leaf."""

from __future__ import annotations

import struct


class Walk:
    """One grid as bytes; all numbers below are those of the format, not of the code under test."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.kind = self.number("I", 636)
        self.wide = self.kind == 20
        self.root = 672 + self.number("q", 672 + 24)

    def number(self, code: str, at: int) -> int | float:
        return struct.unpack_from("<" + code, self.data, at)[0]

    def bit(self, at: int, n: int) -> bool:
        return bool(self.number("Q", at + 8 * (n >> 6)) >> (n & 63) & 1)

    def leaf_of(self, x: int, y: int, z: int) -> int | None:
        """Return where the leaf of a voxel begins."""
        key = (x & 0xFFFFFFFF) >> 12 << 42 | (y & 0xFFFFFFFF) >> 12 << 21 | (z & 0xFFFFFFFF) >> 12
        tiles = self.root + (96 if self.wide else 64)
        for i in range(self.number("I", self.root + 24)):
            if self.number("Q", tiles + 32 * i) == key:
                upper = self.root + self.number("q", tiles + 32 * i + 8)
                break
        else:
            return None
        n = (x >> 7 & 31) << 10 | (y >> 7 & 31) << 5 | z >> 7 & 31
        if not self.bit(upper + 32 + 4096, n):
            return None
        lower = upper + self.number("q", upper + 8256 + 8 * n)
        n = (x >> 3 & 15) << 8 | (y >> 3 & 15) << 4 | z >> 3 & 15
        if not self.bit(lower + 32 + 512, n):
            return None
        return lower + self.number("q", lower + 1088 + 8 * n)

    def value(self, x: int, y: int, z: int) -> int | float | None:
        """Return the value of an active voxel, or None where it is not active."""
        leaf, n = self.leaf_of(x, y, z), (x & 7) << 6 | (y & 7) << 3 | z & 7
        if leaf is None or not self.bit(leaf + 16, n):
            return None
        if not self.wide:
            return self.number("f" if self.kind == 1 else "i", leaf + 96 + 4 * n)
        word = n >> 6
        before = self.number("Q", leaf + 16 + 8 * word) & ((1 << (n & 63)) - 1)
        prefix = self.number("Q", leaf + 88) >> 9 * (word - 1) & 511 if word else 0
        return self.number("Q", leaf + 80) + bin(before).count("1") + prefix

    def channel(self, name: str) -> tuple[int, int, int]:
        """Return type, first byte and rows of a channel."""
        first, count = self.number("q", 640), self.number("I", 648)
        for i in range(count):
            at = first + 288 * i
            if self.data[at + 32 : at + 288].rstrip(b"\0").decode() == name:
                begin = at + self.number("q", at)
                assert begin % 32 == 0 and self.number("I", at + 16) == 4
                return self.number("I", at + 28), begin, self.number("Q", at + 8)
        raise KeyError(name)
