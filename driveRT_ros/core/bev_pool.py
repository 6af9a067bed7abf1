"""Pool camera features into a bird's-eye view: ``out[cell] = sum of depth x context``.

Three ways in, from the simplest to the fastest:

``bev_pool(depth, context, scatter_map)`` is a function like any other of torch, with gradients.
``BevPool(scatter_map)`` is a module that holds the map, for ``torch.compile``, ``torch.export``.
``StaticBevPool(scatter_map, ...)`` keeps its result: cells without points are zeroed once, not
every time, and nothing is allocated. It needs a CUDA device to gain anything.

On the CPU the reference runs; on CUDA one of the kernels that ``pool_tactics`` describes. Results
repeat bit by bit for the same map and tactic.

Not-a-number and infinity: a depth reaches the cell of its point. A feature reaches the cells of
its pixel; with the tactic ``tiles`` it reaches all cells (up to 16 each) of the tiles that see the
pixel, because a matrix product multiplies it by zero there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pool_op import pool_op
from driveRT_ros.core.pool_softmax import new_norms, norms_launch
from driveRT_ros.core.pool_tactics import (
    PoolLaunch,
    PoolShape,
    PoolTactic,
    Work,
    default_tactic,
    tensors_of,
)
from driveRT_ros.core.pool_types import (
    ROUNDINGS,
    CameraGeometry,
    FrustumShape,
    PoolGrid,
    ScatterMap,
)
from driveRT_ros.core.reference import bev_pool as reference

__all__ = [
    "BevPool",
    "CameraGeometry",
    "FrustumShape",
    "PoolGrid",
    "PoolTactic",
    "ScatterMap",
    "StaticBevPool",
    "bev_pool",
    "build_scatter_map",
    "supports",
]


def build_scatter_map(
    geometry: CameraGeometry,
    frustum: FrustumShape,
    grid: PoolGrid,
    *,
    device: torch.device | str = "cpu",
    rounding: str = "trunc",
) -> ScatterMap:
    """Find the cell of every frustum point and group the points by cell.

    Built anew only when the calibration changes. On CUDA it runs on the current stream and nobody
    waits: the number of points and intervals stays on the device.

    Args:
        geometry: Intrinsics, extrinsics and image augmentation of the cameras.
        frustum: The points along the rays of every feature pixel.
        grid: The cells.
        device: Where the map is built and lies.
        rounding: ``trunc`` gives the cells that published checkpoints were trained with, where
            points up to one cell below the range fall into the first cell; ``floor`` does not.

    Returns:
        The map. Points outside the grid are in no interval.

    Raises:
        ConfigError: If the rounding is unknown, a camera has no inverse, or there are more than
            2**30 points on a GPU.
    """
    if rounding not in ROUNDINGS:
        raise ConfigError(f"Parameter 'rounding' must be one of {ROUNDINGS}, got '{rounding}'.")
    device = torch.device(device)
    if device.type == "cuda":
        from driveRT_ros.core.gpu import scatter_map  # needs a driver

        return scatter_map.build_scatter_map(geometry, frustum, grid, rounding, device)
    return reference.build_scatter_map(geometry, frustum, grid, rounding).to(device)


def supports(
    depth: torch.Tensor,
    context: torch.Tensor,
    tactic: PoolTactic,
    *,
    out_dtype: torch.dtype | None = None,
) -> str:
    """Return why a tactic cannot pool such tensors, or an empty string where it can.

    Args:
        depth: (B, N, D, H, W).
        context: (B, N, H, W, C).
        tactic: The tactic.
        out_dtype: Of the result; see :func:`bev_pool`.
    """
    shape = PoolShape.of(depth, context, out_dtype or result_dtype(depth, context))
    _, n, d, h, w = depth.shape
    return tactic.supports(shape, (n, d, h, w))


def result_dtype(depth: torch.Tensor, context: torch.Tensor) -> torch.dtype:
    """Return the type of a result where none is asked for: that of features of 16 bits or more."""
    if torch.float64 in (depth.dtype, context.dtype):
        return torch.float64
    return context.dtype if context.dtype.itemsize >= 2 else torch.float16


def bev_pool(
    depth: torch.Tensor,
    context: torch.Tensor,
    scatter_map: ScatterMap,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
    tactic: PoolTactic | None = None,
) -> torch.Tensor:
    """Sum depth x context in every cell.

    Args:
        depth: (B, N, D, H, W) weights, float32 or float16.
        context: (B, N, H, W, C) features, float32, float16 or float8_e4m3fn. A slice of a larger
            tensor will do, as long as channels are contiguous.
        scatter_map: The map, on the same device. The first call with a map prepares it and waits.
        scale: Multiplies the result: the scale of float8 features.
        out_dtype: Type of the result, float32 or float16; by default that of the features,
            float16 for float8. Sums are float32 (float64 where an input is).
        tactic: How to pool on CUDA; chosen from the shape by default.

    Returns:
        (B, Z, Y, X, C), zero where no point falls.

    Raises:
        ConfigError: If a shape does not belong to the map, or the tactic cannot do it.
    """
    _check_shapes(depth, context, scatter_map)
    prepared = _prepared(scatter_map)
    out_dtype = out_dtype or result_dtype(depth, context)
    tactic = tactic or _default(depth, context, out_dtype)
    work = prepared.work(tactic) if depth.is_cuda else None
    ranks, shape = list(prepared.map.arrays()), list(prepared.map.grid_shape_zyx)
    pooled: torch.Tensor = pool_op(
        depth, context, ranks, tensors_of(work), shape, tactic.to_json(), scale, out_dtype
    )
    return pooled


class BevPool(torch.nn.Module):
    """Pooling with one map, as a module whose map moves and exports with it.

    Args:
        scatter_map: The map.
        scale: Multiplies the result.
        out_dtype: Type of the result; see :func:`bev_pool`.
        tactic: How to pool on CUDA; by default the one for float16 and ``channels``.
        channels: Channels that the default tactic is chosen for.

    Raises:
        ConfigError: If the tactic cannot work with the map.
    """

    def __init__(
        self,
        scatter_map: ScatterMap,
        *,
        scale: float = 1.0,
        out_dtype: torch.dtype | None = None,
        tactic: PoolTactic | None = None,
        channels: int = 64,
    ) -> None:
        super().__init__()
        made = scatter_map.trimmed()
        if tactic is None:
            half = torch.float16
            tactic = default_tactic(PoolShape(channels, half, half, half, 1), made.frustum_shape)
        self.scale, self.out_dtype, self.tactic = scale, out_dtype, tactic
        self.grid_shape_zyx, self.frustum_shape = made.grid_shape_zyx, made.frustum_shape
        self.calibration_hash = made.calibration_hash
        for name, array in zip(("depth", "feat", "bev", "starts", "lengths"), made.arrays()):
            self.register_buffer(f"ranks_{name}", array, persistent=False)
        self._work = [f"work_{i}" for i, _ in enumerate(tensors_of(tactic.work(made)))]
        for name, table in zip(self._work, tensors_of(tactic.work(made))):
            self.register_buffer(name, table, persistent=False)

    def forward(self, depth: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return (B, Z, Y, X, C); see :func:`bev_pool`."""
        names = ("depth", "feat", "bev", "starts", "lengths")
        pooled: torch.Tensor = pool_op(
            depth,
            context,
            [getattr(self, f"ranks_{name}") for name in names],
            [getattr(self, name) for name in self._work],
            list(self.grid_shape_zyx),
            self.tactic.to_json(),
            self.scale,
            self.out_dtype or result_dtype(depth, context),
        )
        return pooled


