"""The process of the recorder node: ``python -m driveRT_ros.nodes.recorder_node --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from driveRT_ros.nodes.stop import StopSignal

CLOSE_S = 30.0
"""From a signal to a forced exit: on a busy machine, better a late end than a damaged bag."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the node as a process; exit code 2: what was asked for cannot be recorded."""
    stop = StopSignal(CLOSE_S)  # before the imports that take seconds, so that Ctrl-C always works
    from driveRT_ros.nodes.base import run
    from driveRT_ros.nodes.recorder import RecorderNode

    return run(RecorderNode, args, stop)


if __name__ == "__main__":
    sys.exit(main())
