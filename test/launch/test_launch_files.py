"""Launch files: what they start and set exists; they run where launch_ros is installed."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
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
from driveRT_ros.nodes.transport import CHOICES, PROFILES

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


FAKED = (
    *("launch", "launch.actions", "launch.conditions", "launch.event_handlers"),
    *("launch.launch_description_sources", "launch.substitutions", "launch_ros"),
    *("launch_ros.actions", "launch_ros.parameter_descriptions", "launch_ros.substitutions"),
)
SHARED = "driveRT_ros.nodes.launching"


class Made:
    """What a launch file made of the classes of launch and launch_ros, which are not needed."""

    def __init__(self, modules: dict[str, MagicMock]) -> None:
        self._modules = modules

    def calls(self, name: str) -> list[Any]:
        """Return the calls of a class, wherever it was imported."""
        return [
            call for fake in self._modules.values() for call in getattr(fake, name).call_args_list
        ]

    def names(self, name: str) -> list[str]:
        """Return the first argument of every call, sorted."""
        return sorted(call.args[0] for call in self.calls(name))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Made]]:
    """Run a launch file, and what it would run at its start, with some arguments given."""

    def run(path: Path, **given: str) -> Made:
        modules = {name: MagicMock() for name in FAKED}
        for name, fake in modules.items():
            monkeypatch.setitem(sys.modules, name, fake)
        sys.modules.pop(SHARED, None)  # it must meet these modules, not those of another test
        substitutions, actions = modules["launch.substitutions"], modules["launch.actions"]
        substitutions.LaunchConfiguration.side_effect = lambda name: SimpleNamespace(
            perform=lambda context: given.get(name, "")
        )
        values = modules["launch_ros.parameter_descriptions"].ParameterValue
        values.side_effect = lambda value, value_type: value
        loaded(path)["generate_launch_description"]()
        for call in actions.OpaqueFunction.call_args_list:
            call.kwargs["function"](MagicMock())
        return Made(modules)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield run
    sys.modules.pop(SHARED, None)


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
def test_nodes_exist_and_their_parameters_are_known(path: Path, made: Callable[..., Made]) -> None:
    installed = re.findall(r"f\"(\w+) = ", (REPO / "setup.py").read_text())
    nodes = [call.kwargs for call in made(path, checkpoint="weights").calls("LifecycleNode")]
    assert nodes
    for node in nodes:
        assert node["executable"] in installed and node["package"] == "driveRT_ros"
        known = {p.name for p in CONFIGS[node["executable"]].parameters()} | {"use_sim_time"}
        for values in node["parameters"]:
            assert not isinstance(values, dict) or set(values) <= known


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_files_a_launch_file_names_are_in_the_package(
    path: Path, made: Callable[..., Made]
) -> None:
    joined = made(path).calls("PathJoinSubstitution")
    assert joined
    for call in joined:
        target = REPO.joinpath(*call.args[0][1:])
        assert target.is_file(), f"{path.name} names {target}"


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_arguments_that_are_used_are_declared_once(path: Path, made: Callable[..., Made]) -> None:
    found = made(path)
    assert found.names("DeclareLaunchArgument") == sorted(set(found.names("LaunchConfiguration")))


def test_included_arguments_are_those_of_the_included_file(made: Callable[..., Made]) -> None:
    declared = made(REPO / "launch" / "lidar.launch.py").names("DeclareLaunchArgument")
    (include,) = made(REPO / "launch" / "replay.launch.py").calls("IncludeLaunchDescription")
    assert set(dict(include.kwargs["launch_arguments"])) <= set(declared)


def test_large_messages_get_a_transport_that_carries_them(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("camera", "lidar"):
        found = made(REPO / "launch" / f"{name}.launch.py")
        assert not found.calls("SetEnvironmentVariable")  # chosen already
        with monkeypatch.context() as unset:
            for choice in (*CHOICES, "ROS_DISTRO"):
                unset.delenv(choice, raising=False)
            found = made(REPO / "launch" / f"{name}.launch.py")
        (variable,) = found.calls("SetEnvironmentVariable")
        assert variable.args == (PROFILES, str(REPO / "config" / "fastdds.xml"))
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
    name: str, made: Callable[..., Made]
) -> None:
    # An empty one would run other weights than the parameter file of the vehicle asks for.
    for given in ("", "mine.safetensors"):
        found = made(REPO / "launch" / f"{name}.launch.py", checkpoint=given)
        (node,) = found.calls("LifecycleNode")
        _, values = node.kwargs["parameters"]
        assert values.get("checkpoint_path", "") == given
        assert ("checkpoint_path" in values) == bool(given) and "use_sim_time" in values
        assert ("input.transport" in values) == (name == "camera")


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
