"""ROS parameters made from configuration classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter

from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.paths import share_path
from driveRT_ros.core.schema import Config, group, param
from driveRT_ros.models import shipped
from driveRT_ros.models.checkpoint import save_weights
from driveRT_ros.models.shipped import LIDAR
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.nodes.lidar import LidarNode
from driveRT_ros.nodes.params import NodeParameters, help_text, yaml_text


@dataclass(frozen=True)
class Inner(Config):
    limit: float = param(0.5, "A limit.", unit="m", ge=0.0, le=1.0)
    size: tuple[float, ...] = param((1.0, 2.0, 3.0), "A size.", ge=0.1, lengths=(3,))


@dataclass(frozen=True)
class Example(Config):
    count: int = param(3, "A count.", ge=1)
    mode: str = param("a", "A mode.", choices=("a", "b"))
    names: tuple[str, ...] = param((), "Names.")
    inner: Inner = group(Inner)


class Maker:
    """Make nodes with the command line given, all in one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.changes: list[Any] = []
        self.nodes: list[Node] = []

    def __call__(self, *assignments: str, files: tuple[Path, ...] = ()) -> NodeParameters:
        args = [part for text in assignments for part in ("-p", text)]
        args += [part for path in files for part in ("--params-file", str(path))]
        node = Node("n", context=self._context, cli_args=["--ros-args", *args])
        self.nodes.append(node)
        return NodeParameters(node, Example, dynamic=("inner.",), on_change=self.changes.append)

    def set(self, name: str, value: Any) -> Any:
        return self.nodes[-1].set_parameters([Parameter(name, value=value)])[0]

    def get(self, name: str) -> Any:
        return self.nodes[-1].get_parameter(name).value


@pytest.fixture
def make(domain_id: int) -> Iterator[Maker]:
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    maker = Maker(context)
    yield maker
    for node in maker.nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


def test_every_field_becomes_a_parameter_with_text_and_range(make: Maker) -> None:
    make()
    node = make.nodes[-1]
    for parameter in Example.parameters():
        described = node.describe_parameter(parameter.name)
        assert parameter.info.doc in described.description
    limit = node.describe_parameter("inner.limit")
    [bounds] = limit.floating_point_range
    assert (bounds.from_value, bounds.to_value) == (0.0, 1.0)
    assert limit.additional_constraints == "[0.0, 1.0] m"
    assert node.describe_parameter("count").integer_range[0].from_value == 1
    assert make.get("inner.size") == [1.0, 2.0, 3.0]


def test_ints_are_accepted_where_floats_are_meant(make: Maker, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("/**:\n  ros__parameters:\n    inner:\n      limit: 1\n      size: [1, 1, 1]\n")
    made = make(files=(path,))
    assert (made.config.inner.limit, made.config.inner.size) == (1.0, (1.0, 1.0, 1.0))
    assert isinstance(made.config.inner.limit, float)
    assert make.set("inner.limit", 0).successful
    assert made.config.inner.limit == 0.0


def test_empty_list_in_a_file_is_an_empty_list(make: Maker, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("/**:\n  ros__parameters:\n    names: []\n")
    assert make(files=(path,)).config.names == ()


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("count:=0", ("'count'", "[1, inf]", "0")),
        ("count:=many", ("'count'", "type int", "'many'")),
        ("inner.limit:=1.5", ("'inner.limit'", "[0.0, 1.0] m", "1.5")),
        ("inner.size:=[1.0, 2.0]", ("'inner.size'", "3 values", "got 2")),
        ("inner.size:=[1.0, 2.0, 0.0]", ("'inner.size'", "[0.1, inf]", "0.0")),
        ("mode:=c", ("'mode'", "'a', 'b'", "'c'")),
        ("inner.limits:=1.0", ("'inner.limits'", "Did you mean 'inner.limit'?")),
    ],
)
def test_wrong_value_at_start_is_refused_with_name_value_and_range(
    make: Maker, assignment: str, parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(assignment)
    assert all(part in str(refused.value) for part in parts), refused.value


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("inner.limit", 7.0, ("inner.limit", "7.0", "1.0")),
        ("inner.limit", "x", ("'inner.limit'", "'x'", "float")),
        ("inner.size", [1.0, 2.0], ("'inner.size'", "3 values")),
        ("inner.size", [1.0, 2.0, -4.0], ("'inner.size'", "-4.0")),
        ("mode", "c", ("'mode'", "'c'", "'a', 'b'")),
    ],
)
def test_wrong_value_at_run_time_is_refused_and_the_old_one_kept(
    make: Maker, name: str, value: Any, parts: tuple[str, ...]
) -> None:
    made = make()
    old = make.get(name)
    refused = make.set(name, value)
    assert not refused.successful
    assert all(part in refused.reason for part in parts), refused.reason
    assert make.get(name) == old
    assert (made.config, make.changes) == (Example(), [])


