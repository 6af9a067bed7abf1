"""Stopping on Ctrl-C and SIGTERM without an exception, and within a bound.

A KeyboardInterrupt can strike between any two lines, also inside clean-up. Here a signal raises
nothing: the interpreter writes its number to a pipe, a thread reads it and tells the main loop.
That works while the main thread is inside one long library call, and a second Ctrl-C is harmless.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from driveRT_ros.nodes.native_exit import exit_natively

PARTIAL = 3
"""Exit code of a node that processed what it could read of a damaged bag."""

EXIT_BOUND_S = 1.6
"""From the signal to a forced exit; a frame in flight and DDS get this long to finish."""

GOODBYE_S = 5.0
"""From the end of the work to a forced exit; telling the other processes goodbye gets this long."""


class StopSignal:
    """Own SIGINT and SIGTERM of this process; made in the main thread, once.

    Args:
        exit_bound_s: Where the process is still alive this long after the first signal, it exits
            at once with code 0: leaving was asked for, and whatever is running cannot be cut.
    """

    def __init__(self, exit_bound_s: float = EXIT_BOUND_S) -> None:
        self._stop = threading.Event()
        self._exit_bound_s = exit_bound_s
        self._wake: Callable[[], object] | None = None
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, name="stop", daemon=True).start()

    def __bool__(self) -> bool:
        """Return whether stopping was asked for."""
        return self._stop.is_set()

    def set(self) -> None:
        """Ask for the stop from inside the process."""
        self._stop.set()
        wake = self._wake
        if wake is not None:
            wake()

    def on_stop(self, wake: Callable[[], object] | None) -> None:
        """Set what ends the main loop's sleep; called from another thread. None: nothing sleeps."""
        self._wake = wake
        if self and wake is not None:
            wake()

    def _watch(self) -> None:
        os.read(self._read_fd, 1)
        # The bound runs beside the wake-up: that is a call into the middleware, which may hang.
        exit_within(self._exit_bound_s, 0, silently=True)
        with contextlib.suppress(Exception):  # the main loop may be ending by itself right now
            self.set()


def exit_within(seconds: float, code: int, *, silently: bool = False) -> None:
    """Leave with ``code`` if the process is still there after a while.

    For an end that goes through calls into the middleware, which may hang; and hang with the
    interpreter's lock, so that no thread of Python runs. Hence the second, native timer. Fast DDS
    3.2 does so: it closes a TCP connection, which its transports for large messages use on one
    machine, too, under a lock that a thread of its own holds while it waits in recv.

    Args:
        seconds: From now.
        code: Exit code.
        silently: Say nothing, where somebody asked for the end and expects it.
    """

    def leave() -> None:
        threading.Event().wait(seconds)
        if not silently:
            late = f"The middleware did not close within {seconds:g} s; leaving anyway.\n"
            sys.stderr.write(late)
        exit_now(code)

    threading.Thread(target=leave, name="goodbye", daemon=True).start()
    exit_natively(seconds + 0.5, code)


def exit_now(code: int) -> NoReturn:
    """Leave without waiting for threads, so that a running library call cannot hold us."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
