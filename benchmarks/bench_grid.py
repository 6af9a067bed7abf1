"""Check, then time, the operators on NanoVDB grids on a GPU: one JSON file.

    python benchmarks/bench_grid.py --output benchmarks/results/grid-GPU-DATE.json
    python benchmarks/bench_grid.py --openvdb before=FOLDER --openvdb after=FOLDER

``driveRT_ros/bench/grid.py`` says what is measured, ``peers_openvdb.py`` what FOLDER is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import peers_openvdb  # noqa: E402
import torch  # noqa: E402

from driveRT_ros.bench.grid import CASES, measure, read_tb_per_s, table  # noqa: E402
from driveRT_ros.bench.timing import ceilings, write_report  # noqa: E402


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="7.4,69,506", help="million bytes, by comma")
    parser.add_argument("--cases", default=",".join(CASES), help="by comma")
    parser.add_argument("--samples", type=int, default=40, help="graph replays and calls timed")
    parser.add_argument("--commit", default="", help="commit measured; by default git's")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument(
        "--openvdb",
        metavar="NAME=FOLDER",
        type=peers_openvdb.parse,
        action="append",
        default=[],
        help="measure the CUDA operators of the NanoVDB headers in a folder, too; may be repeated",
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device")
    cases = args.cases.split(",")
    if set(cases) - set(CASES):
        parser.error(f"no case {sorted(set(cases) - set(CASES))}; there are {list(CASES)}")
    device = torch.device("cuda")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        peers = list(pool.map(lambda peer: peers_openvdb.build(*peer, Path(folder)), args.openvdb))
        report = measure(
            [float(size) for size in args.sizes.split(",")],
            device=device,
            cases=cases,
            rounds=args.samples,
            ceilings={
                "copy_tb_per_s": ceilings()["copy_tb_per_s"],
                "read_tb_per_s": read_tb_per_s(device),
            },
            peers=peers,
            commit=args.commit,
            told=lambda part: print(part, flush=True),
            saved=lambda part: write_report(part, args.output) if args.output else None,
        )
    for line in table(report):
        print(" | ".join(line))


if __name__ == "__main__":
    main()
