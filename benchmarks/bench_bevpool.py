"""Check, then time, the pooling of camera features on a GPU beside its baselines: one JSON file.

    python benchmarks/bench_bevpool.py --output benchmarks/results/bevpool-GPU-DATE.json

``driveRT_ros/bench/bevpool.py`` says what is measured; ``--scan`` times every variant and ends with
the fastest ones of each case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

from driveRT_ros.bench.bevpool import (  # noqa: E402
    default_contenders,
    measure,
    scan_contenders,
)
from driveRT_ros.bench.pool_cases import CASES  # noqa: E402
from driveRT_ros.bench.timing import ceilings, write_report  # noqa: E402


def fastest(report: Mapping[str, Any], formats: list[str], most: int = 5) -> Iterator[str]:
    """Return a line for each of the fastest of our ways, by case and format of the features."""
    for case, entry in report["cases"].items():
        for features in formats:
            timed = [
                (record["warm_us"]["median"], name)
                for name, record in entry["contenders"].items()
                if record["features"] == features and "tactic" in record and "warm_us" in record
            ]
            for us, name in sorted(timed)[:most]:
                yield f"{case:10} {features} {us:7.2f} us  {name}"
            default = entry["contenders"].get(f"tiles {features}", {}).get("warm_us")
            if default:
                yield f"{case:10} {features} {default['median']:7.2f} us  the default"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="by comma; all by default")
    parser.add_argument("--formats", default="fp16,fp8", help="of the features")
    parser.add_argument("--scan", action="store_true", help="time every variant")
    parser.add_argument("--samples", type=int, default=120, help="graph replays timed")
    parser.add_argument("--commit", default="", help="commit measured; by default git's")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device")
    names = args.cases.split(",") if args.cases else [case.name for case in CASES]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no case {sorted(unknown)}; there are {[case.name for case in CASES]}")
    formats = args.formats.split(",")
    contenders = scan_contenders if args.scan else default_contenders
    report = measure(
        [case for case in CASES if case.name in names],
        lambda channels: contenders(channels, formats),
        samples=args.samples,
        cold=not args.scan,
        copy_tb_per_s=ceilings()["copy_tb_per_s"],
        commit=args.commit,
        told=lambda line: print(line, flush=True),
    )
    if args.scan:
        print("\n".join(fastest(report, formats)))
    if args.output:
        write_report(report, args.output)


if __name__ == "__main__":
    main()
