"""The process of the latency probe: ``python -m driveRT_ros.nodes.probe_node --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from driveRT_ros.nodes.stop import StopSignal


def main(args: Sequence[str] | None = None) -> int:
    """Run the node as a process; exit code 1: no result."""
    stop = StopSignal()  # before the imports that take seconds, so that Ctrl-C always works
    from driveRT_ros.nodes.base import run
    from driveRT_ros.nodes.probe import ProbeNode

    return run(ProbeNode, args, stop)


if __name__ == "__main__":
    sys.exit(main())
