"""The command ``drivert``, also as ``python -m driveRT_ros``."""

import sys


def main() -> int:
    """Run ``drivert``; Ctrl-C is no fault, even while torch is being imported.

    Returns:
        Its exit code.
    """
    try:
        from driveRT_ros.cli import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("drivert: interrupted.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
