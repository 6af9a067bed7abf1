"""Check, then time, variants of the checksum and the statistics of NanoVDB grids.

    python benchmarks/experiments/grid_kernels.py [--sizes 7.4,506] [--output NAME.json]

Replays of a CUDA graph, the kernels alone. A small grid lies there many times and each run takes
another, so that the L2 cache holds none of what is read; for the same reason a large one needs no
copy. ``share``: of a multiprocessor's memory that is asked for as shared memory, in per cent, -1
what the driver chooses. A variant whose result differs has no time.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

from driveRT_ros.bench.grid import GridBench, read_tb_per_s, zlib_checksum  # noqa: E402
from driveRT_ros.bench.grid_cases import CASES  # noqa: E402
from driveRT_ros.bench.timing import clocks, machine  # noqa: E402
from driveRT_ros.core.cuda import Kernel, device_arch  # noqa: E402
from driveRT_ros.core.gpu import grid_blocks  # noqa: E402
from driveRT_ros.core.gpu import grid_ops as gpu  # noqa: E402
from driveRT_ros.core.gpu.replay import captured, replay_times  # noqa: E402
from driveRT_ros.core.nvrtc import compile_cubin  # noqa: E402

DIAGONALS, STATS, PLAIN = (f"grid_ops_{part}" for part in ("diagonals", "stats", "checksum"))
COLD_BYTES = 250_000_000
SUMS = [
    {"AHEAD": 2, "MIN_BLOCKS": 4, "STREAMING": 1},
    *({"AHEAD": a, "MIN_BLOCKS": b} for a, b in itertools.product((1, 2, 4), (3, 4, 5))),
]
NODES = [
    {"LOWER_AHEAD": ahead, "LOWER_BLOCKS": blocks}
    for ahead, blocks in ((1, 7), (1, 8), (2, 5), (2, 4), (4, 4))
]
NODES += [{"TOP_AHEAD": ahead} for ahead in (1, 4)]
STEPS = (8, 16, 32)


@functools.cache
def kernel(stem: str, name: str, defines: tuple[tuple[str, int], ...]) -> Kernel:
    """Return a kernel."""
    return Kernel(stem, name, dict(defines))


def launcher(
    defines: dict[str, int], share: int = -1, names: Collection[str] = ()
) -> Callable[..., None]:
    """Return what launches a variant; of some kernels alone, where ``names`` has any."""

    def run(
        stem: str, name: str, grid: int, block: int, *args: object, dependent: bool = False
    ) -> None:
        if not names or name in names:
            variant = kernel(stem, name, tuple(defines.items())).prefer_shared(share)
            variant.bind(grid, block, *args, dependent=dependent)()

    return run


def micros(works: list[Callable[[], object]]) -> float:
    """Return the median microseconds of one of some works that take turns."""

    def all_of_them() -> None:
        for work in works:
            work()

    return statistics.median(replay_times(captured(all_of_them), 7, 2)) / len(works)


def checksums(bench: GridBench) -> Iterator[dict[str, Any]]:
    """Yield the time of each variant of the checksum."""
    expected = zlib_checksum(bench.grid.cpu().numpy())
    copies = [bench.grid.clone() for _ in range(-(-COLD_BYTES // len(bench.grid)))]
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    chosen = [(d, 16, -1) for d in SUMS]
    chosen += [({}, steps, share) for steps in STEPS for share in (-1, 100)]
    for defines, steps, share in chosen:
        grid_blocks._STEPS = steps
        run, resident = launcher(defines, share), defines.get("MIN_BLOCKS", 4) * processors
        enqueue = functools.partial(gpu.checksum, header=bench.header, run=run, resident=resident)
        bits = tuple(int(v) & 0xFFFFFFFF for v in enqueue(copies[0]).tolist())
        found = {"kernel": DIAGONALS, **defines, "steps": steps, "share": share}
        if bits != expected:
            yield {**found, "absent": f"checksum {bits} instead of {expected}"}
            continue
        us = micros([functools.partial(enqueue, copy) for copy in copies])
        yield {**found, "us": us, "tb_per_s": len(bench.grid) / us / 1e6}
    for share in (-1, 100):
        run = launcher({}, share)
        us = micros([functools.partial(gpu.crc32, copy, run=run) for copy in copies])
        yield {"kernel": PLAIN, "share": share, "us": us, "tb_per_s": len(bench.grid) / us / 1e6}


def statistics_of(bench: GridBench) -> Iterator[dict[str, Any]]:
    """Yield the time of each variant of the statistics, and of the first kernels of each."""
    header, names = bench.header, ("leaf_stats", "lower_stats")
    for moments in (False, True):
        enqueue = functools.partial(
            gpu.grid_stats, bench.written, header, moments=moments, write=True
        )
        expected = enqueue().records.clone()
        for defines in [{}] if moments else [{}, *NODES]:
            found = {"kernel": STATS, **defines, "moments": moments}
            whole = functools.partial(enqueue, run=launcher(defines))
            if not torch.equal(whole().records, expected):
                yield {**found, "absent": "records differ"}
                continue
            parts = {
                f"up to {name}": micros(
                    [functools.partial(enqueue, run=launcher(defines, names=names[: i + 1]))]
                )
                for i, name in enumerate(names)
            }
            yield {**found, "us": micros([whole]), **parts}


def compile_all() -> None:
    """Compile every variant, several at a time."""
    arch = device_arch(torch.cuda.current_device())
    jobs = [(DIAGONALS, d) for d in [{}, *SUMS]] + [(STATS, d) for d in [{}, *NODES]]
    jobs += [(PLAIN, {})]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: compile_cubin(job[0], arch, job[1]), jobs))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="7.4,506", help="million bytes, by comma")
    parser.add_argument("--cases", default=",".join(CASES), help="by comma")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device")
    device = torch.device("cuda")
    compile_all()
    report: dict[str, Any] = {**machine(), "suite": "grid kernels", "clocks": [clocks("start")]}
    report["read_tb_per_s"], report["grids"] = read_tb_per_s(device), {}
    for case, mb in itertools.product(args.cases.split(","), map(float, args.sizes.split(","))):
        bench = GridBench(CASES[case](mb), device)
        lines = report["grids"][f"{case}, {mb:g} MB"] = []
        for line in itertools.chain(checksums(bench), statistics_of(bench)):
            lines.append({k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()})
        report["clocks"].append(clocks(f"{case}, {mb:g} MB"))
        if args.output:
            args.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{case}, {mb:g} MB: {len(bench.grid)} bytes")
        for stem in (DIAGONALS, PLAIN, STATS):
            mine = [line for line in lines if line["kernel"] == stem]
            for line in sorted(mine, key=lambda line: line.get("us", 0.0))[:12]:
                print("  ", *(f"{k}={v}" for k, v in line.items()), flush=True)


if __name__ == "__main__":
    main()