def test_parameters_in_use_are_frozen_except_the_dynamic_ones(make: Maker) -> None:
    made = make()
    assert make.set("count", 5).successful
    made.frozen = True
    refused = make.set("count", 6)
    assert not refused.successful
    assert "'count' needs cleanup and configure" in refused.reason and "5" in refused.reason
    assert make.set("inner.limit", 0.25).successful
    assert (made.config.count, made.config.inner.limit) == (5, 0.25)
    assert make.changes[-1] == made.config


def test_shipped_parameter_file_holds_every_parameter_at_its_default() -> None:
    path = share_path("config/lidar_node.yaml")
    text = path.read_text(encoding="utf-8")
    assert text == yaml_text(LidarConfig, "lidar_node")
    assert LidarConfig.from_yaml(path) == LidarConfig()
    tree = yaml.safe_load(text)["/**"]["ros__parameters"]
    assert LidarConfig.from_dict(tree).to_dict() == LidarConfig().to_dict()
    leaves = [line for line in text.splitlines()[4:] if ":" in line and "#" not in line]
    groups = {p.name.split(".")[0] for p in LidarConfig.parameters() if "." in p.name}
    assert len(leaves) == len(list(LidarConfig.parameters())) + len(groups)


def test_shipped_parameter_file_is_accepted_by_ros(domain_id: int) -> None:
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    path = str(share_path("config/lidar_node.yaml"))
    node = Node("lidar_node", context=context, cli_args=["--ros-args", "--params-file", path])
    assert NodeParameters(node, LidarConfig).config == LidarConfig()
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_a_node_told_no_weights_shows_that_it_runs_those_of_the_package(
    domain_id: int, tmp_path: Path, monkeypatch
) -> None:
    """With the parameter file of its defaults, too: launch files pass that, and an empty path."""
    model = ModelConfig(channels=(4, 4, 4, 8, 8, 8))
    save_weights(LIDAR.path(tmp_path), untrained_weights(model, 0))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    defaults = ["--params-file", str(share_path("config/lidar_node.yaml"))]
    node = LidarNode(context=context, cli_args=["--ros-args", *defaults])
    assert node.get_parameter("checkpoint_path").value == str(LIDAR.path())
    assert list(node.get_parameter("model.channels").value) == [4, 4, 4, 8, 8, 8]
    assert node.config.model == model
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_dynamic_parameters_of_the_lidar_node_exist() -> None:
    names = [p.name for p in LidarConfig.parameters()]
    for prefix in LidarNode.dynamic_parameters:
        assert any(name.startswith(prefix) for name in names)


def test_where_ahead_is_may_change_while_the_node_detects_and_radians_are_refused(
    domain_id: int,
) -> None:
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    node, changes = Node("n", context=context), []
    dynamic = LidarNode.dynamic_parameters
    made = NodeParameters(node, LidarConfig, dynamic=dynamic, on_change=changes.append)
    made.frozen = True
    answers = [
        node.set_parameters([Parameter(name, value=value)])[0]
        for name, value in (
            ("input.forward_yaw_deg", 0.0),
            ("input.forward_yaw_deg", 1.5708),
            ("model.forward_yaw_deg", 0.0),
        )
    ]
    node.destroy_node()
    rclpy.shutdown(context=context)
    assert [a.successful for a in answers] == [True, False, False]
    assert "looks like radians; use 90" in answers[1].reason
    assert "needs cleanup and configure" in answers[2].reason, "it is of the weights"
    assert (
        [c.input.forward_yaw_deg for c in changes] == [0.0] == [made.config.input.forward_yaw_deg]
    )


def test_help_names_every_parameter() -> None:
    text = help_text(LidarConfig)
    assert all(p.name in text and p.info.doc in text for p in LidarConfig.parameters())
