"""Launch files: what they start and set exists; they run where launch_ros is installed."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from driveRT_ros.cli import build_parser
from driveRT_ros.commands.common import DETECTIONS, dropped_topic
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.params import yaml_text
from driveRT_ros.nodes.recording import RecorderConfig
from driveRT_ros.nodes.replay_config import ReplayConfig

REPO = Path(__file__).resolve().parents[2]
LAUNCH_FILES = sorted((REPO / "launch").glob("*.launch.py"))
CONFIGS = {
    "camera_node": CameraConfig,
    "lidar_node": LidarConfig,
    "replay_node": ReplayConfig,
    "recorder_node": RecorderConfig,
}
needs_launch = pytest.mark.skipif(
    importlib.util.find_spec("launch_ros") is None,
    reason="launch and launch_ros come with a ROS install; PyPI does not carry them",
)


def calls(path: Path, name: str) -> Iterator[dict[str, ast.expr]]:
    """Yield the keyword arguments of every call of ``name`` in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
            yield {k.arg: k.value for k in node.keywords if k.arg}


def loaded(path: Path) -> dict[str, Any]:
    """Return what a launch file defines and imports, by name."""
    return runpy.run_path(str(path))


def strings(node: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is str]


def test_there_are_launch_files() -> None:
    assert [p.name for p in LAUNCH_FILES] == [
        "camera.launch.py",
        "lidar.launch.py",
        "replay.launch.py",
    ]


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_nodes_exist_and_their_parameters_are_known(path: Path) -> None:
    installed = re.findall(r"f\"(\w+) = ", (REPO / "setup.py").read_text())
    for keywords in calls(path, "LifecycleNode"):
        (executable,) = strings(keywords["executable"])
        assert executable in installed
        assert strings(keywords["package"]) == ["driveRT_ros"]
        known = {p.name for p in CONFIGS[executable].parameters()} | {"use_sim_time"}
        for node in ast.walk(keywords["parameters"]):
            if isinstance(node, ast.Dict):
                assert {k.value for k in node.keys} <= known


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_files_a_launch_file_names_are_in_the_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "PathJoinSubstitution"
        ):
            continue
        target = REPO.joinpath(*strings(node))
        assert target.is_file(), f"{path.name} names {target}"


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_arguments_that_are_used_are_declared(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names: dict[str, set[str]] = {"DeclareLaunchArgument": set(), "LaunchConfiguration": set()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names:
            names[node.func.id].add(node.args[0].value)
    assert names["LaunchConfiguration"] == names["DeclareLaunchArgument"]


def test_included_arguments_are_those_of_the_included_file() -> None:
    included = (REPO / "launch" / "lidar.launch.py").read_text()
    declared = set(re.findall(r"DeclareLaunchArgument\(\s*\"(\w+)\"", included))
    (keywords,) = calls(REPO / "launch" / "replay.launch.py", "IncludeLaunchDescription")
    dictionary = next(n for n in ast.walk(keywords["launch_arguments"]) if isinstance(n, ast.Dict))
    assert {k.value for k in dictionary.keys} <= declared


def test_large_messages_get_a_transport_that_carries_them() -> None:
    for name in ("camera", "lidar"):
        text = (REPO / "launch" / f"{name}.launch.py").read_text()
        assert '"FASTDDS_BUILTIN_TRANSPORTS"' in text
    assert "lidar.launch.py" in (REPO / "launch" / "replay.launch.py").read_text()


def test_without_a_bag_the_replay_plays_one_that_the_command_line_tool_simulates() -> None:
    (keywords,) = calls(REPO / "launch" / "replay.launch.py", "ExecuteProcess")
    option, module, *command = strings(keywords["cmd"])
    assert (option, module) == ("-m", "driveRT_ros")
    parsed = build_parser().parse_args([*command, "somewhere"])
    assert (parsed.command, parsed.sim, parsed.out) == ("convert", True, "somewhere")
    (after,) = calls(REPO / "launch" / "replay.launch.py", "OnProcessExit")
    assert ast.unparse(after["on_exit"]) == "[replay_node(bag)]"


def test_the_replay_listens_where_the_lidar_node_answers() -> None:
    text = (REPO / "launch" / "replay.launch.py").read_text()
    assert f'"lockstep_topic": "{DETECTIONS}"' in text
    assert f'"lockstep_dropped_topic": "{dropped_topic(DETECTIONS)}"' in text


@pytest.mark.parametrize("name", ["camera", "lidar"])
def test_only_a_checkpoint_that_is_named_overrides_that_of_the_parameter_file(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An empty one would run other weights than the parameter file of the vehicle asks for.
    for module in ("", ".actions", ".conditions", ".substitutions"):
        monkeypatch.setitem(sys.modules, f"launch{module}", MagicMock())
    for module in ("", ".actions", ".parameter_descriptions", ".substitutions"):
        monkeypatch.setitem(sys.modules, f"launch_ros{module}", MagicMock())
    launch_file = loaded(REPO / "launch" / f"{name}.launch.py")
    for given in ("", "mine.safetensors"):
        launch_file["LaunchConfiguration"].return_value.perform.return_value = given
        launch_file["ParameterValue"].side_effect = lambda value, value_type: value
        launch_file[name](MagicMock())
        _, values = launch_file["LifecycleNode"].call_args.kwargs["parameters"]
        assert values.get("checkpoint_path", "") == given
        assert ("checkpoint_path" in values) == bool(given) and "use_sim_time" in values


@needs_launch
@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_a_launch_description_can_be_made(path: Path) -> None:
    assert loaded(path)["generate_launch_description"]().entities


@pytest.mark.parametrize("name", ["camera_node", "replay_node", "recorder_node"])
def test_parameter_files_hold_every_parameter_at_its_default(name: str) -> None:
    path = REPO / "config" / f"{name}.yaml"
    assert path.read_text() == yaml_text(CONFIGS[name], name)
    assert CONFIGS[name].from_yaml(path) == CONFIGS[name]()


def test_replay_parameters_lose_no_cloud() -> None:
    config = LidarConfig.from_yaml(REPO / "config" / "lidar_replay.yaml")
    assert config.input.back_pressure and config.input.reliability == "reliable"
