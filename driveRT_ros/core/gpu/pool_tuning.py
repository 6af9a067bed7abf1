"""Choose the tactic of pooling by measurement: check every candidate, then time it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driveRT_ros.core.device_faults import context_lost
from driveRT_ros.core.errors import ConfigError, DriveRTError
from driveRT_ros.core.pool_candidates import candidates
from driveRT_ros.core.pool_softmax import new_norms, norms_launch
from driveRT_ros.core.pool_tactics import PoolLaunch, PoolShape, PoolTactic, Work
from driveRT_ros.core.pool_types import ScatterMap
from driveRT_ros.core.reference import bev_pool as reference

LARGEST_ERROR = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Over the largest result, by its type; the float64 sum has the same rounded inputs."""
_LAUNCHES, _SAMPLES = 20, 15

Timer = Callable[[PoolLaunch], tuple[Callable[[], None], Callable[[], float]]]
"""From a launch to what runs it once, and what returns its microseconds."""


@dataclass(frozen=True)
class Tuned:
    """The fastest tactic, and what was measured.

    Args:
        tactic: The fastest of those whose results are right.
        record: One entry a candidate, plain JSON values: the tactic, its error over the largest
            result, and ``us``; or ``refused`` with the reason.
    """

    tactic: PoolTactic
    record: tuple[dict[str, Any], ...]


def tune_pool(
    scatter_map: ScatterMap,
    depth: torch.Tensor,
    context: torch.Tensor,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype = torch.float16,
    logits: bool = False,
    among: Sequence[PoolTactic] | None = None,
    timer: Timer | None = None,
) -> Tuned:
    """Measure tactics with one map and tensors like those that will be pooled.

    Args:
        scatter_map: The map.
        depth: (B, N, D, H, W), not all zero; logits where ``logits`` is true.
        context: (B, N, H, W, C), not all zero.
        scale: Multiplies the result.
        out_dtype: Type of the result.
        logits: Whether the softmax over D is part of pooling; the pass ahead of it, which is the
            same for all tactics, is not timed.
        among: Candidates; by default all that may be fastest.
        timer: How to run and time; by default a CUDA graph on the GPU of the tensors.

    Raises:
        ConfigError: If no candidate gives the right result.
    """
    made = scatter_map.trimmed()
    shape = PoolShape.of(depth, context, out_dtype, logits=logits)
    among = candidates(shape, made.frustum_shape) if among is None else among
    weights = reference.softmax_depths(depth.double()) if logits else depth.double()
    exact = reference.bev_pool(weights, context.float().double(), made, scale=scale)
    timer = timer or _graph_timer
    norms = new_norms(depth) if logits else None
    if norms is not None:
        timer(norms_launch(depth, norms))[0]()
    works: dict[str, Work] = {}
    record: list[dict[str, Any]] = []
    for tactic in among:
        entry: dict[str, Any] = {"tactic": dataclasses.asdict(tactic)}
        record.append(entry)
        try:
            if tactic.work_key not in works:
                works[tactic.work_key] = tactic.work(made)
            out = torch.zeros(exact.shape, dtype=out_dtype, device=exact.device)
            work = works[tactic.work_key]
            launch = tactic.launch(depth, context, out, made, work, scale, norms)
            run, microseconds = timer(launch)
            run()
        except DriveRTError as reason:  # one that does not compile, too
            if context_lost(reason):
                raise
            entry["refused"] = str(reason)
            continue
        error = float((out.double() - exact).abs().max() / exact.abs().max())
        limit = LARGEST_ERROR[out_dtype if tactic.kind == "balanced" else torch.float16]
        if not error <= limit:
            entry["refused"] = f"error {error:.2e} exceeds {limit:g}"
            continue
        entry |= {"error": error, "us": microseconds()}
    timed = [entry for entry in record if "us" in entry]
    if not timed:
        reasons = "; ".join(sorted({str(entry["refused"]) for entry in record}))
        raise ConfigError(f"No tactic pools these tensors: {reasons}.")
    best = min(timed, key=lambda entry: float(entry["us"]))
    return Tuned(PoolTactic(**best["tactic"]), tuple(record))


def _graph_timer(launch: PoolLaunch) -> tuple[Callable[[], None], Callable[[], float]]:
    from driveRT_ros.core.gpu.bev_pool import bind
    from driveRT_ros.core.gpu.replay import captured, replay_times

    device = launch.keep[0].device
    run = bind(launch, device)

    def repeated() -> None:
        for _ in range(_LAUNCHES):
            run()

    def microseconds() -> float:
        with torch.cuda.device(device):  # stream, events and graph are those of the current device
            return statistics.median(replay_times(captured(repeated), _SAMPLES, 1)) / _LAUNCHES

    return run, microseconds
