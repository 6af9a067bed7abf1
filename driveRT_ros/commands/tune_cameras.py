"""``drivert tune --camera``: find the fastest way to pool camera features on the GPU at hand.

What is pooled has the sizes and types of the parameters. The cameras stand as on a nuScenes car:
which cells they see decides how work divides, what they see does not.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from rich.table import Table

from driveRT_ros.commands.common import config_from, console
from driveRT_ros.commands.tuned_gpu import Gpu, earlier_plan, find_gpu, plan_file
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.plan import Plan

if TYPE_CHECKING:
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.core.camera_rig import Calibration
    from driveRT_ros.core.pool_tactics import PoolTactic

_LIDAR_ONLY = ("bag", "topic", "checkpoint", "time_limit")
_SHOWN = 5


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert tune --camera``."""
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.core.pool_plan import PoolGpu
    from driveRT_ros.core.tuner_device import Settings

    if any(getattr(args, name) for name in _LIDAR_ONLY):
        raise ConfigError(
            "Options --bag, --topic, --checkpoint and --time-limit are for the LiDAR network: what "
            "cameras see does not change how fast their features are pooled; leave them out."
        )
    settings = Settings(min_gain=args.min_gain / 100)
    precision = [f"precision={args.precision}"] if args.precision else []
    config = config_from(CameraConfig, args.config, None, [*args.set, *precision])
    output, gpu = plan_file(args.output), find_gpu(config.device)
    l2_bytes = PoolGpu.of(gpu.device).l2_bytes
    with console.status("timing ways to pool"):
        key, tactic, found = search(config, gpu, l2_bytes, settings.min_gain)
    _show(key, found)
    plan = with_pool(earlier_plan(output, gpu), config.precision, gpu, key, tactic, found)
    plan.save(output)
    console.print(f"Wrote {output}.")
    return 0


def search(
    config: CameraConfig, gpu: Gpu, l2_bytes: int, min_gain: float
) -> tuple[str, PoolTactic, dict[str, Any]]:
    """Time every tactic with tensors as the camera pipeline has them.

    Args:
        config: Cameras, model and precision.
        gpu: Where.
        l2_bytes: Size of its L2 cache.
        min_gain: Share of the time that a tactic must save to replace the default.

    Returns:
        Key in the Plan, the tactic, and what was measured in plain JSON values.
    """
    import torch

    from driveRT_ros.core.camera_pipeline import DTYPES
    from driveRT_ros.core.camera_pool import CameraPool
    from driveRT_ros.core.camera_rig import Rig
    from driveRT_ros.core.gpu import pool_tuning
    from driveRT_ros.core.pool_tactics import PoolTactic

    plain, dtype = dataclasses.replace(config, plan_path=""), DTYPES[config.precision]
    pool = CameraPool(plain, gpu.device, dtype)
    random = torch.Generator().manual_seed(config.seed)
    pool.logits.copy_(torch.randn(pool.logits.shape, generator=random).mul_(2))
    pool.context.copy_(torch.randn(pool.context.shape, generator=random))
    rig = Rig.build(calibrations(config), config.model, gpu.device)
    how = {"out_dtype": dtype, "logits": True}
    tuned = pool_tuning.tune_pool(rig.scatter_map, pool.logits, pool.context, **how)

    default, best = pool.sizes.default(), tuned.tactic
    times = {PoolTactic(**e["tactic"]): e["us"] for e in tuned.record if "us" in e}
    default_us = times.get(default)
    if default_us is not None and times[best] > (1 - min_gain) * default_us:
        best = default
    found = {
        "gpu": gpu.name,
        "driver": gpu.driver,
        "working_set_bytes": pool.sizes.working_set_bytes,
        "l2_bytes": l2_bytes,
        "default_us": default_us,
        "chosen_us": times[best],
        "min_gain": min_gain,
        "candidates": list(tuned.record),
    }
    return pool.sizes.key(l2_bytes), best, found


def calibrations(config: CameraConfig) -> list[Calibration]:
    """Return where each camera stands: that of its name, else the next on the car."""
    from driveRT_ros.core.camera_images import ImageFit
    from driveRT_ros.core.camera_rig import Calibration
    from driveRT_ros.sim.rig import HEIGHT, NAMES, RIG, WIDTH

    size_wh, found = (WIDTH, HEIGHT), []
    fit = ImageFit.of(size_wh, config.model.image)
    for i, name in enumerate(config.cameras):
        mount = RIG.get(name, RIG[NAMES[i % len(NAMES)]])
        found.append(Calibration(mount.K(size_wh), mount.T_ego_camera, fit))
    return found


def with_pool(
    earlier: Plan | None,
    precision: str,
    gpu: Gpu,
    key: str,
    tactic: PoolTactic,
    found: dict[str, Any],
) -> Plan:
    """Return a Plan with this way to pool beside all that an earlier one holds."""
    plan = earlier or Plan(precision, {})
    pools = {**plan.measured.get("pools", {}), key: found}
    return dataclasses.replace(
        plan,
        gpu=gpu.name,
        pools={**plan.pools, key: tactic},
        measured={**plan.measured, "pools": pools},
    )


def _show(key: str, found: dict[str, Any]) -> None:
    needs, has = found["working_set_bytes"] / 1e6, found["l2_bytes"] / 1e6
    fits = "fits" if needs <= has else "exceeds"
    console.print(
        f"The working set of {needs:.1f} MB {fits} the L2 cache of {has:.1f} MB; key '{key}'."
    )
    timed = sorted((e for e in found["candidates"] if "us" in e), key=lambda e: float(e["us"]))
    table = Table("µs", "error", "tactic", box=None)
    for entry in timed[:_SHOWN]:
        fields = ", ".join(f"{name} {value}" for name, value in entry["tactic"].items())
        table.add_row(f"{entry['us']:.2f}", f"{entry['error']:.0e}", fields)
    console.print(table)
    refused = len(found["candidates"]) - len(timed)
    console.print(f"{len(timed)} tactics timed, {refused} refused.")
    if found["default_us"] is None:
        console.print(f"The default cannot run here; chosen: {found['chosen_us']:.2f} µs.")
    else:
        console.print(f"Default {found['default_us']:.2f} µs, chosen {found['chosen_us']:.2f} µs.")
