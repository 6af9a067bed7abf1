"""Check, then time, the sparse operators of one frame: voxelization, maps, convolutions, merge.

Prints JSON, or writes it with ``--output``. The real frames A, B and C come from ``DRIVERT_DATA``
(default ``../shared/data``) and are left out where it is absent; a seeded synthetic frame always
runs. Nothing is timed before sampled rows of every convolution agree with the dictionary oracle.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "test")]

from support import frames, oracle  # noqa: E402

from driveRT_ros.core.config import ModelConfig, VoxelizationConfig  # noqa: E402
from driveRT_ros.core.coordmap import CoordMap, strided_map, submanifold_map  # noqa: E402
from driveRT_ros.core.ops import Ops  # noqa: E402
from driveRT_ros.core.sparse_conv import SparseTensor, gather_gemm_scatter  # noqa: E402
from driveRT_ros.core.voxelize import voxelize  # noqa: E402

CHANNELS = ModelConfig().channels
SCALES = (1, 2, 4)
CHECKED_ROWS = 200
TOLERANCE = 1e-4  # float32 sums of up to 27 * 128 products of unit-size operands


def synthetic_points(seed: int = 0) -> torch.Tensor:
    """Return one 32-beam turn over flat ground inside a wavy wall, thickened by range noise."""
    rng = np.random.default_rng(seed)
    azimuth, elevation = np.meshgrid(
        np.linspace(-np.pi, np.pi, 1084, endpoint=False), np.radians(np.linspace(-30.7, 10.7, 32))
    )
    wall_m = 20 + 12 * np.sin(3 * azimuth) + 3 * np.sin(17 * azimuth)
    ground_m = np.where(elevation < 0, 1.84 / np.tan(np.maximum(-elevation, 1e-6)), np.inf)
    reach_m = np.minimum(wall_m, ground_m) + rng.normal(0, 0.02, azimuth.shape)
    xyz = reach_m[..., None] * np.stack(
        (np.cos(azimuth), np.sin(azimuth), np.tan(elevation)), axis=-1
    )
    points = np.zeros((xyz[..., 0].size, 5), np.float32)
    points[:, :3] = xyz.reshape(-1, 3)
    points[:, 3] = rng.uniform(0, 255, len(points))
    return torch.from_numpy(points)


class Stopwatch:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, work: Callable[[], Any]) -> Any:
        """Do ``work``, add its seconds to ``stage`` and return its result."""
        start = time.perf_counter()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        return result


class Network:
    """The VoxelNeXt backbone's sparse operators with seeded weights, stage by stage."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(taps: int, c_in: int, c_out: int) -> torch.Tensor:
            scale = (2 / (taps / 2 * c_in)) ** 0.5  # about half the taps meet an input
            return torch.randn(taps, c_in, c_out, generator=generator) * scale

        inputs = (5, *CHANNELS[:-1])
        self.first = [weight(27, i, o) for i, o in zip(inputs, CHANNELS)]
        self.blocks = [[weight(27, c, c) for _ in range(4)] for c in CHANNELS]
        self.flat = [weight(9, CHANNELS[-1], CHANNELS[-1]) for _ in range(2)]

    def run(
        self,
        features: torch.Tensor,
        coords: torch.Tensor,
        watch: Stopwatch,
        on_conv: Callable[..., None] = lambda *_: None,
    ) -> list[int]:
        """Run one frame; returns the rows of every level, the merge and the last layer."""

        def conv(stage, x, weight, coord_map, residual=None):
            y = watch(
                stage,
                lambda: gather_gemm_scatter(x, weight, coord_map, residual=residual, relu=True),
            )
            on_conv(x, weight, coord_map, residual, y)
            return y

        subm, down = watch("maps", lambda: level_maps(coords))
        x, levels = features, []
        for depth, (first, block) in enumerate(zip(self.first, self.blocks)):
            x = conv("conv_down" if depth else "conv_input", x, first, down[depth] or subm[0])
            for a, b in (block[:2], block[2:]):
                y = conv(f"res{depth + 1}", x, a, subm[depth])
                x = conv(f"res{depth + 1}", y, b, subm[depth], x)
            levels.append(SparseTensor(x, subm[depth].out_coords_bzyx, subm[depth].out_shape_zyx))
        bev = watch("bev_merge", lambda: Ops.for_device("cpu").bev_merge(levels[3:], SCALES))
        wide, same = watch("maps", lambda: flat_maps(bev))
        x = conv("conv_out", bev.features, self.flat[0], wide)
        conv("shared_conv", x, self.flat[1], same)
        return [*(len(x) for x in levels), len(bev), wide.num_out]


