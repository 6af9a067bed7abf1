"""The command ``drivert``: parse, run one command, turn errors into one sentence and a code."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence

from driveRT_ros import __version__
from driveRT_ros.commands import (
    bench,
    convert,
    demo,
    eval,
    export,
    info,
    qualify,
    replay,
    run,
    ship,
    train,
    tune,
    verify,
)
from driveRT_ros.core.errors import DriveRTError
from driveRT_ros.nodes.processes import ProcessFailed

COMMANDS = {
    "demo": demo,
    "run": run,
    "replay": replay,
    "convert": convert,
    "export": export,
    "tune": tune,
    "qualify": qualify,
    "train": train,
    "bench": bench,
    "eval": eval,
    "ship": ship,
    "verify": verify,
    "info": info,
}

_EPILOG = """\
exit codes: 0 done, 1 a node or check failed, 2 something asked for cannot be done, 130 interrupted

examples:
  drivert demo                                   simulate, detect over real ROS 2, draw pictures
  drivert demo --bag my_bag --topic /points_raw  the same on a recording
  drivert run --bag my_bag                       detect offline; nothing is lost at any speed
  drivert convert --sim scene_bag                a rosbag2 that every ROS 2 tool plays
  drivert export nvdb --bag my_bag               its voxels, for NanoVDB tools
  drivert tune --output plan.json                find the fastest kernels for this GPU
  drivert qualify --plan plan.json               does less precision find the same objects?
  drivert bench sparse                           time the engine on this GPU
  drivert train --out run --time-limit 600       weights from simulated drives
  drivert eval --sim 100 --checkpoint FILE       how good weights are: mAP, NDS, pictures
  drivert verify run_a run_b                     equal, or which frame and stage differ first
  drivert info my_bag                            what is inside, and what this machine has
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="drivert",
        description="3-D detection from LiDAR and cameras in ROS 2, on any machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"drivert {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=(module.__doc__ or "").strip(),
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(execute=module.execute)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``drivert`` and return its exit code.

    Args:
        argv: Arguments without the program name; None takes those of the process.
    """
    args = build_parser().parse_args(argv)
    before = _wrecks()
    try:
        code = int(args.execute(args))
    except ProcessFailed as error:
        sys.stderr.write(f"drivert: {error}\n")
        code = 1
    except DriveRTError as error:
        sys.stderr.write(f"drivert: {error}\n")
        code = 2
        _wrecks(error)
    except RuntimeError as error:  # of torch
        if _wrecks(error) == before:
            raise
        traceback.print_exc()
        code = 1
    except KeyboardInterrupt:
        sys.stderr.write("drivert: interrupted.\n")
        code = 130
    if _wrecks() > before:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End the process: cleaning up would call a CUDA context that is no more, which may abort."""
    for child in multiprocessing.active_children():  # else ended by what is left out here
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wrecks(error: Exception | None = None) -> int:
    """Return how many things are kept that lie on a lost GPU.

    Args:
        error: What a command ended with. Where that is the loss of the GPU, it becomes one: its
            traceback holds what was in work.
    """
    if "torch" not in sys.modules:
        return 0
    from driveRT_ros.core.device_faults import context_lost, keep, wrecks

    if context_lost(error):
        keep(error)
    return wrecks()
