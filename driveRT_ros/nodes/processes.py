"""Start node processes, wait until they are ready, and leave none behind."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from driveRT_ros.core.errors import DriveRTError
from driveRT_ros.nodes.stop import PARTIAL

STOP_GRACE_S = 10.0
"""A node that is still there so long after SIGINT is killed, and that is reported.

Nodes force themselves out within two seconds; the rest is for a machine that is busy elsewhere.
"""

_PR_SET_PDEATHSIG = 1


class ProcessFailed(DriveRTError):
    """A node process ended too early, did not get ready, or had to be killed."""


@dataclass
class NodeProcess:
    """One running node.

    Args:
        name: Short name for messages.
        popen: The process; it leads its own session, so Ctrl-C reaches only the parent.
        log_path: File that takes its standard output and error.
        grace_s: How long it may take to end after SIGINT.
    """

    name: str
    popen: subprocess.Popen[bytes]
    log_path: Path
    grace_s: float

    def log(self) -> str:
        """Return what the process has printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def last_lines(self, count: int = 12) -> str:
        """Return the last lines it printed."""
        return "\n".join(self.log().rstrip().splitlines()[-count:])


class Supervisor:
    """Node processes of one run; leaving the ``with`` block stops all of them.

    Args:
        log_dir: Folder for ``<name>.log``; made if missing.
        env: Environment of the children, see process_env.py.
    """

    def __init__(self, log_dir: Path, env: Mapping[str, str]) -> None:
        self._log_dir, self._env = log_dir, dict(env)
        self.processes: list[NodeProcess] = []
        log_dir.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        killed = self.stop()
        if killed and kind is None:
            raise ProcessFailed(
                f"{' and '.join(killed)} did not end in time after SIGINT and had to be killed; "
                f"see the logs in {self._log_dir}."
            )

    def start(self, name: str, argv: Sequence[str], grace_s: float = STOP_GRACE_S) -> NodeProcess:
        """Start one process with its output in ``<log_dir>/<name>.log``.

        Args:
            name: Short name for messages and for the log.
            argv: Command line.
            grace_s: How long it may take to end after SIGINT.
        """
        log_path = self._log_dir / f"{name}.log"
        with log_path.open("wb") as log:
            popen = _spawn(argv, self._env, log)
        process = NodeProcess(name, popen, log_path, grace_s)
        self.processes.append(process)
        return process

    def check(self) -> None:
        """Raise if a process has ended with an error.

        Raises:
            ProcessFailed: It names the process, its exit code and its last lines.
        """
        for process in self.processes:
            code = process.popen.poll()
            if code not in (None, 0, PARTIAL):
                raise ProcessFailed(
                    f"The process '{process.name}' ended with exit code {code}. Its last lines "
                    f"({process.log_path}):\n{process.last_lines()}"
                )

    def wait_for_line(self, process: NodeProcess, text: str, timeout_s: float) -> None:
        """Wait until ``process`` has printed ``text``.

        Raises:
            ProcessFailed: If it ends first, or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        while text not in process.log():
            self.check()
            if process.popen.poll() is not None:
                raise ProcessFailed(
                    f"The process '{process.name}' ended before it printed '{text}'. Its last "
                    f"lines ({process.log_path}):\n{process.last_lines()}"
                )
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"The process '{process.name}' did not print '{text}' within {timeout_s:g} s. "
                    f"Its last lines ({process.log_path}):\n{process.last_lines()}"
                )
            time.sleep(0.05)

    def stop(self, names: Sequence[str] = ()) -> list[str]:
        """Send SIGINT, wait, then SIGKILL; newest first.

        Args:
            names: The processes to stop; empty stops all.

        Returns:
            Names of processes that had to be killed.
        """
        chosen = [p for p in reversed(self.processes) if not names or p.name in names]
        for process in chosen:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGINT)
        begin, killed = time.monotonic(), []
        for process in chosen:
            try:
                process.popen.wait(max(0.0, begin + process.grace_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
                killed.append(process.name)
        self.processes = [p for p in self.processes if p not in chosen]
        return killed


def _spawn(argv: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_parent() -> None:  # also when the parent is killed and can stop nobody
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen(
        list(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock is taken
    )
