"""Scatter maps and pooling of camera features into a bird's-eye view, in plain torch.

A feature pixel is lifted to D points along its ray, weighted by a depth distribution; a cell holds
the sum of what falls into it (Philion and Fidler, "Lift, Splat, Shoot", 2020):
``out[cell] = sum of depth[camera, d, v, u] * context[camera, v, u]``.
"""

from __future__ import annotations

import torch

from driveRT_ros.core.pool_types import (
    MAP_ARRAYS,
    CameraGeometry,
    FrustumShape,
    PoolGrid,
    ScatterMap,
    calibration_hash,
)


def ego_points(geometry: CameraGeometry, frustum: FrustumShape) -> torch.Tensor:
    """Return where every point of the frusta lies.

    ``q = P (pixel - s)``, ``q.xy *= q.z``, ``ego = M q + t``, from left to right, every operation
    rounded by itself, so that another implementation can give the same bits.

    Returns:
        (N, D, H, W, 3) float64 x, y, z in the ego frame.
    """
    return points_of(torch.from_numpy(geometry.coefficients()), frustum)


def points_of(coefficients: torch.Tensor, frustum: FrustumShape) -> torch.Tensor:
    """Return where every point of the frusta lies; see :func:`ego_points`.

    Args:
        coefficients: (N, 24) float64, as :meth:`CameraGeometry.coefficients` gives them.
        frustum: The points along the rays of every feature pixel.

    Returns:
        (N, D, H, W, 3) float64 on the device of the coefficients.
    """
    u, v, d = (torch.from_numpy(axis).to(coefficients.device) for axis in frustum.axes())
    c = coefficients.view(-1, 24, 1, 1, 1)
    pixel = (
        u.view(1, 1, 1, -1) - c[:, 9],
        v.view(1, 1, -1, 1) - c[:, 10],
        d.view(1, -1, 1, 1) - c[:, 11],
    )
    q = [c[:, 3 * i] * pixel[0] + c[:, 3 * i + 1] * pixel[1] + c[:, 3 * i + 2] * pixel[2]
         for i in range(3)]  # fmt: skip
    q = [q[0] * q[2], q[1] * q[2], q[2]]
    rows = [
        c[:, 12 + 3 * i] * q[0] + c[:, 13 + 3 * i] * q[1] + c[:, 14 + 3 * i] * q[2] + c[:, 21 + i]
        for i in range(3)
    ]
    return torch.stack(torch.broadcast_tensors(*rows), dim=-1)


def point_cells(points: torch.Tensor, grid: PoolGrid, rounding: str = "trunc") -> torch.Tensor:
    """Return the cell of every point.

    Args:
        points: (..., 3) float64 x, y, z.
        grid: The cells.
        rounding: ``floor``: the cell that a point lies in. ``trunc``: as published checkpoints,
            points up to one cell below the range fall into the first cell, too.

    Returns:
        (...) int32 index into (Z, Y, X), -1 outside the grid.
    """
    nz, ny, nx = grid.shape_zyx
    inside = torch.ones(points.shape[:-1], dtype=torch.bool, device=points.device)
    cell = []
    for axis, count in enumerate((nx, ny, nz)):
        q = (points[..., axis] - grid.lower[axis]) / grid.steps[axis]
        above = q >= 0 if rounding == "floor" else q > -1
        inside &= above & (q < count)
        cell.append(q)
    x, y, z = (torch.where(inside, q, 0.0).long() for q in cell)
    return torch.where(inside, (z * ny + y) * nx + x, -1).int()


def build_scatter_map(
    geometry: CameraGeometry, frustum: FrustumShape, grid: PoolGrid, rounding: str = "trunc"
) -> ScatterMap:
    """Return the map on the CPU; see :func:`driveRT_ros.core.bev_pool.build_scatter_map`."""
    cells = point_cells(ego_points(geometry, frustum), grid, rounding)
    digest = calibration_hash(geometry, frustum, grid, rounding)
    return map_of_cells(cells, grid.shape_zyx, digest)


def map_of_cells(
    cells: torch.Tensor, grid_shape_zyx: tuple[int, int, int], digest: str = ""
) -> ScatterMap:
    """Return the map of points whose cells are known.

    Args:
        cells: (N, D, H, W) int32 index into (Z, Y, X), -1 for points outside.
        grid_shape_zyx: Cells along z, y, x.
        digest: Names the calibration.
    """
    n, d, h, w = cells.shape
    flat = cells.reshape(-1)
    kept = torch.nonzero(flat >= 0).squeeze(1)
    bev, order = flat[kept].sort(stable=True)
    depth = kept[order]
    feat = depth // (d * h * w) * (h * w) + depth % (h * w)
    _, lengths = torch.unique_consecutive(bev, return_counts=True)
    starts = lengths.cumsum(0) - lengths
    return ScatterMap(
        **dict(zip(MAP_ARRAYS, (a.int() for a in (depth, feat, bev, starts, lengths)))),
        counts=torch.tensor([len(bev), len(lengths)], dtype=torch.int32, device=cells.device),
        grid_shape_zyx=grid_shape_zyx,
        frustum_shape=(n, d, h, w),
        calibration_hash=digest,
    )


def softmax_depths(logits: torch.Tensor, present: torch.Tensor | None = None) -> torch.Tensor:
    """Return how much of a pixel lies at each depth.

    Args:
        logits: (B, N, D, H, W).
        present: (N,) multiplies the weights of each camera; None leaves them alone.

    Returns:
        (B, N, D, H, W), with the sum 1 over D; float64 for float64, float32 for other types.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    depth = logits.softmax(dim=2, dtype=wide)
    return depth if present is None else depth * present.to(wide).view(1, -1, 1, 1, 1)


def bev_pool(
    depth: torch.Tensor,
    context: torch.Tensor,
    scatter_map: ScatterMap,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sum depth x context in every cell, points in the order of the map.

    Args:
        depth: (B, N, D, H, W) weights.
        context: (B, N, H, W, C) features.
        scatter_map: The map.
        scale: Multiplies the result.
        out_dtype: Of the result; that of the sums by default. Sums are float64 where an input is,
            otherwise float32.

    Returns:
        (B, Z, Y, X, C).
    """
    sums = torch.float64 if torch.float64 in (depth.dtype, context.dtype) else torch.float32
    trimmed = scatter_map.trimmed()
    batch, channels = context.shape[0], context.shape[-1]
    rank_depth, rank_feat, rank_bev, starts, _ = (ranks.long() for ranks in trimmed.arrays())
    out = torch.zeros(batch, trimmed.cells, channels, dtype=sums, device=context.device)
    weights, features = depth.reshape(batch, -1), context.reshape(batch, -1, channels)
    for b in range(batch if len(starts) else 0):
        # A bag is an interval; torch adds its rows up one after the other.
        out[b, rank_bev[starts]] = torch.nn.functional.embedding_bag(
            rank_feat,
            features[b].to(sums),
            starts,
            mode="sum",
            per_sample_weights=weights[b, rank_depth].to(sums),
        )
    out = out * scale if scale != 1.0 else out
    return out.view(batch, *trimmed.grid_shape_zyx, channels).to(out_dtype or sums)
