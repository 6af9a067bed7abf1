"""Launch the kernel of one layer of a real frame a few times, for a profiler to look at.

    ncu --kernel-name regex:sparse_conv --cache-control none --clock-control none \
        --section SpeedOfLight --section WarpStateStats --section SchedulerStats \
        --section MemoryWorkloadAnalysis --section LaunchStats --section Occupancy \
        python benchmarks/experiments/one_layer.py --data DATA --domains subm3,subm4

Each domain runs with the default of its precision, then with the tiles of that in a fixed order:
a launch that warms the caches, and one more. Nothing is timed or checked here (domain_tactics.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]

import torch  # noqa: E402
from bench_conv_mma import Layer, Maps, Run, sorted_tables, sources_of  # noqa: E402

from driveRT_ros.bench.frames import load_frames  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.plan import default_plan, domain_layers  # noqa: E402
from driveRT_ros.core.sparse_conv_mma import MmaTactic  # noqa: E402


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("DRIVERT_DATA", REPO.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=data, help="folder of the real frames")
    parser.add_argument("--frame", default="C", help="which of them")
    parser.add_argument("--domains", default="subm3,subm4", help="by comma")
    parser.add_argument("--precision", choices=("fp16", "tf32", "fp32x3"), default="fp16")
    return parser.parse_args()


def launch(layer: Layer, maps: Maps, tactic: MmaTactic) -> None:
    """Launch a layer twice."""
    made = maps.get(tactic.groups, tactic.tile_rows)
    run = Run(layer, tactic, sorted_tables(made.domains[layer.name]), made)
    print(f"{layer.name}: {layer.rows} rows, {layer.flops / 1e9:.2f} GFLOP, {tactic}", flush=True)
    for work in run.launches[:2]:
        work()
    torch.cuda.synchronize()


def main() -> None:
    """Run it."""
    options, config = arguments(), LidarConfig()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no CUDA device; this script needs one.")
    (frame,) = load_frames([options.frame], options.data, config)
    maps, widths = Maps(config, frame.points), domain_layers(config.model.channels)
    capability = torch.cuda.get_device_capability()
    tactics = default_plan(config.model.channels, capability, options.precision).tactics
    base = maps.get(3, 64)
    for name in options.domains.split(","):
        domain, tactic = base.domains[name], tactics[name]
        rows, in_rows = (
            int(base.levels[level].counts[1])
            for level in (domain.shape.out_level, domain.shape.in_level)
        )
        layer = Layer(name, sources_of(domain, rows), in_rows, *widths[name][:2])
        assert isinstance(tactic, MmaTactic)
        launch(layer, maps, tactic)
        if tactic.stages_rows:
            launch(layer, maps, dataclasses.replace(tactic, folded=True))


if __name__ == "__main__":
    with torch.no_grad():
        main()
