"""The README tells the truth: its commands run, its tables and links are those of the code."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from driveRT_ros.nodes.transport import transport_environment

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.strip() for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)]

# `make` takes these from the environment: the commands stay as written, their work gets small.
SMALL = {
    "ARGS": "--duration 0.1 --out {out}",
    "PYTEST_ARGS": "-q -p no:cacheprovider test/core/test_paths.py",
}


def run(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # What an outer `make test VARIABLE=...` was told must not reach the inner one.
    env = {name: value for name, value in env.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder, env=env, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip


def block_starting(word: str) -> str:
    """Return the one code block that starts with a word."""
    found = [block for block in BLOCKS if block.startswith(word)]
    assert len(found) == 1, f"README.md has {len(found)} blocks that start with '{word}'"
    return found[0]


def test_every_command_of_the_readme_belongs_to_a_test_below():
    tested = (
        "make demo",
        "make test",
        "export PATH=",
        "drivert tune",
        "colcon build",
        "ros2 launch",
        "export FAST",
    )
    assert len(BLOCKS) == len(tested)
    for start in tested:
        block_starting(start)


@pytest.mark.nodes
def test_make_demo_runs_and_leaves_pictures(ros_env, tmp_path):
    env = ros_env | {"ARGS": SMALL["ARGS"].format(out=tmp_path / "demo")}
    result = run(block_starting("make demo"), ROOT, env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list((tmp_path / "demo").rglob("*.png"))
    assert list((tmp_path / "demo").rglob("*.gif"))


def test_make_test_runs(tmp_path):
    result = run(block_starting("make test"), ROOT, {**os.environ, **SMALL})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout


@pytest.mark.nodes
def test_the_drivert_commands_run_as_written(ros_env, tmp_path):
    lines = block_starting("export PATH=").splitlines()
    assert all(line.startswith(("export PATH=", "drivert ")) for line in lines)
    script = "\n".join(lines).replace("$PWD", str(ROOT), 1)
    result = run(script, tmp_path, ros_env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "drive").is_dir()
    assert list((tmp_path / "pictures").rglob("*.png"))


def test_the_tuning_and_measuring_commands_run_or_say_that_there_is_no_gpu(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = block_starting("drivert tune").splitlines()
    assert all(line.startswith("drivert ") for line in lines)
    for line in lines:
        command = line.split("#")[0].strip()
        if command.startswith("drivert tune"):
            command += " --time-limit 20"  # the rest of the search is more of the same
        if command.startswith("drivert qualify"):
            command += " --precision fp32x3 --sim 1 --scenes 0"
        result = run(command, tmp_path, os.environ | {"PATH": path})
        if torch.cuda.is_available() or "--device cpu" in command:
            assert result.returncode == 0, result.stdout + result.stderr
        else:
            assert result.returncode == 2
            why = "does not exist" if "qualify" in command else "finds no CUDA device"
            assert why in result.stderr and result.stderr.count("\n") == 1


def test_colcon_build_is_the_command_that_the_setup_tests_run():
    tested = (ROOT / "test" / "setup" / "test_colcon.py").read_text(encoding="utf-8")
    assert block_starting("colcon build") == "colcon build --symlink-install"
    assert "--symlink-install" in tested and "colcon" in tested


def test_the_launch_commands_name_launch_files_and_arguments_that_exist():
    for line in block_starting("ros2 launch").splitlines():
        package, name, *arguments = line.split()[2:]
        assert package == "driveRT_ros"
        source = (ROOT / "launch" / name).read_text(encoding="utf-8")
        for argument in arguments:
            assert f'DeclareLaunchArgument("{argument.split(":=")[0]}"' in source


@pytest.mark.skipif(shutil.which("ros2") is None, reason="the command ros2 is not installed here")
def test_the_launch_files_show_their_arguments():
    for line in block_starting("ros2 launch").splitlines():
        result = run(line.split(":=")[0].rsplit(" ", 1)[0] + " --show-args", ROOT, dict(os.environ))
        assert result.returncode == 0, result.stderr


def test_the_dds_setting_is_the_one_that_the_nodes_use():
    name, value = block_starting("export FASTDDS").removeprefix("export ").split("=")
    share, _, below = value.rpartition(")/")
    assert share == "$(ros2 pkg prefix --share driveRT_ros"
    assert transport_environment({})[name] == str(ROOT / below)


def test_the_parameter_table_is_that_of_the_code():
    spec = importlib.util.spec_from_file_location("parameters", ROOT / "docs" / "parameters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.with_table(TEXT) == TEXT, "run: python docs/parameters.py"


def test_every_link_leads_to_a_file():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
