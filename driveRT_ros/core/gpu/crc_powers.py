"""Powers of x modulo the polynomial of CRC-32, as kernels/grid_ops_crc.cuh reads them."""

from __future__ import annotations

import functools

import numpy as np
import torch

_POLYNOMIAL, _ONE = 0xEDB88320, 0x80000000
_WORD_SHIFTS, _PIECE_SHIFTS, _DIGITS = 6, 4, 7


def product(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
    """Multiply polynomials over GF(2) modulo that of CRC-32; bit 31 is the coefficient of 1."""
    a, b = np.asarray(a, np.uint32), np.asarray(b, np.uint32)
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.uint32)
    for bit in range(31, -1, -1):
        result ^= np.where(a >> np.uint32(bit) & 1, b, np.uint32(0))
        b = (b >> np.uint32(1)) ^ np.where(b & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return result


@functools.cache
def operators(piece_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the operators that bring a register past zeros.

    Args:
        piece_words: Words of a piece, a power of two: 1 where the pieces are CRCs in a list.

    Returns:
        (10, 7, 32) uint32: entry (k, d, e) is e shifted left by 5 d bits, past 1, 2, 4, 8, 16, 32
        words, then past 1, 2, 4, 8 pieces; and (32,) uint32: x to the power 32 * 2**k, the product
        with which brings a register past 2**k words.
    """
    powers = [product(_ONE >> 1, 1)]  # x times x^31
    while len(powers) < 32:
        powers.append(product(powers[-1], powers[-1]))
    shifts = 5 * np.arange(_DIGITS, dtype=np.uint64)[:, None]
    digits = (np.arange(32, dtype=np.uint64)[None] << shifts & 0xFFFFFFFF).astype(np.uint32)
    first = piece_words.bit_length() - 1
    chosen = [*range(_WORD_SHIFTS), *range(first, first + _PIECE_SHIFTS)]
    return np.stack([product(digits, powers[k]) for k in chosen]), np.array(powers)


@functools.cache
def operators_on(device: torch.device, piece_words: int) -> dict[str, torch.Tensor]:
    """Return what :func:`operators` does on a device, by the names that kernels know."""
    parts = (torch.from_numpy(part.view(np.int32)) for part in operators(piece_words))
    return {name: part.to(device) for name, part in zip(("tables", "powers"), parts)}
