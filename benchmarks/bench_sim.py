"""Time the simulator and print its statistics beside those of real clouds.

Usage: python benchmarks/bench_sim.py [--seeds 5] [--sweeps 20]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.sim.stats import scene_statistics


def main() -> None:
    """Simulate a few seeds, print the match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=20)
    arguments = parser.parse_args()
    everything, voxels = [], []
    for seed in range(arguments.seeds):
        times, frames = [], []
        drive = simulate(SimConfig(seed=seed, num_sweeps=arguments.sweeps))
        for _ in range(arguments.sweeps):
            begin = time.process_time()
            frames.append(next(drive))
            times.append((time.process_time() - begin) * 1e3)
        statistics = scene_statistics(frames)
        voxels.append(statistics.levels[0][0])
        everything += frames
        print(
            f"seed {seed}: {np.median(times):.0f} ms of one core a sweep (first {times[0]:.0f}), "
            f"{len(frames[-1].ground_truth or ())} objects, "
            + ", ".join(f"{n:,} | {m:.2f}" for n, m in statistics.levels)
        )
    print(
        f"voxels of ten sweeps: median {np.median(voxels):,.0f}, "
        f"{min(voxels):,} to {max(voxels):,}\n"
    )
    print(scene_statistics(everything))


if __name__ == "__main__":
    main()
