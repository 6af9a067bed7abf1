"""The rules of the house: layers, sizes, docstrings, style and types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PACKAGE = "driveRT_ros"
ROS_MODULE = re.compile(
    r"(rclpy|rosidl\w*|ament_\w+|launch(_ros)?|tf2_\w+|rosbag2_py|cv_bridge|\w+_msgs(_py)?"
    r"|rcl_interfaces|builtin_interfaces)(\.|$)"
)
# Layer: the layers it must not import. Data moves from io through core to nodes and never back.
FORBIDDEN_LAYERS = {
    "core": {"io", "nodes", "sim", "train", "bench", "commands", "cli"},
    "io": {"nodes", "bench", "commands", "cli"},
    "models": {"io", "nodes", "bench", "commands", "cli"},
    "sim": {"nodes", "bench", "commands", "cli"},
    "bench": {"nodes", "commands", "cli"},
    "nodes": {"bench", "commands", "cli"},
}
ROS_FREE_LAYERS = ("core", "io", "models", "sim", "bench", "train")
MAX_MODULE_LINES = 400
MAX_NODE_LINES = 200
MAX_KERNEL_LINES = 500
MAX_FUNCTION_LINES = 60


def tracked(*patterns: str) -> list[Path]:
    """Return files under version control, or all files of a source tree without history."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *(f":(glob)**/{pattern}" for pattern in patterns)],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("not a git work tree: no list of the project's files", allow_module_level=True)
    names = [name for name in done.stdout.split("\0") if name]
    return [path for path in (REPO / name for name in names) if path.is_file()]


PYTHON = tracked("*.py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and absolute name of all that a module imports, also inside functions."""
    package = path.relative_to(REPO).with_suffix("").parts
    package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*parents, *([node.module] if node.module else [])))
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer_files(layer: str) -> list[Path]:
    root = REPO / PACKAGE
    return [p for p in PYTHON if p.is_relative_to(root / layer) or p == root / f"{layer}.py"]


def at(path: Path, line: int, what: object) -> str:
    return f"{path.relative_to(REPO)}:{line}: {what}"


@pytest.mark.parametrize("layer", ROS_FREE_LAYERS)
def test_ros_is_imported_by_nodes_only(layer):
    assert [
        at(path, line, name)
        for path in layer_files(layer)
        for line, name in imports_of(path)
        if ROS_MODULE.match(name)
    ] == []


@pytest.mark.parametrize("layer", FORBIDDEN_LAYERS)
def test_layers_import_in_one_direction(layer):
    banned = FORBIDDEN_LAYERS[layer]
    assert [
        at(path, line, name)
        for path in layer_files(layer)
        for line, name in imports_of(path)
        if name.split(".")[0] == PACKAGE
        and len(name.split(".")) > 1
        and name.split(".")[1] in banned
    ] == []


def test_the_import_scan_sees_relative_and_nested_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "REPO", tmp_path)
    path = tmp_path / PACKAGE / "core" / "reference" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from .. import voxelize\ndef f():\n    from ...io import bag\n    import rclpy.node\n"
    )
    names = {name for _, name in imports_of(path)}
    assert {"driveRT_ros.core.voxelize", "driveRT_ros.io.bag", "rclpy.node"} <= names


def test_modules_stay_short():
    limits = dict.fromkeys(PYTHON, MAX_MODULE_LINES)
    limits |= dict.fromkeys(layer_files("nodes"), MAX_NODE_LINES)
    limits |= dict.fromkeys(tracked("*.cu", "*.cuh"), MAX_KERNEL_LINES)
    sizes = {path: len(path.read_text().splitlines()) for path in limits}
    assert [
        at(path, sizes[path], f"limit is {limit} lines")
        for path, limit in limits.items()
        if sizes[path] > limit
    ] == []


def test_functions_stay_short():
    def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        # The docstring is not code: shapes and errors should be written out at length.
        first = node.body[0]
        has_docstring = ast.get_docstring(node, clean=False) is not None
        docstring = first.end_lineno - first.lineno + 1 if has_docstring else 0
        return node.end_lineno - node.lineno + 1 - docstring

    assert [
        at(path, node.lineno, f"{node.name} has {code_lines(node)} of {MAX_FUNCTION_LINES} lines")
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and code_lines(node) > MAX_FUNCTION_LINES
    ] == []


def test_every_module_says_what_it_is_for():
    assert [
        at(path, 1, "no module docstring")
        for path in PYTHON
        if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []


def test_files_speak_of_no_particular_machine():
    # Absolute paths of whoever wrote them help no reader and break on the reader's machine.
    personal = re.compile(
        r"(?<![\w./~])/(work|root|home/\w+|Users/\w+)/|file://" + r"/|shared/" + r"design"
    )
    found = []
    for path in tracked("*"):
        data = path.read_bytes()
        if b"\0" in data or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(data.decode().splitlines(), 1):
            if personal.search(line):
                found.append(at(path, number, line.strip()))
    assert found == []


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
    ids=["ruff check", "ruff format", "mypy"],
)
def test_style_and_types_are_clean(command):
    pytest.importorskip(command[0], reason=f"{command[0]} is not installed; run make install")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=REPO, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
