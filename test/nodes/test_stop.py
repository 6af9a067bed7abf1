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
time.sleep(600)
"""


@pytest.mark.parametrize("wake", ["None", "threading.Event().wait"], ids=["asleep", "hung"])
def test_ctrl_c_ends_a_process_that_sleeps_or_whose_wake_up_hangs(wake):
    command = [sys.executable, "-c", WAITING.format(wake=wake)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 0
    assert time.monotonic() - start > 0.4  # and long before it would have ended by itself


SPIN = "while True: pass"
HOLD = "import ctypes; ctypes.PyDLL(None).sleep(600)  # with the lock of the interpreter"


@pytest.mark.parametrize(("hang", "sentence"), [(SPIN, True), (HOLD, False)])
@pytest.mark.parametrize("code", [0, 3])
def test_a_process_whose_goodbye_hangs_leaves_with_the_code_of_its_work(hang, sentence, code):
    script = f"from driveRT_ros.nodes.stop import exit_within\nexit_within(0.5, {code})\n{hang}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code
    assert ("did not close within 0.5 s" in done.stderr) == sentence


def test_ctrl_c_ends_a_process_that_hangs_with_the_lock_of_the_interpreter():
    script = WAITING.format(wake="None").replace(
        "time.sleep(600)", f"while not stop:\n    time.sleep(0.01)\n{HOLD}"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 0