class StaticBevPool:
    """Pooling into one result that stays: only cells with points are written.

    With a fixed map the other cells never change, so they are zeroed once. Nothing is allocated and
    nobody waits after the first call, so a call can be captured in a CUDA graph.

    Args:
        scatter_map: The map.
        depth: (B, N, D, H, W) tensor that will hold the depths, or their logits.
        context: (B, N, H, W, C) tensor that will hold the features.
        scale: Multiplies the result.
        logits: Whether ``depth`` holds logits: the softmax over D is then part of pooling, and its
            result is never written.
        present: (N,) float32 tensor that will hold what multiplies the weights of each camera; only
            with logits.
        out: Memory of the result, which is zeroed here; new by default.
        out_dtype: Type of the result; see :func:`bev_pool`; that of ``out`` where it is given.
        tactic: How to pool on CUDA; chosen from the shape by default.
        dependent: Let the blocks start while the kernel before in the stream still runs; not for
            the first kernel after a stream was waited for.

    Raises:
        ConfigError: If a shape does not belong to the map, or the tactic cannot do it.
    """

    def __init__(
        self,
        scatter_map: ScatterMap,
        depth: torch.Tensor,
        context: torch.Tensor,
        *,
        scale: float = 1.0,
        logits: bool = False,
        present: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        tactic: PoolTactic | None = None,
        dependent: bool = False,
    ) -> None:
        _check_shapes(depth, context, scatter_map)
        if present is not None and (not logits or present.shape != depth.shape[1:2]):
            raise ConfigError(
                f"'present' needs logits and a value for each of the {depth.shape[1]} cameras, got "
                f"{tuple(present.shape)} and logits={logits}."
            )
        if out is not None:
            out_dtype = out.dtype
        out_dtype = out_dtype or result_dtype(depth, context)
        prepared = _prepared(scatter_map)
        self.tactic = tactic or _default(depth, context, out_dtype)
        self.scatter_map, self.scale = prepared.map, scale
        self.depth, self.context = depth, context
        self.logits, self.present = logits, present
        shape = (len(depth), *scatter_map.grid_shape_zyx, context.shape[-1])
        if out is None:
            out = torch.empty(shape, dtype=out_dtype, device=depth.device)
        elif out.shape != shape or out.device != depth.device or not out.is_contiguous():
            raise ConfigError(
                f"'out' must be contiguous, of shape {shape} on '{depth.device}', got "
                f"{tuple(out.shape)} on '{out.device}'."
            )
        self.out = out.zero_()
        self._launches: list[PoolLaunch] = []  # they keep tensors alive
        self._runs: list[Callable[[], None]] = []
        bind = _binder(depth.device)
        if bind is not None:
            norms = new_norms(depth) if logits else None
            if norms is not None:
                self._launches.append(norms_launch(depth, norms, present))
            inputs = (depth, context, self.out, prepared.map, prepared.work(self.tactic), scale)
            self._launches.append(self.tactic.launch(*inputs, norms))
            for launch in self._launches:
                self._runs.append(bind(launch, depth.device, dependent=dependent))
                dependent = True  # the second comes after a kernel of ours

    def tables(self) -> list[torch.Tensor]:
        """Return what is read besides depths and features."""
        tables = tensors_of(_prepared(self.scatter_map).work(self.tactic))
        return tables if self.tactic.kind == "tiles" else [*self.scatter_map.arrays(), *tables]

    def __call__(self) -> torch.Tensor:
        """Pool what the tensors hold now; returns the same tensor every time."""
        for run in self._runs:
            run()
        if not self._runs:
            how = {"scale": self.scale, "out_dtype": self.out.dtype}
            depth = self.depth
            if self.logits:
                depth = reference.softmax_depths(depth, self.present)
            self.out.copy_(reference.bev_pool(depth, self.context, self.scatter_map, **how))
        return self.out


