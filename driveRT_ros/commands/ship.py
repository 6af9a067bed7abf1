"""Turn a training run into weights that ship: the file, and a model card beside it.

The card says what was learned from, the recipe, what was measured, goals reached and missed, and
limits. All of its numbers come from the run and from reports of 'drivert eval' about these very
weights; reports of others are refused. The LiDAR weights are also run on ten small held-out scenes
(about a minute), which the tests repeat.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from driveRT_ros.commands.common import console
from driveRT_ros.core.errors import ConfigError

HELP = "turn a training run into weights of the package, with a model card"
EXAMPLES = """\
examples:
  drivert eval --sim 200 --jobs 0 --config run/detector.yaml --out held_out
  drivert ship run --name voxelnext_small_sim --report held_out/report.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert ship``."""
    parser.add_argument("run", metavar="RUN", help="folder of the training run")
    parser.add_argument(
        "--name", required=True, help="what they become: voxelnext_small_sim or lss_small_sim"
    )
    parser.add_argument(
        "--report",
        metavar="JSON",
        action="append",
        required=True,
        help="report.json of an evaluation of these weights; repeatable",
    )
    parser.add_argument(
        "--to", metavar="DIR", help="where the two files go (default: the package itself)"
    )
    parser.add_argument(
        "--commit", metavar="ID", help="commit that trained them (default: that of this checkout)"
    )


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert ship``."""
    from driveRT_ros.models.shipped import CAMERA, FOLDER, LIDAR
    from driveRT_ros.train.card import card_text
    from driveRT_ros.train.ship import read_origin, write_pair

    known = {shipped.name: shipped for shipped in (LIDAR, CAMERA)}
    if args.name not in known:
        raise ConfigError(f"Option --name takes {' or '.join(known)}, got '{args.name}'.")
    shipped = known[args.name]
    run, folder = Path(args.run), Path(args.to) if args.to else FOLDER
    commit = args.commit or _commit()
    with console.status("running the weights on small held-out scenes"):
        origin = read_origin(run, shipped, [Path(report) for report in args.report], commit)
    weights, card = write_pair(origin, run, folder, card_text(origin))
    if origin.small is not None:
        found = origin.small
        console.print(f"{found['scenes']} small scenes: mAP {found['mean_ap']:.4f} of the present.")
    console.print(f"Wrote {weights} ({origin.file_bytes:,} bytes) and {card}.")
    return 0


def _commit() -> str:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        raise ConfigError(
            "The code is in no git checkout: name its commit with --commit."
        ) from None
    return done.stdout.strip()
