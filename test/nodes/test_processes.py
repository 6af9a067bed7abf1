"""Starting, watching and stopping processes; none may be left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driveRT_ros.nodes.process_env import node_command, node_environment, private_domain
from driveRT_ros.nodes.processes import ProcessFailed, Supervisor
from driveRT_ros.nodes.transport import CHOICES, OLD_PROFILES, PROFILES, transport_environment

DEAF = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
POLITE = """
import time
print("up", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    pass
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_leaving_the_block_stops_every_process_with_sigint(tmp_path: Path) -> None:
    with Supervisor(tmp_path, os.environ) as supervisor:
        process = supervisor.start("polite", python(POLITE))
        supervisor.wait_for_line(process, "up", 240.0)
    assert process.popen.returncode == 0


def test_a_process_that_ignores_sigint_is_killed_after_its_grace_and_named(tmp_path: Path) -> None:
    begin = 0.0
    with (
        pytest.raises(ProcessFailed, match="deaf did not end in time"),
        Supervisor(tmp_path, os.environ) as supervisor,
    ):
        process = supervisor.start("deaf", python(DEAF), grace_s=0.5)
        supervisor.wait_for_line(process, "up", 240.0)
        begin = time.monotonic()
    assert time.monotonic() - begin >= 0.5
    assert process.popen.returncode == -signal.SIGKILL  # it would have lived for ten minutes


def test_a_process_that_fails_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    code = "import sys\nprint('what went wrong')\nsys.exit(7)"
    with Supervisor(tmp_path, os.environ) as supervisor:
        process = supervisor.start("broken", python(code))
        with pytest.raises(ProcessFailed, match="(?s)'broken' ended with exit code 7.*went wrong"):
            supervisor.wait_for_line(process, "never", 240.0)


def test_waiting_for_a_line_that_never_comes_ends_with_a_sentence(tmp_path: Path) -> None:
    with Supervisor(tmp_path, os.environ) as supervisor:
        process = supervisor.start("mute", python(POLITE))
        with pytest.raises(ProcessFailed, match="'mute' did not print 'ready' within 0.2 s"):
            supervisor.wait_for_line(process, "ready", 0.2)
        ended = supervisor.start("brief", python("print('hello')"))
        with pytest.raises(ProcessFailed, match="'brief' ended before it printed 'ready'"):
            supervisor.wait_for_line(ended, "ready", 240.0)


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from driveRT_ros.nodes.processes import Supervisor\n"
        f"s = Supervisor(Path({str(tmp_path)!r}), os.environ)\n"
        f"p = s.start('child', [sys.executable, '-c', {POLITE!r}])\n"
        "s.wait_for_line(p, 'up', 240)\nprint(p.popen.pid, flush=True)\ntime.sleep(600)"
    )
    parent = subprocess.Popen(
        python(code), stdout=subprocess.PIPE, text=True, env=node_environment()
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 240.0
    while _is_running(child):
        assert time.monotonic() < deadline, f"process {child} survived its parent"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_private_domains_differ_and_are_legal() -> None:
    with private_domain() as first, private_domain() as second:
        assert first != second
        assert {first, second} <= set(range(1, 101))


def test_the_environment_loses_no_cloud_and_finds_the_package(monkeypatch) -> None:
    for name in (*CHOICES, "ROS_DISTRO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    env = node_environment(42)
    chosen = {name: env[name] for name in CHOICES if name in env}
    assert {name: Path(path).name for name, path in chosen.items()} == {PROFILES: "fastdds.xml"}
    old = transport_environment({"ROS_DISTRO": "jazzy"})
    assert old == {OLD_PROFILES: chosen[PROFILES]}
    assert env["ROS_DOMAIN_ID"] == "42"
    assert env["PYTHONPATH"].split(os.pathsep)[1:] == ["/elsewhere"]
    for name in CHOICES:  # the user's choice stands
        with monkeypatch.context() as own:
            own.setenv(name, "own")
            assert {k: v for k, v in node_environment().items() if k in CHOICES} == {name: "own"}


def test_a_node_command_is_what_ros2_run_would_be_given(tmp_path: Path) -> None:
    argv = node_command(
        "lidar_node",
        name="front",
        params_file=tmp_path / "p.yaml",
        params={"a": True, "b": 0.5, "c": 'say "hi"', "d": ["/x", "/y"], "e": 3},
        remaps={"~/input/pointcloud": "/points"},
    )
    assert argv[1:5] == ["-u", "-m", "driveRT_ros.nodes.lidar_node", "--ros-args"]
    assert argv[5:] == [
        "-r", "__node:=front",
        "-r", "~/input/pointcloud:=/points",
        "--params-file", str(tmp_path / "p.yaml"),
        "-p", "a:=true", "-p", "b:=0.5", "-p", 'c:="say \\"hi\\""',
        "-p", 'd:=["/x", "/y"]', "-p", "e:=3",
    ]  # fmt: skip
