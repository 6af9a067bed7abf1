"""``drivert eval --statistics``: how simulated clouds resemble real ones, drawn and tabled."""

from __future__ import annotations

import argparse
import dataclasses

from driveRT_ros.commands.common import console, output_folder, progress
from driveRT_ros.core.errors import ConfigError


def execute(args: argparse.Namespace) -> int:
    """Draw statistics.png, and write statistics.md and statistics.json.

    Raises:
        ConfigError: If the source is not the simulator, or the real frames cannot be read.
    """
    from driveRT_ros.commands.eval import num_jobs
    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.sim.realism import (
        difference,
        draw_samples,
        real_sample,
        simulated_sample,
        table_samples,
        tabled_sample,
    )
    from driveRT_ros.train.evaluate import HELD_OUT_SEED
    from driveRT_ros.train.plots import write_picture
    from driveRT_ros.train.report import write_report

    if args.sim is None or args.sim < 1:
        raise ConfigError("Option --statistics compares simulated scenes: add --sim N, N from 1.")
    base = SimConfig.from_yaml(args.sim_config) if args.sim_config else SimConfig()
    seed = HELD_OUT_SEED if args.sim_seed is None else args.sim_seed
    real = real_sample(args.data) if args.data else tabled_sample()
    out = output_folder(args)
    with progress() as bar:
        task = bar.add_task("simulate", total=args.sim)
        simulated = simulated_sample(
            args.sim, seed, base, lambda: bar.advance(task), num_jobs(args)
        )
    apart = difference(simulated, real)
    write_picture(out / "statistics.png", draw_samples(simulated, real))
    (out / "statistics.md").write_text(table_samples(simulated, real), encoding="utf-8")
    document = {
        "simulated": dataclasses.asdict(simulated),
        "real": dataclasses.asdict(real),
        "difference": apart,
    }
    write_report(document, out / "statistics.json")
    for name, value in apart.items():
        console.print(f"  {name:<28}{'unknown' if value is None else f'{value:+.2f}'}")
    console.print(f"Picture and numbers are in {out}.")
    return 0