# ---- maps that were prepared --------------------------------------------------------------------


class _Prepared:
    """A map without what lies behind its counts, and the work of every tactic used with it."""

    def __init__(self, scatter_map: ScatterMap) -> None:
        self.map = scatter_map.trimmed()
        self._work: dict[str, Work] = {}

    def work(self, tactic: PoolTactic) -> Work:
        key = tactic.work_key
        if key not in self._work:
            self._work[key] = tactic.work(self.map)
        return self._work[key]


_PREPARED: weakref.WeakKeyDictionary[ScatterMap, _Prepared] = weakref.WeakKeyDictionary()


def _prepared(scatter_map: ScatterMap) -> _Prepared:
    found = _PREPARED.get(scatter_map)
    if found is None:
        found = _PREPARED[scatter_map] = _Prepared(scatter_map)
    return found


def _binder(device: torch.device) -> Callable[..., Callable[[], None]] | None:
    """Return what makes launches run on a device, None where the reference runs."""
    if device.type != "cuda":
        return None
    from driveRT_ros.core.gpu.bev_pool import bind  # needs a driver

    return bind


def _default(depth: torch.Tensor, context: torch.Tensor, out_dtype: torch.dtype) -> PoolTactic:
    n, d, h, w = depth.shape[1:]
    return default_tactic(PoolShape.of(depth, context, out_dtype), (n, d, h, w))


def _check_shapes(depth: torch.Tensor, context: torch.Tensor, scatter_map: ScatterMap) -> None:
    n, d, h, w = scatter_map.frustum_shape
    batch = depth.shape[:1]
    fits = depth.ndim == 5 and context.ndim == 5 and depth.shape[1:] == (n, d, h, w)
    if not fits or context.shape[:4] != (*batch, n, h, w):
        raise ConfigError(
            f"This map is for depth (B, {n}, {d}, {h}, {w}) and context (B, {n}, {h}, {w}, C), got "
            f"{tuple(depth.shape)} and {tuple(context.shape)}."
        )
    devices = {depth.device, context.device, scatter_map.device}
    if len(devices) > 1:
        raise ConfigError(f"Depth, context and map must lie on one device, got {devices}.")
