"""Sparse convolutions over active cells: submanifold, regular and inverse; 2-D uses z = 1."""

from __future__ import annotations

import torch

from driveRT_ros.core.coordmap import IntOrTriple, strided_map, submanifold_map
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.sparse_types import CoordMap, SparseTensor

__all__ = [
    "SparseTensor",
    "gather_gemm_scatter",
    "inverse_conv3d",
    "sparse_conv3d",
    "subm_conv3d",
]


def subm_conv3d(
    x: SparseTensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kernel_size: IntOrTriple = 3,
    dilation: IntOrTriple = 1,
    coord_map: CoordMap | None = None,
) -> SparseTensor:
    """Convolve where the input is active, and only there.

    Args:
        x: Input of N rows.
        weight: (K, C_in, C_out) with K = taps of the kernel, x fastest.
        bias: (C_out,).
        kernel_size: Odd taps along z, y, x; ignored where ``coord_map`` is given.
        dilation: Cells between taps; ignored where ``coord_map`` is given.
        coord_map: The map of these coordinates, where the caller has it already.

    Returns:
        N rows at the same coordinates in the same order.

    Raises:
        InvalidFrame: If coordinates repeat or leave the grid.
        ConfigError: If weight, bias or map do not belong to this input.
    """
    if coord_map is None:
        coord_map = submanifold_map(x.coords_bzyx, x.spatial_shape_zyx, kernel_size, dilation)
    return _convolve(x, weight, bias, coord_map)


def sparse_conv3d(
    x: SparseTensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kernel_size: IntOrTriple = 3,
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    coord_map: CoordMap | None = None,
) -> SparseTensor:
    """Convolve wherever the kernel sees an active input; stride 1 dilates the active set.

    Args:
        x: Input.
        weight: (K, C_in, C_out) with K = taps of the kernel, x fastest.
        bias: (C_out,).
        kernel_size: Taps along z, y, x; ignored, as the next two, where ``coord_map`` is given.
        stride: Output spacing along z, y, x.
        padding: Cells added on both sides along z, y, x.
        coord_map: The map of these coordinates, where the caller has it already.

    Returns:
        Output rows in ascending (b, z, y, x) order.

    Raises:
        InvalidFrame: If coordinates repeat or leave the grid.
        ConfigError: If weight, bias or map do not belong to this input.
    """
    if coord_map is None:
        coord_map = strided_map(x.coords_bzyx, x.spatial_shape_zyx, kernel_size, stride, padding)
    return _convolve(x, weight, bias, coord_map)


def inverse_conv3d(
    x: SparseTensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    coord_map: CoordMap,
) -> SparseTensor:
    """Go back to the coordinates a regular convolution came from.

    Args:
        x: Output of the convolution to invert, or a tensor with its coordinates.
        weight: (K, C_in, C_out); slice k serves the pairs that tap k made on the way down.
        bias: (C_out,).
        coord_map: ``inverse_map`` of that convolution's map.

    Returns:
        Rows at the coordinates, and in the order, of that convolution's input.

    Raises:
        ConfigError: If weight, bias or map do not belong to this input.
    """
    return _convolve(x, weight, bias, coord_map)


def gather_gemm_scatter(
    features: torch.Tensor,
    weight: torch.Tensor,
    coord_map: CoordMap,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """Apply one convolution given its map, and what usually follows it.

    Args:
        features: (num_in, C_in) float32 or float64.
        weight: (K, C_in, C_out) with K = taps of the map's kernel.
        coord_map: The pairs.
        bias: (C_out,).
        residual: (num_out, C_out), added before ``relu``.
        relu: Replace negative results by zero.

    Returns:
        (num_out, C_out).

    Raises:
        ConfigError: If the shapes do not fit each other.
    """
    _check_shapes(features, weight, coord_map, bias, residual)
    ops = Ops.for_device(features.device)
    return ops.gather_gemm_scatter(
        features, weight, coord_map, bias=bias, residual=residual, relu=relu
    )


def _convolve(
    x: SparseTensor, weight: torch.Tensor, bias: torch.Tensor | None, coord_map: CoordMap
) -> SparseTensor:
    if tuple(x.spatial_shape_zyx) != coord_map.in_shape_zyx or not torch.equal(
        x.coords_bzyx, coord_map.in_coords_bzyx
    ):
        raise ConfigError(
            f"'coord_map' was made for {coord_map.num_in} other rows on a grid of "
            f"{coord_map.in_shape_zyx} cells; the input has {len(x)} rows on "
            f"{tuple(x.spatial_shape_zyx)}. An inverse convolution takes 'inverse_map' of the map."
        )
    return SparseTensor(
        gather_gemm_scatter(x.features, weight, coord_map, bias=bias),
        coord_map.out_coords_bzyx,
        coord_map.out_shape_zyx,
        x.batch_size,
    )


def _check_shapes(
    features: torch.Tensor,
    weight: torch.Tensor,
    coord_map: CoordMap,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    taps = len(coord_map.counts)
    expected_features = (coord_map.num_in, features.shape[-1])
    channels = weight.shape[-1]
    for name, tensor, expected in (
        ("features", features, expected_features),
        ("weight", weight, (taps, features.shape[-1], channels)),
        ("bias", bias, (channels,)),
        ("residual", residual, (coord_map.num_out, channels)),
    ):
        if tensor is not None and tuple(tensor.shape) != expected:
            raise ConfigError(
                f"A sparse convolution with kernel {coord_map.kernel_size} from "
                f"{coord_map.num_in} to {coord_map.num_out} rows needs '{name}' of shape "
                f"{expected}, got {tuple(tensor.shape)}."
            )
