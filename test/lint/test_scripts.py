"""The script for a CUDA machine says what it does, and does nothing that it was not asked for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "qualify_gpu.sh"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True)


def test_help_lists_every_step():
    done = run("--help")
    steps = re.search(r"=~ \^\(([a-z|]+)\)\$", SCRIPT.read_text())
    assert done.returncode == 0 and steps
    for step in steps[1].split("|"):
        assert re.search(rf"^  {step} +\w", done.stdout, re.M), step
        assert re.search(rf"^{step}\(\) ", SCRIPT.read_text(), re.M), step


@pytest.mark.parametrize("arguments", [(), ("OUT", "sparse", "everything")])
def test_a_wrong_command_line_runs_nothing(arguments, tmp_path):
    given = [str(tmp_path) if word == "OUT" else word for word in arguments]
    assert run(*given).returncode in (1, 2)
    assert not list(tmp_path.iterdir())


def test_a_failed_step_is_named_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHON", "false")
    done = run(str(tmp_path), "bevpool", "tests")
    assert done.returncode == 1
    assert re.findall(r"(\w+) +FAILED", done.stdout) == ["bevpool", "tests"]
