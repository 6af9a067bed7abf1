"""Everything that describes the package says the same."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path

import pytest

import driveRT_ros

REPO = Path(__file__).resolve().parents[2]
MANIFEST = ElementTree.parse(REPO / "package.xml").getroot()


def setup_arguments() -> dict[str, ast.expr]:
    """Return the keyword arguments of the setup() call, unevaluated."""
    tree = ast.parse((REPO / "setup.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setup":
            return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    raise AssertionError("setup.py does not call setup()")


def check_module():
    spec = importlib.util.spec_from_file_location("check", REPO / "requirements" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_version_in_setup_py_package_xml_and_the_module():
    version = driveRT_ros.__version__
    assert MANIFEST.findtext("version") == version
    assert ast.literal_eval(setup_arguments()["version"]) == version


def test_one_licence_in_setup_py_package_xml_and_the_licence_file():
    assert MANIFEST.findtext("license") == "Apache-2.0"
    assert ast.literal_eval(setup_arguments()["license"]) == "Apache-2.0"
    head = (REPO / "LICENSE").read_text()[:200]
    assert "Apache License" in head and "Version 2.0" in head


def test_package_xml_is_an_ament_python_package_named_like_its_marker():
    name = MANIFEST.findtext("name")
    assert name == "driveRT_ros"
    assert MANIFEST.findtext("export/build_type") == "ament_python"
    assert (REPO / "config" / "ament" / name).is_file()


def test_every_ros_package_that_nodes_import_is_named_in_package_xml():
    named = {element.text for element in MANIFEST if element.tag.endswith("depend")}
    optional = {"autoware_perception_msgs"}
    ros = re.compile(r"(rclpy|launch\w*|\w+_msgs(_py)?|\w+_interfaces|ament_\w+|tf2_\w+)$")
    used = set()
    for path in [*REPO.glob("driveRT_ros/nodes/**/*.py"), *REPO.glob("launch/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            used |= {name.split(".")[0] for name in names}
    assert "rclpy" in used
    assert {name for name in used if ros.match(name)} <= named | optional


def test_every_requirement_is_pinned_to_one_version():
    lines = [
        line.strip()
        for path in (REPO / "requirements").glob("*.txt")
        for line in path.read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9.-]+==[0-9][\w.]*", line)] == []


def test_no_requirement_is_given_twice():
    names = [
        line.split("==")[0].lower()
        for path in (REPO / "requirements").glob("*.txt")
        for line in path.read_text().splitlines()
        if "==" in line
    ]
    assert sorted(names) == sorted(set(names))


def test_every_console_script_points_at_a_function():
    try:
        scripts = metadata.distribution("driveRT_ros").entry_points
    except metadata.PackageNotFoundError:
        pytest.skip("driveRT_ros is not installed in this environment; run make install")
    assert {script.name for script in scripts} >= {"drivert", "lidar_node", "replay_node"}
    assert [script.name for script in scripts if not callable(script.load())] == []


@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 12), (3, 13)])
def test_supported_interpreters_pass_the_check(version):
    assert check_module().problem(version, "Linux", "x86_64", True) == ""


@pytest.mark.parametrize(
    ("version", "system", "machine", "has_venv", "said"),
    [
        ((3, 9), "Linux", "x86_64", True, "Python 3.9 is not supported"),
        ((3, 14), "Linux", "x86_64", True, "Python 3.14 is not supported"),
        ((2, 7), "Linux", "x86_64", True, "Python 2.7 is not supported"),
        ((3, 11), "Linux", "aarch64", True, "this is Linux on aarch64"),
        ((3, 11), "Darwin", "x86_64", True, "this is Darwin on x86_64"),
        ((3, 11), "Linux", "x86_64", False, "python3-venv"),
    ],
)
def test_other_machines_are_refused_in_a_sentence(version, system, machine, has_venv, said):
    assert said in check_module().problem(version, system, machine, has_venv)


def test_this_interpreter_is_one_that_setup_py_admits():
    assert ast.literal_eval(setup_arguments()["python_requires"]) == ">=3.10"
    assert sys.version_info >= (3, 10)
