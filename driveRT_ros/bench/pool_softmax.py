"""Check, then time, two ways from what a depth network leaves to the pooled view.

``apart``: torch makes the weights and takes missing cameras out, then they are pooled. ``inside``:
the softmax is part of pooling, so that weights are never written; this is what the camera pipeline
does. Both read one row of logits and features a pixel and copy the features into rows of their own,
which can be loaded as vectors; ``inside`` copies the logits, too, into memory that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from driveRT_ros.bench.pool_cases import PoolCase
from driveRT_ros.bench.timing import clocks, machine, summary
from driveRT_ros.core.bev_pool import StaticBevPool
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.pool_types import ScatterMap
from driveRT_ros.core.reference.bev_pool import bev_pool, softmax_depths

TOLERANCE = 2e-3
"""Largest error over the largest result, of halves."""
_LAUNCHES = 20


@dataclass(frozen=True, eq=False)
class Way:
    """One way to pool.

    Args:
        run: Does it once.
        out: (1, Z, Y, X, C) where the result is.
    """

    run: Callable[[], None]
    out: torch.Tensor


def network_rows(scatter_map: ScatterMap, channels: int, seed: int = 0) -> torch.Tensor:
    """Return what a depth network leaves: (1, N, H, W, D + C) halves on the device of a map."""
    n, bins, h, w = scatter_map.frustum_shape
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(1, n, h, w, bins + channels, generator=generator)
    rows[..., :bins] *= 3
    return rows.half().to(scatter_map.device)


def split(scatter_map: ScatterMap, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (1, N, D, H, W) and features (1, N, H, W, C), without a copy."""
    bins = scatter_map.frustum_shape[1]
    return rows[..., :bins].movedim(-1, 2), rows[..., bins:]


def ways(
    scatter_map: ScatterMap, rows: torch.Tensor, tactic: PoolTactic | None = None
) -> dict[str, Way]:
    """Return both ways by name.

    Args:
        scatter_map: The map.
        rows: Of :func:`network_rows`; read anew each time.
        tactic: How to pool; the default one for the shape by default.
    """
    logits, features = split(scatter_map, rows)
    present = torch.ones(len(rows[0]), device=rows.device)
    weights = present.to(rows.dtype).view(1, -1, 1, 1, 1)

    depth = torch.empty(logits.shape, dtype=rows.dtype, device=rows.device)
    context = torch.empty(features.shape, dtype=rows.dtype, device=rows.device)
    apart = StaticBevPool(scatter_map, depth, context, tactic=tactic)

    def run_apart() -> None:
        torch.mul(logits.softmax(dim=2), weights, out=depth)
        context.copy_(features)
        apart()

    own, own_logits = torch.empty_like(context), torch.empty_like(logits)  # keeps the order of axes
    how = {"logits": True, "present": present}
    inside = StaticBevPool(scatter_map, own_logits, own, tactic=tactic or apart.tactic, **how)

    def run_inside() -> None:
        own_logits.copy_(logits)
        own.copy_(features)
        inside()

    return {"apart": Way(run_apart, apart.out), "inside": Way(run_inside, inside.out)}


def error_of(way: Way, scatter_map: ScatterMap, rows: torch.Tensor) -> float:
    """Run a way; return its largest error over the largest result, against float64."""
    logits, features = split(scatter_map, rows)
    exact = bev_pool(softmax_depths(logits.double()), features.double(), scatter_map)
    way.run()
    return float((way.out.double() - exact).abs().max() / exact.abs().max())


def measure(cases: Iterable[PoolCase], *, samples: int = 120, commit: str = "") -> dict[str, Any]:
    """Return the whole report: medians of CUDA graphs of 20 launches, warm."""
    from driveRT_ros.core.gpu.replay import captured, replay_times

    report = machine(commit) | {"suite": "poolsoftmax", "samples": samples, "cases": {}}
    for case in cases:
        made = case.scatter_map().to("cuda").trimmed()
        rows = network_rows(made, case.channels)
        found: dict[str, Any] = {"channels": case.channels, "points": int(made.counts[0])}
        for name, way in ways(made, rows).items():
            error = error_of(way, made, rows)
            found[name] = {"error": error}
            if not error <= TOLERANCE:
                continue

            def repeated(run: Callable[[], None] = way.run) -> None:
                for _ in range(_LAUNCHES):
                    run()

            times = replay_times(captured(repeated), samples, 1)
            found[name]["us"] = summary([t / _LAUNCHES for t in times])
        report["cases"][case.name] = found
    return report | {"clocks": [clocks("end")]}
