"""A wheel of the package carries its files and finds them once installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FOLDERS = ("config", "driveRT_ros", "interfaces", "kernels", "launch")
WEIGHTS = Path("driveRT_ros", "models", "weights")
FILES = ("LICENSE", "package.xml", "pyproject.toml", "setup.cfg", "setup.py")


def pip(*arguments: str | Path) -> None:
    """Run pip without a network; a failure shows all it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Folder into which a wheel was installed; it is built from a copy, away from the source."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPO / name, source / name, ignore=ignored)
    for name in FILES:
        shutil.copy2(REPO / name, source)
    weights = source / WEIGHTS
    weights.mkdir(exist_ok=True)
    for suffix in ("safetensors", "md"):
        (weights / f"probe.{suffix}").write_text(suffix)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    pip(
        "install",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        "--target",
        folder / "site",
        wheel,
    )
    return folder / "site"


def test_an_installed_wheel_finds_every_file_that_travels_with_it(site, tmp_path):
    names = [
        path.relative_to(REPO).as_posix()
        for folder in ("config", "interfaces", "kernels", "launch")
        for path in (REPO / folder).rglob("*")
        if path.is_file() and "ament" not in path.parts and path.suffix != ".pyc"
    ]
    assert "kernels/common.cuh" in names and "kernels/budgets.json" in names
    script = (
        "import sys, driveRT_ros\n"
        "from driveRT_ros.core.paths import share_path\n"
        "print(driveRT_ros.__file__, *map(share_path, sys.argv[1:]), sep=chr(10))"
    )
    env = {k: v for k, v in os.environ.items() if k != "DRIVERT_SHARE"} | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [Path(line) for line in done.stdout.splitlines()]
    assert all(path.is_relative_to(site) for path in found), found
    for name, path in zip(names, found[1:]):
        assert path.read_bytes() == (REPO / name).read_bytes(), name


def test_an_installed_wheel_holds_every_module(site):
    modules = {p.relative_to(REPO) for p in (REPO / "driveRT_ros").rglob("*.py")}
    assert {module for module in modules if not (site / module).is_file()} == set()


def test_an_installed_wheel_holds_trained_weights_and_their_cards(site):
    ours = {p.name: p.read_bytes() for p in (REPO / WEIGHTS).glob("*")}
    ours |= {"probe.safetensors": b"safetensors", "probe.md": b"md"}
    found = {p.name: p.read_bytes() for p in (site / WEIGHTS).glob("*")}
    assert found == ours
