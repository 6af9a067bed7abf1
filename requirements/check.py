"""Say in one sentence why this machine cannot run ``make install``, or nothing.

Must run on any Python 3, also those that the project refuses: no newer syntax here.
"""

import importlib.util
import platform
import sys

OLDEST, NEWEST = (3, 10), (3, 13)


def problem(version, system, machine, has_venv):
    """Return what is wrong with an interpreter, or an empty string.

    Args:
        version: (major, minor) of the interpreter.
        system: Operating system as :func:`platform.system` names it.
        machine: Processor as :func:`platform.machine` names it.
        has_venv: Whether the modules that make a virtual environment are there.
    """
    if not OLDEST <= tuple(version) <= NEWEST:
        return (
            "Python {}.{} is not supported, the ROS wheels exist for {}.{} to {}.{}; "
            "name another one, as in: make install PYTHON=python3.11".format(
                *(tuple(version) + OLDEST + NEWEST)
            )
        )
    if system != "Linux" or machine != "x86_64":
        return (
            "The ROS wheels exist for Linux on x86_64, this is {} on {}; "
            "with a ROS 2 install use colcon build instead (see README.md).".format(system, machine)
        )
    if not has_venv:
        return "Python cannot make virtual environments; try: sudo apt install python3-venv"
    return ""


if __name__ == "__main__":
    has_modules = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
    sys.exit(
        problem(sys.version_info[:2], platform.system(), platform.machine(), has_modules) or None
    )
