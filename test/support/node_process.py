"""Node processes under test: real ones, each in a ROS domain of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from driveRT_ros.nodes.process_env import node_command, node_environment
from driveRT_ros.nodes.transport import CHOICES, TRANSPORTS

LATE_S = 240.0
"""A process that takes longer hangs. Ten seconds are a start, minutes where all else is busy."""


class NodeUnderTest:
    """A running node process.

    Args:
        popen: The process.
        log_path: Takes its output.
    """

    def __init__(self, popen: subprocess.Popen[bytes], log_path: Path) -> None:
        self.popen, self.log_path = popen, log_path

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def wait_for_log(self, text: str, timeout_s: float = LATE_S) -> None:
        """Wait until the process has printed ``text``."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log():
            ended = self.popen.poll() is not None
            if ended and text in self.log():
                return
            assert not ended, f"ended with {self.popen.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"no {text!r} in {timeout_s} s:\n{self.log()}"
            time.sleep(0.05)

    def wait(self, timeout_s: float = LATE_S) -> int:
        """Wait for the end and return the exit code."""
        return self.popen.wait(timeout_s)

    def wait_until_it_takes_signals(self) -> None:
        """Wait until it has a handler for SIGTERM: before, only the interpreter can answer."""
        wait_until_signals_are_taken(self.popen)

    def stop(self, *signals: signal.Signals, gap_s: float = 0.1) -> int:
        """Send signals one after the other; return the exit code of a process that obeys."""
        for index, number in enumerate(signals):
            if index:
                time.sleep(gap_s)
            self.popen.send_signal(number)
        return self.popen.wait(LATE_S)


def wait_until_signals_are_taken(popen: subprocess.Popen[bytes]) -> None:
    """Wait until a process of the package has its handlers, which is before its slow imports."""
    status, deadline = Path(f"/proc/{popen.pid}/status"), time.monotonic() + LATE_S
    while True:
        (caught,) = [w for w in status.read_text().splitlines() if w.startswith("SigCgt")]
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        assert popen.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def started(
    module: str,
    folder: Path,
    domain_id: int,
    *,
    params: Mapping[str, object] | None = None,
    extra_args: tuple[str, ...] = (),
    transports: str = "",
    package: str = "driveRT_ros.nodes",
) -> Iterator[NodeUnderTest]:
    """Start ``<package>.<module>``; kill it, and it alone, where it is still running.

    Args:
        module: Module name of the node.
        folder: Takes the log.
        domain_id: ROS domain.
        params: ROS parameters by name.
        extra_args: Appended after ``--ros-args`` and the parameters.
        transports: Value of FASTDDS_BUILTIN_TRANSPORTS, where it is not what nodes use by default.
        package: Where the module is.
    """
    env = {
        **node_environment(domain_id),
        "OMP_NUM_THREADS": "1",
        "ROS_LOG_DIR": str(folder / "ros_log"),
    }
    if transports:
        env = {k: v for k, v in env.items() if k not in CHOICES} | {TRANSPORTS: transports}
    log_path = folder / f"{module}-{time.monotonic_ns()}.log"
    argv = [*node_command(module, params=params), *extra_args]
    argv[argv.index("-m") + 1] = f"{package}.{module}"
    with log_path.open("wb") as log:
        popen = subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield NodeUnderTest(popen, log_path)
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait()
