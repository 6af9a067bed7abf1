"""Runs of nodes that a command supervises: a recorder beside them, a private domain, and an end."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from driveRT_ros.commands.common import (
    config_value,
    console,
    follow_clouds,
    write_parameter_file,
)
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config
from driveRT_ros.nodes.process_env import node_command, node_environment, private_domain
from driveRT_ros.nodes.processes import NodeProcess, ProcessFailed, Supervisor
from driveRT_ros.nodes.recorder_node import CLOSE_S
from driveRT_ros.nodes.stop import PARTIAL

SUBSCRIBER_S = 60.0

_RECORDER = "recorder_node"

_LAST_MESSAGES_S = 0.5
_CLOSE_BAG_S = CLOSE_S + 5.0


@contextmanager
def supervised(out: Path) -> Iterator[Supervisor]:
    """Yield a supervisor whose nodes log into a folder, in a domain that nobody else uses.

    Where ``ROS_DOMAIN_ID`` is set, that one is used.
    """
    with ExitStack() as stack:
        domain = None
        if "ROS_DOMAIN_ID" not in os.environ:
            domain = stack.enter_context(private_domain())
        yield stack.enter_context(Supervisor(out / "logs", node_environment(domain)))


def start_recorder(
    supervisor: Supervisor, path: Path, topics: Sequence[str], *, record_all: bool = False
) -> NodeProcess:
    """Start a recorder of the results, in simulated time."""
    params = {
        "bag_path": str(path),
        "topics": [topics[0], "*"] if record_all else list(dict.fromkeys(topics)),
        "use_sim_time": True,
        "queue_depth": 10_000,  # a detector faster than this process must not lose anything
    }
    argv = node_command("recorder_node", params=params)
    return supervisor.start(_RECORDER, argv, grace_s=_CLOSE_BAG_S)


def finish(supervisor: Supervisor, source: NodeProcess) -> None:
    """Show what the source of a run said last, let the last messages arrive and close the bag.

    Nodes end before the recorder does: by then they have sent all that belongs to their last frame.

    Raises:
        ProcessFailed: If a process had to be killed; where it is the recorder, its bag is damaged.
    """
    console.print(source.last_lines(1).rpartition("]: ")[2])
    supervisor.check()
    killed = supervisor.stop([p.name for p in supervisor.processes if p.name != _RECORDER])
    time.sleep(_LAST_MESSAGES_S)
    supervisor.check()
    if supervisor.stop([_RECORDER]):
        raise ProcessFailed("The recorder did not close its bag in time and was killed.")
    if killed:
        raise ProcessFailed(f"{' and '.join(killed)} did not end after SIGINT: killed.")


@dataclass(frozen=True)
class Offline:
    """A node that reads a bag itself.

    Args:
        name: Of the node.
        executable: Its offline form.
        config: Everything it takes.
        params: Where the bag is, and how much of it to use.
        topics: What is recorded.
        doing: What the progress bar calls it.
    """

    name: str
    executable: str
    config: Config
    params: Mapping[str, Any]
    topics: Sequence[str]
    doing: str

    def run(self, out: Path, *, record_all: bool) -> tuple[Path, int]:
        """Run it to the end of its bag.

        Args:
            out: Folder of logs, parameters and the recorded bag.
            record_all: Record every topic.

        Returns:
            The recorded bag, and :data:`~driveRT_ros.nodes.stop.PARTIAL` where part of the bag
            could not be read, else 0.

        Raises:
            ProcessFailed: If a process fails.
        """
        recorded = out / "output_bag"
        how = {"wait_for_subscriber_s": SUBSCRIBER_S, "use_sim_time": True}
        with supervised(out) as supervisor:
            start_recorder(supervisor, recorded, self.topics, record_all=record_all)
            argv = node_command(
                self.executable,
                params_file=write_parameter_file(self.config, out / f"{self.name}.yaml"),
                params={**self.params, **how},
            )
            node = supervisor.start(self.name, argv)
            follow_clouds(supervisor, node, self.doing)
            finish(supervisor, node)
        return recorded, PARTIAL if node.popen.returncode == PARTIAL else 0


def exit_code(code: int, partial: int) -> int:
    """Say so where part of a bag is missing; return the code of the command.

    Args:
        code: What the results say.
        partial: What :meth:`Offline.run` says.
    """
    if partial:
        console.print("Part of the bag could not be read; the results cover the rest.")
    return code or partial


def refuse_bag_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that a live run has no use for."""
    if args.out or args.frames or args.record_all:
        raise ConfigError("Options --out, --frames and --record-all need --bag.")


def become(name: str, config: Config, remaps: Mapping[str, str]) -> NoReturn:
    """Become a node, so that Ctrl-C and exit code are its own."""
    changed = {
        p.name: value
        for p in type(config).parameters()
        if (value := config_value(config, p.name)) != p.default
    }
    argv = node_command(name, params=changed, remaps=remaps)
    os.execve(argv[0], argv, node_environment())
