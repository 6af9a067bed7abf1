"""Check, then time, the softmax of depths apart from pooling and inside of it, on a GPU.

    python benchmarks/bench_depth_softmax.py --output benchmarks/results/poolsoftmax-GPU-DATE.json

``driveRT_ros/bench/pool_softmax.py`` says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

from driveRT_ros.bench.pool_cases import CASES  # noqa: E402
from driveRT_ros.bench.pool_softmax import measure  # noqa: E402
from driveRT_ros.bench.timing import write_report  # noqa: E402


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=120, help="graph replays timed")
    parser.add_argument("--commit", default="", help="commit measured; by default git's")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device")
    report = measure(CASES, samples=args.samples, commit=args.commit)
    print(json.dumps(report, indent=1))
    if args.output:
        write_report(report, args.output)


if __name__ == "__main__":
    main()
