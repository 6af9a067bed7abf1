"""The process of the offline camera node; ``--help`` tells its parameters."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from driveRT_ros.nodes.stop import StopSignal


def main(args: Sequence[str] | None = None) -> int:
    """Run the node as a process; exit code 2: a bad bag, 3: only part of it was read."""
    stop = StopSignal()  # before the imports that take seconds, so that Ctrl-C always works
    from driveRT_ros.nodes.base import run
    from driveRT_ros.nodes.offline_camera import OfflineCameraNode

    return run(OfflineCameraNode, args, stop)


if __name__ == "__main__":
    sys.exit(main())