def level_maps(coords: torch.Tensor) -> tuple[list[CoordMap], list[CoordMap | None]]:
    """Return the submanifold and the strided maps of the six levels."""
    shape: tuple[int, int, int] = frames.SHAPE_ZYX
    subm: list[CoordMap] = [submanifold_map(coords, shape)]
    down: list[CoordMap | None] = [None]
    for _ in CHANNELS[1:]:
        step = strided_map(coords, shape, 3, 2, 1)
        coords, shape = step.out_coords_bzyx, step.out_shape_zyx
        down.append(step)
        subm.append(submanifold_map(coords, shape))
    return subm, down


def flat_maps(bev: SparseTensor) -> tuple[CoordMap, CoordMap]:
    """Return the dilating map of the bird's-eye view and the submanifold map after it."""
    wide = strided_map(bev.coords_bzyx, bev.spatial_shape_zyx, (1, 3, 3), 1, (0, 1, 1))
    return wide, submanifold_map(wide.out_coords_bzyx, wide.out_shape_zyx, (1, 3, 3))


def check_rows(features, weight, coord_map, residual, result) -> None:
    """Compare sampled output rows of one layer with the dictionary oracle.

    Raises:
        SystemExit: If they differ; nothing is timed then.
    """
    rng = np.random.default_rng(0)
    rows = rng.choice(coord_map.num_out, min(CHECKED_ROWS, coord_map.num_out), replace=False)
    kernel = coord_map.kernel_size
    strided = coord_map.in_shape_zyx != coord_map.out_shape_zyx
    entries = oracle.map_entries(
        coord_map.in_coords_bzyx.tolist(),
        oracle.cells(coord_map.out_coords_bzyx[rows].tolist()),
        kernel,
        (2, 2, 2) if strided else (1, 1, 1),
        tuple(k // 2 for k in kernel),
    )
    expected = oracle.convolve(features, weight, entries, len(rows))
    if residual is not None:
        expected += residual[rows].numpy()
    error = np.abs(expected.clip(min=0) - result[rows].numpy()).max()
    if not error <= TOLERANCE * max(1.0, np.abs(expected).max()):
        sys.exit(f"A convolution of kernel {kernel} differs from the oracle by {error}.")


def bench_frame(network: Network, load: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Check one frame, then time it ``repeats`` times."""
    loaded = load()
    points = loaded if isinstance(loaded, torch.Tensor) else None
    config = VoxelizationConfig()

    def once(on_conv: Callable[..., None] = lambda *_: None) -> tuple[dict, list[int]]:
        watch = Stopwatch()
        if points is not None:
            voxels = watch("voxelize", lambda: voxelize(points, config))
            features, coords = voxels.features, voxels.coords_bzyx
        else:
            features, coords = loaded
        rows = network.run(features, coords, watch, on_conv)
        watch.seconds["total"] = sum(watch.seconds.values())
        return watch.seconds, rows

    _, rows = once(check_rows)
    runs = [once()[0] for _ in range(repeats)]
    best = min(runs, key=lambda r: r["total"])
    return {
        "rows": rows,
        "median_total_s": round(statistics.median(r["total"] for r in runs), 4),
        "best_s": {stage: round(seconds, 4) for stage, seconds in best.items()},
    }


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    commit = subprocess.run(
        ["git", "-C", str(REPO), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    cpuinfo = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    return {
        "suite": "sparse",
        "implementation": Ops.for_device("cpu").name,
        "device": models[0] if models else platform.processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    """Run the frames and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each frame")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 keeps the default")
    parser.add_argument("--output", type=Path, help="file to write instead of printing")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    data = Path(os.environ.get("DRIVERT_DATA") or REPO.parent / "shared" / "data")
    loads: dict[str, Callable[[], Any]] = {"synthetic": synthetic_points}
    if data.is_dir():
        loads["A"] = lambda: frames.load_voxels(data, "A")
        loads["B"] = lambda: frames.load_voxels(data, "B")
        loads["C"] = lambda: frames.load_points(data)
    network = Network()
    with torch.inference_mode():
        results = {
            name: bench_frame(network, load, options.repeats) for name, load in loads.items()
        }
    text = json.dumps({**machine(), "frames": results}, indent=2)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
