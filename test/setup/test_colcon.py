"""The package builds and runs in a colcon workspace, copied or linked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
NAME = "driveRT_ros"
COLCON = shutil.which("colcon") or str(Path(sys.executable).parent / "colcon")
BEFORE = {path.name for path in REPO.iterdir()}
SCRIPTS = ("drivert", "camera_node", "lidar_node", "recorder_node", "replay_node")

pytestmark = pytest.mark.skipif(
    not Path(COLCON).is_file(), reason="colcon is not installed; run make install"
)


def run(*command: str | Path, **options) -> str:
    """Run a command and return its output; a failure shows all it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module", params=["copied", "linked"])
def install(request, tmp_path_factory) -> Path:
    """Install folder of a workspace whose build ran with or without --symlink-install."""
    workspace = tmp_path_factory.mktemp(request.param)
    run(
        COLCON,
        *("--log-base", workspace / "log", "build"),
        *("--base-paths", REPO),
        *("--build-base", workspace / "build"),
        *("--install-base", workspace / "install"),
        *(["--symlink-install"] if request.param == "linked" else []),
        cwd=workspace,
    )
    return workspace / "install"


def in_workspace(install: Path, script: str, tmp_path: Path) -> str:
    """Run shell lines after sourcing the workspace, in a folder away from the source tree."""
    # Without PYTHONPATH, so that only what the workspace itself sets can be found.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    setup = f"source '{install}/local_setup.bash'"
    return run("bash", "-eo", "pipefail", "-c", f"{setup}\n{script}", env=env, cwd=tmp_path)


def test_only_this_package_is_found(tmp_path):
    listed = run(
        COLCON, "--log-base", tmp_path, "list", "--names-only", "--base-paths", REPO, cwd=tmp_path
    )
    assert [line for line in listed.splitlines() if " " not in line and line] == [NAME]


def test_the_interfaces_folder_is_ignored_by_itself(tmp_path):
    listed = run(
        *(COLCON, "--log-base", tmp_path, "list", "--names-only"),
        *("--base-paths", REPO / "interfaces"),
        cwd=tmp_path,
    )
    assert "vision_msgs" not in listed


def test_the_marker_makes_ros_find_the_package(install):
    prefix = install / NAME
    assert (prefix / "share/ament_index/resource_index/packages" / NAME).is_file()
    assert (prefix / "share" / NAME / "package.xml").is_file()


def test_files_of_the_source_tree_are_in_the_share_folder(install):
    share = install / NAME / "share" / NAME
    for folder in ("config", "interfaces", "kernels", "launch"):
        for source in (REPO / folder).rglob("*"):
            relative = source.relative_to(REPO)
            if source.is_file() and "ament" not in relative.parts and source.suffix != ".pyc":
                assert (share / relative).read_bytes() == source.read_bytes(), relative


def test_ros2_run_finds_every_executable(install):
    folder = install / NAME / "lib" / NAME
    assert [name for name in SCRIPTS if not os.access(folder / name, os.X_OK)] == []


def test_the_module_and_its_metadata_come_from_the_workspace(install, tmp_path):
    got = in_workspace(
        install,
        f"'{sys.executable}' -c '"
        "import driveRT_ros, importlib.metadata as m; print(driveRT_ros.__file__); "
        'print(m.version("driveRT_ros"))\'',
        tmp_path,
    ).splitlines()
    assert got[-1] == __import__("driveRT_ros").__version__
    # A linked install must show edits at once, a copied one must not.
    linked = REPO in Path(got[-2]).resolve().parents
    assert linked == (install.parent.name.startswith("linked"))


def test_an_installed_executable_starts(install, tmp_path):
    # Console scripts have failed here before over the spelling of the distribution's name.
    script = f"'{sys.executable}' '{install / NAME / 'lib' / NAME / 'drivert'}' --help"
    assert "demo" in in_workspace(install, script, tmp_path)


def test_the_build_leaves_the_source_tree_as_it_was(install):
    new = {path.name for path in REPO.iterdir()} - BEFORE
    assert {name for name in new if not name.startswith(".")} == set()
