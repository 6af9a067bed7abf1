"""How Fast DDS is told to carry clouds and images, and what of it is the user's own choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from driveRT_ros.core.paths import share_path

TRANSPORTS = "FASTDDS_BUILTIN_TRANSPORTS"
PROFILES = "FASTDDS_DEFAULT_PROFILES_FILE"
OLD_PROFILES = "FASTRTPS_DEFAULT_PROFILES_FILE"
"""Its name with Fast DDS 2; version 3 warns of it."""
CHOICES = (PROFILES, OLD_PROFILES, TRANSPORTS)

_FAST_DDS_2 = ("humble", "iron", "jazzy")


def transport_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Fast DDS carry large messages on one computer.

    By default it loses nearly every best-effort message of the size of a cloud.

    Args:
        environment: Of a process. Where it chooses transports itself, nothing is added.

    Raises:
        ConfigError: If the profile file of the package is missing.
    """
    if chosen_transport(environment):
        return {}
    name, path = _setting(environment)
    return {name: path}


def chosen_transport(environment: Mapping[str, str]) -> str:
    """Return what a process chooses, as NAME=VALUE; empty where Fast DDS uses its defaults."""
    for name in CHOICES:
        if environment.get(name):
            return f"{name}={environment[name]}"
    return ""


def transport_hint(environment: Mapping[str, str]) -> str:
    """Return a sentence on what large messages need, and what this process has."""
    return (
        f"Large messages need {transport_setting(environment)} in the environment of every process "
        f"(or, in all of them, {TRANSPORTS}=LARGE_DATA, where they are on several computers); "
        f"here: {chosen_transport(environment) or 'neither'}."
    )


def transport_setting(environment: Mapping[str, str]) -> str:
    """Return what the nodes of this package are started with, as NAME=VALUE."""
    return "=".join(_setting(environment))


def transport_name(environment: Mapping[str, str]) -> str:
    """Return the transports of a process in a word or two, for a report: no path, no variable."""
    return Path(chosen_transport(environment).partition("=")[2]).name or "default"


def _setting(environment: Mapping[str, str]) -> tuple[str, str]:
    name = OLD_PROFILES if environment.get("ROS_DISTRO") in _FAST_DDS_2 else PROFILES
    return name, str(share_path("config/fastdds.xml"))
