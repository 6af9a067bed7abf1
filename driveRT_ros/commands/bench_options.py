"""What the suites of ``drivert bench`` share: which options each has, frames, Plans."""

from __future__ import annotations

import argparse
from pathlib import Path

from driveRT_ros.core.errors import ConfigError

ALL_FRAMES = ("S1", "S5", "S10", "S15")
BELONGS = {
    "precision": ("sparse", "frame", "soak", "camera", "ros"),
    "plan": ("sparse", "frame", "soak", "camera", "ros"),
    "frames": ("sparse", "frame"),
    "data": ("sparse", "frame"),
    "peers": ("sparse", "frame"),
    "config": ("sparse", "frame", "soak", "camera", "ros"),
    "rounds": ("sparse", "grid", "frame", "camera"),
    "sizes": ("grid", "ros"),
    "rates": ("ros",),
    "duration": ("ros",),
    "count": ("soak",),
}
"""Suites by option; the others refuse it rather than leave it without effect."""
DEFAULT_ROUNDS = 4


def check_options(args: argparse.Namespace) -> None:
    """Refuse options of other suites, rounds below one and a folder that is not there.

    Raises:
        ConfigError: It names the option.
    """
    for name, suites in BELONGS.items():
        if getattr(args, name) is not None and args.suite not in suites:
            names = " and ".join(f"'drivert bench {suite}'" for suite in suites)
            raise ConfigError(f"Option --{name} belongs to {names}.")
    args.rounds = DEFAULT_ROUNDS if args.rounds is None else args.rounds
    if args.rounds < 1:
        raise ConfigError(f"Option --rounds must be at least 1, got {args.rounds}.")
    if args.output and not Path(args.output).resolve().parent.is_dir():
        raise ConfigError(f"The folder of '{args.output}' does not exist.")
    if args.output and Path(args.output).is_dir():
        raise ConfigError(f"Option --output names a file, but '{args.output}' is a folder.")


def frame_names(args: argparse.Namespace, default: tuple[str, ...]) -> list[str]:
    """Return the frames that were asked for, or the default ones and those in ``--data``."""
    from driveRT_ros.bench.frames import present

    if args.frames:
        return [name.strip() for name in args.frames.split(",")]
    found = present(Path(args.data)) if args.data else []
    if args.data and not found:
        raise ConfigError(f"Folder '{args.data}' holds none of the frames A, B and C.")
    return [*default, *found]


def plans(args: argparse.Namespace) -> list[tuple[str, Path | None]]:
    """Return the Plans to time: the default of the precision, then the one that was named."""
    from driveRT_ros.core.plan import Plan

    if not args.plan:
        return [(args.precision or "fp32", None)]
    precision = args.precision or Plan.load(args.plan).precision
    return [(precision, None), (precision, Path(args.plan))]


def peer_names(args: argparse.Namespace, known: tuple[str, ...]) -> list[str]:
    """Return the peers that were asked for."""
    peers = [name.strip() for name in (args.peers or "").split(",") if name.strip()]
    unknown = sorted(set(peers) - set(known))
    if unknown:
        raise ConfigError(f"There is no peer {', '.join(unknown)}; there are {', '.join(known)}.")
    return peers
