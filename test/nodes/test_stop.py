"""A process that was asked to leave leaves, whatever hangs in it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

WAITING = """
import threading, time
from driveRT_ros.nodes.stop import StopSignal
stop = StopSignal(exit_bound_s=0.5)
stop.on_stop({wake})
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("wake", ["None", "threading.Event().wait"], ids=["asleep", "hung"])
def test_ctrl_c_ends_a_process_that_sleeps_or_whose_wake_up_hangs(wake):
    command = [sys.executable, "-c", WAITING.format(wake=wake)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    assert 0.4 < time.monotonic() - start < 10
