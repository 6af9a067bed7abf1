"""Time the simulator and print its statistics beside those of real clouds.

Usage: python benchmarks/bench_sim.py [--seeds 5] [--sweeps 20]
       python benchmarks/bench_sim.py --drives 4

With --drives only the frames of that many drives to train on are made and written, on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.sim.stats import scene_statistics
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.drives import SimulatedDrives
from driveRT_ros.train.shards import write_shard


def main() -> None:
    """Simulate a few seeds, print the match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--drives", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.drives:
        time_training_frames(arguments.drives)
        return
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


def time_training_frames(count: int) -> None:
    """Make and write the frames of drives as training does, and print the time of one core."""
    torch.set_num_threads(1)
    drives, frames, made_s, written_s = SimulatedDrives(TrainConfig()), 0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            begin = time.process_time()
            samples = drives.samples(number)
            made = time.process_time()
            write_shard(Path(folder) / "drive.npz", samples)
            written_s += time.process_time() - made
            made_s, frames = made_s + made - begin, frames + len(samples)
    print(
        f"{frames} frames of {count} drives: {made_s / frames:.3f} s of one core a frame, and "
        f"{written_s / frames * 1e3:.1f} ms to write it"
    )


if __name__ == "__main__":
    main()
