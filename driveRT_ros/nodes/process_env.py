"""How a node process is started: its command line, its environment, a ROS domain of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from driveRT_ros.nodes.processes import ProcessFailed
from driveRT_ros.nodes.shared_memory import remove_dead
from driveRT_ros.nodes.transport import transport_environment

_turns = itertools.count()


def node_command(
    module: str,
    *,
    name: str = "",
    params_file: Path | None = None,
    params: Mapping[str, object] | None = None,
    remaps: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command line of a node, in the form ``ros2 run`` would give it.

    Args:
        module: Module below ``driveRT_ros.nodes``, such as ``lidar_node``.
        name: Node name, if not its default.
        params_file: ROS parameter file.
        params: Single parameters that override the file; values are written as YAML.
        remaps: Topic remappings.
    """
    argv = [sys.executable, "-u", "-m", f"driveRT_ros.nodes.{module}", "--ros-args"]
    if name:
        argv += ["-r", f"__node:={name}"]
    for source, target in (remaps or {}).items():
        argv += ["-r", f"{source}:={target}"]
    if params_file is not None:
        argv += ["--params-file", str(params_file)]
    for key, value in (params or {}).items():
        argv += ["-p", f"{key}:={_yaml(value)}"]
    return argv


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_yaml(v) for v in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def node_environment(domain_id: int | None = None) -> dict[str, str]:
    """Return the environment in which node processes find this package and lose no cloud.

    Args:
        domain_id: ROS domain; None keeps the caller's.
    """
    env = dict(os.environ)
    env |= transport_environment(env)
    if domain_id is not None:
        env["ROS_DOMAIN_ID"] = str(domain_id)
    root = str(Path(__file__).resolve().parents[2])
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    if root not in paths:
        env["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return env


@contextlib.contextmanager
def private_domain() -> Iterator[int]:
    """Reserve a ROS domain that nobody on this machine uses, for the length of the block.

    Shared memory that killed processes left behind is removed first.

    Domains above 100 would put their ports into the range of ephemeral ports.

    Raises:
        ProcessFailed: If all are taken.
    """
    import fcntl  # absent on Windows, where the command line still has to show its help

    locks = Path(tempfile.gettempdir()) / f"drivert-domains-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    turn = next(_turns)  # the last domain may hold what a process killed a moment ago has left
    for step in range(100):
        domain = 1 + (os.getpid() + turn + step) % 100
        with (locks / str(domain)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if _discovery_port_is_free(domain):
                remove_dead()
                yield domain
                return
    raise ProcessFailed("Every ROS domain from 1 to 100 is in use on this machine; stop some.")


def _discovery_port_is_free(domain: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 7400 + 250 * domain))
        except OSError:
            return False
    return True
