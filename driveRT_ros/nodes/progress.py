"""Say how far a replay is: a bar on a terminal, a line a second elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


class Progress:
    """Count messages for people and for whoever reads the log.

    Args:
        total: Messages that will come, or 0 where the number is unknown.
        log: Takes one line, such as ``12 of 40 clouds.``
        noun: What is counted.
        bar: Draw a bar; by default where standard error is a terminal.
    """

    def __init__(
        self,
        total: int,
        log: Callable[[str], object],
        noun: str = "clouds",
        bar: bool | None = None,
    ) -> None:
        self._total, self._log, self._noun = total, log, noun
        self._done, self._last_s, self._said = 0, 0.0, -1
        self._bar: Any = None
        if sys.stderr.isatty() if bar is None else bar:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True))
            self._task = self._bar.add_task(noun, total=total or None)
            self._bar.start()

    def __call__(self, done: int) -> None:
        """Show that ``done`` messages have gone out."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif time.monotonic() - self._last_s >= 1.0:
            self._say()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Show the last state and leave the terminal alone."""
        if self._bar is not None:
            self._bar.stop()
        else:
            self._say()

    def _say(self) -> None:
        self._last_s = time.monotonic()
        if self._said == self._done:
            return
        self._said = self._done
        self._log(f"{self._done} of {self._total or 'many'} {self._noun}.")
