"""What processes that died without goodbye leave in shared memory, and how it goes away."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
SETTLED_S = 5.0
"""Younger files are left alone: their process may be about to lock them."""


def remove_dead(folder: Path = FOLDER, settled_s: float = SETTLED_S) -> int:
    """Remove the ports and segments of Fast DDS whose process is gone; return how many.

    A port is reused by number. One that a killed process left behind, its semaphore perhaps taken
    for ever, can keep a new process from hearing anybody. A living process holds a file lock on
    each of its own, by which it is told from a dead one.

    Args:
        folder: Where shared memory lies.
        settled_s: Age from which a file counts.
    """
    removed = 0
    for lock in sorted(folder.glob("fastdds_*_el")):
        name = lock.name[: -len("_el")]
        locks = [lock, folder / f"{name}_sl"]
        with contextlib.suppress(OSError):  # gone in the meantime, or of another user
            if time.time() - lock.stat().st_mtime < settled_s or any(map(_is_held, locks)):
                continue
            for path in (folder / name, folder / f"sem.{name}_mutex", *locks):
                path.unlink(missing_ok=True)
            removed += 1
    for semaphore in sorted(folder.glob("sem.fastdds_port*_mutex")):
        name = semaphore.name[len("sem.") : -len("_mutex")]
        with contextlib.suppress(OSError):
            old = time.time() - semaphore.stat().st_mtime >= settled_s
            if old and not (folder / name).exists():
                semaphore.unlink()
                removed += 1
    return removed


def _is_held(lock: Path) -> bool:
    """Tell whether a process holds a lock file; False where there is none."""
    import fcntl  # absent on Windows, where the command line still has to show its help

    if not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
