"""Coordinate maps: which input row meets which output row under which kernel tap.

One relation defines every map, in the reference, in the kernels and in the tests::

    fine = stride * coarse + tap * dilation - padding        (on each of z, y, x)

A forward convolution reads fine rows and writes coarse rows; an inverse convolution swaps the two
and keeps the tap. Taps are numbered ``k = (kz * size_y + ky) * size_x + kx`` and weight slice k
multiplies the features of the fine row (cross-correlation: no flip).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_types import CoordMap, Triple

__all__ = [
    "CoordMap",
    "Triple",
    "as_triple",
    "check_coords",
    "inverse_map",
    "strided_map",
    "submanifold_map",
]

IntOrTriple = int | Sequence[int]


def as_triple(value: IntOrTriple, name: str, least: int = 1) -> Triple:
    """Return ``value`` as (z, y, x).

    Args:
        value: One integer for all axes, or three.
        name: What the value is called in the error.
        least: The smallest integer accepted.

    Raises:
        ConfigError: If there are not one or three integers >= ``least``.
    """
    values = (value,) * 3 if isinstance(value, int) else tuple(value)
    if len(values) != 3 or any(not isinstance(v, int) or v < least for v in values):
        raise ConfigError(
            f"'{name}' must be one integer or three (z, y, x), each at least {least}, "
            f"got {value!r}."
        )
    return values[0], values[1], values[2]


def check_coords(coords_bzyx: torch.Tensor, shape_zyx: IntOrTriple) -> Triple:
    """Return ``shape_zyx`` as a triple after proving that every coordinate lies inside it.

    Args:
        coords_bzyx: (N, 4) int32: batch, z, y, x.
        shape_zyx: Cells of the grid.

    Raises:
        InvalidFrame: If the coordinates have another shape or dtype, or leave the grid. They are
            never wrapped or clamped: a wrapped cell would meet neighbours it does not have.
    """
    shape = as_triple(shape_zyx, "shape_zyx")
    if coords_bzyx.ndim != 2 or coords_bzyx.shape[1] != 4 or coords_bzyx.dtype != torch.int32:
        raise InvalidFrame(
            "Coordinates must be rows of batch, z, y, x; convert them with .int().",
            "coords_bzyx",
            f"{tuple(coords_bzyx.shape)} {coords_bzyx.dtype}",
            "(N, 4) torch.int32",
        )
    if len(coords_bzyx) == 0:
        return shape
    low, high = (m.tolist() for m in torch.aminmax(coords_bzyx, dim=0))
    for axis, least, most, size in zip("bzyx", low, high, (math.inf, *shape)):
        if least < 0 or most >= size:
            raise InvalidFrame(
                f"Coordinates leave the grid along {axis}; drop those rows before the convolution.",
                "coords_bzyx",
                f"{axis} from {least} to {most}",
                "0 or more" if axis == "b" else f"0 to {size - 1}",
                code="coords_out_of_range",
            )
    return shape


def submanifold_map(
    coords_bzyx: torch.Tensor,
    shape_zyx: IntOrTriple,
    kernel_size: IntOrTriple = 3,
    dilation: IntOrTriple = 1,
) -> CoordMap:
    """Build the map whose output rows are its input rows, in the same order.

    Args:
        coords_bzyx: (N, 4) int32, unique, in any order.
        shape_zyx: Cells of the grid; memory depends on N alone, not on the grid.
        kernel_size: Odd taps along z, y, x.
        dilation: Cells between taps; the padding is ``kernel_size // 2 * dilation``.

    Returns:
        A map with ``counts[k] == counts[K - 1 - k]`` and the centre as ``identity_offset``.

    Raises:
        InvalidFrame: If coordinates repeat or leave the grid.
        ConfigError: If a kernel size is even, or the grid needs keys beyond 63 bits.

    Source: Graham, Engelcke, van der Maaten, "3D semantic segmentation with submanifold sparse
    convolutional networks", CVPR 2018.
    """
    shape = check_coords(coords_bzyx, shape_zyx)
    kernel = as_triple(kernel_size, "kernel_size")
    if any(k % 2 == 0 for k in kernel):
        raise ConfigError(
            f"A submanifold convolution has a centre tap, so 'kernel_size' must be odd, "
            f"got {kernel}. Use a strided convolution for even kernels."
        )
    ops = Ops.for_device(coords_bzyx.device)
    return ops.submanifold_map(coords_bzyx, shape, kernel, as_triple(dilation, "dilation"))


def strided_map(
    coords_bzyx: torch.Tensor,
    shape_zyx: IntOrTriple,
    kernel_size: IntOrTriple = 3,
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    dilation: IntOrTriple = 1,
) -> CoordMap:
    """Build the map of a regular sparse convolution: an output is active where any input is seen.

    Args:
        coords_bzyx: (N, 4) int32, unique, in any order.
        shape_zyx: Cells of the input grid.
        kernel_size: Taps along z, y, x.
        stride: Output spacing; 1 dilates the active set.
        padding: Cells added on both sides.
        dilation: Cells between taps.

    Returns:
        A map with output rows in ascending (b, z, y, x) order, on a grid of
        ``(shape + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1`` cells.

    Raises:
        InvalidFrame: If coordinates repeat or leave the grid.
        ConfigError: If the output grid has no cell, or needs keys beyond 63 bits.
    """
    shape = check_coords(coords_bzyx, shape_zyx)
    kernel, step = as_triple(kernel_size, "kernel_size"), as_triple(stride, "stride")
    pad, spread = as_triple(padding, "padding", least=0), as_triple(dilation, "dilation")
    if any(s + 2 * p < d * (k - 1) + 1 for s, p, d, k in zip(shape, pad, spread, kernel)):
        raise ConfigError(
            f"A kernel of {kernel} with dilation {spread} does not fit a grid of {shape} cells "
            f"padded by {pad}; use a smaller kernel or more padding."
        )
    ops = Ops.for_device(coords_bzyx.device)
    return ops.strided_map(coords_bzyx, shape, kernel, step, pad, spread)


def inverse_map(forward: CoordMap) -> CoordMap:
    """Build the map from the outputs of ``forward`` back to its inputs, tap by tap.

    Args:
        forward: The map of the convolution to undo.

    Returns:
        A map with the rows of ``forward`` swapped and the taps unchanged: a transposed
        convolution evaluated at the active inputs of ``forward`` only.
    """
    return Ops.for_device(forward.in_rows.device).inverse_map(forward)
