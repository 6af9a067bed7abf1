"""``python -m driveRT_ros`` is the command ``drivert``."""

import sys

from driveRT_ros.cli import main

if __name__ == "__main__":
    sys.exit(main())
