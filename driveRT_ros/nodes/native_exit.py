"""Leaving the process at a set time, even while a library call holds the interpreter's lock."""

from __future__ import annotations

import ctypes
import sys

_CLOCK_MONOTONIC, _SIGEV_THREAD = 1, 2


class _SigEvent(ctypes.Structure):
    """``struct sigevent`` of Linux with SIGEV_THREAD; 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 32),
    )


class _TimerSpec(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")
    )


def exit_natively(seconds: float, code: int) -> bool:
    """Let the C library call ``_exit(code)`` after a while, in a thread that is not Python's.

    Args:
        seconds: More than 0.
        code: Exit code.

    Returns:
        Whether the timer runs; False on systems without ``timer_create``.
    """
    libc = ctypes.CDLL(None)
    if not sys.platform.startswith("linux") or not hasattr(libc, "timer_create"):
        return False
    timer = ctypes.c_void_p()
    event = _SigEvent(
        value=code, notify=_SIGEV_THREAD, function=ctypes.cast(libc._exit, ctypes.c_void_p)
    )
    whole_s, rest_s = divmod(seconds, 1.0)
    when = _TimerSpec(value_s=int(whole_s), value_ns=int(rest_s * 1e9))
    if libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return False
    return not libc.timer_settime(timer, 0, ctypes.byref(when), None)
